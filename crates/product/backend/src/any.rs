//! The swap space that the user asked for, whatever its kind.

use crate::compressed::{Compressed, CompressedQueue};
use crate::encrypt::{Cipher, CipherError, Encrypted, EncryptedQueue};
use crate::error::OpenError;
use crate::faulty::{FaultConfig, Faulty, FaultyQueue};
use crate::file::{FileArray, FileOptions, FileQueue};
use crate::layered::{Layered, LayeredQueue};
use crate::mapped;
use crate::mirror::{Mirror, queue::MirrorQueue};
use crate::nbd::{NbdQueue, NbdSpace, Waits};
use crate::ram::{RamQueue, RamSpace};
use crate::redis::{RedisQueue, RedisSpace};
use farshore_config::{Compression, SwapSpec};
use farshore_core::seams::{
    Backend, CopyChange, FaultsSeen, FreeSlots, IoError, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces, WriteQueue,
};
use farshore_core::slots::arrangement::SpaceSet;
use farshore_core::word::Slot;
use rustix::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// The variable that wraps the space in [`Faulty`]: see [`crate::faulty`].
pub const FAULTY_VARIABLE: &str = "FARSHORE_FAULTY";

/// A swap space of any kind.
#[derive(Debug)]
pub enum AnyBackend {
    /// Files.
    File(FileArray),
    /// RAM.
    Ram(RamSpace),
    /// An export of a server.
    Nbd(NbdSpace),
    /// Keys of a server, or of a Cluster.
    Redis(RedisSpace),
    /// A space that is kept several times.
    Mirror(Box<Mirror>),
    /// A space of any kind, with faults injected.
    Faulty(Box<Faulty<AnyBackend>>),
    /// A space of any kind, with pages encrypted.
    Encrypted(Box<Encrypted<AnyBackend>>),
    /// A forked child's space: the parent's, and one of its own on top.
    Layered(Box<Layered>),
    /// A pool of compressed pages in front of a space of any kind, or alone.
    Compressed(Box<Compressed>),
}

impl AnyBackend {
    /// Opens what `specs` name: several files and directories, or one space of another kind; with `encrypt`, under a new key.
    /// Called at start-up. What the user should know but need not act on goes to `notice`, one line each.
    ///
    /// # Errors
    /// The first space that cannot be used, or several that cannot be used together; or that there is no key.
    pub fn open(specs: &[SwapSpec], encrypt: bool, notice: &mut dyn FnMut(&str)) -> Result<AnyBackend, OpenError> {
        AnyBackend::open_with(specs, encrypt, false, AnyBackend::faults_asked()?.as_ref(), notice)
    }

    /// The faults that [`FAULTY_VARIABLE`] asks for. Reads the environment: at start-up only.
    ///
    /// # Errors
    /// When the variable's value makes no sense.
    pub fn faults_asked() -> Result<Option<FaultConfig>, OpenError> {
        let text = std::env::var_os(FAULTY_VARIABLE);
        text.map(|text| text.to_string_lossy().parse::<FaultConfig>().map_err(OpenError::Faulty)).transpose()
    }

    /// As [`AnyBackend::open`], with these faults. Also called later, for a forked child's own space. `partly`: of several files, and of a space that is kept several
    /// times, some may be away, since a program that runs has what a user cannot be asked about.
    ///
    /// # Errors
    /// As [`AnyBackend::open`].
    pub fn open_with(
        specs: &[SwapSpec],
        encrypt: bool,
        partly: bool,
        faults: Option<&FaultConfig>,
        notice: &mut dyn FnMut(&str),
    ) -> Result<AnyBackend, OpenError> {
        // The key first, since it is what fails soonest: no message about the space has been given yet.
        let cipher = if encrypt { Some(Cipher::new()?) } else { None };
        let (pool, specs) = match specs {
            [first @ SwapSpec::Ram { compress: Some(kind), size }, lower @ ..] => {
                match lower.iter().find(|spec| spec.is_pool()) {
                    Some(second) => return Err(OpenError::Mixed(first.to_string(), second.to_string())),
                    None => (Some((*kind, *size)), lower),
                }
            }
            specs => (None, specs),
        };
        let mut backend =
            if pool.is_some() && specs.is_empty() { None } else { Some(AnyBackend::open_plain(specs, partly, faults, notice)?) };
        // The faults are those of the medium: they strike encrypted pages. Pages that stay in RAM are not encrypted.
        backend = backend.map(|backend| match faults {
            Some(config) if !matches!(backend, AnyBackend::Mirror(_)) => backend.with_faults(config),
            _ => backend,
        });
        backend = backend.map(|backend| match cipher {
            Some(cipher) => backend.encrypted(cipher),
            None => backend,
        });
        let Some((kind, size)) = pool else { return backend.ok_or(OpenError::NoSpace) };
        let alone = backend.is_none();
        if alone && kind == Compression::Auto {
            return Err(OpenError::NothingBehind);
        }
        let pool = AnyBackend::Compressed(Box::new(Compressed::open(kind, size, backend)?));
        Ok(match faults {
            Some(config) if alone => pool.with_faults(config),
            _ => pool,
        })
    }

