//! Sockets of TCP and UDP, whose waits are requests in the worker's ring.

pub(crate) mod addr;
mod socket;
pub(super) mod tcp;
pub(super) mod udp;

use core::time::Duration;

/// The time of the worker's clock that is `time` from now.
pub(super) fn deadline(time: Duration) -> u64 {
    crate::ground::os::now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
