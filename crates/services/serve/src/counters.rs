//! Counters of a service: a set for each worker, so that no two write the same line.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farshore_uthread::worker_index;

/// Sets of counters; a worker beyond them shares.
const SETS: usize = 64;

/// Which of `N` counters.
pub trait Which: Copy {
    /// Its number, below `N`.
    fn number(self) -> usize;
}

#[repr(align(128))]
#[derive(Debug)]
struct Set<const N: usize>([AtomicU64; N]);

/// All counters of a service, which `counters!` has named.
#[derive(Debug)]
pub struct Sets<W, const N: usize>(Vec<Set<N>>, PhantomData<fn(W)>);

impl<W, const N: usize> Default for Sets<W, N> {
    fn default() -> Sets<W, N> {
        Sets((0..SETS).map(|_| Set([const { AtomicU64::new(0) }; N])).collect(), PhantomData)
    }
}

impl<W: Which, const N: usize> Sets<W, N> {
    /// One more.
    #[inline]
    pub fn add(&self, which: W) {
        self.add_many(which, 1);
    }

    /// So many more.
    #[inline]
    pub fn add_many(&self, which: W, by: u64) {
        self.0[worker_index().unwrap_or(0) % SETS].0[which.number()].fetch_add(by, Relaxed);
    }

    /// How many.
    pub fn get(&self, which: W) -> u64 {
        self.0.iter().map(|set| set.0[which.number()].load(Relaxed)).sum()
    }

    /// From 0 again.
    pub fn reset(&self) {
        self.0.iter().flat_map(|set| &set.0).for_each(|count| count.store(0, Relaxed));
    }
}

/// Names counters: an enum `Count`, the words `NAMES` for each as clients are told them, and `Counters`.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Count { $($(#[$doc])* $name,)* }

        /// The names that clients are told.
        pub const NAMES: &[(Count, &str)] = &[$((Count::$name, $text),)*];

        /// All counters.
        pub type Counters = $crate::counters::Sets<Count, { NAMES.len() }>;

        impl $crate::counters::Which for Count {
            #[inline]
            fn number(self) -> usize {
                self as usize
            }
        }
    };
}

pub(crate) use counters;