    /// Whether a space of these specs can be taken over from a process that was killed: all that it is are files.
    pub fn can_be_taken_over(specs: &[SwapSpec], encrypt: bool) -> bool {
        !encrypt && specs.iter().all(|spec| matches!(spec, SwapSpec::Dir(_) | SwapSpec::File { .. }))
    }

    /// Takes over the files that a process has left which had opened such a space ([`AnyBackend::can_be_taken_over`]): one for each of `specs`.
    ///
    /// # Errors
    /// As [`AnyBackend::open`].
    pub fn take_over(
        specs: &[SwapSpec],
        left: Vec<OwnedFd>,
        faults: Option<&FaultConfig>,
        notice: &mut dyn FnMut(&str),
    ) -> Result<AnyBackend, OpenError> {
        let files = AnyBackend::File(FileArray::take_over(specs, left, FileOptions::default(), notice)?);
        Ok(match faults {
            Some(config) => files.with_faults(config),
            None => files,
        })
    }

    /// `faults`: those of a space that is kept several times, which strike one of its copies.
    fn open_plain(
        specs: &[SwapSpec],
        partly: bool,
        faults: Option<&FaultConfig>,
        notice: &mut dyn FnMut(&str),
    ) -> Result<AnyBackend, OpenError> {
        specs.iter().try_for_each(SwapSpec::check_supported)?;
        match (specs, specs.iter().find(|spec| !spec.is_file())) {
            (_, None) => Ok(AnyBackend::File(FileArray::open(specs, FileOptions { partly, ..FileOptions::default() }, notice)?)),
            ([SwapSpec::Ram { compress: None, size }], _) => Ok(AnyBackend::Ram(RamSpace::open(*size, None)?)),
            ([SwapSpec::Nbd(export)], _) => Ok(AnyBackend::Nbd(NbdSpace::open(export, Waits::Long, notice)?)),
            ([SwapSpec::Redis(keys)], _) => Ok(AnyBackend::Redis(RedisSpace::open(keys, notice)?)),
            ([SwapSpec::Mirror(copies)], _) => {
                let faults = faults.cloned();
                let open = move |n: usize, copy: &SwapSpec, notice: &mut dyn FnMut(&str)| {
                    let space = match copy {
                        SwapSpec::Nbd(export) => AnyBackend::Nbd(NbdSpace::open(export, Waits::Short, notice)?),
                        copy => AnyBackend::open_plain(core::slice::from_ref(copy), false, None, notice)?,
                    };
                    Ok(match &faults {
                        Some(config) if config.space == Some(n) => {
                            space.with_faults(&FaultConfig { space: None, ..config.clone() })
                        }
                        _ => space,
                    })
                };
                Ok(AnyBackend::Mirror(Box::new(Mirror::open(copies, partly, Box::new(open), notice)?)))
            }
            ([SwapSpec::Delay(_), ..], _) if specs.iter().all(|spec| matches!(spec, SwapSpec::Delay(_))) => {
                let delay = |spec: &SwapSpec| if let SwapSpec::Delay(delay) = spec { Some(*delay) } else { None };
                Ok(AnyBackend::Ram(RamSpace::delayed(&specs.iter().filter_map(delay).collect::<Vec<_>>())?))
            }
            ([one, other, ..], Some(_)) => Err(OpenError::Mixed(one.to_string(), other.to_string())),
            // `check_supported` has refused every other kind, and the caller has taken the pool off.
            ([one], Some(_)) => Err(farshore_config::ConfigError::NotBuilt { spec: one.to_string() }.into()),
            ([], Some(_)) => Err(OpenError::NoSpace),
        }
    }

