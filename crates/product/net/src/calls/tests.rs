//! All sorts of calls on absent memory, against the kernel's answer.

// The set-up of a test is groups of libc calls that belong together, with one reason for all.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use super::super::buffers::fake::Fake;
use super::exec::{ExecImage, Note, RUNNING, child_is_gone};
use super::follow::{Plan, Start, Starter};
use super::*;
use farshore_config::{Options, Size, SwapSpec};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

const BUDGET: u64 = 64 << 10;

/// Puts each value at the end of a page, so that it crosses into the next where it can.
struct Places<'f> {
    fake: &'f Fake,
    next: u64,
}

impl Places<'_> {
    fn new(fake: &Fake) -> Places<'_> {
        Places { fake, next: fake.base() + 4096 - 5 }
    }
    fn text(&mut self, text: &str) -> u64 {
        self.bytes(&[text.as_bytes(), &[0]].concat())
    }
    fn words(&mut self, words: &[u64]) -> u64 {
        self.bytes(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
    }
    fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let at = self.next;
        self.fake.put(at, bytes);
        self.next += (bytes.len() as u64).next_multiple_of(4096) + 4096;
        at
    }
    fn room(&mut self, bytes: u64) -> u64 {
        self.bytes(&vec![0; bytes as usize])
    }
}

#[test]
fn paths_and_structures() {
    let fake = Fake::new(200, BUDGET);
    let mut places = Places::new(&fake);
    let path = places.text("/proc/self/status");
    let stat = places.room(256);
    assert_eq!(fake.call(libc::SYS_stat, &[path, stat]), 0);
    assert_eq!(fake.call(libc::SYS_newfstatat, &[libc::AT_FDCWD as u64, path, stat, 0]), 0);
    assert_eq!(fake.call(libc::SYS_statx, &[libc::AT_FDCWD as u64, path, 0, 0xfff, stat]), 0);
    let fd = fake.call(libc::SYS_open, &[path, 0]);
    assert!(fd >= 0);
    assert_eq!(fake.call(libc::SYS_fstat, &[fd as u64, stat]), 0);
    assert_eq!(fake.call(libc::SYS_close, &[fd as u64]), 0);
    let link = places.text("/proc/self/exe");
    let buffer = places.room(1_000_000 / 8);
    let len = fake.call(libc::SYS_readlink, &[link, buffer, 100_000]);
    assert_eq!(fake.get(buffer, len as u64), std::env::current_exe().expect("exe").as_os_str().as_encoded_bytes());
    assert!(fake.call(libc::SYS_getcwd, &[buffer, u64::MAX >> 1]) > 0);
    assert_eq!(fake.call(libc::SYS_uname, &[buffer]), 0);
    assert_eq!(fake.call(libc::SYS_clock_gettime, &[0, stat]), 0);
    let now = places.words(&[0, 1000]);
    assert_eq!(fake.call(libc::SYS_nanosleep, &[now, 0]), 0);
    assert_eq!(fake.call(libc::SYS_clock_nanosleep, &[1, 0, now, stat]), 0);
    assert_eq!(fake.call(libc::SYS_prlimit64, &[0, 7, 0, stat]), 0);
    assert!(fake.call(libc::SYS_getgroups, &[65536, buffer]) >= 0);
    assert!(fake.call(libc::SYS_sched_getaffinity, &[0, 100_000, buffer]) > 0);
    let header = places.words(&[0x2008_0522]);
    assert_eq!(fake.call(libc::SYS_capget, &[header, stat]), 0);
    let name = places.text("farshore-test");
    assert_eq!(fake.call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]), 0);
    assert_eq!(fake.call(libc::SYS_prctl, &[libc::PR_GET_NAME as u64, stat]), 0);
    assert_eq!(fake.get(stat, 14), b"farshore-test\0");
    assert_eq!(fake.call(libc::SYS_prctl, &[59, 1, 0, 0, 0]), errno(libc::EINVAL));
    assert_eq!(fake.call(libc::SYS_arch_prctl, &[0x1003, stat]), 0);
    let missing = places.text("/no/such/file");
    assert_eq!(fake.call(libc::SYS_rename, &[missing, path]), errno(libc::ENOENT));
    assert_eq!(fake.call(libc::SYS_mincore, &[fake.base(), 4096 * 100, stat]), 0);
}

