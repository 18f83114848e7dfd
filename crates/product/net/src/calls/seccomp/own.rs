//! The system calls that Farshore makes itself, with what is always the same in their arguments.
//!
//! A new call of ours must be added here, or a filter may be let in that stops it. `tests/programs/threads/seccomp.c`, section `exact`,
//! runs a program under a filter that allows these calls and no other.

/// A call of ours.
#[derive(Debug)]
pub struct Own {
    /// Its number.
    pub nr: u32,
    /// Its name.
    pub name: &'static str,
    /// Its arguments; `None`: differs.
    pub args: [Option<u64>; 6],
    /// What it is needed for: "Farshore needs it to …".
    pub purpose: &'static str,
}

const ANY: [Option<u64>; 6] = [None; 6];

const fn call(nr: u32, name: &'static str, purpose: &'static str) -> Own {
    Own { nr, name, args: ANY, purpose }
}

/// With one argument that is always the same.
const fn with(nr: u32, name: &'static str, arg: usize, value: u64, purpose: &'static str) -> Own {
    let mut args = ANY;
    args[arg] = Some(value);
    Own { nr, name, args, purpose }
}

const FAULTS: &str = "bring pages in";
const SIGNALS: &str = "take signals";
const MEMORY: &str = "follow changes of the memory";
const CALLS: &str = "make the program's calls on memory that is absent";
const ENDS: &str = "end, and say why";

/// `UFFDIO_` requests.
const REGISTER: u64 = 0xc020_aa00;
const WAKE: u64 = 0x8010_aa02;
const COPY: u64 = 0xc028_aa03;
const WRITE_PROTECT: u64 = 0xc018_aa06;
const MOVE: u64 = 0xc028_aa05;
const PAGEMAP_SCAN: u64 = 0xc060_6610;
const FUTEX_WAIT: u64 = 128;
const FUTEX_WAKE: u64 = 129;
const FUTEX_WAKE_SHARED: u64 = 1;
const STDERR: u64 = 2;

/// On threads of the program: `fault.rs`, the engine, `backend/src/file`, `signals`, `memory.rs`, `net`, `report.rs`.
pub const ALWAYS: &[Own] = &[
    with(16, "ioctl(UFFDIO_COPY)", 1, COPY, FAULTS),
    with(16, "ioctl(UFFDIO_WRITEPROTECT)", 1, WRITE_PROTECT, FAULTS),
    with(16, "ioctl(UFFDIO_WAKE)", 1, WAKE, FAULTS),
    with(16, "ioctl(UFFDIO_REGISTER)", 1, REGISTER, MEMORY),
    call(17, "pread64", FAULTS),
    with(202, "futex(FUTEX_WAIT)", 1, FUTEX_WAIT, FAULTS),
    with(202, "futex(FUTEX_WAKE)", 1, FUTEX_WAKE, FAULTS),
    with(202, "futex(FUTEX_WAKE)", 1, FUTEX_WAKE_SHARED, ENDS),
    // The kernel's, when a wait with a timeout goes on after an interruption.
    call(219, "restart_syscall", FAULTS),
    call(228, "clock_gettime", FAULTS),
    call(35, "nanosleep", FAULTS),
    call(230, "clock_nanosleep", FAULTS),
    call(24, "sched_yield", FAULTS),
    call(13, "rt_sigaction", SIGNALS),
    call(14, "rt_sigprocmask", SIGNALS),
    call(15, "rt_sigreturn", SIGNALS),
    call(131, "sigaltstack", SIGNALS),
    call(39, "getpid", SIGNALS),
    call(186, "gettid", SIGNALS),
    call(234, "tgkill", SIGNALS),
    call(297, "rt_tgsigqueueinfo", SIGNALS),
    Own {
        nr: 9,
        name: "mmap",
        // Anonymous and private, readable and writable, wherever the kernel likes.
        args: [Some(0), None, Some(3), None, Some(u64::MAX), Some(0)],
        purpose: MEMORY,
    },
    call(11, "munmap", MEMORY),
    with(10, "mprotect", 2, 0, MEMORY),
    call(28, "madvise", MEMORY),
    call(440, "process_madvise", MEMORY),
    call(5, "fstat", CALLS),
    call(7, "poll", CALLS),
    call(55, "getsockopt", CALLS),
    call(72, "fcntl", CALLS),
    call(46, "sendmsg", CALLS),
    call(47, "recvmsg", CALLS),
    call(327, "preadv2", CALLS),
    call(328, "pwritev2", CALLS),
    call(274, "get_robust_list", ENDS),
    with(1, "write to stderr", 0, STDERR, ENDS),
    call(60, "exit", ENDS),
    call(231, "exit_group", ENDS),
];

const FETCHING: &str = "bring pages in from a server";

/// On threads of the program, where pages lie with a server: `backend/src/nbd`, `backend/src/redis`. All but the first two are for a connection that was
/// lost, or that Redis' seats have not made yet.
pub const REMOTE: &[Own] = &[
    call(44, "sendto", FETCHING),
    call(45, "recvfrom", FETCHING),
    call(271, "ppoll", FETCHING),
    call(41, "socket", FETCHING),
    call(42, "connect", FETCHING),
    call(54, "setsockopt", FETCHING),
    call(48, "shutdown", FETCHING),
    call(292, "dup3", FETCHING),
    call(3, "close", FETCHING),
    call(302, "prlimit64", FETCHING),
];

