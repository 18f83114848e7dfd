//! Programs that the program starts: which of them run under Farshore too, and the environment that puts them there.
//!
//! What start-up takes out of the environment ([`crate::environment`]) goes back in, if the new program can be run under
//! Farshore (`farshore_launch` says) and with this library:
//!
//! | in the environment | for the new program |
//! |---|---|
//! | no `LD_PRELOAD` | `LD_PRELOAD=library` at the end |
//! | `LD_PRELOAD=x`, the last of that name | `LD_PRELOAD=library:x` in its place, `FARSHORE_OLD_PRELOAD=x` at the end |
//! | in both, if the program needs a library that must be the first (AddressSanitizer's runtime) | its name and a colon before ours |
//! | no `FARSHORE_OPTIONS` | it, at the end |
//! | `FARSHORE_OPTIONS` | nothing is added: the program is `farshore run`, whose options win |
//!
//! All else, order and repeated names included, stays as the program gave it. A program that clears the environment is
//! followed all the same.
//!
//! | the new program | runs |
//! |---|---|
//! | can be run under Farshore | under Farshore |
//! | Farshore's command, which is static | natively, and hands the environment on to what it becomes |
//! | static, or with another dynamic linker than glibc's | under Farshore, by a helper (`farshore_host`), with the environment as it is |
//! | 32-bit, with another glibc's dynamic linker than this process's, gaining rights, unreadable | natively, with a line on stderr |
//! | no program (not there, damaged, for another machine, text) | the kernel's own error, without a word |
//! | the library's file has been replaced or removed, or is out of reach (`chroot`) | natively, with a line on stderr |
//! | no room for our variables | natively, with a line on stderr |
//!
//! With `--require` what would run with a line on stderr is not started: the line says so, and the call fails with `EPERM`.
//!
//! This runs in a child of `vfork` too, which shares the memory of its parent and may be killed at any instruction. So
//! nothing is allocated, no lock is taken, and what is written goes to the [`ExecImage`], which the parent unmaps.

use super::super::buffers::Memory;
use super::exec::ExecImage;
use super::merging;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use farshore_config::{OLD_PRELOAD_VARIABLE, OPTIONS_VARIABLE, Options, PRELOAD_VARIABLE};
use farshore_host::{FAULTS, Guest};
use farshore_launch::{FirstLibrary, Loader, Obstacle, Place, Program, Rights, Work};
use farshore_sys::hosted::is_hosted;
use farshore_sys::signal::{self, How, SIGBUS, SIGSEGV, SIGSYS, SigSet};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

pub use farshore_launch::AT_FDCWD;

/// What is added to environments. Made once, at start-up.
#[derive(Debug)]
pub struct Plan {
    /// The library's path, and which file that was at start-up.
    library: CString,
    library_place: Place,
    /// This process's dynamic linker. Another may come with a libc that the library does not fit.
    loader: Loader,
    /// The user that this process belonged to.
    user: (u32, u32),
    /// For programs of that user, and for those of others: they have a family of their own, since what a family shares is
    /// in the hands of each of its processes.
    kin: Variables,
    others: Variables,
    /// The plan that was made before this one.
    before: Option<&'static Plan>,
    /// Programs that cannot run under Farshore are not started.
    requires: bool,
    /// Faults that swap spaces inject (tests), for programs that have a helper: as in this process's environment.
    faults: Option<CString>,
}

/// What starts a program, with its plan.
#[derive(Clone, Copy, Debug)]
pub struct Starter {
    /// The plan.
    pub plan: &'static Plan,
    /// This process is the one that `farshore run` became, and becomes the new program.
    pub is_first: bool,
    /// A filter of system calls forbids what Farshore needs to start.
    pub filtered: bool,
}

impl Starter {
    /// Decides how the program in `image` starts, which `directory` and `flags` of an `execveat` belong to.
    pub fn start<M: Memory>(self, image: &mut ExecImage<'_, M>, directory: i32, flags: u32) -> Start {
        let before = signal::sigprocmask(How::Set, SigSet::ALL.without(SIGBUS).without(SIGSEGV).without(SIGSYS));
        let start = self.plan.decide(image, directory, flags, self);
        signal::sigprocmask(How::Set, before);
        self.plan.strictly(start)
    }
}

/// What a program gets.
#[derive(PartialEq, Debug)]
struct Variables {
    /// `FARSHORE_OPTIONS=…` for what this process itself becomes, and for others: without and with [`merging`].
    becomes: [CString; 2],
    starts: [CString; 2],
    /// Descriptors that stay open for the new program.
    handed: Vec<i32>,
}

