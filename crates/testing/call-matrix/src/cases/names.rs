//! Calls with paths.

use super::Cases;
use super::set_up::{HERE, contents, exists, file, open, pattern};
use crate::call::{Call, Structure};
use crate::kernel::{at, at_mut, sys};

/// A file of the call with little in it.
fn made(call: &Call, what: &str) -> Result<(), String> {
    std::fs::write(call.name(what), pattern(300)).map_err(|error| error.to_string())
}

/// The same, last changed at a certain time.
fn old(call: &Call) -> Result<(), String> {
    made(call, "f")?;
    let (path, times) = (call.path("f"), [50u64, 0, 60, 0]);
    sys("utimensat", &[HERE as u64, path.as_ptr() as u64, at(&times), 0]).map(|_| ())
}

fn linked(call: &Call, what: &str, target: &str) -> Result<(), String> {
    std::os::unix::fs::symlink(target, call.name(what)).map_err(|error| error.to_string())
}

fn directory(call: &Call, what: &str) -> Result<(), String> {
    std::fs::create_dir(call.name(what)).map_err(|error| error.to_string())
}

fn own_ids() -> (u64, u64) {
    (sys("geteuid", &[]).unwrap_or(0), sys("getegid", &[]).unwrap_or(0))
}

pub fn add(cases: &mut Cases) {
    opening(cases);
    looking(cases);
    changing(cases);
    making(cases);
    attributes(cases);
    attributes_at(cases);
    watching(cases);
    handles(cases);
}

fn opening(cases: &mut Cases) {
    cases.add("open", "", |call| {
        made(call, "f")?;
        call.own_name("f").number(libc::O_RDONLY).number(0).returns_descriptor();
        Ok(())
    });
    cases.add("open", "a long name", |call| {
        call.text(&"x/".repeat(2500)).number(0).number(0);
        Ok(())
    });
    cases.add("creat", "", |call| {
        let after = exists(call, "f");
        call.own_name("f").number(0o600).returns_descriptor().after(after);
        Ok(())
    });
    cases.add("openat", "", |call| {
        let after = exists(call, "f");
        call.number(HERE).own_name("f").number(libc::O_CREAT | libc::O_RDWR).number(0o640).returns_descriptor().after(after);
        Ok(())
    });
    cases.add("openat2", "", |call| {
        made(call, "f")?;
        let how = Structure::new().u64(libc::O_RDONLY as u64).u64(0).u64(0);
        call.number(HERE).own_name("f").structure(how).number(24).returns_descriptor();
        Ok(())
    });
    cases.add("memfd_create", "", |call| {
        call.text("a name").number(1).returns_descriptor();
        Ok(())
    });
    cases.add("inotify_add_watch", "", |call| {
        made(call, "f")?;
        let fd = sys("inotify_init1", &[libc::O_CLOEXEC as u64])?;
        super::set_up::keep(call, fd)?;
        call.number(fd).own_name("f").number(libc::IN_MODIFY);
        Ok(())
    });
}

