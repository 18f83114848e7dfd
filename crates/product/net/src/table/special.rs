//! The pointers of the calls that no rule of the table describes, for the document: the code that acts on them is in
//! `calls`, `transfer`, and the modules outside of the net.

use super::Dir::{self, Both, In, Out};

/// One pointer: argument, direction, what lies there.
pub type Pointer = (u8, Dir, &'static str);

const IOVECS: &str = "argument 2 × 16 bytes (iovecs)";
const MASK: &str = "8 bytes (signal mask)";
const TIME: &str = "16 bytes";

/// The pointers of a call; none if the table has rules for it, or it has no pointers.
pub fn pointers(name: &str) -> &'static [Pointer] {
    match name {
        "read" | "pread64" => &[(1, Out, "argument 2 bytes")],
        "write" | "pwrite64" => &[(1, In, "argument 2 bytes")],
        "readv" | "preadv" | "preadv2" => &[(1, In, "argument 2 × 16 bytes (iovecs), and out what they name")],
        "writev" | "pwritev" | "pwritev2" => &[(1, In, "argument 2 × 16 bytes (iovecs), and in what they name")],
        "sendto" => &[(1, In, "argument 2 bytes"), (4, In, "argument 5 bytes")],
        "recvfrom" => &[
            (1, Out, "argument 2 bytes"),
            (4, Out, "as many bytes as the integer says to which argument 5 points"),
            (5, Both, "4 bytes"),
        ],
        "sendmsg" => &[(1, In, "56 bytes, and what is named there: address, control data, iovecs and what they name")],
        "recvmsg" => &[(1, Both, "56 bytes, and what is named there: address, control data, iovecs and what they name")],
        "sendmmsg" => &[(1, Both, "argument 2 × 64 bytes, and what each names")],
        "recvmmsg" => &[(1, Both, "argument 2 × 64 bytes, and what each names"), (4, Both, TIME)],
        "getrandom" => &[(0, Out, "argument 1 bytes")],
        "getdents" | "getdents64" => &[(1, Out, "argument 2 bytes")],
        "rt_sigaction" => &[(1, In, "32 bytes"), (2, Out, "32 bytes")],
        "rt_sigprocmask" => &[(1, In, "argument 3 bytes"), (2, Out, "argument 3 bytes")],
        "sigaltstack" => &[(0, In, "24 bytes; the stack stays pinned while it is set"), (1, Out, "24 bytes")],
        "rt_sigsuspend" => &[(0, In, MASK)],
        "clone" => &[(2, Out, "4 bytes"), (3, Out, "4 bytes")],
        "clone3" => {
            &[(0, In, "argument 1 bytes, and out the words that it names; a new thread's stack is handed over if it was managed")]
        }
        "execve" => &[(0, In, "string"), (1, In, "array of strings"), (2, In, "array of strings")],
        "execveat" => &[(1, In, "string"), (2, In, "array of strings"), (3, In, "array of strings")],
        "fcntl" => &[(2, Both, "32 bytes for locks, 8 or 16 for owners and hints; a number otherwise")],
        "ioctl" => &[(2, Both, "as many bytes as the request says, at least 256; a number for some")],
        "prctl" => &[
            (1, Both, "by option: up to 256 bytes"),
            (2, Both, "by option: up to a page"),
            (3, In, "never a pointer for the options there are, but of another process"),
            (4, Both, "by option: a name, or 8 bytes"),
        ],
        "arch_prctl" => &[(1, Out, "8 bytes, by option")],
        "futex" => &[(0, Both, "4 bytes"), (3, In, "16 bytes, by operation"), (4, Both, "4 bytes, by operation")],
        "futex_waitv" => &[(0, In, "argument 1 × 24 bytes, and 4 bytes at each address in them"), (3, In, TIME)],
        "futex_requeue" => &[(0, In, "2 × 24 bytes, and 4 bytes at each address in them")],
        "futex_wait" => &[(0, Both, "8 bytes"), (4, In, TIME)],
        "ptrace" => &[
            (2, In, "24 bytes, by request"),
            (3, Both, "by request: up to a page, or what an iovec says; the other process's addresses are its own"),
        ],
        "bpf" => &[(1, Both, "argument 2 bytes")],
        "keyctl" => &[
            (1, Both, "by operation: up to a page"),
            (2, Both, "by operation: argument 3 bytes"),
            (3, Both, "by operation: up to a page"),
            (4, Both, "by operation: up to a page"),
        ],
        "fsconfig" => &[(2, In, "string"), (3, In, "by command: string, or argument 4 bytes")],
        "semctl" => &[(3, Both, "by command: 256 bytes, or 2 for each semaphore; a number otherwise")],
        "mq_notify" => &[(1, In, "64 bytes")],
        "setsockopt" => &[(3, In, "argument 4 bytes")],
        "getsockopt" => &[(3, Both, "as many bytes as the integer says to which argument 4 points"), (4, Both, "4 bytes")],
        "epoll_wait" => &[(1, Out, "argument 2 × 12 bytes")],
        "epoll_pwait" => &[(1, Out, "argument 2 × 12 bytes"), (4, In, MASK)],
        "epoll_pwait2" => &[(1, Out, "argument 2 × 12 bytes"), (3, In, TIME), (4, In, MASK)],
        "ppoll" => &[(0, Both, "argument 1 × 8 bytes"), (2, Both, TIME), (3, In, MASK)],
        "pselect6" => &[
            (1, Both, "one bit for each of argument 0"),
            (2, Both, "one bit for each of argument 0"),
            (3, Both, "one bit for each of argument 0"),
            (4, Both, TIME),
            (5, In, "16 bytes, and the signal mask that they name"),
        ],
        "seccomp" => &[(2, In, "16 bytes, and the filter")],
        "process_vm_readv" => {
            &[(1, In, "argument 2 × 16 bytes (iovecs), and out what they name"), (3, In, "argument 4 × 16 bytes (iovecs)")]
        }
        "process_vm_writev" => {
            &[(1, In, "argument 2 × 16 bytes (iovecs), and in what they name"), (3, In, "argument 4 × 16 bytes (iovecs)")]
        }
        "setxattrat" => &[(1, In, "string"), (3, In, "string"), (4, In, "argument 5 bytes, and in the value that they name")],
        "getxattrat" => &[(1, In, "string"), (3, In, "string"), (4, In, "argument 5 bytes, and out the value that they name")],
        "kexec_load" => &[(2, In, "argument 1 × 32 bytes (segments)")],
        "io_setup" => &[(1, Both, "8 bytes")],
        "io_getevents" => &[(3, Out, "argument 2 × 32 bytes"), (4, In, TIME)],
        "io_submit" => &[(2, In, "argument 1 × 8 bytes, and what they name, which stays pinned until it has completed")],
        "io_cancel" => &[(1, Both, "64 bytes"), (2, Out, "32 bytes")],
        "io_pgetevents" => {
            &[(3, Out, "argument 2 × 32 bytes"), (4, In, TIME), (5, In, "16 bytes, and the signal mask that they name")]
        }
        "io_uring_setup" => &[(1, Both, "120 bytes")],
        "io_uring_enter" => &[(4, In, "argument 5 bytes, and what they name")],
        "io_uring_register" => &[(2, Both, "by operation")],
        "vmsplice" => &[(1, In, IOVECS)],
        "process_madvise" => &[(1, In, IOVECS)],
        _ => &[],
    }
}

