//! The memory of a virtual machine that a manager has (`farshore manage`, `farshore vm run`), mapped by another process too, as OVS and SPDK do it: with locks, so that no page leaves that a device uses.
//!
//! ```text
//!  this process                                  the manager
//!  [`Map::open`] ── hello ─────────────────────▶ is it the same user, or root?
//!                ◀─ where memory lies, its files, a table of locks ──
//!    maps it; a userfaultfd of its own
//!                ── where it has mapped it, the userfaultfd ────────▶ registers and write-protects it
//!                ◀─ ready ──────────────────────
//!  [`Map::lock`]: counts in the table, touches ─ a fault, if it is out ─▶ the page comes, and is writable
//!  … a device writes to it …                     evictors pass it over
//!  [`Map::unlock`]: counts down
//! ```
//!
//! # What always holds
//!
//! 1. **The process' own accesses need no lock.** Its mapping is registered with a userfaultfd as that of the virtual machine's monitor is. A page that is out comes when it is touched, and a page is protected here too
//!    before its bytes are copied. So nobody finds zeros, and no write is lost, whatever the process forgets.
//! 2. **What the kernel or a device has found needs one**: direct I/O, io_uring's registered buffers, VFIO, DPDK and SPDK. They go on with the page that they have found, wherever the memory's bytes are by then.
//!    [`farshore_core::locks`] says why a page that is locked does not leave.
//! 3. **A process that ends has no locks.** Its table goes with it. So do those of a process that is cut off ([`Error::CutOff`]).
//! 4. **Nobody finds zeros when the manager is killed.** The userfaultfd stays open here until the memory is unmapped. Whoever touches a page that is out waits for the next manager, as the virtual machine does, and locks hold
//!    on: the table is memory of which the manager's keeper has a descriptor.
//! 5. **A child of `fork` has none of it.** What it inherits is not mapped there.
//!
//! # What a lock costs
//!
//! No message, if the pages are in memory: a count each, and one call of the kernel for all (`MADV_POPULATE_WRITE`, which touches them, and tells where a touch would raise SIGBUS). A page that was locked is dirty: it is
//! written when it leaves, also if it was only read.

mod client;
pub mod table;
pub mod wire;

pub use client::{Error, Map, Place};
