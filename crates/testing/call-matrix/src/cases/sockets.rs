//! Sockets.

use super::Cases;
use super::set_up::{drained, keep, pair, pattern, send};
use crate::call::{Call, Structure};
use crate::kernel::{at, at_mut, sys};

pub fn add(cases: &mut Cases) {
    addresses(cases);
    sending(cases);
    receiving(cases);
    messages(cases);
    many(cases);
    options(cases);
}

const INET: u64 = libc::AF_INET as u64;
const STREAM: u64 = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
const DATAGRAMS: u64 = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
/// 127.0.0.1, port 0: any.
const LOCAL: [u64; 2] = [0x0100_007f_0000_0002, 0];

fn socket(call: &mut Call, kind: u64) -> Result<u64, String> {
    let fd = sys("socket", &[INET, kind, 0])?;
    keep(call, fd)
}

/// A socket that is bound to a port of the machine itself, and its address.
fn bound(call: &mut Call, kind: u64) -> Result<(u64, [u64; 2]), String> {
    let fd = socket(call, kind)?;
    sys("bind", &[fd, at(&LOCAL), 16])?;
    let (mut address, mut len) = ([0u64; 2], 16u32);
    sys("getsockname", &[fd, at_mut(&mut address), at_mut(&mut len)])?;
    Ok((fd, address))
}

