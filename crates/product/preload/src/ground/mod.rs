//! What every layer stands on, and what knows of none of them.
//!
//! | module | what |
//! |---|---|
//! | [`report`], [`lost`] | lines on stderr, ends; a page that cannot be had |
//! | [`environment`], [`mappings`], [`nodes`], [`text`] | what the process finds: variables, mappings, NUMA nodes, its own code |
//! | [`runtime`], [`parts`], [`changes`] | the one engine, what it is made from, swap spaces that were asked for |
//! | [`thread`], [`count`], [`unithreads`], [`kept`] | a record a thread; how many threads; unithreads; pages kept for a handler |
//! | [`sleeping`] | a dormant process: how one thread stops the others |
//! | [`own_threads`] | Farshore's own threads, one of which serves the socket at which `farshore stat` knocks |
//! | [`files`] | mappings of files that are managed, and what becomes of them when a file is to be written |
//! | [`net`] | the program's memory, for whoever reads it |
//! | [`apart`], `spare` | where what the library's dependencies map lies, and what the program's calls do there |
//! | [`above`] | what the ground calls in the layers above it |

pub mod above;
pub mod apart;
pub mod changes;
pub mod count;
pub mod environment;
pub mod files;
pub mod kept;
pub mod lost;
pub mod mappings;
pub mod net;
pub mod nodes;
pub mod own_threads;
pub mod parts;
pub mod ranges;
pub mod report;
pub mod runtime;
pub mod sleeping;
pub mod small;
mod spare;
pub mod text;
pub mod thread;
pub mod unithreads;
pub mod withheld;

/// Farshore's own heap, apart from the program's.
#[global_allocator]
pub static HEAP: farshore_sys::alloc::OwnMemory = farshore_sys::alloc::OwnMemory::new();
