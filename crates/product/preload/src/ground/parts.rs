//! What an engine is made from: at the start of a program, and again in a forked child.

use farshore_config::{FaultMode, Options};
use farshore_core::seams::PageBuf;
use farshore_engine::Shape;
use farshore_policy::{BuiltIn, Chosen, prefetch};
use farshore_sys::fd::Fd;
use farshore_sys::huge::Source;
use farshore_sys::kernel::HugeWay;
use farshore_sys::own::map_own;
use farshore_sys::pagemap::Pagemap;
use farshore_sys::uffd::{Uffd, UffdOptions};

/// Where the numbers of our descriptors begin. Not higher than need be: the kernel's table of a process's descriptors is as
/// long as the highest number, and is made, copied and searched whenever a process starts.
pub fn lowest_own_descriptor() -> i32 {
    const HIGHEST: u64 = 4096;
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(HIGHEST);
    i32::try_from(soft.min(HIGHEST).saturating_sub(64).max(64)).unwrap_or(64)
}

/// A descriptor of ours under a number that the program does not count on, if there is one.
pub fn raise(fd: Fd) -> Fd {
    fd.raise(lowest_own_descriptor()).unwrap_or_else(|(fd, _)| fd)
}

/// The same for a userfaultfd.
pub fn raise_uffd(uffd: Uffd) -> Uffd {
    uffd.raise(lowest_own_descriptor()).unwrap_or_else(|(uffd, _)| uffd)
}

/// How huge pages come to this process; `None` if it may not look at its own page tables.
pub fn huge_way(source: &'static Source) -> Option<HugeWay> {
    Some(HugeWay { source, pagemap: Pagemap::open().ok()?.raise(lowest_own_descriptor()) })
}

/// In poll mode with privilege the kernel's own accesses are served too. Buffers of calls are pinned all the same: what a
/// device reads into (`O_DIRECT`) must stay where it is, and the kernel faults it in only once.
pub fn open_uffd(options: &Options) -> Result<Uffd, String> {
    let unprivileged = UffdOptions { user_mode_only: true, ..UffdOptions::POLL };
    let opened = match options.fault {
        FaultMode::Upcall => Uffd::open(UffdOptions::UPCALL),
        FaultMode::Poll => Uffd::open(UffdOptions::POLL).or_else(|_| Uffd::open(unprivileged)),
    };
    opened.map(|(uffd, _)| uffd).map_err(|why| why.to_string())
}

/// The policies that the options name.
pub fn policy(options: &Options) -> Result<Chosen, String> {
    let unknown = |what: &str, name: &str| format!("--{what} {name}: there is no such {what}");
    let (policy, prefetcher) = (&options.policy.name, &options.prefetch.name);
    let evict = BuiltIn::named(policy).ok_or_else(|| unknown("policy", policy))?;
    let prefetch = prefetch::BuiltIn::named(prefetcher).ok_or_else(|| unknown("prefetch", prefetcher))?;
    Ok(Chosen::new(evict, prefetch))
}

/// Memory for the stages of an engine of this shape.
pub fn staging(shape: Shape) -> Result<*mut PageBuf, String> {
    let bytes = shape.sizes().stages as usize * size_of::<PageBuf>();
    let base = map_own(bytes).map_err(|why| format!("no address space for {bytes} bytes of staging memory ({why:?})"))?;
    Ok(base.as_ptr().cast())
}
