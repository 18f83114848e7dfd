//! Copies of a space that is kept several times (`mirror:`), which come and go while the program runs: `farshore set PID swap+=…` and `swap-=…` as well.
//!
//! As with spaces of files ([`super::spaces`]): the control thread refuses what cannot be, and notes the rest; the drainer's thread does the work. It waits for servers while
//! the process may fork; only what a child must not see by half is done inside the gate ([`farshore_backend::mirror::exchange`]).
//!
//! A copy that comes has come when it has all pages. One that has no room for them is taken away again, and the user hears of it.
//!
//! # Children
//!
//! A copy that goes is used no more by this process at once. It has gone when it is closed, and the children that were forked before have ended, and theirs. Until then
//! they use what was there when they were forked, whether it is a server or a file:
//!
//! - they read what their parent had written;
//! - one that has not written yet opens a space of its own there when it first needs it. It could not open what has come since: servers and devices are claimed by
//!   descriptors that it does not have;
//! - what they start by exec begins with the same copies.
//!
//! So the command waits for them, and the user is told how many there are.

use super::spaces::Here;
use crate::family;
use crate::ground::changes::{Reader, State, What};
use crate::ground::report;
use crate::ground::runtime::{Runtime, locked};
use farshore_backend::AnyBackend;
use farshore_backend::mirror::Mirror;
use farshore_backend::mirror::exchange::{Coming, Leaving};
use farshore_config::SwapSpec;
use farshore_config::control::Set;

impl Runtime {
    /// The copies of this process, if they may come and go.
    ///
    /// # Errors
    /// They are a parent's too: why they may not, in a line.
    pub fn copies(&self) -> Result<Option<&Mirror>, String> {
        match &self.engine.backend {
            // Its base is its parent's copies, which it goes on reading.
            AnyBackend::Layered(layers) if layers.mirror().is_some() => Err(format!(
                "process {} was forked by another program under Farshore, and reads that one's copies; change those of the process that 'farshore run' has started, or start this one by exec",
                farshore_sys::raw::getpid()
            )),
            backend => Ok(backend.mirror()),
        }
    }

    /// A copy is to come. By the control thread.
    pub(super) fn add_copy(&self, mirror: &Mirror, spec: SwapSpec) -> Result<Set, String> {
        let no = |why: &str| Err(format!("swap+={spec}: {why}"));
        if spec.is_remote() && !self.options.swap.iter().any(SwapSpec::is_remote) {
            return no(
                "the program was started without a server among its copies, so its pages may not be encrypted, and what it may call may not allow for one; start it with one (nbd:)",
            );
        }
        if let Some(why) = self.why_no_device(&spec) {
            return no(why);
        }
        let is_same = |what: What| {
            move |asked: &crate::ground::changes::Asked| {
                asked.what == what && matches!(asked.state, State::Waits | State::UnderWay)
            }
        };
        let list =
            |what: What| self.changes.list.with(|list| list.iter().any(|asked| asked.spec == spec && is_same(what)(asked)));
        if list(What::AddCopy) {
            return no("it is just being added; 'farshore stat' shows how far it is");
        }
        // One that goes stays after all.
        if !list(What::RemoveCopy)
            && let Err(why) = mirror.may_add(&spec)
        {
            return no(&why.to_string());
        }
        let id = self.changes.note(spec, What::AddCopy, State::Waits);
        self.engine.wake_drainer();
        Ok(Set::Begun(id))
    }

    /// A copy is to go. By the control thread.
    pub(super) fn remove_copy(&self, mirror: &Mirror, spec: SwapSpec) -> Result<Set, String> {
        if let Err(why) = mirror.may_remove(&spec) {
            return Err(format!("swap-={spec}: {why}"));
        }
        let id = self.changes.note(spec, What::RemoveCopy, State::Waits);
        self.engine.wake_drainer();
        Ok(Set::Begun(id))
    }
}

