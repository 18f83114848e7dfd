//! Which calls a dormant process must see, and what each needs.

use crate::dispatch::{Server, server};
use crate::ground::own_threads::rights;
use crate::ground::sleeping;
use crate::memory::plain_mapping;
use crate::process;
use farshore_catch::patch::ANY_NUMBER;
use farshore_config::control::WAKER;
use farshore_net::table::{self, Kind, Special};
use farshore_sys::raw::nr;
use farshore_sys::vm::{prot, remap};

/// What a call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Nothing: it concerns the kernel alone.
    Nothing,
    /// It changes what is mapped, and is counted.
    Mapped,
    /// It is refused, as in a process that is awake, or its arguments decide whether it is: it may be about a descriptor of ours.
    Refusal,
    /// It asks for the action of the signal that Farshore has taken.
    Question,
    /// Nothing, if this memory will not be managed: from its address on, as many bytes. The kernel writes it from then on, at any time.
    Apart(u64, u64),
    /// It ends a thread or the process.
    End,
    /// The process awake.
    Awake,
}

const IOCTL: u64 = 16;
const SHMAT: u64 = 30;
const CLONE: u64 = 56;
const VFORK: u64 = 58;
const EXECVE: u64 = 59;
const EXIT_GROUP: u64 = 231;
const PRLIMIT64: u64 = 302;
const EXECVEAT: u64 = 322;
const CLONE3: u64 = 435;

/// What libc tells the kernel of each thread's own storage as the thread begins.
const SET_TID_ADDRESS: u64 = 218;
const SET_ROBUST_LIST: u64 = 273;
const RSEQ: u64 = 334;

/// Calls that close a descriptor, or put another file in its place: close, dup2, dup3, close_range. A process that keeps descriptors while it
/// is dormant must see them.
const CLOSE: [u64; 4] = [3, 33, 292, 436];

/// Calls that need no page in memory, but may change the process in a way that start-up must come before: another root, other
/// namespaces, other mounts (`/proc`, the swap directory), another layout of memory (`personality`).
const BEFORE: [u64; 10] = [135, 155, 161, 165, 166, 272, 308, 428, 429, 442];

/// Advice that changes nothing but speed, or gives up bytes at once: none, random, sequential, will need, do not need, about huge
/// pages, cold, page out, populate, collapse.
const ADVICE: [u64; 13] = [0, 1, 2, 3, 4, 14, 15, 16, 17, 20, 21, 22, 23];

/// Options of `prctl` that only ask, or concern the program alone: its name, its parent's death, its timers, its children, its
/// mappings' names.
const OPTIONS: [u64; 14] = [1, 2, 3, 7, 15, 16, 21, 23, 27, 29, 30, 36, 39, 0x5356_4d41];

/// Types of requests that keep no memory: of terminals (and all descriptors), of sockets.
const REQUESTS: [u64; 2] = [0x54, 0x89];

/// Whether a dormant process must see the calls with this number.
pub fn is_watched(number: u64) -> bool {
    let by_arguments = matches!(number, nr::MADVISE | nr::PRCTL | nr::RT_SIGACTION | IOCTL | SHMAT | PRLIMIT64);
    number == ANY_NUMBER || by_arguments || need_of(number, &[0; 6]) != Need::Nothing
}

/// Whether a process cannot be dormant if it makes calls with this number unseen. Calls that change rights are seen so that
/// start-up comes before them, and an exec so that the new program is followed. Some are not seen: those of `posix_spawn` (its
/// `close_range` too), in a child whose making has woken the process, and the loader's, which sets the thread pointer before we are
/// there. These break nothing that holds in a dormant process.
pub fn must_be_seen(number: u64) -> bool {
    const ARCH_PRCTL: u64 = 158;
    const CLOSE_RANGE: u64 = 436;
    let may_go = |number| rights::may_change(number) || matches!(number, EXECVE | EXECVEAT | ARCH_PRCTL | CLOSE_RANGE);
    is_watched(number) && (number == ANY_NUMBER || !may_go(number))
}

/// The same for text that is not libc's. What requests of devices have left shows in what is open when the process wakes, and
/// what `prctl` has done is seen then too; the exception is a filter of system calls in a process that has one already
/// (`filtered`).
pub fn must_be_seen_elsewhere(number: u64, filtered: bool) -> bool {
    is_watched(number) && number != IOCTL && (filtered || number != nr::PRCTL)
}

/// Whether the call makes a thread or a process.
pub fn makes_a_thread(number: u64) -> bool {
    matches!(number, CLONE..=VFORK | CLONE3)
}

/// The calls that a dormant process need not see, also if they come by a site whose number is not known before.
pub fn unseen() -> impl Iterator<Item = u64> {
    (0..table::COUNT as u64).filter(|&number| !is_watched(number))
}

/// What this call, which a dormant process sees, needs. A call that need not be seen is seen if its number has bits that no number has, of
/// which the kernel looks at the lower half alone. It may wait, and must not wait on our stack, where handlers of the program would run
/// meanwhile: it wakes the process.
pub fn need_seen(number: u64, args: &[u64; 6]) -> Need {
    match need_of(number, args) {
        Need::Nothing if !is_watched(number) => Need::Awake,
        need => need,
    }
}

/// Whether Farshore has a handler for this signal.
fn is_taken(signal: u64) -> bool {
    [WAKER, sleeping::SIGNAL].map(u64::from).contains(&signal)
}

