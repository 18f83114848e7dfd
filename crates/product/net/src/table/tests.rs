//! The table against lists that others keep.

use super::super::buffers::fake::Fake;
use super::super::calls::descriptors::hide;
use super::document::{markdown, pointer_arguments};
use super::*;

/// Names that differ between lists for the same number.
fn same(ours: &str, theirs: &str) -> bool {
    ours == theirs || (ours == "newfstatat" && theirs == "fstatat")
}

#[test]
fn names_and_numbers_match_the_syscalls_crate() {
    let mut seen = 0;
    for nr in 0..COUNT {
        let theirs = syscalls::Sysno::new(nr);
        match (describe(nr as u64), theirs) {
            (Some(ours), Some(theirs)) => {
                assert!(same(ours.name, theirs.name()), "{nr}: {} is called {theirs} elsewhere", ours.name);
                seen += 1;
            }
            (None, Some(theirs)) => panic!("{nr} ({theirs}) has no entry"),
            // The crate may be older than the table, but has no holes that the table fills.
            (Some(ours), None) => {
                assert!(nr > syscalls::Sysno::last() as usize || nr == 335 || nr == 336, "{nr} is {} here only", ours.name);
            }
            (None, None) => {}
        }
    }
    assert!(seen > 360, "only {seen} numbers were compared");
    assert!((syscalls::Sysno::last() as usize) < COUNT, "the crate knows newer calls than the table");
}

#[test]
fn names_and_numbers_match_the_kernel_headers() {
    let paths = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"];
    let Some(header) = paths.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
        println!("skipped: no kernel headers on this machine");
        return;
    };
    let numbers = header.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(char::is_whitespace));
    let mut seen = 0;
    for (name, nr) in numbers {
        let nr: u64 = nr.trim().parse().expect("a number");
        assert_eq!(describe(nr).map(|entry| entry.name), Some(name), "call {nr}");
        seen += 1;
    }
    assert!(seen > 340, "only {seen} numbers were compared");
}

/// The pointers of each call that has any: its arguments that the kernel's prototypes mark as `__user`, and those that are
/// pointers by command or hidden in a type. Taken from `include/linux/syscalls.h` and the manual pages, on purpose not
/// from the table.
const USER_POINTERS: &str = "\
    read:1 write:1 open:0 stat:01 fstat:1 lstat:01 poll:0 rt_sigaction:12 rt_sigprocmask:12 ioctl:2 pread64:1 pwrite64:1 \
    readv:1 writev:1 access:0 pipe:0 select:1234 mincore:2 shmctl:2 nanosleep:01 getitimer:1 setitimer:12 sendfile:2 \
    connect:1 accept:12 sendto:14 recvfrom:145 sendmsg:1 recvmsg:1 bind:1 getsockname:12 getpeername:12 socketpair:3 \
    setsockopt:3 getsockopt:34 clone:23 execve:012 wait4:13 uname:0 semop:1 semctl:3 msgsnd:1 msgrcv:1 msgctl:2 fcntl:2 \
    truncate:0 getdents:1 getcwd:0 chdir:0 rename:01 mkdir:0 rmdir:0 creat:0 link:01 unlink:0 symlink:01 readlink:01 \
    chmod:0 chown:0 lchown:0 gettimeofday:01 getrlimit:1 getrusage:1 sysinfo:0 times:0 ptrace:23 syslog:1 getgroups:1 \
    setgroups:1 getresuid:012 getresgid:012 capget:01 capset:01 rt_sigpending:0 rt_sigtimedwait:012 rt_sigqueueinfo:2 \
    rt_sigsuspend:0 sigaltstack:01 utime:01 mknod:0 uselib:0 ustat:1 statfs:01 fstatfs:1 sysfs:12 sched_setparam:1 \
    sched_getparam:1 sched_setscheduler:2 sched_rr_get_interval:1 modify_ldt:1 pivot_root:01 prctl:1234 arch_prctl:1 \
    adjtimex:0 setrlimit:1 chroot:0 acct:0 settimeofday:01 mount:0124 umount2:0 swapon:0 swapoff:0 reboot:3 \
    sethostname:0 setdomainname:0 init_module:02 delete_module:0 quotactl:13 setxattr:012 lsetxattr:012 fsetxattr:12 \
    getxattr:012 lgetxattr:012 fgetxattr:12 listxattr:01 llistxattr:01 flistxattr:1 removexattr:01 lremovexattr:01 \
    fremovexattr:1 time:0 futex:034 sched_setaffinity:2 sched_getaffinity:2 set_thread_area:0 io_setup:1 io_getevents:34 \
    io_submit:2 io_cancel:12 get_thread_area:0 getdents64:1 set_tid_address:0 semtimedop:13 timer_create:12 \
    timer_settime:23 timer_gettime:1 clock_settime:1 clock_gettime:1 clock_getres:1 clock_nanosleep:23 epoll_wait:1 \
    epoll_ctl:3 utimes:01 mbind:3 set_mempolicy:1 get_mempolicy:013 mq_open:03 mq_unlink:0 mq_timedsend:14 \
    mq_timedreceive:134 mq_notify:1 mq_getsetattr:12 kexec_load:2 waitid:24 add_key:012 request_key:012 keyctl:1234 \
    inotify_add_watch:1 migrate_pages:23 openat:1 mkdirat:1 mknodat:1 fchownat:1 futimesat:12 newfstatat:12 unlinkat:1 \
    renameat:13 linkat:13 symlinkat:02 readlinkat:12 fchmodat:1 faccessat:1 pselect6:12345 ppoll:023 set_robust_list:0 \
    get_robust_list:12 splice:13 vmsplice:1 move_pages:234 utimensat:12 epoll_pwait:14 signalfd:1 timerfd_settime:23 \
    timerfd_gettime:1 accept4:12 signalfd4:1 pipe2:0 preadv:1 pwritev:1 rt_tgsigqueueinfo:3 perf_event_open:0 \
    recvmmsg:14 fanotify_mark:4 prlimit64:23 name_to_handle_at:123 open_by_handle_at:1 clock_adjtime:1 sendmmsg:1 \
    getcpu:012 process_vm_readv:13 process_vm_writev:13 kcmp:4 finit_module:1 sched_setattr:1 sched_getattr:1 \
    renameat2:13 seccomp:2 getrandom:0 memfd_create:0 kexec_file_load:3 bpf:1 execveat:123 copy_file_range:13 preadv2:1 \
    pwritev2:1 statx:14 io_pgetevents:345 rseq:0 pidfd_send_signal:2 io_uring_setup:1 io_uring_enter:4 \
    io_uring_register:2 open_tree:1 move_mount:13 fsopen:0 fsconfig:23 fspick:1 clone3:0 openat2:12 faccessat2:1 \
    process_madvise:1 epoll_pwait2:134 mount_setattr:13 quotactl_fd:3 landlock_create_ruleset:0 landlock_add_rule:2 \
    futex_waitv:03 cachestat:12 fchmodat2:1 futex_wake:0 futex_wait:04 futex_requeue:0 statmount:01 listmount:01 \
    lsm_get_self_attr:12 lsm_set_self_attr:1 lsm_list_modules:01 setxattrat:134 getxattrat:134 listxattrat:13 \
    removexattrat:13 open_tree_attr:13 file_getattr:12 file_setattr:12 listns:01";