impl Here {
    /// Begins a change of copies. `Err`: it cannot be.
    pub(super) fn begin_copy(&self, id: u64, what: What, spec: &SwapSpec) -> Result<(), String> {
        let runtime = self.runtime;
        let mirror = runtime.copies()?.ok_or("the swap space is not kept several times")?;
        let tell = &mut |notice: &str| report::line(format_args!("{notice}"));
        let alone = |f: &mut dyn FnMut()| runtime.engine.without_forks(self.core, f);
        let begun = match what {
            What::RemoveCopy => mirror.remove(spec, &alone),
            _ => mirror.take_back(spec, &alone).and_then(|is_back| if is_back { Ok(()) } else { mirror.add(spec, &alone, tell) }),
        };
        begun.map_err(|why| why.to_string())?;
        self.note_change();
        if what == What::RemoveCopy {
            self.note_readers(id, spec);
        } else {
            // It goes no more.
            let off = "called off by swap+=; it is used again".to_owned();
            runtime.changes.end(|asked| asked.what == What::RemoveCopy && asked.spec == *spec, Err(off));
        }
        Ok(())
    }

    /// A copy goes: notes the processes that may use it still.
    fn note_readers(&self, id: u64, spec: &SwapSpec) {
        let runtime = self.runtime;
        let readers = family::readers(runtime);
        if !readers.is_empty() && !runtime.options.followed {
            report::line(format_args!(
                "swap space {spec}, one of several copies, is used no more but by {} processes that this one has forked: keep it until they have ended",
                readers.len()
            ));
        }
        runtime
            .changes
            .list
            .with(|list| list.iter_mut().filter(|asked| asked.id == id).for_each(|asked| asked.readers.clone_from(&readers)));
    }

    /// A copy that has come has no room: it is taken away again. What the user is told.
    fn take_away_full(&self, mirror: &Mirror, spec: &SwapSpec, lacks: u64) -> String {
        let runtime = self.runtime;
        let what = format!(
            "it has no room for {} of pages, which the others have; ",
            farshore_config::Size(lacks * farshore_core::limits::PAGE_SIZE as u64)
        );
        let alone = |f: &mut dyn FnMut()| runtime.engine.without_forks(self.core, f);
        match mirror.remove(spec, &alone) {
            Ok(()) => {
                self.note_change();
                let id = runtime.changes.note(spec.clone(), What::RemoveCopy, State::UnderWay);
                self.note_readers(id, spec);
                what + "it is taken away again: make room there and try again, or name a larger place"
            }
            Err(why) => what + &format!("it stays there, and lacks them ({why}): make room there, or take it away (swap-=)"),
        }
    }

    /// Looks after copies that are filled, or are to be closed.
    pub(super) fn look_after_copies(&self) {
        let runtime = self.runtime;
        if !runtime.changes.concern_copies() {
            return;
        }
        let Ok(Some(mirror)) = runtime.copies() else { return };
        let under_way = runtime.changes.list.with(|list| {
            let those = list.iter().filter(|asked| asked.state == State::UnderWay);
            those.map(|asked| (asked.id, asked.what, asked.spec.clone(), asked.readers.clone())).collect::<Vec<_>>()
        });
        for (id, what, spec, readers) in under_way {
            let result = match what {
                What::AddCopy => match mirror.coming(&spec) {
                    Some(Coming::Whole) => Ok(()),
                    Some(Coming::Filled) => continue,
                    Some(Coming::Full(lacks)) => Err(self.take_away_full(mirror, &spec, lacks)),
                    None => Err("it was taken away again before it had all pages".to_owned()),
                },
                What::RemoveCopy => {
                    let living = if readers.is_empty() { readers } else { family::readers(runtime) };
                    let may_close = !family::has_tied() && !self.any_reads(id, &living);
                    let alone = |f: &mut dyn FnMut()| runtime.engine.without_forks(self.core, f);
                    match mirror.leave(&spec, may_close, &alone) {
                        Leaving::Closed => {
                            self.note_change();
                            Ok(())
                        }
                        Leaving::Used => continue,
                        Leaving::Lent => {
                            locked(runtime, |_| runtime.engine.let_faults_end());
                            mirror.faults_have_ended(&spec);
                            continue;
                        }
                    }
                }
                What::Add | What::Drain(_) => continue,
            };
            runtime.changes.end(|asked| asked.id == id, result);
        }
    }

    /// Whether one of these reads from the copy which goes by this change.
    fn any_reads(&self, id: u64, living: &[Reader]) -> bool {
        self.runtime.changes.list.with(|list| {
            let mut noted = list.iter().filter(|asked| asked.id == id).flat_map(|asked| &asked.readers);
            noted.any(|reader| living.contains(reader))
        })
    }
}
