//! Probes of userfaultfd: each in turn on one scratch mapping.

use super::{Needed, Probe};
use crate::guarded;
use crate::own::Own;
use crate::raw::Errno;
use crate::signal::{self, Action, How, SigInfo, SigSet, UContext};
use crate::uffd::{self, Features, Uffd, UffdError, UffdOptions, Way};
use crate::vm::{self, SelfMem, prot};
use alloc_crate::string::{String, ToString};
use alloc_crate::vec::Vec;
use alloc_crate::{format, vec};

const PAGE: u64 = 4096;

/// SIGBUS of a guarded access becomes its error; any other gets what it would have got.
unsafe extern "C" fn on_sigbus(_: i32, _: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes a valid context, and nobody else uses it meanwhile.
    if guarded::fixup(unsafe { &mut *context }) {
        return;
    }
    // Not ours: the default, by faulting again.
    // SAFETY: the default action needs no handler.
    let _ = unsafe { signal::sigaction(signal::SIGBUS, Some(&Action::DEFAULT)) };
}

/// Calls `f` while SIGBUS is unblocked and makes guarded accesses fail.
fn with_sigbus<R>(f: impl FnOnce() -> R) -> Result<R, Errno> {
    let action = Action::new(on_sigbus, signal::flags::ONSTACK, SigSet::EMPTY);
    // SAFETY: the handler is async-signal-safe and has the right signature.
    let before = unsafe { signal::sigaction(signal::SIGBUS, Some(&action)) }?;
    let mask = signal::sigprocmask(How::Unblock, SigSet::EMPTY.with(signal::SIGBUS));
    let result = f();
    signal::sigprocmask(How::Set, mask);
    // SAFETY: puts back the action that was there.
    unsafe { signal::sigaction(signal::SIGBUS, Some(&before)) }?;
    Ok(result)
}

/// Registered scratch memory of eight absent pages, and a page of sevens to fill it from.
struct Scratch {
    uffd: Uffd,
    memory: Own,
    sevens: Own,
}

type Outcome = Result<String, String>;

/// A failed step as text.
fn failed(step: &str) -> impl Fn(UffdError) -> String + '_ {
    move |error| format!("{step}: {error}")
}

fn errno(step: &str) -> impl Fn(Errno) -> String + '_ {
    move |errno| format!("{step}: {errno}")
}

impl Scratch {
    fn new(uffd: Uffd) -> Result<Scratch, String> {
        let memory = Own::new(8 * PAGE as usize).map_err(errno("mapping scratch memory"))?;
        let sevens = Own::new(PAGE as usize).map_err(errno("mapping scratch memory"))?;
        // SAFETY: one page, ours.
        unsafe { sevens.base().write_bytes(7, PAGE as usize) };
        let scratch = Scratch { uffd, memory, sevens };
        // SAFETY: the memory is touched only by guarded accesses and through the kernel.
        unsafe { scratch.uffd.register(scratch.page(0), 8 * PAGE) }.map_err(errno("UFFDIO_REGISTER"))?;
        Ok(scratch)
    }
    fn page(&self, n: u64) -> u64 {
        self.memory.base().as_ptr() as u64 + n * PAGE
    }
    fn byte(&self, n: u64) -> *mut u8 {
        self.memory.base().as_ptr().wrapping_add((n * PAGE) as usize)
    }
    fn fill(&self, n: u64, protect: bool) -> Result<(), String> {
        let source = self.sevens.base().as_ptr() as u64;
        // SAFETY: the source is ours and nobody writes it.
        unsafe { self.uffd.copy(self.page(n), source, PAGE, protect, false) }.map_err(failed("UFFDIO_COPY"))
    }
    fn read(&self, n: u64) -> Result<u8, signal::FaultKind> {
        // SAFETY: ordinary memory of ours.
        unsafe { guarded::read_byte(self.byte(n)) }
    }
    fn write(&self, n: u64) -> Result<(), signal::FaultKind> {
        // SAFETY: ordinary memory of ours that nobody else uses.
        unsafe { guarded::write_byte(self.byte(n), 8) }
    }

    /// An absent page raises SIGBUS, with the kind of fault, and can be served.
    fn sigbus(&self) -> Outcome {
        for write in [false, true] {
            match if write { self.write(0) } else { self.read(0).map(|_| ()) } {
                Err(kind) if !kind.present() && kind.write() == write => {}
                other => return Err(format!("touching an absent page gave {other:?}, not SIGBUS")),
            }
        }
        self.fill(0, false)?;
        match (self.read(0), self.write(0)) {
            (Ok(7), Ok(())) => Ok("faults raise SIGBUS, and pages that are filled in can be used".into()),
            other => Err(format!("a page that was filled in gave {other:?}")),
        }
    }

    /// A protected page can be read, raises SIGBUS when written, and can be opened; a range of several is protected by one call.
    fn write_protection(&self) -> Outcome {
        self.fill(1, true)?;
        self.fill(3, false)?;
        let refused = |n| matches!(self.write(n), Err(kind) if kind.present() && kind.write());
        if self.read(1) != Ok(7) || !refused(1) {
            return Err("a page filled in write-protected can be written".into());
        }
        self.uffd.unprotect(self.page(1), PAGE, false).map_err(failed("UFFDIO_WRITEPROTECT (off)"))?;
        if self.write(1).is_err() {
            return Err("a page stays write-protected".into());
        }
        self.uffd.protect(self.page(1), 3 * PAGE).map_err(failed("UFFDIO_WRITEPROTECT"))?;
        if !refused(1) || !refused(3) || self.read(2).is_ok() {
            return Err("protecting a range with a hole did not protect its pages, or filled the hole".into());
        }
        Ok("single pages and ranges".into())
    }

