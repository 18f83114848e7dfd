//! The swap space that the user asked for, whatever its kind.

use crate::error::OpenError;
use crate::faulty::{FaultConfig, Faulty, FaultyQueue};
use crate::file::{FileArray, FileOptions, FileQueue};
use crate::ram::{RamQueue, RamSpace};
use farshore_config::SwapSpec;
use farshore_core::word::Slot;
use farshore_engine::traits::{Backend, IoError, PageBuf, WriteQueue};
use rustix::fd::RawFd;

/// The variable that wraps the space in [`Faulty`]: see [`crate::faulty`].
pub const FAULTY_VARIABLE: &str = "FARSHORE_FAULTY";

/// A swap space of any kind.
#[derive(Debug)]
pub enum AnyBackend {
    /// Files.
    File(FileArray),
    /// RAM.
    Ram(RamSpace),
    /// Any, with faults injected.
    Faulty(Box<Faulty<AnyBackend>>),
}

impl AnyBackend {
    /// Opens what `specs` name: several files and directories, or one of another kind. Called at start-up.
    /// What the user should know but need not act on goes to `notice`, one line each.
    ///
    /// # Errors
    /// The first space that cannot be used, or several that cannot be used together.
    pub fn open(specs: &[SwapSpec], notice: &mut dyn FnMut(&str)) -> Result<AnyBackend, OpenError> {
        let faulty = match std::env::var_os(FAULTY_VARIABLE) {
            Some(text) => Some(text.to_string_lossy().parse::<FaultConfig>().map_err(OpenError::Faulty)?),
            None => None,
        };
        let backend = AnyBackend::open_plain(specs, notice)?;
        Ok(match faulty {
            Some(config) => backend.with_faults(&config),
            None => backend,
        })
    }

    fn open_plain(specs: &[SwapSpec], notice: &mut dyn FnMut(&str)) -> Result<AnyBackend, OpenError> {
        specs.iter().try_for_each(SwapSpec::check_supported)?;
        let is_file = |spec: &&SwapSpec| matches!(spec, SwapSpec::Dir(_) | SwapSpec::File { .. });
        match (specs, specs.iter().find(|spec| !is_file(spec))) {
            (_, None) => Ok(AnyBackend::File(FileArray::open(specs, FileOptions::default(), notice)?)),
            ([SwapSpec::Ram { size, .. }], _) => Ok(AnyBackend::Ram(RamSpace::open(*size, None)?)),
            ([SwapSpec::Delay(time)], _) => Ok(AnyBackend::Ram(RamSpace::open(None, Some(*time))?)),
            ([one, other, ..], Some(_)) => Err(OpenError::Mixed(one.to_string(), other.to_string())),
            // `check_supported` has refused every other kind.
            ([one], Some(_)) => Err(farshore_config::ConfigError::NotBuilt { spec: one.to_string() }.into()),
            ([], Some(_)) => Err(OpenError::NoSpace),
        }
    }

    /// This space with faults injected.
    #[must_use]
    pub fn with_faults(self, config: &FaultConfig) -> AnyBackend {
        AnyBackend::Faulty(Box::new(Faulty::new(self, config)))
    }

    /// The wrapper that injects faults, if there is one: to change its rates.
    pub fn faults(&self) -> Option<&Faulty<AnyBackend>> {
        match self {
            AnyBackend::Faulty(faulty) => Some(faulty),
            _ => None,
        }
    }

    /// The descriptors that are ours now: swap files, and the rings of queues.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let files = match self {
            AnyBackend::File(files) => Some(files),
            AnyBackend::Ram(_) => None,
            AnyBackend::Faulty(faulty) => match faulty.inner() {
                AnyBackend::File(files) => Some(files),
                _ => None,
            },
        };
        files.into_iter().flat_map(FileArray::fds)
    }
}

impl Backend for AnyBackend {
    type Queue = AnyQueue;

    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        match self {
            AnyBackend::File(files) => files.read(slot, into),
            AnyBackend::Ram(ram) => ram.read(slot, into),
            AnyBackend::Faulty(faulty) => faulty.read(slot, into),
        }
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        match self {
            AnyBackend::File(files) => files.read_run(first, into),
            AnyBackend::Ram(ram) => ram.read_run(first, into),
            AnyBackend::Faulty(faulty) => faulty.read_run(first, into),
        }
    }

    fn queue(&self, depth: u32) -> Result<AnyQueue, IoError> {
        Ok(match self {
            AnyBackend::File(files) => AnyQueue::File(files.queue(depth)?),
            AnyBackend::Ram(ram) => AnyQueue::Ram(ram.queue(depth)?),
            AnyBackend::Faulty(faulty) => AnyQueue::Faulty(Box::new(faulty.queue(depth)?)),
        })
    }

    fn capacity(&self) -> Option<u64> {
        match self {
            AnyBackend::File(files) => files.capacity(),
            AnyBackend::Ram(ram) => ram.capacity(),
            AnyBackend::Faulty(faulty) => faulty.capacity(),
        }
    }

    fn name(&self) -> &str {
        match self {
            AnyBackend::File(files) => files.name(),
            AnyBackend::Ram(ram) => ram.name(),
            AnyBackend::Faulty(faulty) => faulty.name(),
        }
    }
}

/// Writes to an [`AnyBackend`].
#[derive(Debug)]
pub enum AnyQueue {
    /// To files.
    File(FileQueue),
    /// To RAM.
    Ram(RamQueue),
    /// To any, with faults injected.
    Faulty(Box<FaultyQueue<AnyQueue>>),
}

impl WriteQueue for AnyQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        match self {
            // SAFETY: the caller keeps to our own contract, which is the same.
            AnyQueue::File(queue) => unsafe { queue.start_write(first, pages, count, tag) },
            // SAFETY: as above.
            AnyQueue::Ram(queue) => unsafe { queue.start_write(first, pages, count, tag) },
            // SAFETY: as above.
            AnyQueue::Faulty(queue) => unsafe { queue.start_write(first, pages, count, tag) },
        }
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        match self {
            AnyQueue::File(queue) => queue.reap(wait, done),
            AnyQueue::Ram(queue) => queue.reap(wait, done),
            AnyQueue::Faulty(queue) => queue.reap(wait, done),
        }
    }

    fn in_flight(&self) -> u32 {
        match self {
            AnyQueue::File(queue) => queue.in_flight(),
            AnyQueue::Ram(queue) => queue.in_flight(),
            AnyQueue::Faulty(queue) => queue.in_flight(),
        }
    }
}
