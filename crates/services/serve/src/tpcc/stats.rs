//! What happened: a set of counters for each worker, so that no two write the same line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farshore_uthread::worker_index;

/// Workers with counters of their own; others share.
const SETS: usize = 64;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Count { $($(#[$doc])* $name,)* }

        /// What they are called.
        pub const NAMES: &[(Count, &str)] = &[$((Count::$name, $text),)*];
    };
}

counters! {
    /// New-Orders that were done.
    NewOrders "neworder",
    /// New-Orders with an item that there is not, of which nothing has happened.
    Rollbacks "rollback",
    /// Payments.
    Payments "payment",
    /// Order-Statuses.
    OrderStatuses "orderstatus",
    /// Deliveries.
    Deliveries "delivery",
    /// Districts of deliveries without an order to deliver.
    Skipped "skipped",
    /// Stock-Levels.
    StockLevels "stocklevel",
    /// Requests that were not done.
    Refused "refused",
    /// Tries that were given up since another transaction was quicker.
    Conflicts "conflicts",
    /// Transactions that got the database for themselves, after many conflicts.
    Alone "alone",
}

#[derive(Debug)]
#[repr(align(64))]
struct Set([AtomicU64; NAMES.len()]);

/// Counters.
#[derive(Debug)]
pub struct Counters(Vec<Set>);

impl Default for Counters {
    fn default() -> Counters {
        Counters((0..SETS).map(|_| Set([const { AtomicU64::new(0) }; NAMES.len()])).collect())
    }
}

impl Counters {
    /// Counts one.
    pub fn add(&self, count: Count) {
        self.0[worker_index().unwrap_or(0) % SETS].0[count as usize].fetch_add(1, Relaxed);
    }

    /// How many there were.
    pub fn get(&self, count: Count) -> u64 {
        self.0.iter().map(|set| set.0[count as usize].load(Relaxed)).sum()
    }
}
