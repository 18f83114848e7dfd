//! The net's table, buffers, transfers and calls, without the library around them: against the real kernel, on a fake
//! engine (`src/net/tests_fake.rs`) that takes every page away that was not pinned.
//!
//! The modules are included as they are, since a library that catches system calls cannot be linked into a test program.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(dead_code, unused_imports, reason = "only a part of each module is used here")]

#[path = "../src/net/buffers.rs"]
mod buffers;
#[path = "../src/net/calls.rs"]
mod calls;
#[path = "../src/report.rs"]
mod report;
#[path = "../src/net/table.rs"]
mod table;
#[path = "../src/net/transfer.rs"]
mod transfer;

/// What filters ask of the library around the net: here there is none, and no thread of Farshore's.
mod runtime {
    #[derive(Clone, Copy)]
    pub enum Runtime {}
    impl Runtime {
        pub fn have_small_pages(self) {
            match self {}
        }
    }
    pub fn runtime() -> Option<&'static Runtime> {
        None
    }
    pub fn uninterrupted<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
}

mod process {
    pub fn has_one_thread() -> bool {
        true
    }
}

mod thread {
    #[derive(Debug)]
    pub struct Thread;
    impl Thread {
        pub fn is_guest(&self) -> bool {
            false
        }
    }
    pub fn is_guest() -> bool {
        false
    }
    pub fn current() -> Option<&'static Thread> {
        None
    }
}

mod own_threads {
    use crate::runtime::Runtime;
    pub fn stop(runtime: &Runtime) -> bool {
        match *runtime {}
    }
    pub fn allow_readers(runtime: &Runtime, _allowed: bool) {
        match *runtime {}
    }
    pub mod knock {
        pub fn be_silent() {}
    }
    pub mod rights {
        use crate::runtime::Runtime;
        use crate::thread::Thread;
        pub fn would_be_left(thread: &Thread) -> bool {
            !thread.is_guest()
        }
        pub fn has_filtered(runtime: &Runtime, _everywhere: bool) {
            match *runtime {}
        }
        pub fn can_be_made_again() -> bool {
            true
        }
        pub fn has_threads() -> bool {
            false
        }
        pub fn make_last(runtime: &'static Runtime) -> bool {
            match *runtime {}
        }
    }
}