#[test]
fn answers_that_need_no_kernel() {
    let fake = Fake::new(1, BUDGET);
    for nr in [libc::SYS_vmsplice, libc::SYS_userfaultfd] {
        assert_eq!(fake.call(nr, &[0; 6]), errno(libc::ENOSYS));
    }
    assert_eq!(fake.call(libc::SYS_ioctl, &[0, 0xae01, 0]), errno(libc::ENOSYS));
    // The strict modes leave four calls.
    assert_eq!(fake.call(libc::SYS_seccomp, &[0, 0, 0]), errno(libc::EINVAL));
    assert_eq!(fake.call(libc::SYS_prctl, &[libc::PR_SET_SECCOMP as u64, 1]), errno(libc::EINVAL));
    assert!(fake.calls().is_empty());
    for nr in [libc::SYS_mmap, libc::SYS_clone3, libc::SYS_rt_sigaction, libc::SYS_exit_group] {
        assert!(dispatch(&fake, nr as u64, &[0; 6]).is_none());
    }
    // Newer than the table, unassigned, x32's write, and what programs use to ask for nothing.
    for nr in [5000, 400, 1 << 30 | 1, 0xffff_ffff] {
        assert_eq!(fake.call(nr, &[1, fake.base(), 1]), errno(libc::ENOSYS), "{nr:#x}");
    }
    assert!(fake.calls().is_empty());
}

#[test]
fn what_the_kernel_keeps_stops_being_managed() {
    let fake = Fake::new(4, BUDGET);
    let list = fake.base() + 4096 - 8;
    // Refused by the kernel (a size that is none), so that the test's own thread keeps what it has.
    assert_eq!(fake.call(libc::SYS_set_robust_list, &[list, 1]), errno(libc::EINVAL));
    assert_eq!(fake.call(libc::SYS_rseq, &[list, 32, 77, 0]), errno(libc::EINVAL));
    assert_eq!(fake.kept(), [(list, 24), (list, 32)]);
}

#[test]
fn answers_of_a_failed_call_come_out_of_scratch_memory() {
    // One page a call: a structure on two pages goes through scratch memory.
    let fake = Fake::new(4, 4096);
    let at = fake.base() + 4096 - 4;
    // A size that the kernel does not know: it answers with the one that it does.
    fake.put(at, &4000u32.to_ne_bytes());
    fake.put(at + 4000 - 1, &[1]);
    assert_eq!(fake.call(libc::SYS_sched_setattr, &[0, at, 0]), errno(libc::E2BIG));
    let size = u32::from_ne_bytes(fake.get(at, 4).try_into().expect("four bytes"));
    assert!((48..4000).contains(&size), "{size}");
    assert_eq!(fake.get(at + 4000 - 1, 1), [1], "what the kernel left alone is as it was");
}

#[test]
fn devices_do_not_get_memory() {
    let fake = Fake::new(4, BUDGET);
    let at = fake.base() + 4096 - 12;
    // Four buffers of the program's own memory (2), then of the device's (1).
    fake.put(at, &[4, 0, 0, 0, 1, 0, 0, 0, 2]);
    for request in [0xc014_5608, 0xc100_565c] {
        assert_eq!(fake.call(libc::SYS_ioctl, &[0, request, at]), errno(libc::EINVAL));
    }
    assert_eq!(fake.call(libc::SYS_setsockopt, &[0, 283, 4, at, 32]), errno(libc::ENOPROTOOPT));
    assert_eq!(fake.call(libc::SYS_setsockopt, &[0, 276, 2, at, 32]), errno(libc::ENOPROTOOPT));
    // No more than a look at what the descriptor is.
    assert!(fake.calls().iter().all(|call| call.0 == libc::SYS_fstat as u64));
}

#[test]
fn a_policy_is_asked_for_an_absent_page() {
    let fake = Fake::new(4, BUDGET);
    let (node, page) = (fake.base() + 4096 - 2, fake.base() + 2 * 4096);
    fake.put(page, &[1]);
    // MPOL_F_NODE | MPOL_F_ADDR: on which node the page is.
    let result = fake.call(libc::SYS_get_mempolicy, &[node, 0, 0, page, 3]);
    assert!(result == 0 || result == errno(libc::ENOSYS), "{result}");
}