/// What this call needs.
pub fn need_of(number: u64, args: &[u64; 6]) -> Need {
    let if_harmless = |harmless: bool| if harmless { Need::Nothing } else { Need::Awake };
    match number {
        nr::MMAP if plain_mapping(args) => Need::Mapped,
        nr::MUNMAP | nr::BRK => Need::Mapped,
        nr::MREMAP if args[3] & !remap::MAYMOVE == 0 => Need::Mapped,
        nr::MPROTECT if args[2] & prot::EXEC == 0 => Need::Mapped,
        nr::MPROTECT => Need::Awake,
        nr::MADVISE => if_harmless(ADVICE.contains(&args[2])),
        nr::PRCTL => if_harmless(OPTIONS.contains(&args[0])),
        IOCTL => if_harmless(REQUESTS.contains(&((args[1] >> 8) & 0xff))),
        SHMAT => if_harmless(args[2] & 0o40000 == 0),
        PRLIMIT64 => if_harmless(args[2] == 0),
        nr::RT_SIGACTION if is_taken(args[0]) && args[1] == 0 => Need::Question,
        nr::RT_SIGACTION => if_harmless(!is_taken(args[0])),
        SET_TID_ADDRESS => Need::Apart(args[0], 4),
        SET_ROBUST_LIST | RSEQ => Need::Apart(args[0], 32),
        nr::EXIT | EXIT_GROUP => Need::End,
        _ if CLOSE.contains(&number) && !sleeping::kept().is_empty() => Need::Refusal,
        _ if BEFORE.contains(&number) => Need::Awake,
        _ => by_table(number),
    }
}

fn by_table(number: u64) -> Need {
    let Some(entry) = table::lookup(number) else { return Need::Refusal };
    match (server(number), entry.kind) {
        // Handlers and masks are the program's own until the process wakes; waking takes them over.
        (Server::Signals, _) => Need::Nothing,
        // It has no threads but the program's.
        (Server::Process, _) if process::asks_for_status(number) => Need::Nothing,
        // Some of these are refused: sockets that keep memory.
        (Server::Rest, Kind::Refused(_) | Kind::Special(Special::SetSockOpt)) => Need::Refusal,
        (
            Server::Rest,
            Kind::NoPointers
            | Kind::Pointers(_)
            | Kind::Transfer(_)
            | Kind::Passed(_)
            | Kind::Gone
            | Kind::Special(
                Special::CloseRange
                | Special::Fcntl
                | Special::Futex
                | Special::FutexArray
                | Special::FutexWait
                | Special::Keyctl
                | Special::Semctl
                | Special::MqNotify
                | Special::GetSockOpt
                | Special::EpollWait
                | Special::Ppoll
                | Special::Pselect
                | Special::Suspend
                | Special::ProcessVm(_)
                | Special::XattrAt(_),
            ),
        ) => Need::Nothing,
        _ => Need::Awake,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_harmless_wakes() {
        // read, poll, rt_sigprocmask, getpid, futex, openat
        for number in [0, 7, 14, 39, 202, 257] {
            assert!(!is_watched(number), "{number}");
        }
        // clone, fork, vfork, execve, setuid, chroot, mlock, unshare, seccomp, clone3, landlock_restrict_self, ptrace
        for number in [56, 57, 58, 59, 105, 161, 149, 272, 317, 435, 446, 101] {
            assert_eq!(need_of(number, &[0; 6]), Need::Awake, "{number}");
        }
        // io_setup, io_uring_setup
        assert_eq!([206, 425].map(|number| need_of(number, &[0; 6])), [Need::Awake; 2]);
        // userfaultfd, one of the future
        for number in [323, 5000] {
            assert_eq!(need_of(number, &[0; 6]), Need::Refusal, "{number}");
        }
        assert!(is_watched(ANY_NUMBER));
        for number in 0..table::COUNT as u64 {
            // A call that is not watched needs nothing, whatever its arguments are.
            assert!(is_watched(number) || need_of(number, &[u64::MAX; 6]) == Need::Nothing, "{number}");
        }
    }

    #[test]
    fn arguments_decide() {
        let advice = |what| need_of(nr::MADVISE, &[0, 4096, what, 0, 0, 0]);
        assert_eq!((advice(4), advice(14), advice(20)), (Need::Nothing, Need::Nothing, Need::Nothing));
        // MADV_FREE, MADV_DONTFORK, MADV_MERGEABLE, MADV_WIPEONFORK, MADV_GUARD_INSTALL
        for what in [8, 10, 12, 18, 102] {
            assert_eq!(advice(what), Need::Awake, "{what}");
        }
        let mapping = |protection, flags| need_of(nr::MMAP, &[0, 1 << 20, protection, flags, 0, 0]);
        assert_eq!(mapping(3, 0x22), Need::Mapped);
        // A file's text is searched when it is there; code that is made at run time cannot be.
        assert_eq!((mapping(5, 0x2), mapping(7, 0x22)), (Need::Mapped, Need::Awake));
        // MAP_LOCKED, MAP_GROWSDOWN, MAP_HUGETLB, MAP_DROPPABLE
        for flags in [0x2022, 0x122, 0x40022, 0x28] {
            assert_eq!(mapping(3, flags), Need::Awake, "{flags:#x}");
        }
    }
}
