//! What unithreads are good for: far memory, requests to the kernel, channels, sockets, and services of them. The scheduler knows none of it.

pub(crate) mod allocator;
pub mod channel;
pub(crate) mod far;
pub mod io;
pub mod net;
pub(crate) mod request;
pub(crate) mod sockets;