    /// This space with faults injected.
    #[must_use]
    pub fn with_faults(self, config: &FaultConfig) -> AnyBackend {
        AnyBackend::Faulty(Box::new(Faulty::new(self, config)))
    }

    /// The pool of compressed pages that new pages go to, if there is one.
    pub fn pool(&self) -> Option<&Compressed> {
        match self {
            AnyBackend::Compressed(pool) => Some(pool),
            AnyBackend::Faulty(faulty) => faulty.inner().pool(),
            AnyBackend::Layered(layers) => layers.own().map_or_else(|| layers.base().pool(), AnyBackend::pool),
            AnyBackend::Encrypted(_)
            | AnyBackend::File(_)
            | AnyBackend::Ram(_)
            | AnyBackend::Nbd(_)
            | AnyBackend::Redis(_)
            | AnyBackend::Mirror(_) => None,
        }
    }

    /// The files that new pages go to, if there are any: spaces can come and go in them.
    pub fn files(&self) -> Option<&FileArray> {
        match self {
            AnyBackend::File(files) => Some(files),
            AnyBackend::Ram(_) | AnyBackend::Nbd(_) | AnyBackend::Redis(_) | AnyBackend::Mirror(_) => None,
            AnyBackend::Faulty(faulty) => faulty.inner().files(),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().files(),
            AnyBackend::Layered(layers) => layers.own().and_then(AnyBackend::files),
            AnyBackend::Compressed(pool) => pool.lower().and_then(AnyBackend::files),
        }
    }

    /// The export of a server that it is, encrypted or not.
    pub(crate) fn export(&self) -> Option<&NbdSpace> {
        match self {
            AnyBackend::Nbd(export) => Some(export),
            AnyBackend::Faulty(faulty) => faulty.inner().export(),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().export(),
            AnyBackend::File(_)
            | AnyBackend::Ram(_)
            | AnyBackend::Redis(_)
            | AnyBackend::Mirror(_)
            | AnyBackend::Layered(_)
            | AnyBackend::Compressed(_) => None,
        }
    }

    /// The copies that new pages go to, if the space is kept several times.
    pub fn mirror(&self) -> Option<&Mirror> {
        match self {
            AnyBackend::Mirror(mirror) => Some(mirror),
            AnyBackend::File(_) | AnyBackend::Ram(_) | AnyBackend::Nbd(_) | AnyBackend::Redis(_) => None,
            AnyBackend::Faulty(faulty) => faulty.inner().mirror(),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().mirror(),
            AnyBackend::Layered(layers) => layers.own().or(Some(layers.base())).and_then(AnyBackend::mirror),
            AnyBackend::Compressed(pool) => pool.lower().and_then(AnyBackend::mirror),
        }
    }

    /// In a forked child: leaves the parent's connections to it. `shared`: the two have one table of descriptors.
    pub fn forked(&self, shared: bool) {
        match self {
            AnyBackend::Nbd(export) => export.forked(shared),
            AnyBackend::Redis(keys) => keys.forked(shared),
            AnyBackend::File(_) | AnyBackend::Ram(_) => {}
            AnyBackend::Mirror(mirror) => mirror.forked(shared),
            AnyBackend::Faulty(faulty) => faulty.inner().forked(shared),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().forked(shared),
            AnyBackend::Layered(layers) => {
                layers.base().forked(shared);
                layers.own().into_iter().for_each(|own| own.forked(shared));
            }
            AnyBackend::Compressed(pool) => pool.lower().into_iter().for_each(|lower| lower.forked(shared)),
        }
    }

    /// Whether it can give room back that is no longer needed.
    pub fn gives_back(&self) -> bool {
        match self {
            AnyBackend::File(_) | AnyBackend::Nbd(_) | AnyBackend::Redis(_) => true,
            AnyBackend::Ram(_) => false,
            AnyBackend::Mirror(mirror) => mirror.copies().any(|copy| copy.gives_back()),
            AnyBackend::Faulty(faulty) => faulty.inner().gives_back(),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().gives_back(),
            AnyBackend::Layered(layers) => layers.own().is_some_and(AnyBackend::gives_back),
            AnyBackend::Compressed(pool) => pool.lower().is_some_and(AnyBackend::gives_back),
        }
    }

