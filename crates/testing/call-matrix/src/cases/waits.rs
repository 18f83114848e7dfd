//! Calls that wait for descriptors, words, messages and semaphores.

use super::Cases;
use super::set_up::{keep, pattern, pipe};
use crate::call::{Call, Structure};
use crate::kernel::{at, at_mut, sys};

pub fn add(cases: &mut Cases) {
    polling(cases);
    epoll(cases);
    futexes(cases);
    new_futexes(cases);
    semaphores(cases);
    messages(cases);
    queues(cases);
}

/// A structure of two 64-bit words: seconds and a part of a second.
pub fn time(seconds: u64, part: u64) -> Structure {
    Structure::new().u64(seconds).u64(part)
}

/// A moment that has passed long ago.
fn past() -> Structure {
    time(1, 0)
}

/// A pipe with something in it; polled by number, so the number is the same in each run.
fn ready(call: &mut Call, number: u64) -> Result<u64, String> {
    let [from, _] = pipe(call, &pattern(10))?;
    let fd = sys("fcntl", &[from, libc::F_DUPFD_CLOEXEC as u64, number])?;
    keep(call, fd)
}

fn polled(fd: u64) -> Structure {
    let one = |fd: u32| Structure::new().u32(fd).u16(libc::POLLIN as u16).u16(0xff);
    // 200 that are left out, and one that is ready.
    (0..200).fold(one(fd as u32), |all, _| all.append(one(u32::MAX)))
}

fn sets(call: &mut Call) {
    for _ in 0..3 {
        // The first 64 descriptors are asked for in none of the sets.
        call.input(&[0; 16]);
    }
}

fn polling(cases: &mut Cases) {
    cases.add("poll", "", |call| {
        let fd = ready(call, 0)?;
        call.structure(polled(fd)).volatile(0..4).number(201).number(1000);
        Ok(())
    });
    cases.add("poll", "nothing is ready", |call| {
        let [from, _] = pipe(call, &[])?;
        call.structure(polled(from)).volatile(0..4).number(201).number(1);
        Ok(())
    });
    cases.add("ppoll", "", |call| {
        let fd = ready(call, 0)?;
        call.structure(polled(fd)).volatile(0..4).number(201).structure(time(1000, 0)).volatile(0..16).input(&[0; 8]).number(8);
        Ok(())
    });
    cases.add("ppoll", "nothing is ready", |call| {
        let [from, _] = pipe(call, &[])?;
        call.structure(polled(from)).volatile(0..4).number(201).structure(time(0, 1000)).input(&[0xff; 8]).number(8);
        Ok(())
    });
    cases.add("select", "", |call| {
        let fd = ready(call, 900)?;
        let mut set = [0u8; 128];
        set[fd as usize / 8] = 1 << (fd % 8);
        // Which number it has differs, but not where it is in the set.
        call.number(1024).input(&set).volatile(0..128).input(&[0; 128]).input(&[0; 128]).structure(time(1000, 0)).volatile(0..16);
        Ok(())
    });
    cases.add("select", "nothing is asked for", |call| {
        call.number(100);
        sets(call);
        call.structure(time(0, 1));
        Ok(())
    });
    cases.add("pselect6", "nothing is asked for", |call| {
        call.number(100);
        sets(call);
        call.structure(time(0, 1000));
        let mask = call.place(&[0xff; 8]);
        call.structure(Structure::new().pointer(mask).u64(8));
        Ok(())
    });
    cases.add("pselect6", "", |call| {
        let fd = ready(call, 900)?;
        let mut set = [0u8; 128];
        set[fd as usize / 8] = 1 << (fd % 8);
        call.number(1024).input(&set).volatile(0..128).number(0).number(0).structure(time(1000, 0)).volatile(0..16).number(0);
        Ok(())
    });
}