impl Variables {
    fn new(options: &Options) -> Result<Variables, String> {
        let variable = |first, memory_merge| {
            let options = Options { memory_merge, ..options.for_successor(first) };
            text(format!("{OPTIONS_VARIABLE}={}", options.to_json()).into_bytes())
        };
        let both = |first| Ok::<_, String>([variable(first, false)?, variable(first, true)?]);
        Ok(Variables { becomes: both(true)?, starts: both(false)?, handed: options.descriptors() })
    }
}

fn text(bytes: Vec<u8>) -> Result<CString, String> {
    CString::new(bytes).map_err(|_| "a name has a zero byte".to_string())
}

/// How a program starts.
#[derive(Debug)]
pub enum Start {
    /// As the program asked.
    Natively,
    /// As the program asked, although programs that this one starts are to run under Farshore, for this reason.
    Unlike(&'static str),
    /// Not at all, for this reason: `--require`.
    Refused(&'static str),
    /// Under Farshore, though it loads no library: a helper puts it there, with this plan and these options.
    Hosted {
        /// The plan, which has the library's path.
        plan: &'static Plan,
        /// `FARSHORE_OPTIONS=…`
        options: &'static CStr,
        /// Descriptors that stay open for it.
        handed: &'static [i32],
    },
    /// Under Farshore, with this array for an environment.
    Followed {
        /// Address of the array.
        envp: u64,
        /// Descriptors that stay open for it.
        handed: &'static [i32],
    },
}

/// The plan in force.
static PLAN: AtomicPtr<Plan> = AtomicPtr::new(core::ptr::null_mut());
/// The plan that was made last. All that were made stay, since somebody may be using one.
static MADE: AtomicPtr<Plan> = AtomicPtr::new(core::ptr::null_mut());

/// This process's plan; `None`: programs that it starts are ordinary programs.
pub fn plan() -> Option<&'static Plan> {
    // SAFETY: null, or what `install` stored: a leaked box, never freed.
    unsafe { PLAN.load(Ordering::Acquire).as_ref() }
}

/// Programs that are started from here on run under Farshore, if `options` say so. For start-up: it allocates.
///
/// # Errors
/// A line for the user: nothing will be followed, and why.
pub fn install(options: &Options) -> Result<(), String> {
    if let Some(library) = options.library.as_deref().filter(|_| options.follow) {
        let plan = Plan::new(library, options)
            .map_err(|why| format!("{}: {why}; programs that this one starts run without Farshore", library.display()))?;
        enforce(plan);
    }
    Ok(())
}

/// Makes `plan` the plan in force.
fn enforce(plan: Plan) {
    let plan = Box::into_raw(Box::new(plan));
    MADE.store(plan, Ordering::Release);
    PLAN.store(plan, Ordering::Release);
}

/// Programs that are started from here on get these options. One thread at a time. Descriptors are named by their numbers alone, so it may
/// be a thread that has a table of its own.
pub fn renew(options: &Options) {
    let Some(old) = plan() else { return };
    let variables = |options| Variables::new(options).ok();
    let (Some(kin), Some(others)) = (variables(options), variables(&options.for_others())) else { return };
    // SAFETY: not null, since there is a plan: a leaked box, never freed.
    let made = unsafe { MADE.load(Ordering::Acquire).as_ref() };
    // Options that come again find their plan: settings that change to and fro take no memory.
    let mut all = core::iter::successors(made, |plan| plan.before);
    match all.find(|plan| plan.kin == kin && plan.others == others) {
        Some(same) => PLAN.store(core::ptr::from_ref(same).cast_mut(), Ordering::Release),
        None => enforce(Plan { library: old.library.clone(), faults: old.faults.clone(), kin, others, before: made, ..*old }),
    }
}

impl Plan {
    pub(super) fn new(library: &std::path::Path, options: &Options) -> Result<Plan, String> {
        let library = text(library.as_os_str().as_bytes().to_vec())?;
        let library_place = Place::of(&library).map_err(|why| format!("the library's file cannot be found ({why})"))?;
        let mut buffer = vec![0; Work::BYTES];
        let work = &mut Work::new(&mut buffer);
        let loader = if is_hosted() {
            Place::of(farshore_host::LOADER).map_err(Obstacle::LoaderMissing)
        } else {
            farshore_launch::loader_of(c"/proc/self/exe", work)
        };
        let loader = loader.map_err(|why| format!("the dynamic linker of this process is not known ({why:?})"))?;
        let kin = Variables::new(options)?;
        let others = Variables::new(&options.for_others())?;
        let faults =
            std::env::var_os(FAULTS).map(|value| text([FAULTS.as_bytes(), b"=", value.as_bytes()].concat())).transpose()?;
        Ok(Plan {
            faults,
            library,
            library_place,
            loader,
            user: Rights::of_this_thread().real,
            kin,
            others,
            before: None,
            requires: options.require,
        })
    }