#[test]
fn polling_with_masks() {
    let fake = Fake::new(200, BUDGET);
    let mut places = Places::new(&fake);
    let (left, right) = UnixStream::pair().expect("socketpair");
    std::io::Write::write_all(&mut (&left), b"x").expect("socket");
    let fd = right.as_raw_fd() as u64;
    let polled = places.words(&[fd | (libc::POLLIN as u64) << 32]);
    let time = places.words(&[1, 0]);
    let mask = places.words(&[u64::MAX]);
    assert_eq!(fake.call(libc::SYS_poll, &[polled, 1, 1000]), 1);
    assert_eq!(fake.call(libc::SYS_ppoll, &[polled, 1, time, mask, 8]), 1);
    assert_eq!(fake.get(polled + 6, 1)[0], libc::POLLIN as u8);
    let mut sets = || places.words(&[1 << fd, 0]);
    let (reads, writes, errors) = (sets(), sets(), sets());
    let pair = places.words(&[mask, 8]);
    let timeval = places.words(&[1, 0]);
    assert_eq!(fake.call(libc::SYS_select, &[fd + 1, reads, writes, errors, timeval]), 2);
    assert_eq!(fake.call(libc::SYS_pselect6, &[fd + 1, reads, writes, errors, time, pair]), 2);
    let epoll = fake.call(libc::SYS_epoll_create1, &[0]) as u64;
    let event = places.words(&[libc::EPOLLIN as u64 | 7 << 32, 0]);
    assert_eq!(fake.call(libc::SYS_epoll_ctl, &[epoll, 1, fd, event]), 0);
    let events = places.room(64);
    // Many more events than can be pinned: fewer are offered.
    assert_eq!(fake.call(libc::SYS_epoll_wait, &[epoll, events, 1_000_000, 0]), 1);
    assert_eq!(fake.call(libc::SYS_epoll_pwait, &[epoll, events, 1_000_000, 0, mask, 8]), 1);
    assert_eq!(fake.call(libc::SYS_epoll_pwait2, &[epoll, events, 4, time, mask, 8]), 1);
    assert_eq!(fake.get(events + 4, 4), 7u32.to_ne_bytes());
    assert_eq!(fake.call(libc::SYS_epoll_wait, &[epoll, events, u64::from(u32::MAX), 0]), errno(libc::EINVAL));
    fake.call(libc::SYS_close, &[epoll]);
}

#[test]
fn the_needed_signals_are_not_blocked_by_a_call() {
    static SEEN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    extern "C" fn look(_: i32) {
        let mut mask = 0u64;
        let nothing = std::ptr::null::<u64>();
        // SAFETY: the mask has room for eight bytes.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, nothing, &raw mut mask, 8) };
        SEEN.store(mask, std::sync::atomic::Ordering::SeqCst);
    }
    let fake = Fake::new(20, BUDGET);
    let mask = fake.base() + 4090;
    fake.put_words(mask, &[!(1 << (libc::SIGUSR2 - 1))]);
    // SAFETY: zeros are a valid sigaction; the signal is blocked in this thread and raised to it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = look as *const () as usize;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        let mut block: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut block, libc::SIGUSR2);
        libc::pthread_sigmask(libc::SIG_BLOCK, &block, std::ptr::null_mut());
    }
    let calls: [(i64, &[u64]); 2] = [(libc::SYS_ppoll, &[0, 0, 0, mask, 8]), (libc::SYS_rt_sigsuspend, &[mask, 8])];
    for (nr, args) in calls {
        // SAFETY: a signal to this thread, which has it blocked.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        assert_eq!(fake.call(nr, args), errno(libc::EINTR));
        let seen = SEEN.swap(0, std::sync::atomic::Ordering::SeqCst);
        assert_ne!(seen, 0, "the mask was used");
        assert_eq!(seen & NEEDED_SIGNALS, 0);
        assert_ne!(seen & (1 << (libc::SIGHUP - 1)), 0);
    }
}

#[test]
fn sockets_and_options() {
    let fake = Fake::new(200, BUDGET);
    let mut places = Places::new(&fake);
    let listener = fake.call(libc::SYS_socket, &[libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0]) as u64;
    // 127.0.0.1, any port.
    let address = places.words(&[libc::AF_INET as u64 | 0x0100_007f << 32, 0]);
    let (one, len) = (places.words(&[1]), places.words(&[16]));
    assert_eq!(fake.call(libc::SYS_setsockopt, &[listener, libc::SOL_SOCKET as u64, libc::SO_REUSEADDR as u64, one, 4]), 0);
    assert_eq!(fake.call(libc::SYS_bind, &[listener, address, 16]), 0);
    assert_eq!(fake.call(libc::SYS_listen, &[listener, 5]), 0);
    assert_eq!(fake.call(libc::SYS_getsockname, &[listener, address, len]), 0);
    let client = fake.call(libc::SYS_socket, &[libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0]) as u64;
    assert_eq!(fake.call(libc::SYS_connect, &[client, address, 16]), 0);
    let server = fake.call(libc::SYS_accept, &[listener, address, len]);
    assert!(server >= 0);
    let option = [client, libc::SOL_SOCKET as u64, libc::SO_TYPE as u64, one, len];
    assert_eq!(fake.call(libc::SYS_getsockopt, &option), 0);
    assert_eq!(fake.get(one, 4), 1u32.to_ne_bytes());
    // TCP throws bytes away with MSG_TRUNC and leaves the buffer alone.
    let buffer = places.bytes(&[9; 200_000]);
    assert_eq!(fake.call(libc::SYS_write, &[client, buffer, 100_000]), 100_000);
    let (trunc, all) = (libc::MSG_TRUNC as u64, libc::MSG_WAITALL as u64);
    fake.put(buffer, &[1; 200_000]);
    assert_eq!(fake.call(libc::SYS_recvfrom, &[server as u64, buffer, 70_000, trunc | all, 0, 0]), 70_000);
    assert!(fake.get(buffer, 200_000).iter().all(|byte| *byte == 1));
    assert_eq!(fake.call(libc::SYS_recvfrom, &[server as u64, buffer, 30_000, all, address, len]), 30_000);
    assert!(fake.get(buffer, 30_000).iter().all(|byte| *byte == 9));
    let available = places.room(4);
    assert_eq!(fake.call(libc::SYS_ioctl, &[client, 0x541b, available]), 0);
    let interfaces = places.words(&[4096, buffer]);
    assert_eq!(fake.call(libc::SYS_ioctl, &[client, 0x8912, interfaces]), 0);
    for fd in [listener, client, server as u64] {
        assert_eq!(fake.call(libc::SYS_close, &[fd]), 0);
    }
}

