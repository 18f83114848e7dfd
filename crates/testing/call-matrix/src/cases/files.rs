//! Calls on descriptors that are not transfers.

use super::Cases;
use super::set_up::{file, open, pair, pattern, pipe, send};
use crate::call::{Call, Structure};
use crate::kernel::{at, at_mut, sys};

pub fn add(cases: &mut Cases) {
    locks(cases);
    ioctls(cases);
    new_descriptors(cases);
    pages(cases);
}

/// `struct flock`: a write lock on bytes 10 to 29.
fn lock() -> Structure {
    Structure::new().u16(libc::F_WRLCK as u16).u16(0).zeros(4).u64(10).u64(20).u32(0).zeros(4)
}

fn locks(cases: &mut Cases) {
    for (what, command) in [
        ("a lock is set", libc::F_SETLK),
        ("a lock is waited for", libc::F_SETLKW),
        ("a lock is looked at", libc::F_GETLK),
        ("a description's lock is set", libc::F_OFD_SETLK),
        ("a description's lock is looked at", libc::F_OFD_GETLK),
    ] {
        cases.add("fcntl", what, move |call| {
            let fd = file(call, "f", 100)?;
            call.number(fd).number(command).structure(lock());
            Ok(())
        });
    }
    cases.add("fcntl", "somebody else's lock is looked at", |call| {
        let (fd, other) = (file(call, "f", 100)?, open(call, &call.name("f"), libc::O_RDWR)?);
        let taken: [u64; 4] = [1, 0, 15, 0];
        sys("fcntl", &[other, libc::F_OFD_SETLK as u64, at(&taken)])?;
        call.number(fd).number(libc::F_OFD_GETLK).structure(lock());
        Ok(())
    });
    for (what, command) in [("an owner is set", 15), ("the owner is asked for", 16)] {
        cases.add("fcntl", what, move |call| {
            let [from, _] = pipe(call, &[])?;
            call.number(from).number(command).structure(Structure::new().u32(1).u32(0));
            Ok(())
        });
    }
    cases.add("fcntl", "a number", |call| {
        let [from, _] = pipe(call, &[])?;
        call.number(from).number(libc::F_GETPIPE_SZ).room(8);
        Ok(())
    });
}

fn terminal(call: &mut Call) -> Result<u64, String> {
    open(call, "/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY)
}

fn ioctls(cases: &mut Cases) {
    cases.add("ioctl", "FIONREAD", |call| {
        let [from, _] = pipe(call, &pattern(1234))?;
        call.number(from).number(libc::FIONREAD).room(4);
        Ok(())
    });
    cases.add("ioctl", "TCGETS", |call| {
        let fd = terminal(call)?;
        call.number(fd).number(libc::TCGETS).room(36);
        Ok(())
    });
    cases.add("ioctl", "TIOCSWINSZ", |call| {
        let fd = terminal(call)?;
        call.number(fd).number(libc::TIOCSWINSZ).structure(Structure::new().u16(30).u16(100).u16(0).u16(0)).after(move |_| {
            let mut size = [0u16; 4];
            let _ = sys("ioctl", &[fd, libc::TIOCGWINSZ, at_mut(&mut size)]);
            format!("{size:?}")
        });
        Ok(())
    });
    cases.add("ioctl", "FS_IOC_GETFLAGS", |call| {
        let fd = file(call, "f", 10)?;
        call.number(fd).number(0x8008_6601u32).volatile_room(8);
        Ok(())
    });
    cases.add("ioctl", "FS_IOC_FIEMAP", |call| {
        let fd = file(call, "f", 10_000)?;
        // From 0 to the end, synced, room for 100 extents of 56 bytes.
        let map = Structure::new().u64(0).u64(u64::MAX).u32(1).u32(0).u32(100).u32(0).zeros(5600);
        call.number(fd).number(0xc020_660bu32).structure(map).volatile(32..5632);
        Ok(())
    });
    cases.add("ioctl", "SIOCGIFCONF", |call| {
        let fd = sys("socket", &[libc::AF_INET as u64, (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64, 0])?;
        super::set_up::keep(call, fd)?;
        let room = call.place_room(4000);
        call.number(fd).number(0x8912).structure(Structure::new().u32(4000).u32(0).pointer(room));
        Ok(())
    });
    cases.add("ioctl", "SIOCGIFFLAGS", |call| {
        let fd = sys("socket", &[libc::AF_INET as u64, (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64, 0])?;
        super::set_up::keep(call, fd)?;
        call.number(fd).number(0x8913).structure(Structure::new().bytes(b"lo").zeros(38));
        Ok(())
    });
    cases.add("ioctl", "FIONBIO", |call| {
        let [from, _] = pipe(call, &[])?;
        call.number(from).number(libc::FIONBIO).input(&1u32.to_ne_bytes()).after(move |_| {
            format!("{:?}", sys("fcntl", &[from, libc::F_GETFL as u64]).map(|flags| flags & libc::O_NONBLOCK as u64))
        });
        Ok(())
    });
    cases.add("ioctl", "RNDGETENTCNT", |call| {
        let fd = open(call, "/dev/urandom", libc::O_RDONLY)?;
        call.number(fd).number(0x8004_5200u32).volatile_room(4);
        Ok(())
    });
    cases.add("ioctl", "no such request", |call| {
        let [from, _] = pipe(call, &[])?;
        call.number(from).number(0x4008_7701).room(8);
        Ok(())
    });
}

fn new_descriptors(cases: &mut Cases) {
    for name in ["pipe", "pipe2"] {
        cases.add(name, "", |call| {
            call.volatile_room(8).number(libc::O_NONBLOCK);
            closed(call);
            Ok(())
        });
    }
    cases.add("socketpair", "", |call| {
        call.number(libc::AF_UNIX).number(libc::SOCK_STREAM).number(0).volatile_room(8);
        closed(call);
        Ok(())
    });
}

/// Closes the two descriptors that the call has made, and says whether they were two.
fn closed(call: &mut Call) {
    let buffer = call.buffers.len() - 1;
    call.after_with(move |done| {
        if done.result != 0 {
            return String::new();
        }
        let fds: Vec<u64> =
            done.buffers[buffer].chunks(4).map(|fd| u64::from(u32::from_ne_bytes([fd[0], fd[1], fd[2], fd[3]]))).collect();
        format!("{:?}", fds.iter().map(|&fd| sys("close", &[fd])).collect::<Vec<_>>())
    });
}

fn pages(cases: &mut Cases) {
    cases.add("mincore", "", |call| {
        let fd = file(call, "f", 100 * 4096)?;
        // Locked, or the kernel may take pages of the file away between two rounds.
        let start = sys("mmap", &[0, 100 * 4096, 1, (libc::MAP_SHARED | libc::MAP_LOCKED) as u64, fd, 0])?;
        call.number(start).number(100 * 4096).room(100).finally(move || {
            let _ = sys("munmap", &[start, 100 * 4096]);
        });
        Ok(())
    });
    cases.add("cachestat", "", |call| {
        let fd = file(call, "f", 10_000)?;
        call.number(fd).structure(Structure::new().u64(0).u64(8192)).room(40).volatile(8..40).number(0);
        Ok(())
    });
    cases.add("sendfile", "socket", |call| {
        let (fd, [left, right]) = (file(call, "f", 9000)?, pair(call, libc::SOCK_STREAM)?);
        send(right, b"x")?;
        call.number(left).number(fd).input(&10u64.to_ne_bytes()).number(700).after(super::set_up::drained(right));
        Ok(())
    });
}