fn looking(cases: &mut Cases) {
    // Numbers of inodes and times differ: mode, links and size do not.
    for name in ["stat", "lstat"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            call.own_name("f").room(144).volatile(0..16).volatile(64..120);
            Ok(())
        });
    }
    cases.add("fstat", "", |call| {
        let fd = file(call, "f", 500)?;
        call.number(fd).room(144).volatile(0..16).volatile(64..120);
        Ok(())
    });
    cases.add("newfstatat", "", |call| {
        made(call, "f")?;
        call.number(HERE).own_name("f").room(144).volatile(0..16).volatile(64..120).number(0);
        Ok(())
    });
    cases.add("statx", "", |call| {
        made(call, "f")?;
        call.number(HERE).own_name("f").number(0).number(0x7ff).volatile_room(256);
        Ok(())
    });
    cases.add("access", "", |call| {
        made(call, "f")?;
        call.own_name("f").number(4);
        Ok(())
    });
    for name in ["faccessat", "faccessat2"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            call.number(HERE).own_name("f").number(4).number(0);
            Ok(())
        });
    }
    cases.add("readlink", "", |call| {
        linked(call, "l", &"target-".repeat(100))?;
        call.own_name("l").room(800).number(800);
        Ok(())
    });
    cases.add("readlinkat", "cut", |call| {
        linked(call, "l", &"target-".repeat(100))?;
        call.number(HERE).own_name("l").room(500).number(500);
        Ok(())
    });
    cases.add("statfs", "", |call| {
        call.text("/proc").room(120).volatile(56..64);
        Ok(())
    });
    cases.add("fstatfs", "", |call| {
        let fd = open(call, "/proc", libc::O_RDONLY)?;
        call.number(fd).room(120).volatile(56..64);
        Ok(())
    });
    cases.add("ustat", "", |call| {
        let mut stat = [0u64; 18];
        sys("stat", &[at(c"/proc".to_bytes_with_nul()), at_mut(&mut stat)])?;
        let device = stat[0];
        call.number(device).volatile_room(32);
        Ok(())
    });
    cases.add("getcwd", "", |call| {
        call.volatile_room(4096).number(4096).returns_any();
        Ok(())
    });
    cases.add("getcwd", "no room", |call| {
        call.room(2).number(2);
        Ok(())
    });
    cases.add("chdir", "", |call| {
        call.text(".");
        Ok(())
    });
    cases.add("chroot", "", |call| {
        call.text("/");
        Ok(())
    });
    cases.add("sysfs", "", |call| {
        call.number(1).text("proc").number(0).returns_any();
        Ok(())
    });
    cases.add("sysfs", "by number", |call| {
        call.number(2).number(0).volatile_room(256);
        Ok(())
    });
}

fn changing(cases: &mut Cases) {
    cases.add("truncate", "", |call| {
        made(call, "f")?;
        let after = contents(call, "f");
        call.own_name("f").number(1234).after(after);
        Ok(())
    });
    cases.add("chmod", "", |call| {
        made(call, "f")?;
        let after = exists(call, "f");
        call.own_name("f").number(0o751).after(after);
        Ok(())
    });
    for name in ["fchmodat", "fchmodat2"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            let after = exists(call, "f");
            call.number(HERE).own_name("f").number(0o751).number(0).after(after);
            Ok(())
        });
    }
    for name in ["chown", "lchown"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            let (user, group) = own_ids();
            call.own_name("f").number(user).number(group);
            Ok(())
        });
    }
    cases.add("fchownat", "", |call| {
        made(call, "f")?;
        let (user, group) = own_ids();
        call.number(HERE).own_name("f").number(user).number(group).number(0);
        Ok(())
    });
    let times = |call: &Call| {
        let name = call.name("f");
        move |_: i64| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(&name)
                .map_or_else(|error| format!("{:?}", error.kind()), |data| format!("[{} {}]", data.atime(), data.mtime()))
        }
    };
    cases.add("utime", "", move |call| {
        old(call)?;
        let after = times(call);
        call.own_name("f").structure(Structure::new().u64(1000).u64(2000)).after(after);
        Ok(())
    });
    cases.add("utimes", "", move |call| {
        old(call)?;
        let after = times(call);
        call.own_name("f").structure(Structure::new().u64(1000).u64(1).u64(2000).u64(2)).after(after);
        Ok(())
    });
    for name in ["futimesat", "utimensat"] {
        cases.add(name, "", move |call| {
            old(call)?;
            let after = times(call);
            call.number(HERE).own_name("f").structure(Structure::new().u64(1000).u64(1).u64(2000).u64(2)).number(0).after(after);
            Ok(())
        });
    }
}

