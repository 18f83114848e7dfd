//! Calls that move bytes between a descriptor and memory.

use super::Cases;
use super::set_up::{contents, drained, file, file_with, open, pair, pattern, pipe, send};
use crate::call::{Call, Structure};
use crate::kernel::sys;

/// An array of buffers with these bytes: index of the array.
fn vectors(call: &mut Call, parts: &[Vec<u8>]) -> usize {
    let mut array = Structure::new();
    for part in parts {
        let buffer = call.place(part);
        array = array.pointer(buffer).u64(part.len() as u64);
    }
    call.place_structure(array)
}

fn rooms() -> Vec<Vec<u8>> {
    vec![vec![0x5a; 700], vec![0x5a; 3], vec![0x5a; 6000]]
}

fn parts() -> Vec<Vec<u8>> {
    vec![pattern(700), pattern(3), pattern(6000)]
}

pub fn add(cases: &mut Cases) {
    flat(cases);
    vectored(cases);
    direct(cases);
    between(cases);
    other(cases);
}

fn flat(cases: &mut Cases) {
    for (what, size, len) in [("file", 5000, 3000), ("end of a file", 5000, 8000), ("large", 300_000, 300_000)] {
        cases.add("read", what, move |call| {
            let fd = file(call, "f", size)?;
            call.number(fd).room(len).number(len as i128);
            Ok(())
        });
        cases.add("pread64", what, move |call| {
            let fd = file(call, "f", size)?;
            call.number(fd).room(len).number(len as i128).number(1000);
            Ok(())
        });
        cases.add("write", what, move |call| {
            let fd = file(call, "f", size)?;
            let after = contents(call, "f");
            call.number(fd).input(&pattern(len)).number(len as i128).after(after);
            Ok(())
        });
        cases.add("pwrite64", what, move |call| {
            let fd = file(call, "f", size)?;
            let after = contents(call, "f");
            call.number(fd).input(&pattern(len)).number(len as i128).number(777).after(after);
            Ok(())
        });
    }
    cases.add("read", "pipe", |call| {
        let [from, _] = pipe(call, &pattern(5000))?;
        call.number(from).room(9000).number(9000).after(drained(from));
        Ok(())
    });
    cases.add("read", "a part of a pipe", |call| {
        let [from, _] = pipe(call, &pattern(5000))?;
        call.number(from).room(1000).number(1000).after(drained(from));
        Ok(())
    });
    cases.add("read", "a socket's datagram, cut", |call| {
        let [left, right] = pair(call, libc::SOCK_DGRAM)?;
        send(left, &pattern(5000))?;
        call.number(right).room(4500).number(4500).after(drained(right));
        Ok(())
    });
    cases.add("read", "stream", |call| {
        let [left, right] = pair(call, libc::SOCK_STREAM)?;
        send(left, &pattern(70_000))?;
        call.number(right).room(80_000).number(80_000);
        Ok(())
    });
    cases.add("read", "event counter", |call| {
        let fd = sys("eventfd2", &[5, libc::O_CLOEXEC as u64])?;
        let fd = super::set_up::keep(call, fd)?;
        call.number(fd).room(8).number(8);
        Ok(())
    });
    cases.add("read", "zeros", |call| {
        let fd = open(call, "/dev/zero", libc::O_RDONLY)?;
        call.number(fd).room(200_000).number(200_000);
        Ok(())
    });
    cases.add("read", "/proc", |call| {
        let fd = open(call, "/proc/sys/kernel/ostype", libc::O_RDONLY)?;
        call.number(fd).room(5000).number(5000);
        Ok(())
    });
    cases.add("read", "directory", |call| {
        let fd = open(call, ".", libc::O_RDONLY)?;
        call.number(fd).room(500).number(500);
        Ok(())
    });
    cases.add("write", "pipe", |call| {
        let [from, to] = pipe(call, &[])?;
        call.number(to).input(&pattern(9000)).number(9000).after(drained(from));
        Ok(())
    });
    cases.add("write", "a full pipe that does not block", |call| {
        let [from, to] = pipe(call, &pattern(65_000))?;
        sys("fcntl", &[to, libc::F_SETFL as u64, (libc::O_WRONLY | libc::O_NONBLOCK) as u64])?;
        call.number(to).input(&pattern(3000)).number(3000).after(drained(from));
        Ok(())
    });
    cases.add("write", "datagram", |call| {
        let [left, right] = pair(call, libc::SOCK_DGRAM)?;
        call.number(left).input(&pattern(9000)).number(9000).after(drained(right));
        Ok(())
    });
    cases.add("write", "closed descriptor", |call| {
        call.number(-1).input(&pattern(5000)).number(5000);
        Ok(())
    });
}