    /// Whether its pages, and those that a forked child has inherited, are lost unless somebody calls [`Spaces::keep`]: a server forgets them.
    pub fn wants_keeping(&self) -> bool {
        match self {
            AnyBackend::Nbd(_) | AnyBackend::Redis(_) => true,
            AnyBackend::File(_) | AnyBackend::Ram(_) => false,
            AnyBackend::Mirror(mirror) => mirror.copies().any(|copy| copy.wants_keeping()),
            AnyBackend::Faulty(faulty) => faulty.inner().wants_keeping(),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().wants_keeping(),
            AnyBackend::Layered(layers) => layers.base().wants_keeping() || layers.own().is_some_and(AnyBackend::wants_keeping),
            AnyBackend::Compressed(pool) => pool.lower().is_some_and(AnyBackend::wants_keeping),
        }
    }

    /// In a forked child: closes the files that the parent was about to close.
    pub fn close_shut(&self) {
        if let AnyBackend::Layered(layers) = self {
            layers.base().close_shut();
        }
        self.files().into_iter().for_each(FileArray::close_shut);
        self.mirror().into_iter().for_each(Mirror::close_shut);
    }

    /// The wrapper that injects faults, if there is one: to change its rates.
    pub fn faults(&self) -> Option<&Faulty<AnyBackend>> {
        match self {
            AnyBackend::Faulty(faulty) => Some(faulty),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().faults(),
            AnyBackend::Compressed(pool) => pool.lower().and_then(AnyBackend::faults),
            _ => None,
        }
    }

    /// This space, encrypted.
    #[must_use]
    pub fn encrypted(self, cipher: Cipher) -> AnyBackend {
        AnyBackend::Encrypted(Box::new(Encrypted::new(self, Arc::new(cipher))))
    }

    /// Whether pages that are written now are encrypted.
    pub fn is_encrypted(&self) -> bool {
        match self {
            AnyBackend::File(_) | AnyBackend::Ram(_) | AnyBackend::Nbd(_) | AnyBackend::Redis(_) | AnyBackend::Mirror(_) => false,
            AnyBackend::Faulty(faulty) => faulty.inner().is_encrypted(),
            AnyBackend::Encrypted(_) => true,
            // A child's own spaces are opened as their bases were.
            AnyBackend::Layered(layers) => layers.base().is_encrypted(),
            AnyBackend::Compressed(pool) => pool.lower().is_some_and(AnyBackend::is_encrypted),
        }
    }

    /// Locks the memory of all keys again: in a forked child, which does not inherit locks, and after the program's
    /// `munlockall`. One system call a key.
    ///
    /// # Errors
    /// The first key that cannot be locked; the others are tried all the same.
    pub fn lock_keys(&self) -> Result<(), CipherError> {
        match self {
            AnyBackend::File(_) | AnyBackend::Ram(_) | AnyBackend::Nbd(_) | AnyBackend::Redis(_) | AnyBackend::Mirror(_) => {
                Ok(())
            }
            AnyBackend::Faulty(faulty) => faulty.inner().lock_keys(),
            AnyBackend::Encrypted(encrypted) => encrypted.cipher().lock(),
            AnyBackend::Layered(layers) => {
                let base = layers.base().lock_keys();
                layers.own().map_or(Ok(()), AnyBackend::lock_keys).and(base)
            }
            AnyBackend::Compressed(pool) => pool.lower().map_or(Ok(()), AnyBackend::lock_keys),
        }
    }

    /// Memory that the space has mapped for itself besides what it has allocated, in bytes.
    pub fn mapped_bytes(&self) -> u64 {
        match self {
            AnyBackend::File(_) | AnyBackend::Ram(_) | AnyBackend::Nbd(_) | AnyBackend::Redis(_) => 0,
            AnyBackend::Mirror(mirror) => mirror.copies().map(|copy| copy.mapped_bytes()).sum(),
            AnyBackend::Faulty(faulty) => faulty.inner().mapped_bytes(),
            AnyBackend::Encrypted(encrypted) => encrypted.bounce_bytes(),
            // The base's queues are those of the parent.
            AnyBackend::Layered(layers) => layers.own().map_or(0, AnyBackend::mapped_bytes),
            AnyBackend::Compressed(pool) => pool.mapped_bytes() + pool.lower().map_or(0, AnyBackend::mapped_bytes),
        }
    }