fn making(cases: &mut Cases) {
    cases.add("rename", "", |call| {
        made(call, "f")?;
        let after = exists(call, "g");
        call.own_name("f").own_name("g").after(after);
        Ok(())
    });
    for name in ["renameat", "renameat2"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            let after = exists(call, "g");
            call.number(HERE).own_name("f").number(HERE).own_name("g").number(0).after(after);
            Ok(())
        });
    }
    cases.add("link", "", |call| {
        made(call, "f")?;
        let after = exists(call, "g");
        call.own_name("f").own_name("g").after(after);
        Ok(())
    });
    cases.add("linkat", "", |call| {
        made(call, "f")?;
        let after = exists(call, "g");
        call.number(HERE).own_name("f").number(HERE).own_name("g").number(0).after(after);
        Ok(())
    });
    cases.add("symlink", "", |call| {
        let after = exists(call, "g");
        call.text("somewhere").own_name("g").after(after);
        Ok(())
    });
    cases.add("symlinkat", "", |call| {
        let after = exists(call, "g");
        call.text("somewhere").number(HERE).own_name("g").after(after);
        Ok(())
    });
    cases.add("unlink", "", |call| {
        made(call, "f")?;
        let after = exists(call, "f");
        call.own_name("f").after(after);
        Ok(())
    });
    cases.add("unlinkat", "", |call| {
        made(call, "f")?;
        let after = exists(call, "f");
        call.number(HERE).own_name("f").number(0).after(after);
        Ok(())
    });
    cases.add("mkdir", "", |call| {
        let after = exists(call, "d");
        call.own_name("d").number(0o700).after(after);
        Ok(())
    });
    cases.add("mkdirat", "", |call| {
        let after = exists(call, "d");
        call.number(HERE).own_name("d").number(0o700).after(after);
        Ok(())
    });
    cases.add("rmdir", "", |call| {
        directory(call, "d")?;
        let after = exists(call, "d");
        call.own_name("d").after(after);
        Ok(())
    });
    cases.add("mknod", "", |call| {
        let after = exists(call, "p");
        call.own_name("p").number(libc::S_IFIFO | 0o600).number(0).after(after);
        Ok(())
    });
    cases.add("mknodat", "", |call| {
        let after = exists(call, "p");
        call.number(HERE).own_name("p").number(libc::S_IFIFO | 0o600).number(0).after(after);
        Ok(())
    });
}

const ATTRIBUTE: &str = "user.walk";

/// Gives the call's file an attribute of so many bytes.
fn attribute(call: &Call, len: usize) -> Result<(), String> {
    let (path, value) = (call.path("f"), pattern(len));
    let name = c"user.walk";
    sys("setxattr", &[path.as_ptr() as u64, name.as_ptr() as u64, at(value.as_slice()), len as u64, 0]).map(|_| ())
}

fn value_of(call: &Call) -> impl FnOnce(i64) -> String + use<> {
    let path = call.path("f");
    move |_| {
        let mut bytes = [0u8; 4000];
        let got = sys("getxattr", &[path.as_ptr() as u64, c"user.walk".as_ptr() as u64, at_mut(&mut bytes), 4000]);
        got.map_or_else(|why| format!("[{why}]"), |len| format!("[{len}:{:016x}]", crate::call::digest(&bytes[..len as usize])))
    }
}

fn attributes(cases: &mut Cases) {
    for name in ["setxattr", "lsetxattr"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            let after = value_of(call);
            call.own_name("f").text(ATTRIBUTE).input(&pattern(3000)).number(3000).number(0).after(after);
            Ok(())
        });
    }
    cases.add("fsetxattr", "", |call| {
        let (fd, after) = (file(call, "f", 10)?, value_of(call));
        call.number(fd).text(ATTRIBUTE).input(&pattern(3000)).number(3000).number(0).after(after);
        Ok(())
    });
    for name in ["getxattr", "lgetxattr"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            attribute(call, 2000)?;
            call.own_name("f").text(ATTRIBUTE).room(2500).number(2500);
            Ok(())
        });
        cases.add(name, "no room", |call| {
            made(call, "f")?;
            attribute(call, 2000)?;
            call.own_name("f").text(ATTRIBUTE).room(1000).number(1000);
            Ok(())
        });
    }
    cases.add("fgetxattr", "", |call| {
        let fd = file(call, "f", 10)?;
        attribute(call, 2000)?;
        call.number(fd).text(ATTRIBUTE).room(2500).number(2500);
        Ok(())
    });
    for name in ["listxattr", "llistxattr"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            attribute(call, 20)?;
            call.own_name("f").room(500).number(500);
            Ok(())
        });
    }
    cases.add("flistxattr", "", |call| {
        let fd = file(call, "f", 10)?;
        attribute(call, 20)?;
        call.number(fd).room(500).number(500);
        Ok(())
    });
    for name in ["removexattr", "lremovexattr"] {
        cases.add(name, "", |call| {
            made(call, "f")?;
            attribute(call, 20)?;
            let after = value_of(call);
            call.own_name("f").text(ATTRIBUTE).after(after);
            Ok(())
        });
    }
    cases.add("fremovexattr", "", |call| {
        let fd = file(call, "f", 10)?;
        attribute(call, 20)?;
        let after = value_of(call);
        call.number(fd).text(ATTRIBUTE).after(after);
        Ok(())
    });
}