fn epoll(cases: &mut Cases) {
    fn waiting(call: &mut Call) -> Result<u64, String> {
        let (fd, [from, _]) = (sys("epoll_create1", &[libc::EPOLL_CLOEXEC as u64])?, pipe(call, &pattern(5))?);
        // Packed: events, then data.
        let event: [u32; 3] = [libc::EPOLLIN as u32, 0x1122_3344, 0x5566_7788];
        sys("epoll_ctl", &[fd, 1, from, at(&event)])?;
        keep(call, fd)
    }
    cases.add("epoll_ctl", "", |call| {
        let (fd, [from, _]) = (sys("epoll_create1", &[libc::EPOLL_CLOEXEC as u64])?, pipe(call, &pattern(5))?);
        keep(call, fd)?;
        call.number(fd).number(1).number(from).structure(Structure::new().u32(1).u64(0x1234)).after(move |_| {
            let mut event = [0u32; 3];
            let got = sys("epoll_wait", &[fd, at_mut(&mut event), 1, 0]);
            format!("{got:?} {event:x?}")
        });
        Ok(())
    });
    cases.add("epoll_wait", "", |call| {
        let fd = waiting(call)?;
        call.number(fd).room(1200).number(100).number(1000);
        Ok(())
    });
    cases.add("epoll_pwait", "", |call| {
        let fd = waiting(call)?;
        call.number(fd).room(1200).number(100).number(1000).input(&[0xff; 8]).number(8);
        Ok(())
    });
    cases.add("epoll_pwait2", "", |call| {
        let fd = waiting(call)?;
        call.number(fd).room(1200).number(100).structure(time(1000, 0)).input(&[0xff; 8]).number(8);
        Ok(())
    });
    cases.add("epoll_pwait2", "nothing is there", |call| {
        let fd = sys("epoll_create1", &[libc::EPOLL_CLOEXEC as u64])?;
        keep(call, fd)?;
        call.number(fd).room(1200).number(100).structure(time(0, 1000)).number(0).number(0);
        Ok(())
    });
}

fn word(call: &mut Call, value: u32) -> usize {
    let buffer = call.place(&value.to_ne_bytes());
    call.aligned(4);
    buffer
}

fn futexes(cases: &mut Cases) {
    const PRIVATE: i32 = libc::FUTEX_PRIVATE_FLAG;
    for (what, operation) in [("another value", libc::FUTEX_WAIT | PRIVATE), ("another value, shared", libc::FUTEX_WAIT)] {
        cases.add("futex", what, move |call| {
            let word = word(call, 7);
            call.at(word).number(operation).number(8).number(0);
            Ok(())
        });
        cases.meant(libc::EAGAIN);
    }
    for (what, operation, moment) in [
        ("a time", libc::FUTEX_WAIT | PRIVATE, time(0, 1000)),
        ("a moment", libc::FUTEX_WAIT_BITSET | PRIVATE, past()),
        ("a moment, shared", libc::FUTEX_WAIT_BITSET, past()),
    ] {
        cases.add("futex", what, move |call| {
            let word = word(call, 7);
            call.at(word).number(operation).number(7).structure(moment.clone()).number(0).number(u32::MAX);
            Ok(())
        });
        cases.meant(libc::ETIMEDOUT);
    }
    for (what, operation) in [("nobody is woken", libc::FUTEX_WAKE | PRIVATE), ("nobody is woken, shared", libc::FUTEX_WAKE)] {
        cases.add("futex", what, move |call| {
            let word = word(call, 7);
            call.at(word).number(operation).number(10);
            Ok(())
        });
    }
    cases.add("futex", "moved on", |call| {
        let (one, other) = (word(call, 7), word(call, 9));
        call.at(one).number(libc::FUTEX_CMP_REQUEUE | PRIVATE).number(1).number(1).at(other).number(7);
        Ok(())
    });
    cases.add("futex", "woken with an operation", |call| {
        let (one, other) = (word(call, 7), word(call, 9));
        // Adds 5 to the other word, and wakes there if it was 9.
        call.at(one).number(libc::FUTEX_WAKE_OP | PRIVATE).number(1).number(1).at(other).number(1 << 28 | 5 << 12 | 9);
        Ok(())
    });
    cases.add("futex", "an inheriting lock", |call| {
        let word = word(call, 0);
        call.volatile(0..4).at(word).number(libc::FUTEX_LOCK_PI | PRIVATE).number(0).number(0);
        Ok(())
    });
    cases.add("futex", "an inheriting lock is tried", |call| {
        let word = word(call, 0);
        call.volatile(0..4).at(word).number(libc::FUTEX_TRYLOCK_PI).number(0).number(0);
        Ok(())
    });
}

