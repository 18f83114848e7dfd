//! Signals while a program is planned for: the program has them as if it had been started alone, and those that would end this command are passed on.
//!
//! They are blocked here and read from a descriptor, so no handler is installed, and what was ignored when this command began (by `nohup`, or by a
//! shell for what it runs behind) is left alone. The program is made by `fork`: glibc's `posix_spawn`, which the standard library takes
//! otherwise, leaves the two signals that glibc keeps for itself, 32 and 33, ignored in what it starts.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Instant;

use farshore_client::client::mask;
use farshore_command::refusal::Refusal;
use nix::libc::SI_KERNEL;
use nix::sys::signal::{SigHandler, SigSet, Signal, raise, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// What would end this command.
const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// How many are raised to see what one costs.
const RAISED: usize = 301;

/// Signals that come for this command.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
    before: Before,
}

/// What the program is to find.
#[derive(Clone, Copy, Debug)]
struct Before {
    blocked: SigSet,
    pipe_ignored: bool,
    child_ignored: bool,
}

impl Signals {
    /// Listens from now on. To be called before there are threads, since those that are made later have what is blocked here.
    ///
    /// # Errors
    /// The kernel gives no descriptor, or does not say what is ignored.
    pub fn new() -> Result<Signals, Refusal> {
        let failed = |error: &dyn std::fmt::Display| {
            Refusal::failed(format!("cannot listen for signals ({error}): is /proc there, and memory left?"))
        };
        let status = std::fs::read_to_string("/proc/self/status").map_err(|error| failed(&error))?;
        let ignored = mask(&status, "SigIgn:").ok_or_else(|| failed(&"no SigIgn in /proc/self/status"))?;
        let is_ignored = |signal: Signal| ignored >> (signal as i32 - 1) & 1 != 0;
        let wanted: SigSet = ENDING.into_iter().filter(|&signal| !is_ignored(signal)).collect();
        let descriptor =
            SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(|error| failed(&error))?;
        let blocked = SigSet::thread_get_mask().map_err(|error| failed(&error))?;
        wanted.thread_block().map_err(|error| failed(&error))?;
        let child_ignored = is_ignored(Signal::SIGCHLD);
        if child_ignored {
            // SAFETY: no handler is installed, and no other thread is there that counts on what was before.
            unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(|error| failed(&error))?;
        }
        let before = Before { blocked, pipe_ignored: is_ignored(Signal::SIGPIPE), child_ignored };
        Ok(Signals { descriptor, before })
    }

    /// Starts a program that finds its signals as this command has found them.
    ///
    /// # Errors
    /// Those of [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        let before = self.before;
        // SAFETY: between fork and exec of a process that may have threads, it makes system calls alone: it allocates nothing and takes no lock.
        unsafe { command.pre_exec(move || before.restore()) };
        command.spawn()
    }

    /// Those that have come, and whether the kernel itself has sent it: then it was for all programs of the terminal.
    pub fn come(&self) -> Vec<(Signal, bool)> {
        let next = || self.descriptor.read_signal().ok().flatten();
        let told = std::iter::from_fn(next).map(|told| (told.ssi_signo as i32, told.ssi_code == SI_KERNEL));
        told.filter_map(|(number, by_kernel)| Some((Signal::try_from(number).ok()?, by_kernel))).collect()
    }
}

/// Seconds that the kernel takes now to raise a signal and to come back from its handler: the median of some hundred. `None`: the signal for it is blocked here.
///
/// A machine's speed changes, and machines differ by more than twice, so it is no constant. A fault takes as much beside its handler.
pub fn cost() -> Option<f64> {
    extern "C" fn nothing(_: i32) {}
    if SigSet::thread_get_mask().ok()?.contains(Signal::SIGURG) {
        return None;
    }
    // SAFETY: the handler does nothing. Nobody else here sets this signal's, and it is put back below; whoever sends it meanwhile sends what is ignored otherwise.
    let before = unsafe { signal(Signal::SIGURG, SigHandler::Handler(nothing)) }.ok()?;
    let mut took: Vec<_> = (0..RAISED)
        .map(|_| {
            let begun = Instant::now();
            let _ = raise(Signal::SIGURG);
            begun.elapsed()
        })
        .collect();
    // SAFETY: what was there before.
    let _ = unsafe { signal(Signal::SIGURG, before) };
    took.sort_unstable();
    Some(took[RAISED / 2].as_secs_f64())
}

impl Before {
    /// In the process that becomes the program. The standard library has set SIGPIPE to its default by now.
    fn restore(self) -> std::io::Result<()> {
        for (which, ignored) in [(Signal::SIGPIPE, self.pipe_ignored), (Signal::SIGCHLD, self.child_ignored)] {
            if ignored {
                // SAFETY: no handler is installed, and this process has one thread.
                unsafe { signal(which, SigHandler::SigIgn) }?;
            }
        }
        Ok(self.blocked.thread_set_mask()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_cost_and_is_as_before() {
        assert!(cost().is_some_and(|seconds| (1e-8..1e-3).contains(&seconds)), "{:?}", cost());
        let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
        let caught = mask(&status, "SigCgt:").expect("it says which");
        assert_eq!(caught >> (Signal::SIGURG as i32 - 1) & 1, 0, "{caught:x}");
        let mut urgent = SigSet::empty();
        urgent.add(Signal::SIGURG);
        urgent.thread_block().expect("of this thread alone");
        assert_eq!(cost(), None);
    }
}