    /// Bytes of room that [`Starter::start`] needs in an image whose environment has so many entries and bytes.
    pub fn room(&self, entries: u64, bytes: u64) -> u64 {
        let array = (entries + 4) * 8;
        let names = PRELOAD_VARIABLE.len() + OLD_PRELOAD_VARIABLE.len() + 8 + size_of::<FirstLibrary>();
        let options = [&self.kin.becomes, &self.kin.starts, &self.others.becomes, &self.others.starts];
        let options = options.into_iter().flatten().map(|text| text.count_bytes()).max().unwrap_or(0);
        let ours = self.library.count_bytes() + options + names;
        // The program's own LD_PRELOAD, twice.
        array + bytes * 2 + (ours + Work::BYTES) as u64
    }

    /// Makes an exec by `make` of a program that loads no library. The call's answer, if it fails; or why there can be no helper.
    ///
    /// # Errors
    /// See [`farshore_host::execute`].
    pub(super) fn host(&self, options: &CStr, make: impl FnOnce() -> i64) -> Result<i64, farshore_host::Refused> {
        let faults = self.faults.as_ref().map(|faults| faults.to_bytes());
        let all = [options.to_bytes(), farshore_host::TUNABLES, faults.unwrap_or_default()];
        let environment = if faults.is_some() { &all[..] } else { &all[..2] };
        farshore_host::execute(&Guest { library: &self.library, environment, required: self.requires }, make)
    }

    /// Whether programs that cannot run under Farshore are not started.
    pub fn requires(&self) -> bool {
        self.requires
    }

    /// What is not to be started without Farshore is not started.
    pub(super) fn strictly(&self, start: Start) -> Start {
        match start {
            Start::Unlike(why) if self.requires => Start::Refused(why),
            other => other,
        }
    }

    fn decide<M: Memory>(&'static self, image: &mut ExecImage<'_, M>, directory: i32, flags: u32, by: Starter) -> Start {
        let (path, envp, count) = (image.path, image.envp, image.env_entries as usize);
        let (copies, addr, room) = image.with_room();
        let Some(path) = copies.text(path) else { return Start::Natively };
        let entries = (0..count).map(|index| copies.word(envp + index as u64 * 8).unwrap_or(0));
        let own = (entries.clone().enumerate())
            .filter_map(|(index, text)| Some((index, copies.text(text)?)))
            .fold(Own::default(), Own::with);
        // What a filter does to a program is the program's own affair, and so are options that it gives to the next, unless the limit must hold.
        if (own.has_options || by.filtered) && !self.requires {
            return Start::Natively;
        }
        let program = Program { directory, path, flags };
        // The room is for the environment later.
        let rights = Rights::of_this_thread();
        let mut work = Work::new(room);
        let checked = farshore_launch::check(&program, &rights, &mut work);
        let first = work.first_library();
        let hosted = matches!(checked, Err(obstacle) if obstacle.is_hosted());
        match checked {
            Ok(loader) if loader == self.loader => {}
            Err(_) if hosted => {}
            // It loads no library itself, and hands the environment on.
            Err(Obstacle::Command) => {}
            Err(obstacle) if obstacle.is_passing() => {
                return Start::Unlike("there are no descriptors or there is no memory left to look at it");
            }
            Ok(_) => return Start::Unlike("its dynamic linker is not the one of the program that starts it"),
            Err(obstacle) => return obstacle.runs_natively().map_or(Start::Natively, Start::Unlike),
        }
        if by.filtered {
            return Start::Unlike("a filter of system calls forbids what Farshore needs to start");
        }
        if own.has_options {
            let is_ours = |old: &[u8]| old.split(|&byte| matches!(byte, b' ' | b':')).any(|one| one == self.library.to_bytes());
            return if own.preload.is_some_and(|(_, old)| is_ours(old)) {
                Start::Natively
            } else {
                Start::Unlike("FARSHORE_OPTIONS is in its environment, which only 'farshore run' puts there")
            };
        }
        if Place::of(&self.library) != Ok(self.library_place) {
            return Start::Unlike("the library that runs here was replaced or removed, or cannot be reached any more");
        }
        let variables = if rights.real == self.user { &self.kin } else { &self.others };
        let options = if by.is_first { &variables.becomes } else { &variables.starts };
        let options = &options[usize::from(merging::is_wanted())];
        if hosted {
            return Start::Hosted { plan: self, options, handed: &variables.handed };
        }
        let mut writer = Writer { addr, room, at: 0 };
        match self.write(&mut writer, entries, &own, options, &first) {
            Some(()) => Start::Followed { envp: addr, handed: &variables.handed },
            None => Start::Unlike("its environment has changed while it was copied"),
        }
    }