fn new_futexes(cases: &mut Cases) {
    /// Words of 32 bits, private.
    const FLAGS: u32 = 2 | 128;
    let waiter = |word: usize, value: u64| Structure::new().u64(value).pointer(word).u32(FLAGS).u32(0);
    cases.add("futex_waitv", "another value", move |call| {
        let words: Vec<usize> = (0..70).map(|n| word(call, n)).collect();
        let array = words
            .iter()
            .enumerate()
            .fold(Structure::new(), |all, (n, &word)| all.append(waiter(word, if n == 69 { 0 } else { n as u64 })));
        call.structure(array).number(70).number(0).number(0).number(0);
        Ok(())
    });
    cases.meant(libc::EAGAIN);
    cases.add("futex_waitv", "a moment", move |call| {
        let (one, other) = (word(call, 1), word(call, 2));
        call.structure(waiter(one, 1).append(waiter(other, 2))).number(2).number(0).structure(past()).number(1);
        Ok(())
    });
    cases.meant(libc::ETIMEDOUT);
    cases.add("futex_wake", "", |call| {
        let word = word(call, 1);
        call.at(word).number(u32::MAX).number(1).number(FLAGS);
        Ok(())
    });
    cases.add("futex_wait", "a moment", |call| {
        let word = word(call, 1);
        call.at(word).number(1).number(u32::MAX).number(FLAGS).structure(past()).number(1);
        Ok(())
    });
    cases.meant(libc::ETIMEDOUT);
    cases.add("futex_requeue", "", move |call| {
        let (one, other) = (word(call, 1), word(call, 2));
        call.structure(waiter(one, 1).append(waiter(other, 2))).number(0).number(1).number(1);
        Ok(())
    });
}

/// A set of so many semaphores that goes when the call is over.
fn set(call: &mut Call, count: u64) -> Result<u64, String> {
    let id = sys("semget", &[0, count, 0o600])?;
    call.finally(move || _ = sys("semctl", &[id, 0, 0]));
    Ok(id)
}

fn semaphores(cases: &mut Cases) {
    // Adds 3 to the first and 1 to each of the others.
    let operations = || (1..20u16).fold(Structure::new().u16(0).u16(3).u16(0), |all, n| all.u16(n).u16(1).u16(0));
    let values = |id: u64| {
        move |_: i64| {
            let mut values = [0u16; 20];
            let got = sys("semctl", &[id, 0, libc::GETALL as u64, at_mut(&mut values)]);
            format!("{got:?} {values:?}")
        }
    };
    cases.add("semop", "", move |call| {
        let id = set(call, 20)?;
        call.after(values(id));
        call.number(id).structure(operations()).number(20);
        Ok(())
    });
    cases.add("semtimedop", "", move |call| {
        let id = set(call, 20)?;
        call.after(values(id));
        call.number(id).structure(operations()).number(20).structure(time(1, 0));
        Ok(())
    });
    cases.add("semtimedop", "too late", |call| {
        let id = set(call, 1)?;
        call.number(id).structure(Structure::new().u16(0).u16(-1i16 as u16).u16(0)).number(1).structure(time(0, 1000));
        Ok(())
    });
    cases.add("semctl", "SETALL", move |call| {
        let id = set(call, 20)?;
        call.after(values(id));
        call.number(id).number(0).number(libc::SETALL).input(&(0..20u16).flat_map(u16::to_ne_bytes).collect::<Vec<_>>());
        Ok(())
    });
    cases.add("semctl", "GETALL", |call| {
        let id = set(call, 1000)?;
        call.number(id).number(0).number(libc::GETALL).room(2000);
        Ok(())
    });
    cases.add("semctl", "IPC_STAT", |call| {
        let id = set(call, 5)?;
        call.number(id).number(0).number(libc::IPC_STAT).volatile_room(104);
        Ok(())
    });
    cases.add("shmctl", "IPC_STAT", |call| {
        let id = sys("shmget", &[0, 10_000, 0o600])?;
        call.finally(move || _ = sys("shmctl", &[id, 0, 0]));
        call.number(id).number(libc::IPC_STAT).volatile_room(112);
        Ok(())
    });
}

/// A message queue that goes when the call is over.
fn queue(call: &mut Call) -> Result<u64, String> {
    let id = sys("msgget", &[0, 0o600])?;
    call.finally(move || _ = sys("msgctl", &[id, 0, 0]));
    Ok(id)
}

