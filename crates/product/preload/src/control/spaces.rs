//! Swap spaces that come and go while the program runs: `farshore set PID swap+=…` and `swap-=…`.
//!
//! ```text
//!  control thread ──asks──▶ list of changes ◀──looks── farshore-drain: opens files, drains spaces (the engine's `drain`), closes files
//!        ◀── how far? ───────────┘
//! ```
//!
//! The control thread has a descriptor table of its own and must answer at once: it refuses what cannot be, notes the rest as a change, and tells
//! later what has become of it. A thread of its own does the work, since a disk may take its time, or hang.
//!
//! While a file is closed the process does not fork (address-space lock). A forked child begins without changes, and with the spaces that are in use at
//! that moment; what comes or goes later in its parent is nothing to it.

use crate::family;
use crate::ground::changes::{Asked, State, What};
use crate::ground::runtime::{Runtime, locked};
use crate::ground::{own_threads, report, thread};
use farshore_config::SwapSpec;
use farshore_config::control::{Change, Set};
use farshore_core::page::PageRange;
use farshore_core::seams::{CopyChange, IoError, Spaces as _};
use farshore_engine::drain::{Drained, Host, NoDrain};
use farshore_engine::health::Usage;

impl Runtime {
    /// Spaces that are there for something, with what they were made from.
    fn specs(&self) -> impl Iterator<Item = (usize, Usage, &SwapSpec)> {
        let health = &self.engine.health;
        let files = self.engine.backend.files().into_iter();
        files.flat_map(move |files| {
            let there = (0..health.spaces()).map(|space| (space, health.usage(space)));
            there
                .filter(|(_, usage)| *usage != Usage::Absent)
                .filter_map(|(space, usage)| Some((space, usage, files.spec_of(space)?)))
        })
    }

    /// What a forked child is to use: as at the start, but for the spaces that have come and gone. And what each can hold.
    pub fn swap_now(&self) -> (Vec<SwapSpec>, Box<[Option<u64>]>) {
        let backend = &self.engine.backend;
        let pool = self.options.swap.first().filter(|spec| spec.is_pool()).cloned();
        if backend.files().is_none() {
            let capacities = (0..backend.spaces()).map(|space| backend.capacity_of(space));
            let specs = match backend.mirror() {
                Some(mirror) => pool.into_iter().chain([SwapSpec::Mirror(mirror.specs())]).collect(),
                None => self.options.swap.clone(),
            };
            return (specs, capacities.collect());
        }
        let used = || self.specs().filter(|(_, usage, _)| *usage == Usage::InUse);
        let specs = pool.into_iter().chain(used().map(|(_, _, spec)| spec.clone())).collect();
        (specs, used().map(|(space, ..)| backend.capacity_of(space)).collect())
    }

    /// A space is to come. By the control thread.
    ///
    /// # Errors
    /// Why not, in a line.
    pub fn add_swap(&self, spec: SwapSpec) -> Result<Set, String> {
        let engine = &self.engine;
        let no = |why: &str| Err(format!("swap+={spec}: {why}"));
        if let Some(mirror) = self.copies().map_err(|why| format!("swap+={spec}: {why}"))? {
            return self.add_copy(mirror, spec);
        }
        if engine.backend.files().is_none() {
            return no(&format!(
                "this program's swap space is {}; others can come only where it is files, or copies (mirror:)",
                engine.backend.name()
            ));
        }
        if !spec.is_file() {
            return no("only dir:, file: and dev: can be added while a program runs");
        }
        if let Some(why) = self.why_no_device(&spec) {
            return no(why);
        }
        let same = self.specs().filter(|(_, _, there)| **there == spec).map(|(space, usage, _)| (space, usage)).last();
        match same {
            // It stays after all.
            Some((space, Usage::Draining | Usage::Left)) if engine.take_back(space) => return Ok(Set::Done),
            Some((_, Usage::InUse)) => return no("it is there already"),
            Some(_) => return no("it is just being taken away; try again"),
            None => {}
        }
        let comes = |asked: &Asked| {
            asked.spec == spec && asked.what == What::Add && matches!(asked.state, State::Waits | State::UnderWay)
        };
        if self.changes.list.with(|list| list.iter().any(comes)) {
            return no("it is just being added");
        }
        let id = self.changes.note(spec, What::Add, State::Waits);
        engine.wake_drainer();
        Ok(Set::Begun(id))
    }

