//! A memcached: its text protocol over TCP and UDP, with items in memory that may be far away.
//!
//! | module | what it does |
//! |---|---|
//! | [`protocol`] | bytes to commands; no input or output |
//! | [`store`] | the items |
//! | [`session`], `meta`, `stats` | commands to answers |
//! | [`reply`] | answers on their way out |
//! | [`server`] | unithreads, sockets, limits |

mod meta;
pub mod protocol;
pub mod reply;
pub mod server;
pub mod session;
mod stats;
pub mod store;
#[cfg(test)]
mod tests;