fn messages(cases: &mut Cases) {
    cases.add("msgsnd", "", |call| {
        let id = queue(call)?;
        call.after(move |_| {
            let mut message = [0u8; 6000];
            let got = sys("msgrcv", &[id, at_mut(&mut message), 5000, 0, libc::IPC_NOWAIT as u64]);
            format!("{got:?} {:016x}", crate::call::digest(&message))
        });
        call.number(id).structure(Structure::new().u64(3).bytes(&pattern(5000))).number(5000).number(0);
        Ok(())
    });
    cases.add("msgrcv", "", |call| {
        let id = queue(call)?;
        let message: Vec<u8> = 3u64.to_ne_bytes().into_iter().chain(pattern(5000)).collect();
        sys("msgsnd", &[id, at(message.as_slice()), 5000, 0])?;
        call.number(id).room(5508).number(5500).number(0).number(0);
        Ok(())
    });
    cases.add("msgrcv", "nothing is there", |call| {
        let id = queue(call)?;
        call.number(id).room(508).number(500).number(0).number(libc::IPC_NOWAIT);
        Ok(())
    });
    cases.add("msgctl", "IPC_STAT", |call| {
        let id = queue(call)?;
        call.number(id).number(libc::IPC_STAT).volatile_room(120);
        Ok(())
    });
}

/// `struct mq_attr`: 4 messages of 1000 bytes.
const ATTRIBUTES: [u64; 8] = [0, 4, 1000, 0, 0, 0, 0, 0];

fn mailbox(call: &mut Call) -> Result<u64, String> {
    let name = std::ffi::CString::new(format!("walk-{:010}-{}", std::process::id(), call.name("q")))
        .map_err(|error| error.to_string())?;
    let flags = (libc::O_CREAT | libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) as u64;
    let fd = sys("mq_open", &[name.as_ptr() as u64, flags, 0o600, at(&ATTRIBUTES)])?;
    sys("mq_unlink", &[name.as_ptr() as u64])?;
    keep(call, fd)
}

fn queues(cases: &mut Cases) {
    cases.add("mq_open", "", |call| {
        let name = format!("walk-{:010}-{}", std::process::id(), call.name("o"));
        let path = std::ffi::CString::new(name.clone()).map_err(|error| error.to_string())?;
        call.finally(move || _ = sys("mq_unlink", &[path.as_ptr() as u64]));
        call.text(&name).volatile(0..name.len()).number(libc::O_CREAT | libc::O_RDWR).number(0o600);
        call.input(&ATTRIBUTES.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>()).returns_descriptor();
        Ok(())
    });
    cases.add("mq_unlink", "", |call| {
        let name = format!("walk-{:010}-{}", std::process::id(), call.name("u"));
        let path = std::ffi::CString::new(name.clone()).map_err(|error| error.to_string())?;
        let fd = sys("mq_open", &[path.as_ptr() as u64, (libc::O_CREAT | libc::O_RDWR) as u64, 0o600, 0])?;
        keep(call, fd)?;
        call.text(&name).volatile(0..name.len());
        Ok(())
    });
    cases.add("mq_timedsend", "", |call| {
        let fd = mailbox(call)?;
        call.after(move |_| {
            let mut message = [0u8; 1000];
            let got = sys("mq_timedreceive", &[fd, at_mut(&mut message), 1000, 0, 0]);
            format!("{got:?} {:016x}", crate::call::digest(&message))
        });
        call.number(fd).input(&pattern(900)).number(900).number(5).structure(time(2_000_000_000, 0));
        Ok(())
    });
    cases.add("mq_timedreceive", "", |call| {
        let fd = mailbox(call)?;
        let bytes = pattern(800);
        sys("mq_timedsend", &[fd, at(bytes.as_slice()), 800, 9, 0])?;
        call.number(fd).room(1000).number(1000).room(4).structure(time(2_000_000_000, 0));
        Ok(())
    });
    cases.add("mq_notify", "", |call| {
        let fd = mailbox(call)?;
        // struct sigevent: no signal at all.
        call.number(fd).structure(Structure::new().u64(0).u32(0).u32(libc::SIGEV_NONE as u32).zeros(48));
        Ok(())
    });
    cases.add("mq_notify", "by a socket", |call| {
        let (fd, socket) = (mailbox(call)?, sys("socket", &[libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, 0])?);
        keep(call, socket)?;
        let cookie = call.place(&pattern(32));
        let event = Structure::new().pointer(cookie).u32(socket as u32).u32(libc::SIGEV_THREAD as u32).zeros(48);
        call.number(fd).structure(event).volatile(8..12);
        Ok(())
    });
    cases.add("mq_getsetattr", "", |call| {
        let fd = mailbox(call)?;
        call.number(fd).input(&[0; 64]).room(64);
        Ok(())
    });
}