    /// Why a device cannot be used, if it is one.
    pub(super) fn why_no_device(&self, spec: &SwapSpec) -> Option<&'static str> {
        (spec.is_device() && self.options.follow && !self.options.encrypt).then_some(
            "the programs that this one starts would find its pages there as they are; start it with --encrypt, or with --no-follow",
        )
    }

    /// A space is to go. By the control thread.
    ///
    /// # Errors
    /// Why not, in a line.
    pub fn remove_swap(&self, spec: SwapSpec) -> Result<Set, String> {
        let no = |why: &str| Err(format!("swap-={spec}: {why}"));
        if let Some(mirror) = self.copies().map_err(|why| format!("swap-={spec}: {why}"))? {
            return self.remove_copy(mirror, spec);
        }
        let there: Vec<_> =
            self.specs().filter(|(_, _, there)| **there == spec).map(|(space, usage, _)| (space, usage)).collect();
        let Some(&(space, _)) = there.iter().rfind(|(_, usage)| matches!(usage, Usage::InUse | Usage::Left)) else {
            if !there.is_empty() {
                return no("it is being drained already; 'farshore stat' shows how far it is");
            }
            let all: Vec<String> = self.specs().map(|(_, _, spec)| spec.to_string()).collect();
            return match all.is_empty() {
                true => no(&format!(
                    "this program's swap space is {}; only files and copies (mirror:) can go",
                    self.engine.backend.name()
                )),
                false => no(&format!("there is no such swap space; there is {}", all.join(", "))),
            };
        };
        // Noted first: it may end at once.
        let id = self.changes.note(spec.clone(), What::Drain(space), State::UnderWay);
        let why = match self.engine.begin_drain(space) {
            Ok(()) => return Ok(Set::Begun(id)),
            Err(NoDrain::Last) => "no other swap space is in use; add one first",
            Err(NoDrain::UnderWay) => "it is being drained already; 'farshore stat' shows how far it is",
        };
        self.changes.end(|asked| asked.id == id, Err(why.to_owned()));
        no(why)
    }

    /// What has become of a change. By the control thread.
    ///
    /// # Errors
    /// There is none, or it has failed.
    pub fn change_now(&self, id: u64) -> Result<Change, String> {
        let found = self.changes.list.with(|list| {
            list.iter().find(|asked| asked.id == id).map(|asked| (asked.what, asked.spec.clone(), asked.state.clone()))
        });
        let Some((what, spec, state)) = found else {
            return Err(format!("there is no change {id}; ask for one that 'set' has begun"));
        };
        match (state, what) {
            (State::Done, _) => Ok(Change::Done),
            (State::Failed(why), What::Add | What::AddCopy) => Err(format!("swap+={spec}: {why}")),
            (State::Failed(why), What::Drain(_) | What::RemoveCopy) => Err(format!("swap-={spec}: {why}")),
            (_, What::Add | What::RemoveCopy) => Ok(Change::UnderWay(0)),
            (_, What::AddCopy) => {
                let mirror = self.copies().ok().flatten();
                let percent = mirror.and_then(|mirror| mirror.filled_percent(&spec));
                Ok(Change::UnderWay(percent.unwrap_or(0).into()))
            }
            (_, What::Drain(space)) => {
                let live = self.engine.slots.live_in(space);
                Ok(Change::UnderWay(self.engine.health.drained_percent(space, live)))
            }
        }
    }
}