#[test]
fn futexes() {
    let fake = Fake::new(20, BUDGET);
    let (word, other, time) = (fake.base() + 4092, fake.base() + 8192, fake.base() + 3 * 4096 - 8);
    fake.put_words(time, &[0, 1_000_000]);
    for private in [0, 128] {
        let wait = |operation: u64, value| fake.call(libc::SYS_futex, &[word, operation | private, value, time, 0, u64::MAX]);
        assert_eq!(wait(0, 1), errno(libc::EAGAIN));
        assert_eq!(wait(0, 0), errno(libc::ETIMEDOUT));
        assert_eq!(wait(9, 0), errno(libc::ETIMEDOUT));
        assert_eq!(fake.call(libc::SYS_futex, &[word, 1 | private, 1]), 0);
        assert_eq!(fake.call(libc::SYS_futex, &[word, 3 | private, 1, 1, other]), 0);
        assert_eq!(fake.call(libc::SYS_futex, &[word, 4 | private, 1, 1, other, 0]), 0);
        // FUTEX_WAKE_OP: add 1 to the other word.
        assert_eq!(fake.call(libc::SYS_futex, &[word, 5 | private, 1, 1, other, 1 << 28 | 1 << 12]), 0);
    }
    assert_eq!(fake.get(other, 4), 2u32.to_ne_bytes());
    let waiters = fake.base() + 5 * 4096 - 20;
    fake.put_words(waiters, &[0, word, 2 | 128, 0, other, 2 | 128]);
    let result = fake.call(libc::SYS_futex_waitv, &[waiters, 2, 0, 0, 0]);
    assert!(result == errno(libc::EAGAIN) || result == errno(libc::ENOSYS), "{result}");
}