    /// The descriptors that Farshore uses now: swap files, and the rings of queues.
    pub fn fds(&self) -> Box<dyn Iterator<Item = RawFd> + '_> {
        match self {
            AnyBackend::File(files) => Box::new(files.fds()),
            AnyBackend::Ram(_) => Box::new(core::iter::empty()),
            AnyBackend::Nbd(export) => Box::new(export.fds()),
            AnyBackend::Redis(keys) => Box::new(keys.fds()),
            AnyBackend::Mirror(mirror) => Box::new(mirror.fds()),
            AnyBackend::Faulty(faulty) => faulty.inner().fds(),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().fds(),
            AnyBackend::Layered(layers) => Box::new(layers.fds().into_iter()),
            AnyBackend::Compressed(pool) => match pool.lower() {
                Some(lower) => lower.fds(),
                None => Box::new(core::iter::empty()),
            },
        }
    }
}

impl AnyBackend {
    /// The descriptors of rings, and of connections that queues write over, that are open now. A forked child has no use for them
    /// and closes them. They are not among [`AnyBackend::fds`] from now on: the program may get their numbers.
    pub fn take_rings(&self) -> Vec<RawFd> {
        match self {
            AnyBackend::File(files) => files.take_rings(),
            AnyBackend::Ram(_) => Vec::new(),
            AnyBackend::Nbd(export) => export.take_sockets(),
            AnyBackend::Redis(keys) => keys.take_sockets(),
            AnyBackend::Mirror(mirror) => mirror.copies().flat_map(|copy| copy.take_rings()).collect(),
            AnyBackend::Faulty(faulty) => faulty.inner().take_rings(),
            AnyBackend::Encrypted(encrypted) => encrypted.inner().take_rings(),
            AnyBackend::Layered(layers) => layers.take_rings(),
            AnyBackend::Compressed(pool) => pool.lower().map_or_else(Vec::new, AnyBackend::take_rings),
        }
    }
}

/// Does the same with the space inside, whatever its kind.
macro_rules! inside {
    ($enum:ident, $any:expr, $inner:ident => $what:expr) => {
        match $any {
            $enum::File($inner) => $what,
            $enum::Ram($inner) => $what,
            $enum::Nbd($inner) => $what,
            $enum::Redis($inner) => $what,
            $enum::Mirror($inner) => $what,
            $enum::Faulty($inner) => $what,
            $enum::Encrypted($inner) => $what,
            $enum::Layered($inner) => $what,
            $enum::Compressed($inner) => $what,
        }
    };
}

impl Backend for AnyBackend {
    type Queue = AnyQueue;

    fn queue(&self, depth: u32) -> Result<AnyQueue, IoError> {
        Ok(match self {
            AnyBackend::File(files) => AnyQueue::File(files.queue(depth)?),
            AnyBackend::Ram(ram) => AnyQueue::Ram(ram.queue(depth)?),
            AnyBackend::Nbd(export) => AnyQueue::Nbd(export.queue(depth)?),
            AnyBackend::Redis(keys) => AnyQueue::Redis(keys.queue(depth)?),
            AnyBackend::Mirror(mirror) => AnyQueue::Mirror(Box::new(mirror.queue(depth)?)),
            AnyBackend::Faulty(faulty) => AnyQueue::Faulty(Box::new(faulty.queue(depth)?)),
            AnyBackend::Encrypted(encrypted) => AnyQueue::Encrypted(Box::new(encrypted.queue(depth)?)),
            AnyBackend::Layered(layers) => AnyQueue::Layered(layers.queue(depth)?),
            AnyBackend::Compressed(pool) => AnyQueue::Compressed(Box::new(pool.queue(depth)?)),
        })
    }
}

/// Pages of mapped files are in none of the spaces. (Faults are injected into reads of them too: the wrapper passes on what it does
/// not strike.)
impl Reads for AnyBackend {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        if slot.is_of_file() {
            return self.read_run(slot, core::slice::from_mut(into));
        }
        inside!(AnyBackend, self, space => space.read(slot, into))
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        if !matches!(self, AnyBackend::Faulty(_))
            && let Some(read) = mapped::read_run(first, into)
        {
            return read;
        }
        inside!(AnyBackend, self, space => space.read_run(first, into))
    }

    fn read_ahead(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        if first.is_of_file() {
            return self.read_run(first, into);
        }
        inside!(AnyBackend, self, space => space.read_ahead(first, into))
    }

    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        if first.is_of_file() {
            return ReadBegun::Over(self.read_run(first, into));
        }
        inside!(AnyBackend, self, space => space.begin_read(first, into))
    }

    fn finish_read(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        inside!(AnyBackend, self, space => space.finish_read(first, into, read))
    }

    fn doubt(&self, slot: Slot) {
        if !slot.is_of_file() {
            inside!(AnyBackend, self, space => space.doubt(slot));
        }
    }
}