#[test]
fn every_user_pointer_of_the_kernel_is_in_the_table() {
    let listed: std::collections::BTreeMap<_, _> = USER_POINTERS
        .split_whitespace()
        .map(|word| {
            let (name, args) = word.split_once(':').expect("a name and its arguments");
            (name, args.bytes().fold(0u8, |all, arg| all | 1 << (arg - b'0')))
        })
        .collect();
    let mut seen = 0;
    for nr in 0..COUNT as u64 {
        let Some(entry) = describe(nr).filter(|entry| entry.kind != Kind::Gone) else { continue };
        let wanted = listed.get(entry.name).copied().unwrap_or(0);
        assert_eq!(pointer_arguments(entry.name, &entry.kind), wanted, "{}: a bit for each pointer argument", entry.name);
        seen += usize::from(wanted != 0);
    }
    assert_eq!(seen, listed.len(), "a call of the list is not in the table");
}

/// The arguments of each call that are descriptors of the process, by their names in the kernel's tracepoints (`events/syscalls`) and the manual pages, on
/// purpose not from the table.
const DESCRIPTOR_ARGUMENTS: &str = "\
    read:0 write:0 close:0 fstat:0 lseek:0 mmap:4 ioctl:0 pread64:0 pwrite64:0 readv:0 writev:0 dup:0 dup2:01 \
    sendfile:01 connect:0 accept:0 sendto:0 recvfrom:0 sendmsg:0 recvmsg:0 shutdown:0 bind:0 listen:0 getsockname:0 \
    getpeername:0 setsockopt:0 getsockopt:0 fcntl:0 flock:0 fsync:0 fdatasync:0 ftruncate:0 getdents:0 fchdir:0 \
    fchmod:0 fchown:0 fstatfs:0 readahead:0 fsetxattr:0 fgetxattr:0 flistxattr:0 fremovexattr:0 getdents64:0 \
    fadvise64:0 epoll_wait:0 epoll_ctl:02 mq_timedsend:0 mq_timedreceive:0 mq_notify:0 mq_getsetattr:0 \
    inotify_add_watch:0 inotify_rm_watch:0 openat:0 mkdirat:0 mknodat:0 fchownat:0 futimesat:0 newfstatat:0 \
    unlinkat:0 renameat:02 linkat:02 symlinkat:1 readlinkat:0 fchmodat:0 faccessat:0 splice:02 tee:01 \
    sync_file_range:0 vmsplice:0 utimensat:0 epoll_pwait:0 signalfd:0 fallocate:0 timerfd_settime:0 \
    timerfd_gettime:0 accept4:0 signalfd4:0 dup3:01 preadv:0 pwritev:0 perf_event_open:3 recvmmsg:0 fanotify_mark:03 \
    name_to_handle_at:0 open_by_handle_at:0 syncfs:0 sendmmsg:0 setns:0 finit_module:0 renameat2:02 \
    kexec_file_load:01 execveat:0 copy_file_range:02 preadv2:0 pwritev2:0 statx:0 pidfd_send_signal:0 open_tree:0 \
    move_mount:02 fsconfig:04 fsmount:0 fspick:0 openat2:0 pidfd_getfd:0 faccessat2:0 epoll_pwait2:0 mount_setattr:0 \
    quotactl_fd:0 io_uring_enter:0 io_uring_register:0 landlock_add_rule:0 landlock_restrict_self:0 process_madvise:0 process_mrelease:0 cachestat:0 \
    fchmodat2:0 setxattrat:0 getxattrat:0 listxattrat:0 removexattrat:0 open_tree_attr:0 file_getattr:0 \
    file_setattr:0";