#[test]
fn own_descriptors_are_not_there() {
    let open = || {
        // SAFETY: a new descriptor.
        let fd = unsafe { libc::fcntl(libc::eventfd(0, libc::EFD_CLOEXEC), libc::F_DUPFD_CLOEXEC, 700) };
        // SAFETY: as above.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    let fds: Vec<OwnedFd> = (0..6).map(|_| open()).collect();
    let numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let own = vec![numbers[1], numbers[2], numbers[4]];
    let fake = Fake::new(1, BUDGET).with_own(own.clone());
    let bad = errno(libc::EBADF);
    let mine = own[0] as u64;
    assert_eq!(fake.call(libc::SYS_close, &[mine]), bad);
    assert_eq!(fake.call(libc::SYS_close, &[mine | 7 << 32]), bad);
    assert_eq!(fake.call(libc::SYS_dup, &[mine]), bad);
    assert_eq!(fake.call(libc::SYS_dup2, &[0, mine]), bad);
    assert_eq!(fake.call(libc::SYS_dup3, &[mine, 900, 0]), bad);
    assert_eq!(fake.call(libc::SYS_fcntl, &[mine, 1]), bad);
    assert_eq!(fake.call(libc::SYS_lseek, &[mine, 0, 0]), bad);
    assert_eq!(fake.call(libc::SYS_epoll_ctl, &[0, 3, mine, 0]), bad);
    let buffer = fake.base();
    for number in [libc::SYS_read, libc::SYS_write, libc::SYS_pread64, libc::SYS_ioctl, libc::SYS_fstat] {
        assert_eq!(fake.call(number, &[mine, buffer, 8]), bad, "{number}");
    }
    let empty = buffer + 100;
    assert_eq!(fake.call(libc::SYS_newfstatat, &[mine, empty, buffer, libc::AT_EMPTY_PATH as u64]), bad);
    assert_eq!(fake.call(libc::SYS_statx, &[mine, empty, libc::AT_EMPTY_PATH as u64, 0, buffer]), bad);
    assert_eq!(fake.call(libc::SYS_linkat, &[mine, empty, mine, empty, libc::AT_EMPTY_PATH as u64]), bad);
    fake.put(empty, b"..\0");
    assert_eq!(fake.call(libc::SYS_openat, &[mine, empty, 0]), bad);
    assert_eq!(fake.call(libc::SYS_newfstatat, &[mine, empty, buffer + 512, 0]), bad);
    // It is not given away in a message either: a header of 56 bytes, and control data with one number.
    let (header, control) = (buffer + 1024, buffer + 2048);
    let rights = |number: u64| [20, libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32, number];
    fake.put_words(header, &[0, 0, 0, 0, control, 24, 0]);
    fake.put_words(header + 64, &[0, 0, 0, 0, control + 64, 24, 0]);
    fake.put_words(control, &rights(mine));
    fake.put_words(control + 64, &rights(numbers[0] as u64));
    let (one, other) = UnixStream::pair().expect("sockets");
    assert_eq!(fake.call(libc::SYS_sendmsg, &[one.as_raw_fd() as u64, header, 0]), bad);
    assert_eq!(fake.call(libc::SYS_sendmsg, &[one.as_raw_fd() as u64, header + 64, 0]), 0);
    assert_eq!(fake.call(libc::SYS_sendmmsg, &[one.as_raw_fd() as u64, header, 2, 0]), bad);
    drop((one, other));
    // The process' own table by a pidfd.
    let this = fake.call(libc::SYS_pidfd_open, &[u64::from(std::process::id()), 0]) as u64;
    let fetched = fake.call(libc::SYS_pidfd_getfd, &[this, numbers[0] as u64, 0]);
    assert!(fetched >= 0 || fetched == errno(libc::ENOSYS), "{fetched}");
    if fetched >= 0 {
        assert_eq!(fake.call(libc::SYS_close, &[fetched as u64]), 0);
        assert_eq!(fake.call(libc::SYS_pidfd_getfd, &[this, mine, 0]), bad);
    }
    fake.call(libc::SYS_close, &[this]);
    // The directory is not looked at for a path that begins at the root.
    fake.put(empty, b"/\0");
    assert_eq!(fake.call(libc::SYS_newfstatat, &[mine, empty, buffer + 512, 0]), 0);
    let range = [numbers[0] as u64, numbers[5] as u64];
    assert_eq!(fake.call(libc::SYS_close_range, &[range[0], range[1], 99]), errno(libc::EINVAL));
    assert_eq!(fake.call(libc::SYS_close_range, &[range[1], range[0], 0]), errno(libc::EINVAL));
    assert_eq!(fake.call(libc::SYS_close_range, &[mine, mine, 0]), 0);
    assert_eq!(fake.call(libc::SYS_close_range, &[range[0], range[1], 0]), 0);
    for (index, fd) in fds.into_iter().enumerate() {
        // SAFETY: asks only.
        let is_open = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) } >= 0;
        assert_eq!(is_open, own.contains(&numbers[index]), "descriptor {index}");
        if !is_open {
            std::mem::forget(fd);
        }
    }
}

/// A child that waits until it is told to end, and memory that it shares the layout of.
struct Child {
    pid: i32,
}

