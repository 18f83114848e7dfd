//! Which functions the ground calls by [`Above`].

use crate::control::{policies, spaces, watch};
use crate::family::{self, pilot};
use crate::fault::poll;
use crate::ground::above::{Above, Library};
use crate::ground::runtime::{Runtime, runtime};
use farshore_engine::health::Watcher;

impl Above for Library {
    fn serve_faults(runtime: &'static Runtime) {
        poll::run(runtime);
    }

    fn watch(runtime: &'static Runtime, watcher: &mut Watcher) {
        watch::run(runtime, watcher);
    }

    fn drain(runtime: &'static Runtime) {
        spaces::run(runtime);
    }

    fn serve_policy(runtime: &'static Runtime, seat: usize) {
        policies::serve(runtime, seat);
    }

    fn look_after_family(runtime: &'static Runtime) {
        family::run(runtime);
    }

    #[inline]
    fn has_family() -> bool {
        family::is_there()
    }

    #[inline]
    fn family_wants_thread() -> bool {
        family::wants_kin() || runtime().is_some_and(pilot::wants_threads)
    }

    fn is_measured(runtime: &Runtime) -> bool {
        pilot::wants_threads(runtime)
    }

    fn family_sleeps() {
        family::sleeps();
    }

    fn name_socket() {
        family::name_socket();
    }

    fn family_descriptors() -> Vec<i32> {
        family::own_fds()
    }
}