    /// Writes the array, and behind it the strings of ours. `None`: there is not the room that was asked for.
    fn write(
        &self,
        to: &mut Writer<'_>,
        entries: impl ExactSizeIterator<Item = u64>,
        own: &Own<'_>,
        options: &CStr,
        first: &FirstLibrary,
    ) -> Option<()> {
        let count = entries.len();
        // Ours at the end, at most three, and a null.
        to.at = (count + 4) * 8;
        let (name, old_name) = (PRELOAD_VARIABLE.as_bytes(), OLD_PRELOAD_VARIABLE.as_bytes());
        let options = to.text(&[options.to_bytes()])?;
        let first = first.or_of(own.preload.map_or(b"", |(_, old)| old));
        let colon: &[u8] = if first.is_empty() { b"" } else { b":" };
        let (place, preload, rest) = match own.preload {
            Some((index, old)) => {
                let preload = to.text(&[name, b"=", first, colon, self.library.to_bytes(), b":", old])?;
                (index, preload, [options, to.text(&[old_name, b"=", old])?])
            }
            None => (count, to.text(&[name, b"=", first, colon, self.library.to_bytes()])?, [options, 0]),
        };
        for (index, entry) in entries.enumerate() {
            to.entry(index, entry)?;
        }
        to.entry(place, preload)?;
        let behind = count.max(place + 1);
        for (index, entry) in rest.into_iter().chain([0]).enumerate() {
            to.entry(behind + index, entry)?;
        }
        Some(())
    }
}

/// Before and after the call: whether descriptors stay open for the new program.
pub fn hand_on(mem: &impl Memory, descriptors: &[i32], stay: bool) {
    let flag = if stay { 0 } else { libc::FD_CLOEXEC as u64 };
    for &descriptor in descriptors {
        mem.own(libc::SYS_fcntl as u64, &[descriptor as u64, libc::F_SETFD as u64, flag, 0, 0, 0]);
    }
}

/// For the parent of a `vfork` child that shared its descriptors (`CLONE_FILES`): the child has let them stay open for its
/// program, and was gone before it could take that back.
pub fn take_back(mem: &impl Memory) {
    if let Some(plan) = plan() {
        hand_on(mem, &plan.kin.handed, false);
    }
}

/// What of Farshore's interest is in an environment.
#[derive(Default)]
struct Own<'i> {
    has_options: bool,
    /// The last `LD_PRELOAD`, which is the one that counts: index and value.
    preload: Option<(usize, &'i [u8])>,
}

impl<'i> Own<'i> {
    fn with(self, (index, entry): (usize, &'i CStr)) -> Own<'i> {
        let value = |name: &str| entry.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=");
        Own {
            has_options: self.has_options || value(OPTIONS_VARIABLE).is_some(),
            preload: value(PRELOAD_VARIABLE).map(|value| (index, value)).or(self.preload),
        }
    }
}

/// Fills the room: words from its beginning on, strings from `at` on.
struct Writer<'i> {
    addr: u64,
    room: &'i mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn entry(&mut self, index: usize, word: u64) -> Option<()> {
        self.room.get_mut(index * 8..index * 8 + 8)?.copy_from_slice(&word.to_ne_bytes());
        Some(())
    }

    /// A string of these parts; its address.
    fn text(&mut self, parts: &[&[u8]]) -> Option<u64> {
        let start = self.addr + self.at as u64;
        for part in parts.iter().chain([&&b"\0"[..]]) {
            self.room.get_mut(self.at..self.at + part.len())?.copy_from_slice(part);
            self.at += part.len();
        }
        Some(start)
    }
}
