//! What the scheduler stands on: the kernel, as this crate needs it, and the library beside it. Nothing here knows a unithread.

pub(crate) mod error;
pub(crate) mod feed;
pub(crate) mod library;
pub(crate) mod os;
pub(crate) mod own;
pub(crate) mod ring;
