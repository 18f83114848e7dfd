//! Which cache lines each thread writes, for a test (`crates/product/engine/tests/lines.rs`): the feature `recorder` puts these
//! atomics in place of `core`'s.
//!
//! Every store and read-modify-write is noted, including a compare-and-swap that fails: it takes the line away from other cores
//! all the same. Data under a [`crate::spin::SpinLock`] counts as written by the thread that held the lock. Plain memory is not
//! seen: the language's rules give it one owner.

extern crate std;

use crate::sync::Ordering;
use core::cell::RefCell;
use core::panic::Location;
use std::collections::BTreeMap;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Cache lines by number, and where in the code they were written.
pub type Lines = BTreeMap<usize, std::collections::BTreeSet<std::string::String>>;

std::thread_local! {
    static WRITTEN: RefCell<Option<Lines>> = const { RefCell::new(None) };
}

/// Runs `work`, and returns the lines that the calling thread wrote meanwhile.
pub fn record<R>(work: impl FnOnce() -> R) -> (R, Lines) {
    WRITTEN.with_borrow_mut(|written| *written = Some(Lines::new()));
    let result = work();
    (result, WRITTEN.take().unwrap_or_default())
}

/// Notes a write of `len` bytes at `address`.
#[track_caller]
pub fn wrote(address: usize, len: usize) {
    let place = Location::caller();
    let _ = WRITTEN.try_with(|written| {
        if let Ok(mut written) = written.try_borrow_mut()
            && let Some(lines) = written.as_mut()
        {
            for line in address / LINE..=(address + len.max(1) - 1) / LINE {
                lines.entry(line).or_default().insert(std::format!("{}:{}", place.file(), place.line()));
            }
        }
    });
}

macro_rules! common {
    ($name:ident, $value:ty $(, $generic:ident)?) => {
        /// As the atomic of `core`, with its writes noted.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name$(<$generic>)?(core::sync::atomic::$name$(<$generic>)?);

        impl$(<$generic>)? $name$(<$generic>)? {
            /// See `core`.
            pub const fn new(value: $value) -> Self {
                Self(core::sync::atomic::$name::new(value))
            }
            #[track_caller]
            fn note(&self) -> &core::sync::atomic::$name$(<$generic>)? {
                wrote(core::ptr::from_ref(self).addr(), size_of::<Self>());
                &self.0
            }
            /// See `core`.
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }
            /// See `core`.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
            /// See `core`.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.note().store(value, order);
            }
            /// See `core`.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.note().swap(value, order)
            }
            /// See `core`.
            #[allow(clippy::missing_errors_doc)]
            #[track_caller]
            pub fn compare_exchange(&self, from: $value, to: $value, done: Ordering, failed: Ordering) -> Result<$value, $value> {
                self.note().compare_exchange(from, to, done, failed)
            }
            /// See `core`.
            #[allow(clippy::missing_errors_doc)]
            #[track_caller]
            pub fn compare_exchange_weak(&self, from: $value, to: $value, done: Ordering, failed: Ordering) -> Result<$value, $value> {
                self.note().compare_exchange_weak(from, to, done, failed)
            }
        }
    };
}

macro_rules! changes {
    ($name:ident, $value:ty: $($change:ident)*) => {
        impl $name {
            $(
                /// See `core`.
                #[track_caller]
                pub fn $change(&self, value: $value, order: Ordering) -> $value {
                    self.note().$change(value, order)
                }
            )*
        }
    };
}

common!(AtomicBool, bool);
common!(AtomicPtr, *mut T, T);
changes!(AtomicBool, bool: fetch_or fetch_and);

macro_rules! numbers {
    ($($name:ident $value:ty),*) => {
        $(
            common!($name, $value);
            changes!($name, $value: fetch_add fetch_sub fetch_or fetch_and fetch_xor fetch_max fetch_min);

            impl $name {
                /// See `core`.
                #[allow(clippy::missing_errors_doc)]
                #[track_caller]
                pub fn fetch_update(
                    &self,
                    done: Ordering,
                    failed: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    self.note().fetch_update(done, failed, change)
                }
            }
        )*
    };
}

numbers!(AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64, AtomicI64 i64, AtomicUsize usize);