fn vectored(cases: &mut Cases) {
    for name in ["readv", "preadv", "preadv2"] {
        cases.add(name, "file", move |call| {
            let fd = file(call, "f", 9000)?;
            let array = vectors(call, &rooms());
            call.number(fd).at(array).number(3).number(500).number(0).number(0);
            Ok(())
        });
        cases.add(name, "a buffer that is nowhere", move |call| {
            let fd = file(call, "f", 9000)?;
            let good = call.place_room(5000);
            call.number(fd)
                .structure(Structure::new().pointer(good).u64(5000).u64(64).u64(100))
                .number(2)
                .number(0)
                .number(0)
                .number(0);
            Ok(())
        });
    }
    for name in ["writev", "pwritev", "pwritev2"] {
        cases.add(name, "file", move |call| {
            let fd = file(call, "f", 100)?;
            let (array, after) = (vectors(call, &parts()), contents(call, "f"));
            call.number(fd).at(array).number(3).number(50).number(0).number(0).after(after);
            Ok(())
        });
    }
    cases.add("readv", "pipe", |call| {
        let [from, _] = pipe(call, &pattern(5000))?;
        let array = vectors(call, &rooms());
        call.number(from).at(array).number(3).after(drained(from));
        Ok(())
    });
    cases.add("writev", "pipe", |call| {
        let [from, to] = pipe(call, &[])?;
        let array = vectors(call, &parts());
        call.number(to).at(array).number(3).after(drained(from));
        Ok(())
    });
    cases.add("readv", "many buffers", |call| {
        let fd = file(call, "f", 100_000)?;
        let array = vectors(call, &vec![vec![0x5a; 500]; 100]);
        call.number(fd).at(array).number(100);
        Ok(())
    });
    cases.add("writev", "a count that is refused", |call| {
        let fd = file(call, "f", 10)?;
        let array = vectors(call, &parts());
        call.number(fd).at(array).number(5000);
        Ok(())
    });
}

fn direct(cases: &mut Cases) {
    const LEN: usize = 16384;
    for (name, reads) in [("read", true), ("pread64", true), ("write", false), ("pwrite64", false)] {
        cases.add(name, "past the page cache", move |call| {
            let fd = file_with(call, "f", 65536, libc::O_DIRECT)?;
            let after = contents(call, "f");
            call.number(fd);
            if reads { call.room(LEN) } else { call.input(&pattern(LEN)) }
                .aligned(4096)
                .number(LEN as i128)
                .number(8192)
                .after(after);
            Ok(())
        });
    }
    cases.add("preadv", "past the page cache", |call| {
        let fd = file_with(call, "f", 65536, libc::O_DIRECT)?;
        let mut array = Structure::new();
        for _ in 0..3 {
            let buffer = call.place_room(8192);
            call.aligned(4096);
            array = array.pointer(buffer).u64(8192);
        }
        call.number(fd).structure(array).number(3).number(4096);
        Ok(())
    });
}

fn between(cases: &mut Cases) {
    cases.add("sendfile", "to a pipe", |call| {
        let (fd, [from, to]) = (file(call, "f", 9000)?, pipe(call, &[])?);
        call.number(to).number(fd).input(&2000u64.to_ne_bytes()).number(5000).after(drained(from));
        Ok(())
    });
    cases.add("sendfile", "without an offset", |call| {
        let (fd, [from, to]) = (file(call, "f", 9000)?, pipe(call, &[])?);
        call.number(to).number(fd).number(0).number(5000).after(drained(from));
        Ok(())
    });
    cases.add("splice", "file to pipe", |call| {
        let (fd, [from, to]) = (file(call, "f", 9000)?, pipe(call, &[])?);
        call.number(fd).input(&1500u64.to_ne_bytes()).number(to).number(0).number(5000).number(0).after(drained(from));
        Ok(())
    });
    cases.add("splice", "pipe to file", |call| {
        let (fd, [from, _]) = (file(call, "f", 100)?, pipe(call, &pattern(5000))?);
        let after = contents(call, "f");
        call.number(from).number(0).number(fd).input(&50u64.to_ne_bytes()).number(5000).number(0).after(after);
        Ok(())
    });
    cases.add("copy_file_range", "both offsets", |call| {
        let (from, to) = (file(call, "f", 9000)?, file(call, "g", 10)?);
        let after = contents(call, "g");
        call.number(from).input(&1000u64.to_ne_bytes()).number(to).input(&5u64.to_ne_bytes()).number(5000).number(0).after(after);
        Ok(())
    });
}

fn other(cases: &mut Cases) {
    for len in [3usize, 9000] {
        cases.add("getrandom", if len == 3 { "few bytes" } else { "many bytes" }, move |call| {
            call.volatile_room(len).number(len as i128).number(0);
            Ok(())
        });
    }
    for name in ["getdents", "getdents64"] {
        cases.add(name, "", move |call| {
            let directory = call.name("d");
            std::fs::create_dir(&directory).map_err(|error| error.to_string())?;
            (0..40).try_for_each(|n| std::fs::write(format!("{directory}/entry-{n}"), b"")).map_err(|error| error.to_string())?;
            let fd = open(call, &directory, libc::O_RDONLY)?;
            // Numbers of inodes, and the order, differ.
            call.number(fd).volatile_room(6000).number(6000);
            Ok(())
        });
        cases.add(name, "no room", move |call| {
            let fd = open(call, ".", libc::O_RDONLY)?;
            call.number(fd).room(8).number(8);
            Ok(())
        });
    }
    for (name, writes) in [("process_vm_readv", false), ("process_vm_writev", true)] {
        cases.add(name, "on the program itself", move |call| {
            let (ours, theirs) = if writes { (parts(), rooms()) } else { (rooms(), parts()) };
            let (local, remote) = (vectors(call, &ours), vectors(call, &theirs));
            call.number(std::process::id()).at(local).number(3).at(remote).number(3).number(0);
            Ok(())
        });
        cases.add(name, "on a child", move |call| {
            let child = super::process::Sleeper::start()?;
            // The child's text begins where ours does not have to: an address that it surely has not.
            let local = vectors(call, &parts());
            call.number(child.pid())
                .at(local)
                .number(3)
                .structure(Structure::new().u64(64).u64(100))
                .number(1)
                .number(0)
                .keep(child);
            Ok(())
        });
    }
}