impl Child {
    fn new() -> Child {
        // SAFETY: the child only sleeps.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: no conditions.
                unsafe { libc::pause() };
            },
            pid => Child { pid },
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn memory_of_other_processes_and_of_itself() {
    let fake = Fake::new(400, BUDGET);
    let mut places = Places::new(&fake);
    let source: Vec<u8> = (0..200_000u32).map(|n| (n / 7) as u8).collect();
    let from = places.bytes(&source);
    let to = places.room(200_000);
    let shared = source.clone();
    let child = Child::new();
    // SAFETY: no conditions.
    let pid = unsafe { libc::getpid() } as u64;
    let local = places.words(&[to, 1000, to + 5000, 150_000]);
    let remote = places.words(&[from, 90_000, from + 90_000, 61_000]);
    let heap = places.words(&[shared.as_ptr() as u64, 90_000, shared.as_ptr() as u64 + 90_000, 61_000]);
    for (who, remote) in [(pid, remote), (child.pid as u64, heap)] {
        fake.put(to, &vec![0; 200_000]);
        assert_eq!(fake.call(libc::SYS_process_vm_readv, &[who, local, 2, remote, 2, 0]), 151_000);
        assert_eq!(fake.get(to, 1000), source[..1000]);
        assert_eq!(fake.get(to + 5000, 150_000), source[1000..151_000]);
    }
    fake.put(from, &vec![0; 200_000]);
    assert_eq!(fake.call(libc::SYS_process_vm_writev, &[pid, local, 2, remote, 2, 0]), 151_000);
    assert_eq!(fake.get(from, 151_000), source[..151_000]);
    assert_eq!(fake.call(libc::SYS_process_vm_writev, &[child.pid as u64, local, 2, heap, 2, 0]), 151_000);
    assert_eq!(fake.call(libc::SYS_process_vm_readv, &[pid, local, 2, remote, 2, 1]), errno(libc::EINVAL));
    let wild = places.words(&[4096, 100]);
    assert_eq!(fake.call(libc::SYS_process_vm_readv, &[pid, local, 2, wild, 1, 0]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_process_vm_readv, &[child.pid as u64, wild, 1, heap, 2, 0]), errno(libc::EFAULT));
}

#[test]
fn a_program_is_started_from_absent_memory() {
    let fake = Fake::new(1000, BUDGET);
    // More strings, on more pages, than could be pinned.
    let mut places = Places::new(&fake);
    let path = places.text("/bin/sh");
    let texts: Vec<String> = (0..200).map(|n| format!("argument-{n}")).collect();
    let mut argv = vec![places.text("sh"), places.text("-c"), places.text("echo \"$*\"; echo $PLACE $EXTRA"), places.text("0")];
    argv.extend(texts.iter().map(|text| places.text(text)));
    argv.push(0);
    let envp = [places.text("PLACE=far"), places.text("EXTRA=shore"), 0];
    let argv = places.words(&argv);
    let envp = places.words(&envp);
    let mut fds = [0; 2];
    // SAFETY: the array has room.
    assert_eq!(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the child only makes calls through the fake engine, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the pipe becomes the standard output.
        unsafe { libc::dup2(fds[1], 1) };
        fake.call(libc::SYS_execve, &[path, argv, envp]);
        // SAFETY: no conditions.
        unsafe { libc::_exit(99) };
    }
    // SAFETY: descriptors of ours.
    let mut output = unsafe {
        libc::close(fds[1]);
        std::fs::File::from_raw_fd(fds[0])
    };
    let mut text = String::new();
    output.read_to_string(&mut text).expect("output");
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    assert_eq!(text, format!("{}\nfar shore\n", texts.join(" ")));
}

#[test]
fn a_failed_exec_leaves_nothing() {
    let fake = Fake::new(200, BUDGET);
    let mut places = Places::new(&fake);
    let path = places.text("/no/such/program");
    let long = places.bytes(&[b'x'; 140_000]);
    let argv = places.words(&[path, 0]);
    let too_long = places.words(&[long, 0]);
    let wild = places.words(&[4096, 0]);
    let sh = places.text("/bin/sh");
    assert_eq!(fake.call(libc::SYS_execve, &[path, argv, 0]), errno(libc::ENOENT));
    assert_eq!(fake.call(libc::SYS_execve, &[0, argv, 0]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_execve, &[sh, too_long, 0]), errno(libc::E2BIG));
    assert_eq!(fake.call(libc::SYS_execve, &[sh, wild, 0]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_execve, &[sh, 4096, 0]), errno(libc::EFAULT));
    let at = libc::AT_FDCWD as u64;
    assert_eq!(fake.call(libc::SYS_execveat, &[at, path, argv, 0, 0]), errno(libc::ENOENT));
}

#[test]
fn an_exec_image_holds_copies_and_room() {
    let fake = Fake::new(50, BUDGET);
    let mut places = Places::new(&fake);
    let path = places.text("/bin/true");
    let old = places.text("A=1");
    let envp = places.words(&[old, 4096, 0]);
    let mut image = ExecImage::new(&fake, path, 0, envp, |entries, bytes| entries * 1000 + bytes).expect("an image");
    assert_eq!((image.argv, image.env_entries), (0, 2));
    // One pointer for the argument that the kernel makes up.
    assert_eq!(image.counted, 10 + 4 + 3 * 8);
    let (path, envp) = (image.path, image.envp);
    let (copies, _, room) = image.with_room();
    assert_eq!(room.len(), 2004);
    assert!(room.iter().all(|byte| *byte == 0));
    assert_eq!(copies.text(path), Some(c"/bin/true"));
    let entries: Vec<Option<u64>> = (0..3).map(|index| copies.word(envp + index * 8)).collect();
    assert_eq!(copies.text(entries[0].expect("an entry")), Some(c"A=1"));
    // What cannot be read stays what it is, for the kernel to refuse.
    assert_eq!(entries[1..], [Some(4096), Some(0)]);
    assert_eq!((copies.text(4096), copies.word(4096), copies.text(envp - 8000)), (None, None, None));
    assert!(image.mapping().1 > 2004);
    let image = ExecImage::new(&fake, path, 0, 0, |_, _| 0).expect("an image");
    assert_eq!((image.argv, image.envp), (0, 0));
}

/// How a program starts that is executed with this environment: the whole environment that the kernel would get.
fn started(plan: &'static Plan, path: &str, environment: Option<&[&str]>, is_first: bool) -> Result<Vec<String>, Start> {
    let fake = Fake::new(50, BUDGET);
    let mut places = Places::new(&fake);
    let path = places.text(path);
    let envp = environment.map_or(0, |entries| {
        let mut words: Vec<u64> = entries.iter().map(|entry| places.text(entry)).collect();
        words.push(0);
        places.words(&words)
    });
    let mut image = ExecImage::new(&fake, path, 0, envp, |entries, bytes| plan.room(entries, bytes)).expect("an image");
    let starter = Starter { plan, is_first, filtered: false };
    let envp = match starter.start(&mut image, libc::AT_FDCWD, 0) {
        Start::Followed { envp, .. } => envp,
        other => return Err(other),
    };
    let words = (0..).map(|index| u64::from_ne_bytes(fake.get(envp + index * 8, 8).try_into().expect("8 bytes")));
    let text = |addr: u64| {
        let bytes: Vec<u8> = (0..).map(|at| fake.get(addr + at, 1)[0]).take_while(|byte| *byte != 0).collect();
        String::from_utf8(bytes).expect("plain")
    };
    Ok(words.take_while(|word| *word != 0).map(text).collect())
}

/// A plan whose library is a file of this test's.
fn plan(name: &str) -> (&'static Plan, String) {
    let library = std::env::temp_dir().join(format!("farshore-plan-{}-{name}.so", std::process::id()));
    std::fs::write(&library, "").expect("the temporary directory is writable");
    let mut options = Options::new(Size::mib(64), SwapSpec::Dir("/var/tmp".into()));
    options.stats = Some("/stats.json".parse().expect("a file"));
    (Box::leak(Box::new(Plan::new(&library, &options).expect("a plan"))), library.to_str().expect("plain").to_owned())
}

#[test]
fn a_followed_program_gets_our_variables_and_all_that_it_was_given() {
    let (plan, library) = plan("variables");
    let options = |is_first| {
        let all = started(plan, "/bin/sh", None, is_first).expect("it is followed");
        assert_eq!(all[0], format!("LD_PRELOAD={library}"));
        assert_eq!(all.len(), 2);
        all[1].strip_prefix("FARSHORE_OPTIONS=").map(|text| Options::from_json(text).expect("the library could read it"))
    };
    let (becomes, starts) = (options(true).expect("options"), options(false).expect("options"));
    assert!(becomes.followed && becomes.stats.is_some());
    assert!(starts.followed && starts.stats.is_none());
    let json = format!("FARSHORE_OPTIONS={}", starts.to_json());
    let preload = |rest: &str| format!("LD_PRELOAD={library}{rest}");
    for (given, expected) in [
        (&["A=1", "A=2", "", "odd"][..], vec!["A=1", "A=2", "", "odd", &preload(""), &json]),
        (&["LD_PRELOAD=/x.so", "B=2"], vec![&preload(":/x.so"), "B=2", &json, "FARSHORE_OLD_PRELOAD=/x.so"]),
        (&["A=1", "LD_PRELOAD="], vec!["A=1", &preload(":"), &json, "FARSHORE_OLD_PRELOAD="]),
        (
            &["LD_PRELOAD=/a.so", "LD_PRELOAD=/b.so c.so", "LD_PRELOADED=1"],
            vec!["LD_PRELOAD=/a.so", &preload(":/b.so c.so"), "LD_PRELOADED=1", &json, "FARSHORE_OLD_PRELOAD=/b.so c.so"],
        ),
    ] {
        assert_eq!(started(plan, "/bin/sh", Some(given), false).expect("it is followed"), expected);
    }
    std::fs::remove_file(library).expect("it was there");
}

#[test]
fn what_cannot_be_followed_starts_natively() {
    let (plan, library) = plan("natively");
    let of = |path: &str, environment: &[&str]| started(plan, path, Some(environment), false).expect_err("not followed");
    assert!(matches!(of("/bin/sh", &["FARSHORE_OPTIONS={}"]), Start::Natively));
    for path in ["/no/such/program", "/etc/passwd", "/dev/null", "/", ""] {
        assert!(matches!(of(path, &["A=1"]), Start::Natively), "{path}");
    }
    assert!(started(plan, "/bin/sh", Some(&[]), false).is_ok());
    // Another file under the library's name, then none.
    let other = format!("{library}.new");
    std::fs::write(&other, "").expect("it can be written");
    std::fs::rename(&other, &library).expect("it can be renamed");
    assert!(matches!(of("/bin/sh", &["A=1"]), Start::Unlike(_)));
    std::fs::remove_file(library).expect("it was there");
    assert!(matches!(of("/bin/sh", &["A=1"]), Start::Unlike(_)));
    let strict = {
        let options = Options { require: true, ..Options::new(Size::mib(16), SwapSpec::Dir("/".into())) };
        Plan::new(std::path::Path::new("/bin/sh"), &options).expect("a plan")
    };
    assert!(matches!(strict.strictly(Start::Unlike("a reason")), Start::Refused("a reason")));
    assert!(matches!(strict.strictly(Start::Natively), Start::Natively));
    assert!(matches!(of("/etc/passwd", &["A=1"]), Start::Natively));
}

#[test]
fn what_a_vfork_child_leaves_is_unmapped() {
    let fake = Fake::new(50, BUDGET);
    let mut places = Places::new(&fake);
    let (path, argument) = (places.text("/bin/true"), places.text("true"));
    let argv = places.words(&[argument, 0]);
    let (child, other) = (4_000_001, 4_000_002);
    let others = Note::take(other, (0, 0)).expect("a free note");
    // As `call` does in the child, up to the point from which it does not come back.
    let image = ExecImage::new(&fake, path, argv, 0, |_, _| 0).expect("an image");
    assert!(Note::take(child, image.mapping()).is_some());
    let mapping = image.mapping();
    std::mem::forget(image);
    let unmapped = || fake.calls().iter().filter(|call| call.0 == libc::SYS_munmap as u64 && call.1[0] == mapping.0).count();
    for _ in 0..2 {
        child_is_gone(&fake, child);
        assert_eq!(unmapped(), 1);
    }
    assert_eq!(others.pid.load(std::sync::atomic::Ordering::Relaxed), other);
    others.give_back();
    // A failed call leaves no note. (Another test may be in the middle of one.)
    assert_eq!(fake.call(libc::SYS_execve, &[argument, argv, 0]), errno(libc::ENOENT));
    let own = u64::from(std::process::id());
    let is_free = || RUNNING.iter().all(|note| note.pid.load(std::sync::atomic::Ordering::Relaxed) != own);
    assert!((0..60_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        is_free()
    }));
}

