//! Tests of the whole. Not integration tests: those would build the binary, which aborts at a panic, beside a test that unwinds, and the library of
//! unithreads, which C programs link to, has one file name for both.

mod differential;
mod parser;
mod store;