fn bytes_of(words: [u64; 2]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Somebody who listens, and somebody who has called.
fn called(call: &mut Call) -> Result<(u64, u64), String> {
    let (listener, address) = bound(call, STREAM)?;
    sys("listen", &[listener, 5])?;
    let caller = socket(call, STREAM)?;
    sys("connect", &[caller, at(&address), 16])?;
    Ok((listener, caller))
}

fn addresses(cases: &mut Cases) {
    cases.add("bind", "", |call| {
        let fd = socket(call, STREAM)?;
        call.number(fd).input(&bytes_of(LOCAL)).number(16);
        Ok(())
    });
    cases.add("bind", "a name that belongs to no file", |call| {
        let fd = sys("socket", &[libc::AF_UNIX as u64, DATAGRAMS, 0])?;
        keep(call, fd)?;
        let name = format!("\0walk-{:010}-{}", std::process::id(), call.name("s"));
        let len = 2 + name.len();
        // The number of the process is in it, by as many digits in each.
        call.number(fd)
            .structure(Structure::new().u16(libc::AF_UNIX as u16).bytes(name.as_bytes()))
            .volatile(2..len)
            .number(len as i128);
        Ok(())
    });
    cases.add("connect", "", |call| {
        let (listener, address) = bound(call, STREAM)?;
        sys("listen", &[listener, 5])?;
        let fd = socket(call, STREAM)?;
        call.number(fd).input(&bytes_of(address)).volatile(2..4).number(16);
        Ok(())
    });
    cases.add("connect", "nobody is there", |call| {
        let fd = socket(call, STREAM)?;
        call.number(fd).input(&bytes_of([0x0100_007f_0100_0002, 0])).number(16);
        Ok(())
    });
    for name in ["accept", "accept4"] {
        cases.add(name, "", |call| {
            let (listener, _) = called(call)?;
            call.number(listener).room(28).volatile(2..4).input(&28u32.to_ne_bytes()).number(0).returns_descriptor();
            Ok(())
        });
        cases.add(name, "little room", |call| {
            let (listener, _) = called(call)?;
            call.number(listener).room(28).volatile(2..4).input(&7u32.to_ne_bytes()).number(0).returns_descriptor();
            Ok(())
        });
    }
    cases.add("getsockname", "", |call| {
        let (fd, _) = bound(call, STREAM)?;
        call.number(fd).room(28).volatile(2..4).input(&28u32.to_ne_bytes());
        Ok(())
    });
    cases.add("getpeername", "", |call| {
        let (_, caller) = called(call)?;
        call.number(caller).room(28).volatile(2..4).input(&28u32.to_ne_bytes());
        Ok(())
    });
}

fn sending(cases: &mut Cases) {
    cases.add("sendto", "with an address", |call| {
        let ((to, address), from) = (bound(call, DATAGRAMS)?, socket(call, DATAGRAMS)?);
        call.number(from).input(&pattern(9000)).number(9000).number(0).input(&bytes_of(address)).volatile(2..4).number(16);
        call.after(drained(to));
        Ok(())
    });
    cases.add("sendto", "stream", |call| {
        let [left, right] = pair(call, libc::SOCK_STREAM)?;
        call.number(left)
            .input(&pattern(90_000))
            .number(90_000)
            .number(libc::MSG_DONTWAIT)
            .number(0)
            .number(0)
            .after(drained(right));
        Ok(())
    });
    cases.add("sendto", "packet", |call| {
        let [left, right] = pair(call, libc::SOCK_SEQPACKET)?;
        call.number(left).input(&pattern(70_000)).number(70_000).number(0).number(0).number(0).after(drained(right));
        Ok(())
    });
}

fn receiving(cases: &mut Cases) {
    cases.add("recvfrom", "with an address", |call| {
        let ((to, address), from) = (bound(call, DATAGRAMS)?, socket(call, DATAGRAMS)?);
        let bytes = pattern(9000);
        sys("sendto", &[from, at(bytes.as_slice()), 9000, 0, at(&address), 16])?;
        call.number(to).room(9500).number(9500).number(0).room(28).volatile(2..4).input(&28u32.to_ne_bytes());
        Ok(())
    });
    for (what, flags, len) in [
        ("stream", 0, 80_000),
        ("all that is asked for", libc::MSG_WAITALL, 60_000),
        ("a look", libc::MSG_PEEK, 5000),
        ("nothing is there", libc::MSG_DONTWAIT | libc::MSG_OOB, 5000),
    ] {
        cases.add("recvfrom", what, move |call| {
            let [left, right] = pair(call, libc::SOCK_STREAM)?;
            send(left, &pattern(60_000))?;
            call.number(right).room(len).number(len as i128).number(flags).number(0).number(0);
            call.after(drained(right));
            Ok(())
        });
    }
    cases.add("recvfrom", "the true length", |call| {
        let [left, right] = pair(call, libc::SOCK_DGRAM)?;
        send(left, &pattern(5000))?;
        call.number(right).room(1000).number(1000).number(libc::MSG_TRUNC).number(0).number(0);
        Ok(())
    });
}

/// `struct msghdr` with these parts; the name and control data are buffers or nothing.
fn header(call: &mut Call, name: Option<(usize, u32)>, parts: &[Vec<u8>], control: Option<(usize, u64)>) -> Structure {
    let mut array = Structure::new();
    for part in parts {
        let buffer = call.place(part);
        array = array.pointer(buffer).u64(part.len() as u64);
    }
    let array = call.place_structure(array);
    let header = Structure::new();
    let header = match name {
        Some((buffer, len)) => header.pointer(buffer).u32(len).u32(0),
        None => header.zeros(16),
    };
    let header = header.pointer(array).u64(parts.len() as u64);
    match control {
        Some((buffer, len)) => header.pointer(buffer).u64(len),
        None => header.zeros(16),
    }
    .u64(0)
}

/// Control data that passes a descriptor on.
fn rights(fd: u64) -> Structure {
    Structure::new().u64(20).u32(libc::SOL_SOCKET as u32).u32(libc::SCM_RIGHTS as u32).u32(fd as u32).u32(0)
}

fn messages(cases: &mut Cases) {
    cases.add("sendmsg", "with an address", |call| {
        let ((to, address), from) = (bound(call, DATAGRAMS)?, socket(call, DATAGRAMS)?);
        let name = call.place(&bytes_of(address));
        call.volatile(2..4);
        let message = header(call, Some((name, 16)), &[pattern(500), pattern(3000)], None);
        call.number(from).structure(message).number(0).after(drained(to));
        Ok(())
    });
    cases.add("sendmsg", "with a descriptor", |call| {
        let [left, right] = pair(call, libc::SOCK_STREAM)?;
        let control = call.place_structure(rights(left));
        call.volatile(16..20);
        let message = header(call, None, &[pattern(5000)], Some((control, 24)));
        call.number(left).structure(message).number(0).after(drained(right));
        Ok(())
    });
    cases.add("sendmsg", "large stream", |call| {
        let [left, right] = pair(call, libc::SOCK_STREAM)?;
        let message = header(call, None, &[pattern(40_000), pattern(40_000)], None);
        call.number(left).structure(message).number(libc::MSG_DONTWAIT).after(drained(right));
        Ok(())
    });
    cases.add("recvmsg", "with an address", |call| {
        let ((to, address), from) = (bound(call, DATAGRAMS)?, socket(call, DATAGRAMS)?);
        let bytes = pattern(3500);
        sys("sendto", &[from, at(bytes.as_slice()), 3500, 0, at(&address), 16])?;
        let name = call.place_room(28);
        call.volatile(2..4);
        let message = header(call, Some((name, 28)), &[vec![0x5a; 500], vec![0x5a; 3500]], None);
        call.number(to).structure(message).number(0);
        Ok(())
    });
    cases.add("recvmsg", "with a descriptor", |call| {
        let [left, right] = pair(call, libc::SOCK_STREAM)?;
        let (bytes, rights) = (pattern(5000), [20u64, (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64, left]);
        let vector = [at(bytes.as_slice()), 5000];
        let message = [0, 0, at(&vector), 1, at(&rights), 24, 0];
        sys("sendmsg", &[left, at(&message), 0])?;
        let control = call.place_room(24);
        call.volatile(16..20);
        let message = header(call, None, &[vec![0x5a; 6000]], Some((control, 24)));
        call.number(right).structure(message).number(libc::MSG_CMSG_CLOEXEC).after_with(move |done| {
            // The descriptor that came along.
            let word = |at: usize| done.buffers[0].get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            let closed = if done.result > 0 { word(16).map(|fd| sys("close", &[u64::from(fd)])) } else { None };
            format!("{closed:?}")
        });
        Ok(())
    });
    cases.add("recvmsg", "cut", |call| {
        let [left, right] = pair(call, libc::SOCK_DGRAM)?;
        send(left, &pattern(5000))?;
        let message = header(call, None, &[vec![0x5a; 100], vec![0x5a; 900]], None);
        call.number(right).structure(message).number(0);
        Ok(())
    });
}

/// An array of message headers, each with the length that was transferred behind it.
fn array(call: &mut Call, messages: &[Vec<Vec<u8>>]) -> Structure {
    let mut all = Structure::new();
    for parts in messages {
        let one = header(call, None, parts, None).u64(0);
        all = all.append(one);
    }
    all
}

fn many(cases: &mut Cases) {
    cases.add("sendmmsg", "", |call| {
        let [left, right] = pair(call, libc::SOCK_DGRAM)?;
        let messages = array(call, &[vec![pattern(500)], vec![pattern(3000), pattern(10)], vec![pattern(1)]]);
        call.number(left).structure(messages).number(3).number(0).after(drained(right));
        Ok(())
    });
    cases.add("recvmmsg", "", |call| {
        let [left, right] = pair(call, libc::SOCK_DGRAM)?;
        [500, 3000, 7].iter().try_for_each(|&len| send(left, &pattern(len)))?;
        let room = |len: usize| vec![vec![0x5a; len]];
        let messages = array(call, &[room(600), room(2000), room(100), room(100)]);
        call.number(right).structure(messages).number(4).number(libc::MSG_DONTWAIT);
        // What is left of the time differs.
        call.structure(Structure::new().u64(5).u64(0)).volatile(0..16);
        Ok(())
    });
}

fn options(cases: &mut Cases) {
    cases.add("setsockopt", "", |call| {
        let fd = socket(call, STREAM)?;
        call.number(fd)
            .number(libc::SOL_SOCKET)
            .number(libc::SO_RCVTIMEO)
            .structure(Structure::new().u64(3).u64(500_000))
            .number(16);
        Ok(())
    });
    cases.add("setsockopt", "a filter", |call| {
        let fd = socket(call, DATAGRAMS)?;
        // Accept everything, 30 times over: ret 0xffff.
        let program = call.place(&[6, 0, 0, 0, 0xff, 0xff, 0, 0].repeat(30));
        let filter = Structure::new().u16(30).zeros(6).pointer(program);
        call.number(fd).number(libc::SOL_SOCKET).number(libc::SO_ATTACH_FILTER).structure(filter).number(16);
        Ok(())
    });
    cases.add("getsockopt", "", |call| {
        let fd = socket(call, STREAM)?;
        call.number(fd).number(libc::SOL_SOCKET).number(libc::SO_TYPE).room(4).input(&4u32.to_ne_bytes());
        Ok(())
    });
    cases.add("getsockopt", "credentials", |call| {
        let [left, _] = pair(call, libc::SOCK_STREAM)?;
        call.number(left).number(libc::SOL_SOCKET).number(libc::SO_PEERCRED).volatile_room(12).input(&12u32.to_ne_bytes());
        Ok(())
    });
    cases.add("getsockopt", "TCP's state", |call| {
        let (_, caller) = called(call)?;
        call.number(caller).number(libc::IPPROTO_TCP).number(libc::TCP_INFO).volatile_room(400).input(&400u32.to_ne_bytes());
        Ok(())
    });
}