const HUGE: &str = "bring huge pages in";

/// On threads of the program, where they can: without these pages are small.
pub const HUGE_PAGES: &[Own] =
    &[with(16, "ioctl(UFFDIO_MOVE)", 1, MOVE, HUGE), with(16, "ioctl(PAGEMAP_SCAN)", 1, PAGEMAP_SCAN, HUGE)];

const EVICTING: &str = "evict pages";
const CONTROLLING: &str = "answer farshore stat and set";

/// On threads of ours besides: evictors, fault handlers of the poll mode, the kin thread.
pub const THREADS: &[Own] = &[
    call(426, "io_uring_enter", EVICTING),
    call(18, "pwrite64", EVICTING),
    call(0, "read", EVICTING),
    call(98, "getrusage", EVICTING),
    call(77, "ftruncate", EVICTING),
    call(26, "msync", EVICTING),
    call(221, "fadvise64", EVICTING),
];

/// On the control thread, without which the program can go on.
pub const CONTROL: &[Own] = &[
    call(271, "ppoll", CONTROLLING),
    call(288, "accept4", CONTROLLING),
    call(44, "sendto", CONTROLLING),
    call(45, "recvfrom", CONTROLLING),
    call(1, "write", CONTROLLING),
    call(3, "close", CONTROLLING),
    call(54, "setsockopt", CONTROLLING),
    call(257, "openat", CONTROLLING),
    call(332, "statx", CONTROLLING),
    call(115, "getgroups", CONTROLLING),
    call(118, "getresuid", CONTROLLING),
    call(120, "getresgid", CONTROLLING),
    call(125, "capget", CONTROLLING),
];

const ATTACHING: &str = "attach policies";

/// On the control thread and on those that serve policies, without which there are no policies.
pub const POLICIES: &[Own] = &[
    call(319, "memfd_create", ATTACHING),
    call(77, "ftruncate", ATTACHING),
    call(72, "fcntl", ATTACHING),
    call(9, "mmap", ATTACHING),
    call(46, "sendmsg", ATTACHING),
    with(202, "futex(FUTEX_WAIT)", 1, 0, ATTACHING),
];

const WATCHING: &str = "see which pages are used";

/// On threads that serve policies: `sys/src/idle.rs`. Without these a scan takes pages away. (`sys/src/samples.rs` does nothing under a filter, whatever that allows.)
pub const WATCHES: &[Own] = &[
    call(257, "openat", WATCHING),
    call(138, "fstatfs", WATCHING),
    call(17, "pread64", WATCHING),
    call(18, "pwrite64", WATCHING),
    call(3, "close", WATCHING),
];

const FORKING: &str = "go on in a forked process";

/// In a forked child, and around the fork.
pub const FORKS: &[Own] = &[
    call(323, "userfaultfd", FORKING),
    call(56, "clone", FORKING),
    call(425, "io_uring_setup", FORKING),
    call(427, "io_uring_register", FORKING),
    call(9, "mmap", FORKING),
    call(157, "prctl", FORKING),
    call(302, "prlimit64", FORKING),
    call(318, "getrandom", FORKING),
    call(138, "fstatfs", FORKING),
    call(91, "fchmod", FORKING),
    call(87, "unlink", FORKING),
    call(263, "unlinkat", FORKING),
    call(262, "newfstatat", FORKING),
    call(41, "socket", FORKING),
    call(49, "bind", FORKING),
    call(50, "listen", FORKING),
    call(53, "socketpair", FORKING),
    call(434, "pidfd_open", FORKING),
    call(27, "mincore", FORKING),
    call(272, "unshare", FORKING),
    call(436, "close_range", FORKING),
    call(149, "mlock", FORKING),
];

/// The same; with an error of these it goes on.
pub const FORKS_TRIED: &[Own] = &[
    call(2, "open", FORKING),
    call(3, "close", FORKING),
    call(32, "dup", FORKING),
    call(107, "geteuid", FORKING),
    call(257, "openat", FORKING),
    call(332, "statx", FORKING),
];

const STARTING: &str = "start under Farshore";

/// At the start of a program, by the dynamic linker and ours, besides.
pub const STARTS: &[Own] = &[
    call(2, "open", STARTING),
    call(10, "mprotect", STARTING),
    call(12, "brk", STARTING),
    call(16, "ioctl", STARTING),
    call(19, "readv", STARTING),
    call(21, "access", STARTING),
    call(25, "mremap", STARTING),
    call(32, "dup", STARTING),
    call(39, "getpid", STARTING),
    call(63, "uname", STARTING),
    call(89, "readlink", STARTING),
    call(102, "getuid", STARTING),
    call(104, "getgid", STARTING),
    call(107, "geteuid", STARTING),
    call(108, "getegid", STARTING),
    call(137, "statfs", STARTING),
    call(158, "arch_prctl", STARTING),
    call(202, "futex", STARTING),
    call(204, "sched_getaffinity", STARTING),
    call(218, "set_tid_address", STARTING),
    call(267, "readlinkat", STARTING),
    call(273, "set_robust_list", STARTING),
    call(319, "memfd_create", STARTING),
    call(334, "rseq", STARTING),
];

/// The same; with an error of these it goes on.
pub const STARTS_TRIED: &[Own] =
    &[call(8, "lseek", STARTING), call(118, "getresuid", STARTING), call(217, "getdents64", STARTING)];