fn attributes_at(cases: &mut Cases) {
    cases.add("setxattrat", "", |call| {
        made(call, "f")?;
        let (value, after) = (call.place(&pattern(1500)), value_of(call));
        call.number(HERE).own_name("f").number(0).text(ATTRIBUTE);
        call.structure(Structure::new().pointer(value).u32(1500).u32(0)).number(16).after(after);
        Ok(())
    });
    cases.add("getxattrat", "", |call| {
        made(call, "f")?;
        attribute(call, 1000)?;
        let value = call.place_room(1500);
        call.number(HERE).own_name("f").number(0).text(ATTRIBUTE);
        call.structure(Structure::new().pointer(value).u32(1500).u32(0)).number(16);
        Ok(())
    });
    cases.add("listxattrat", "", |call| {
        made(call, "f")?;
        attribute(call, 1000)?;
        call.number(HERE).own_name("f").number(0).room(500).number(500);
        Ok(())
    });
    cases.add("removexattrat", "", |call| {
        made(call, "f")?;
        attribute(call, 20)?;
        let after = value_of(call);
        call.number(HERE).own_name("f").number(0).text(ATTRIBUTE).after(after);
        Ok(())
    });
    cases.add("file_getattr", "", |call| {
        made(call, "f")?;
        call.number(HERE).own_name("f").volatile_room(24).number(24).number(0);
        Ok(())
    });
    cases.add("file_setattr", "", |call| {
        made(call, "f")?;
        call.number(HERE).own_name("f").input(&[0; 24]).number(24).number(0);
        Ok(())
    });
}

fn watching(cases: &mut Cases) {
    cases.add("fanotify_mark", "", |call| {
        made(call, "f")?;
        // FAN_REPORT_FID: needs no privilege.
        let fd = sys("fanotify_init", &[0x200 | 1, libc::O_RDONLY as u64])?;
        super::set_up::keep(call, fd)?;
        call.number(fd).number(1).number(libc::IN_MODIFY).number(HERE).own_name("f");
        Ok(())
    });
    cases.add("quotactl", "no such device", |call| {
        // Q_GETQUOTA for users.
        call.number(0x8000_0700u32).text("/dev/there-is-no-such-device").number(0).room(72);
        Ok(())
    });
}

fn handles(cases: &mut Cases) {
    cases.add("name_to_handle_at", "", |call| {
        made(call, "f")?;
        let handle = Structure::new().u32(128).zeros(132);
        call.number(HERE).own_name("f").structure(handle).volatile(0..136).volatile_room(4).number(0);
        Ok(())
    });
    cases.add("name_to_handle_at", "no room", |call| {
        made(call, "f")?;
        call.number(HERE).own_name("f").input(&[0; 8]).volatile(0..8).volatile_room(4).number(0);
        Ok(())
    });
    cases.add("open_by_handle_at", "", |call| {
        made(call, "f")?;
        let (path, mut handle, mut mount) = (call.path("f"), [0u32; 34], 0u32);
        handle[0] = 128;
        sys("name_to_handle_at", &[HERE as u64, path.as_ptr() as u64, at_mut(&mut handle), at_mut(&mut mount), 0])?;
        let fd = open(call, ".", libc::O_RDONLY)?;
        let mut structure = Structure::new();
        for word in handle {
            structure = structure.u32(word);
        }
        // What is in the handle differs from run to run, and is only read.
        call.number(fd).structure(structure).volatile(0..136).number(libc::O_RDONLY).returns_descriptor();
        Ok(())
    });
}
