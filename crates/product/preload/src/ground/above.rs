//! What the ground calls in the layers above it.
//!
//! Here are the names alone; `dispatch/above.rs` says for [`Library`] which functions they are. The compiler binds the calls: no
//! pointer is set at the start, so none can be missing, and a call costs what it would cost without this.

use crate::ground::runtime::Runtime;
use farshore_engine::health::Watcher;

/// The library: the one that implements [`Above`].
#[derive(Debug)]
pub struct Library;

/// See the module's head.
pub trait Above {
    /// A thread of ours that serves faults (poll mode).
    fn serve_faults(runtime: &'static Runtime);
    /// The thread that watches swap spaces.
    fn watch(runtime: &'static Runtime, watcher: &mut Watcher);
    /// The thread that drains swap spaces.
    fn drain(runtime: &'static Runtime);
    /// The thread that serves the policy on this seat.
    fn serve_policy(runtime: &'static Runtime, seat: usize);
    /// The kin thread.
    fn look_after_family(runtime: &'static Runtime);
    /// Whether this process is in a family.
    fn has_family() -> bool;
    /// Whether its budget needs a kin thread however much memory is free.
    fn family_wants_thread() -> bool;
    /// Whether this process is measured, however much memory is free, since its limit is chosen.
    fn is_measured(runtime: &Runtime) -> bool;
    /// There is no kin thread any more.
    fn family_sleeps();
    /// The name of the control socket has changed: relatives are told.
    fn name_socket();
    /// Descriptors that the family has in this process.
    fn family_descriptors() -> Vec<i32>;
}
