//! The nearest vectors of a query: an inverted file of whole vectors (Faiss calls it `IVFFlat`), in memory that may be far away.
//!
//! The space is divided into cells, each around a centroid. The vectors of a cell are its *list*: they lie in a row, in far memory. A search compares the
//! query with all centroids, which are few and are used all the time, and reads the lists of the nearest ones (*probes*). A vector that lies in another list is missed:
//! the share that is found is the *recall*.
//!
//! | module | what it does |
//! |---|---|
//! | [`resp`] | Redis' protocol: bytes to words, and answers; no input or output |
//! | [`query`] | `FT.SEARCH`: words to a search |
//! | [`server`] | connections, datagrams, commands |
//! | [`index`] | centroids and lists: how they are made, and searched |
//! | [`cells`] | the centroids, by k-means |
//! | [`rows`] | vectors and centroids as they lie in far memory: **each has a check, which is looked at whenever it is read** |
//! | [`stats`] | what happened |
//!
//! **Where a search may leave its worker.** At any access to a row, a centroid, or what it has itself on the heap. It holds no lock and has no thread-local
//! data in two minds: the index is never written again, and all else is the request's own. The heap's functions are called with a hold ([`crate::memory`] says
//! where else there is one). Libraries that could do the search were looked at for this; record 90 says why none does.
//!
//! **Answers are the same each time**, on each machine, whatever is near: the index follows from the vectors, distances are added up in one order
//! ([`farshore_load::vectors`]), and of two vectors that are as far the one with the lower number is first.

pub mod cells;
pub mod index;
pub mod query;
pub mod resp;
pub mod rows;
pub mod server;
pub mod stats;
#[cfg(test)]
mod tests;