#[test]
fn every_descriptor_of_the_kernel_is_in_the_table() {
    let fake = Fake::new(1, 4096).with_own(vec![4040, 4041]);
    let listed: std::collections::BTreeMap<_, _> =
        DESCRIPTOR_ARGUMENTS.split_whitespace().map(|word| word.split_once(':').expect("a name and its arguments")).collect();
    let mut seen = 0;
    for entry in (0..COUNT as u64).filter_map(describe) {
        if matches!(entry.kind, Kind::Gone | Kind::Refused(_)) {
            seen += listed.get(entry.name).map_or(0, |args| args.len());
            continue;
        }
        for arg in 0..6 {
            let wanted = listed.get(entry.name).is_some_and(|args| args.contains(&arg.to_string()));
            let mut args = [0; 6];
            args[arg] = 4041;
            let hidden = match hide(&fake, entry, &args) {
                Err(refused) => refused == -i64::from(libc::EBADF),
                Ok(Some(shown)) => shown[arg] as i32 == -1 && (0..6).all(|other| other == arg || shown[other] == 0),
                Ok(None) => false,
            };
            assert_eq!(hidden, wanted, "{}, argument {arg}: one of Farshore's own is not open there", entry.name);
            args[arg] = 4042;
            assert_eq!(hide(&fake, entry, &args), Ok(None), "{}: the program's own", entry.name);
            seen += usize::from(wanted);
        }
    }
    let all: usize = listed.values().map(|args| args.len()).sum();
    assert_eq!(seen, all, "a call of the list is not in the table");
}

#[test]
fn rules_make_sense() {
    for nr in 0..COUNT as u64 {
        let Some(Entry { name, kind: Kind::Pointers(rules), .. }) = describe(nr) else { continue };
        assert!(!rules.is_empty() && rules.len() <= 6, "{name}: scratch memory has room for six rules");
        for (index, rule) in rules.iter().enumerate() {
            assert!(rule.arg < 6, "{name}");
            assert!(rules[..index].iter().all(|other| other.arg != rule.arg), "{name}: two rules for one argument");
            let by = match rule.extent {
                Extent::Counted { by, .. } | Extent::Bits { by } | Extent::Pages { by } | Extent::Behind { by, .. } => by,
                _ => continue,
            };
            assert!(by < 6 && by != rule.arg, "{name}");
        }
    }
}

#[test]
fn newer_numbers_are_not_known() {
    assert!(lookup(COUNT as u64).is_none());
    assert!(lookup(u64::MAX).is_none());
    assert!(lookup(1 << 30).is_none(), "x32's read");
    assert!(describe(400).is_none());
    assert!(matches!(lookup(400).expect("within the table").kind, Kind::Refused(_)));
}

#[test]
fn the_document_has_a_line_for_each_call() {
    let text = markdown();
    for nr in 0..COUNT as u64 {
        if let Some(entry) = describe(nr) {
            let found = text.lines().filter(|line| line.starts_with(&format!("| {nr} | `{}`", entry.name))).collect::<Vec<_>>();
            let [line] = found[..] else { panic!("{} has {} lines", entry.name, found.len()) };
            assert_eq!(line.matches(" |").count(), 4, "{line}");
        }
    }
    assert!(text.contains("| 2 | `open` | argument 0 in: string | pinned |"));
    assert!(text.contains("| 323 | `userfaultfd` | – | **refused with `ENOSYS`**: "));
    assert!(text.contains("| 39 | `getpid` | – | no pointers |"));
}

#[test]
fn the_document_in_the_repository_is_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/system-calls.md");
    if std::env::var_os("FARSHORE_WRITE_DOCS").is_some() {
        std::fs::write(path, markdown()).expect("docs/src/reference/system-calls.md can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/src/reference/system-calls.md is not what the table says; this writes it: FARSHORE_WRITE_DOCS=1 cargo test -p farshore-net document"
    );
}