    /// Pages move between registered ranges.
    fn moving(&self) -> Outcome {
        self.fill(4, false)?;
        // SAFETY: our own scratch page.
        let moved = unsafe { self.uffd.move_pages(self.page(5), self.page(4), PAGE, false, false) };
        moved.map_err(failed("UFFDIO_MOVE"))?;
        match (self.read(4).is_err(), self.read(5)) {
            (true, Ok(7)) => Ok("a page was moved".into()),
            other => Err(format!("a moved page left {other:?}")),
        }
    }

    /// The bytes of a page that the program cannot read can be read and filled in.
    fn unreadable(&self) -> Outcome {
        let memory = SelfMem::open().map_err(errno("opening /proc/self/mem"))?;
        // SAFETY: our own scratch pages; guarded accesses of others go on.
        unsafe { vm::mprotect(self.page(6), 2 * PAGE, prot::NONE) }.map_err(errno("mprotect"))?;
        self.fill(6, true)?;
        let mut bytes = vec![0u8; PAGE as usize];
        memory.read(self.page(6), &mut bytes).map_err(errno("reading /proc/self/mem"))?;
        if bytes.iter().all(|byte| *byte == 7) { Ok("through /proc/self/mem".into()) } else { Err("wrong bytes".into()) }
    }
}

/// All probes of userfaultfd.
pub(super) fn probe(probes: &mut Vec<Probe>) {
    let there = uffd::kernel_features(UffdOptions::UPCALL);
    let opened = Uffd::open(UffdOptions::UPCALL);
    let result = match (&opened, &there) {
        (Ok(_), Ok(there)) => Ok(match uffd::way(UffdOptions::UPCALL) {
            Ok(Way::Device) => format!("{there}; by {}, since userfaultfd(2) is forbidden", Way::Device),
            _ => there.to_string(),
        }),
        (Err(why), _) | (_, Err(why)) => Err(why.to_string()),
    };
    let advice = "use Linux 6.8 or newer with CONFIG_USERFAULTFD=y; in a container, allow userfaultfd(2) in the seccomp profile, or let it have the device (--device /dev/userfaultfd)";
    probes.push(Probe::new("userfaultfd for user faults", Needed::Required, result, advice));
    let scratch = opened.map_err(|why| why.to_string()).and_then(|(uffd, _)| Scratch::new(uffd));
    scratch_probes(scratch.as_ref(), probes);
    probes.push(kernel_faults());
    probes.push(unknown_features(there.unwrap_or_default()));
}

fn scratch_probes(scratch: Result<&Scratch, &String>, probes: &mut Vec<Probe>) {
    type Try = fn(&Scratch) -> Outcome;
    let newer = "use Linux 6.8 or newer";
    let tries: [(&'static str, Needed, Try, &str); 4] = [
        ("faults by SIGBUS", Needed::Required, Scratch::sigbus, newer),
        ("write protection", Needed::Required, Scratch::write_protection, "use a kernel with CONFIG_HAVE_ARCH_USERFAULTFD_WP=y"),
        (
            "UFFDIO_MOVE",
            Needed::Optional("pages are copied, as they are anyway while several threads run"),
            Scratch::moving,
            newer,
        ),
        (
            "bytes of unreadable memory",
            Needed::Optional("pages that the program has made unreadable stay in memory"),
            Scratch::unreadable,
            "mount /proc; start the kernel with proc_mem.force_override=always (some allow it to debuggers alone)",
        ),
    ];
    for (name, needed, attempt, advice) in tries {
        let result = match scratch {
            Ok(scratch) => with_sigbus(|| attempt(scratch)).unwrap_or_else(|why| Err(format!("rt_sigaction: {why}"))),
            Err(why) => Err(why.clone()),
        };
        probes.push(Probe::new(name, needed, result, advice));
    }
}

/// A userfaultfd that serves the kernel's own accesses too: opened, and memory registered with it. (To serve such an
/// access takes a second thread, which this crate cannot make; a test does it.)
fn kernel_faults() -> Probe {
    let result = match Uffd::open(UffdOptions::POLL) {
        Ok((uffd, features)) => {
            let by = match uffd::way(UffdOptions::POLL) {
                Ok(Way::Device) => format!("; by {}", Way::Device),
                _ => String::new(),
            };
            Scratch::new(uffd).map(|_| format!("with {features}{by}"))
        }
        Err(why) => Err(why.to_string()),
    };
    let advice =
        "as root: `sysctl vm.unprivileged_userfaultfd=1`, or give the user access to /dev/userfaultfd, or grant CAP_SYS_PTRACE";
    Probe::new(
        "userfaultfd for kernel faults",
        Needed::Optional("`--fault poll` serves only the program's own accesses"),
        result,
        advice,
    )
}

/// Feature bits newer than this program: userfaultfd RWP (access bits) will be among them.
fn unknown_features(there: Features) -> Probe {
    let result = match there.unknown() {
        0 => Ok("none: accesses are learned from faults".into()),
        bits => Ok(format!("feature bits {bits:#x}, which Farshore does not use yet")),
    };
    Probe::new("newer userfaultfd features", Needed::Optional("nothing: they are not used yet"), result, "")
}