#[test]
fn a_descriptor_that_may_keep_memory_gets_all_of_it_or_nothing() {
    const UNKNOWN: u64 = 0xc020_f701;
    const CLOSE_ON_EXEC: u64 = 0x5451;
    let mut pipe = [0i32; 2];
    // SAFETY: two descriptors, which belong to this test.
    let [epoll, null] = unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        [libc::epoll_create1(0), libc::open(c"/dev/null".as_ptr(), libc::O_RDWR)]
    };
    let request = |fake: &Fake, fd: i32, number: u64| fake.call(libc::SYS_ioctl, &[fd as u64, number, fake.base()]);
    for full in [false, true] {
        let fake = Fake::new(4, BUDGET);
        let fake = if full { fake.full() } else { fake };
        // What is known, and what every descriptor answers.
        for fd in [pipe[0], null] {
            assert_eq!(request(&fake, fd, UNKNOWN), errno(libc::ENOTTY));
        }
        assert_eq!(request(&fake, epoll, CLOSE_ON_EXEC), 0);
        assert!(fake.surrendered().is_empty());
        let asked = |fake: &Fake| fake.calls().iter().filter(|call| call.0 == libc::SYS_ioctl as u64).count();
        let before = asked(&fake);
        assert!(request(&fake, epoll, UNKNOWN) < 0);
        assert_eq!((fake.surrendered(), asked(&fake) - before), (vec![(0, 0)], usize::from(!full)));
    }
    // SAFETY: nobody else has them.
    unsafe { [epoll, null, pipe[0], pipe[1]].into_iter().for_each(|fd| assert_eq!(libc::close(fd), 0)) };
}

