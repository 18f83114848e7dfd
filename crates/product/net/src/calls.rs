//! What is done with a system call: [`dispatch`] looks it up in the table and carries it out.
//!
//! Calls that change memory, signals or processes are somebody else's (`None`). All others are answered here: passed
//! through, pinned by rule ([`super::buffers::run`]), transferred ([`super::transfer`]), refused, or done by
//! code of their own in the modules below.
//!
//! A call that a signal interrupts and that is made again needs nothing: [`Memory::raw`] answers with an error that says so (`entry::AGAIN`), which is
//! handed on like any other, and the program makes its call again when it has handled the signal. What was done before, of a call that is made of several, is its result.
//!
//! Signal masks that are set for the time of a call (`ppoll`, `pselect6`, `epoll_pwait`, `rt_sigsuspend`) never block the signals that
//! carry faults and system calls ([`NEEDED_SIGNALS`]): a handler of the program that runs on top of the call would
//! be killed at its first touch of an absent page.

mod commands;
pub mod descriptors;
pub mod exec;
pub mod follow;
pub mod keepers;
pub mod merging;
mod opened;
mod process_vm;
pub mod seccomp;
mod waits;

use super::asynchronous;
use super::buffers::{self, Args, Memory, errno};
use super::table::{self, Kind, Special, Transfer};
use super::transfer;

const fn signal_bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signals that Farshore needs, as a kernel signal mask: they are never blocked.
pub const NEEDED_SIGNALS: u64 = signal_bit(libc::SIGBUS) | signal_bit(libc::SIGSEGV) | signal_bit(libc::SIGSYS);

/// Makes system call `nr` for the program: the result as the kernel returns it, or `None` if the call changes
/// memory, signals or processes and is not handled here.
#[inline]
pub fn dispatch(mem: &impl Memory, nr: u64, args: &Args) -> Option<i64> {
    let Some(entry) = table::lookup(nr) else { return Some(errno(libc::ENOSYS)) };
    let shown;
    let args = match descriptors::hide(mem, entry, args) {
        Ok(None) => args,
        Ok(Some(others)) => {
            shown = others;
            &shown
        }
        Err(refused) => return Some(refused),
    };
    let result = match entry.kind {
        Kind::NoPointers | Kind::Passed(_) | Kind::Gone => mem.raw(nr, args),
        Kind::Kept(rule, _) => buffers::keep(mem, nr, args, &rule),
        Kind::Pointers(rules) => buffers::run(mem, nr, args, rules),
        Kind::Transfer(what) => moved(mem, what, nr, args),
        Kind::Special(what) => special(mem, what, nr, args),
        Kind::Refused(_) => errno(libc::ENOSYS),
        Kind::Elsewhere(_) => return None,
    };
    Some(if result >= 0 && opened::brings_a_descriptor(nr) { opened::look(mem, result as u64) } else { result })
}

#[inline]
fn moved(mem: &impl Memory, what: Transfer, nr: u64, args: &Args) -> i64 {
    if let Some(refused) = keepers::before_transfer(mem, what, args[0]) {
        return refused;
    }
    let result = transfer::transfer(mem, what, nr, args);
    keepers::after_transfer(mem, what, args, result);
    result
}

fn special(mem: &impl Memory, what: Special, nr: u64, args: &Args) -> i64 {
    match what {
        Special::Futex => waits::futex(mem, args),
        Special::FutexWait => waits::futex_wait(mem, nr, args),
        Special::FutexArray => waits::futex_array(mem, nr, args),
        Special::EpollWait => waits::epoll_wait(mem, nr, args),
        Special::Ppoll => waits::ppoll(mem, nr, args),
        Special::Pselect => waits::pselect(mem, nr, args),
        Special::Suspend => waits::suspend(mem, nr, args),
        Special::CloseRange => descriptors::close_range(mem, nr, args),
        Special::FetchDescriptor => descriptors::fetch(mem, nr, args),
        Special::Fcntl => descriptors::fcntl(mem, nr, args),
        Special::Ioctl => commands::ioctl(mem, args),
        Special::Prctl => commands::prctl(mem, args),
        Special::ArchPrctl => commands::arch_prctl(mem, args),
        Special::Ptrace => commands::ptrace(mem, args),
        Special::Bpf => commands::bpf(mem, args),
        Special::Keyctl => commands::keyctl(mem, args),
        Special::Fsconfig => commands::fsconfig(mem, args),
        Special::Semctl => commands::semctl(mem, args),
        Special::MqNotify => commands::mq_notify(mem, args),
        Special::SetSockOpt => commands::set_socket_option(mem, args),
        Special::GetSockOpt => commands::get_socket_option(mem, args),
        Special::Seccomp => seccomp::seccomp(mem, args),
        Special::XattrAt(flow) => commands::xattr_at(mem, flow, nr, args),
        Special::KexecLoad => commands::kexec_load(mem, args),
        Special::ProcessVm(flow) => process_vm::call(mem, flow, nr, args),
        Special::Exec => exec::call(mem, nr, args),
        Special::Ring => asynchronous::io_uring(mem, nr, args),
        Special::Aio => asynchronous::aio(mem, nr, args),
    }
}

#[cfg(test)]
mod tests;