/// The thread.
pub fn run(runtime: &'static Runtime) {
    let Some(thread) = thread::current() else { report::abort(format_args!("the drainer has no record")) };
    let core = thread.core();
    thread.with_buffer(|buffer| runtime.engine.run_drainer(buffer, core, &own_threads::STOP, &mut Here { runtime, core }));
}

/// This process, as the drainer sees it.
pub(super) struct Here {
    pub(super) runtime: &'static Runtime,
    pub(super) core: usize,
}

impl Here {
    fn add(&self, spec: &SwapSpec) -> Result<(), String> {
        let engine = &self.runtime.engine;
        let files = engine.backend.files().ok_or("the swap space is no array of files")?;
        let space = engine.free_space().ok_or_else(|| {
            format!(
                "there are {} swap spaces, as many as can be; take one away first",
                farshore_core::slots::arrangement::SPACES_MAX
            )
        })?;
        let tell = &mut |notice: &str| report::line(format_args!("{notice}"));
        let capacity = files.add(space, spec, tell).map_err(|why| why.to_string())?;
        engine.add_space(space, capacity);
        self.note_change();
        Ok(())
    }

    /// The descriptors are others now, and so are the spaces of programs that this one starts from here on.
    pub(super) fn note_change(&self) {
        let runtime = self.runtime;
        runtime.note_own_fds();
        runtime.tell_successors();
    }

    fn name(&self, space: usize) -> String {
        let spec = self.runtime.engine.backend.files().and_then(|files| files.spec_of(space));
        spec.map_or_else(String::new, SwapSpec::to_string)
    }
}

impl Host for Here {
    fn serve(&mut self) {
        while let Some((id, what, spec)) = self.runtime.changes.begin_next() {
            let result = match what {
                What::Add | What::Drain(_) => self.add(&spec),
                What::AddCopy | What::RemoveCopy => match self.begin_copy(id, what, &spec) {
                    // It takes its time: `look_after_copies`.
                    Ok(()) => continue,
                    Err(why) => Err(why),
                },
            };
            self.runtime.changes.end(|asked| asked.id == id, result);
        }
        self.look_after_copies();
    }

    fn unreadable(&mut self, space: usize, pages: PageRange) {
        let count = pages.len();
        report::line(format_args!(
            "{count} pages from {:?} to before {:?} are in swap space {} alone and cannot be read",
            pages.start,
            pages.end,
            self.name(space)
        ));
    }

    fn ended(&mut self, space: usize, how: Drained) {
        let result = match how {
            Drained::Gone => {
                self.note_change();
                Ok(())
            }
            Drained::Unreadable(pages, why) => Err(format!(
                "{pages} pages could not be saved ({why}); they stay there, and a thread that touches one gets SIGBUS. It takes no new pages; \
                 drain it again when it can be read, or use it again by swap+="
            )),
            Drained::NoRoom => {
                Err("the other swap spaces have no room for what it holds, so it is used again; add one first, or raise the memory limit".into())
            }
            Drained::CalledOff => Err("called off by swap+=; it is used again".into()),
        };
        if let Err(why) = &result {
            report::line(format_args!("swap space {} stays: {why}", self.name(space)));
        }
        self.runtime.changes.end(|asked| asked.what == What::Drain(space), result);
    }

    fn copy_changed(&mut self, copy: &str, change: CopyChange) {
        // A family's processes have the same servers: the first one tells.
        if !self.runtime.options.followed {
            report::line(format_args!("swap space {copy}, one of several copies, {change}"));
        }
    }

    fn cannot_give(&mut self, space: usize, why: IoError) {
        // Of programs that the user has not asked for nothing is said that they would not have said natively.
        if !self.runtime.options.followed {
            let name = self.name(space);
            report::line(format_args!(
                "swap space {name} cannot give freed room back ({why}): it keeps it until the program ends"
            ));
        }
    }

    fn may_close(&mut self) -> bool {
        // A child that shares our table of descriptors reads by them.
        !family::has_tied()
    }

    fn alone(&mut self, f: &mut dyn FnMut()) {
        locked(self.runtime, |_| f());
    }
}