#[test]
fn soft_dirty_bits_cannot_be_cleared() {
    let fake = Fake::new(8, BUDGET);
    let mut places = Places::new(&fake);
    let link = std::env::temp_dir().join(format!("clear-refs-{}", std::process::id()));
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink("/proc/self/clear_refs", &link).expect("a link");
    for path in ["/proc/self/clear_refs", "/proc/thread-self/clear_refs", link.to_str().expect("a name")] {
        let path = places.text(path);
        assert_eq!(fake.call(libc::SYS_open, &[path, libc::O_WRONLY as u64]), errno(libc::EACCES));
        assert_eq!(fake.call(libc::SYS_openat, &[libc::AT_FDCWD as u64, path, libc::O_WRONLY as u64]), errno(libc::EACCES));
    }
    std::fs::remove_file(&link).expect("removed");
    // Other files that can only be written to.
    let other = std::env::temp_dir().join(format!("write-only-{}", std::process::id()));
    let path = places.text(other.to_str().expect("a name"));
    let fd = fake.call(libc::SYS_open, &[path, (libc::O_WRONLY | libc::O_CREAT) as u64, 0o200]);
    assert!(fd >= 0);
    assert_eq!(fake.call(libc::SYS_close, &[fd as u64]), 0);
    std::fs::remove_file(&other).expect("removed");
}