impl Spaces for AnyBackend {
    fn capacity(&self) -> Option<u64> {
        inside!(AnyBackend, self, space => space.capacity())
    }

    fn name(&self) -> &str {
        inside!(AnyBackend, self, space => space.name())
    }

    fn spaces(&self) -> usize {
        inside!(AnyBackend, self, space => space.spaces())
    }

    fn capacity_of(&self, space: usize) -> Option<u64> {
        inside!(AnyBackend, self, inner => inner.capacity_of(space))
    }

    fn name_of(&self, slot: Slot) -> &str {
        if slot.is_of_file() {
            return mapped::NAME;
        }
        inside!(AnyBackend, self, space => space.name_of(slot))
    }

    fn arrange(&self, first: u32, spaces: SpaceSet) {
        inside!(AnyBackend, self, space => space.arrange(first, spaces));
    }

    fn is_quiet(&self, is_there: &dyn Fn(Slot) -> bool) -> bool {
        inside!(AnyBackend, self, space => space.is_quiet(is_there))
    }

    fn shut_space(&self, space: usize) {
        inside!(AnyBackend, self, inner => inner.shut_space(space));
    }

    fn close_space(&self, space: usize) {
        inside!(AnyBackend, self, inner => inner.close_space(space));
    }

    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        inside!(AnyBackend, self, space => space.give_back(first, count))
    }

    fn keep(&self, free: &dyn FreeSlots) -> Option<u64> {
        inside!(AnyBackend, self, space => space.keep(free))
    }

    fn news(&self, tell: &mut dyn FnMut(&str, CopyChange)) {
        inside!(AnyBackend, self, space => space.news(tell));
    }
}

impl MemoryBudget for AnyBackend {
    fn own_memory(&self) -> Option<u64> {
        inside!(AnyBackend, self, space => space.own_memory())
    }

    fn takes_memory(&self) -> bool {
        inside!(AnyBackend, self, space => space.takes_memory())
    }

    fn allow_memory(&self, bytes: u64) {
        inside!(AnyBackend, self, space => space.allow_memory(bytes));
    }
}

/// Writes to an [`AnyBackend`].
#[derive(Debug)]
pub enum AnyQueue {
    /// To files.
    File(FileQueue),
    /// To RAM.
    Ram(RamQueue),
    /// To an export of a server.
    Nbd(NbdQueue),
    /// To keys of a server, or of a Cluster.
    Redis(RedisQueue),
    /// To each copy of a space that is kept several times.
    Mirror(Box<MirrorQueue>),
    /// To a space of any kind, with faults injected.
    Faulty(Box<FaultyQueue<AnyQueue>>),
    /// To a space of any kind, with pages encrypted.
    Encrypted(Box<EncryptedQueue<AnyQueue>>),
    /// To a forked child's own space.
    Layered(LayeredQueue),
    /// To a pool.
    Compressed(Box<CompressedQueue>),
}

impl WriteQueue for AnyQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        // SAFETY: the caller keeps our own contract, which is the same.
        inside!(AnyQueue, self, queue => unsafe { queue.start_write(first, pages, count, tag) })
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        inside!(AnyQueue, self, queue => queue.reap(wait, done));
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        inside!(AnyQueue, self, queue => queue.reap_within(ns, done));
    }

    fn in_flight(&self) -> u32 {
        inside!(AnyQueue, self, queue => queue.in_flight())
    }

    fn takes_clean(&self) -> bool {
        inside!(AnyQueue, self, queue => queue.takes_clean())
    }

    fn may_keep(&mut self, may: bool) {
        inside!(AnyQueue, self, queue => queue.may_keep(may));
    }

    fn offer(&mut self, slot: Slot, page: &PageBuf, is_right: &mut dyn FnMut() -> bool) {
        inside!(AnyQueue, self, queue => queue.offer(slot, page, is_right));
    }

    fn tend(&mut self, free: &dyn FreeSlots, faults: &FaultsSeen) {
        inside!(AnyQueue, self, queue => queue.tend(free, faults));
    }
}
