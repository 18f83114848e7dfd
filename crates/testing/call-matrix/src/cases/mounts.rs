//! Mounts, host names and namespaces: only in namespaces that are the walk's own.

use super::Cases;
use super::set_up::{HERE, keep};
use crate::call::{Call, Structure};
use crate::kernel::{at, sys};

pub fn add(cases: &mut Cases) {
    old(cases);
    new(cases);
    asked(cases);
    names(cases);
}

fn directory(call: &Call, what: &str) -> Result<(), String> {
    std::fs::create_dir(call.name(what)).map_err(|error| error.to_string())
}

/// Takes down what is mounted at a name when the call is over.
fn unmounted(call: &mut Call, what: &str) {
    let path = call.path(what);
    call.finally(move || _ = sys("umount2", &[path.as_ptr() as u64, libc::MNT_DETACH as u64]));
}

/// A directory with a file system in memory on it.
fn mounted(call: &mut Call, what: &str) -> Result<(), String> {
    directory(call, what)?;
    let (path, kind) = (call.path(what), at(c"tmpfs".to_bytes_with_nul()));
    sys("mount", &[kind, path.as_ptr() as u64, kind, 0, 0])?;
    unmounted(call, what);
    Ok(())
}

fn old(cases: &mut Cases) {
    cases.add("mount", "", |call| {
        directory(call, "d")?;
        unmounted(call, "d");
        // The kernel reads a whole page of data, as far as there is one.
        let mut data = b"size=64k,mode=700".to_vec();
        data.resize(4096, 0);
        call.text("nothing").own_name("d").text("tmpfs").number(0).input(&data);
        let path = call.name("d");
        call.after(move |_| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::metadata(&path).map_or_else(|error| error.to_string(), |data| format!("{:o}", data.permissions().mode()))
        });
        Ok(())
    });
    cases.add("umount2", "", |call| {
        mounted(call, "d")?;
        call.own_name("d").number(0);
        Ok(())
    });
    cases.add("pivot_root", "not a mount", |call| {
        directory(call, "d")?;
        call.own_name("d").own_name("d");
        Ok(())
    });
}

/// A file system that is being set up, in memory.
fn context(call: &mut Call) -> Result<u64, String> {
    let fd = sys("fsopen", &[at(c"tmpfs".to_bytes_with_nul()), 1])?;
    keep(call, fd)
}

/// The same, set up and not mounted anywhere.
fn detached(call: &mut Call) -> Result<u64, String> {
    let fd = context(call)?;
    sys("fsconfig", &[fd, 6, 0, 0, 0])?;
    let mount = sys("fsmount", &[fd, 1, 0])?;
    keep(call, mount)
}

fn new(cases: &mut Cases) {
    cases.add("fsopen", "", |call| {
        call.text("tmpfs").number(1).returns_descriptor();
        Ok(())
    });
    cases.add("fsconfig", "a string", |call| {
        let fd = context(call)?;
        call.number(fd).number(1).text("size").text("64k").number(0);
        Ok(())
    });
    cases.add("fsconfig", "a flag", |call| {
        let fd = context(call)?;
        call.number(fd).number(0).text("there-is-no-such-flag").number(0).number(0);
        Ok(())
    });
    cases.add("fspick", "", |call| {
        mounted(call, "d")?;
        call.number(HERE).own_name("d").number(1).returns_descriptor();
        Ok(())
    });
    cases.add("open_tree", "", |call| {
        mounted(call, "d")?;
        call.number(HERE).own_name("d").number(libc::O_CLOEXEC).returns_descriptor();
        Ok(())
    });
    cases.add("open_tree_attr", "", |call| {
        mounted(call, "d")?;
        // OPEN_TREE_CLONE, read-only.
        let attributes = Structure::new().u64(1).u64(0).u64(0).u64(0);
        call.number(HERE).own_name("d").number(libc::O_CLOEXEC | 1).structure(attributes).number(32).returns_descriptor();
        Ok(())
    });
    cases.add("move_mount", "", |call| {
        let mount = detached(call)?;
        directory(call, "d")?;
        unmounted(call, "d");
        // From the descriptor alone.
        call.number(mount).text("").number(HERE).own_name("d").number(4);
        Ok(())
    });
    cases.add("mount_setattr", "", |call| {
        mounted(call, "d")?;
        call.number(HERE).own_name("d").number(0).structure(Structure::new().u64(1).u64(0).u64(0).u64(0)).number(32);
        Ok(())
    });
}

fn asked(cases: &mut Cases) {
    const ROOT: u64 = u64::MAX;
    cases.add("listmount", "", |call| {
        call.structure(Structure::new().u32(24).u32(0).u64(ROOT).u64(0)).volatile_room(800).number(100).number(0).returns_any();
        Ok(())
    });
    cases.add("statmount", "", |call| {
        let (mut stat, request) = ([0u8; 256], 0x4000u64);
        // STATX_MNT_ID_UNIQUE: the number of the mount at 0x90.
        sys("statx", &[HERE as u64, at(c"/".to_bytes_with_nul()), 0, request, crate::kernel::at_mut(&mut stat)])?;
        let id = u64::from_ne_bytes(stat[0x90..0x98].try_into().map_err(|_| "eight bytes")?);
        call.structure(Structure::new().u32(24).u32(0).u64(id).u64(3)).volatile(8..16).volatile_room(2000).number(2000).number(0);
        Ok(())
    });
    cases.add("listns", "", |call| {
        call.structure(Structure::new().u32(32).zeros(28)).volatile_room(800).number(100).number(0).returns_any();
        Ok(())
    });
    cases.add("quotactl_fd", "no quotas", |call| {
        let fd = super::set_up::open(call, ".", libc::O_RDONLY)?;
        call.number(fd).number(0x8000_0700u32).number(0).room(72);
        Ok(())
    });
}

fn names(cases: &mut Cases) {
    for (name, file) in [("sethostname", "hostname"), ("setdomainname", "domainname")] {
        cases.add(name, "", move |call| {
            call.input(b"walk-of-farshore").number(16).after(move |_| {
                std::fs::read_to_string(format!("/proc/sys/kernel/{file}")).unwrap_or_default().trim().to_string()
            });
            Ok(())
        });
    }
}