/// What lies behind pointers inside the structures of a call, if the table of pointers does not say it.
pub fn inside(name: &str) -> &'static str {
    match name {
        "ioctl" => {
            "inside, where the request is known (`SIOCGIFCONF`, `SG_IO`, NVMe, `FIEMAP`, …) as many bytes as it says, else a page for each pointer among the first 64 words"
        }
        "setsockopt" => "inside: filter programs, tables of packet filters",
        "getsockopt" => "`SO_GET_FILTER`: argument 4 counts instructions of 8 bytes",
        "bpf" => "inside: program and log as long as they say, a page for anything else",
        "keyctl" => "inside: iovecs, key parameters",
        "mq_notify" => "inside: 32 bytes for `SIGEV_THREAD`",
        "kexec_load" => "inside: each segment's buffer",
        "io_uring_enter" => {
            "what requests name stays pinned until they have completed; `EINVAL` as their result for those that cannot be made safe"
        }
        "io_uring_setup" => {
            "`EPERM` for `IORING_SETUP_SQPOLL`, `EINVAL` for memory of the program as queues and for flags since Linux 6.9"
        }
        "io_uring_register" => {
            "inside: descriptors; buffers, which are handed over for good; `EINVAL` for rings of buffers and what came since Linux 6.9"
        }
        _ => "",
    }
}
