//! TPC-C: an in-memory database of stored procedures, with optimistic concurrency control as in Silo, in memory that may be far away.
//!
//! | module | what it does |
//! |---|---|
//! | [`protocol`] | lines to requests; no input or output |
//! | [`server`] | connections, datagrams, answers |
//! | [`work`] | the five transactions of the specification (TPC-C 5.11, clause 2) |
//! | [`check`] | its consistency conditions (clause 3.3.2) |
//! | [`populate`], [`random`] | the data that there are at first (clause 4.3) |
//! | [`database`], [`rows`] | tables, indexes, and where a record lies |
//! | [`transaction`] | **reads, writes, commit**: why concurrent transactions are as if one came after the other |
//! | [`records`] | records, and the word in front of each: version and lock |
//! | [`gate`] | how one transaction gets the database for itself |
//! | [`stats`] | what happened |

pub mod check;
pub mod database;
pub mod gate;
pub mod populate;
pub mod protocol;
pub mod random;
pub mod records;
pub mod rows;
pub mod server;
pub mod stats;
#[cfg(test)]
mod tests;
pub mod transaction;
pub mod work;
