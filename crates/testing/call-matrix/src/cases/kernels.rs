//! Keys, programs for the kernel, memory policies, security modules: calls that not every kernel has.

use super::Cases;
use super::set_up::{keep, open, pattern};
use crate::call::{Call, Structure};
use crate::kernel::{at, sys};

pub fn add(cases: &mut Cases) {
    keys(cases);
    programs(cases);
    policies(cases);
    security(cases);
}

/// The keyring of the process.
const KEYRING: i32 = -2;

fn key(call: &mut Call) -> Result<u64, String> {
    let name = call.path("k");
    let bytes = pattern(500);
    let id = sys("add_key", &[at(c"user".to_bytes_with_nul()), name.as_ptr() as u64, at(bytes.as_slice()), 500, KEYRING as u64])?;
    call.finally(move || _ = sys("keyctl", &[9, id, KEYRING as u64]));
    Ok(id)
}

fn keys(cases: &mut Cases) {
    cases.add("add_key", "", |call| {
        call.text("user").own_name("a").input(&pattern(3000)).number(3000).number(KEYRING).returns_any();
        Ok(())
    });
    cases.add("request_key", "", |call| {
        key(call)?;
        call.text("user").own_name("k").number(0).number(0).returns_any();
        Ok(())
    });
    cases.add("keyctl", "is read", |call| {
        let id = key(call)?;
        call.number(11).number(id).room(600).number(600);
        Ok(())
    });
    cases.add("keyctl", "is changed", |call| {
        let id = key(call)?;
        call.number(2).number(id).input(&pattern(300)).number(300);
        Ok(())
    });
    cases.add("keyctl", "is described", |call| {
        let id = key(call)?;
        call.number(6).number(id).room(200).number(200);
        Ok(())
    });
}

/// An array of 4 values of 1000 bytes for BPF.
fn bpf_array(call: &mut Call) -> Result<u64, String> {
    let attributes: [u32; 18] = [2, 4, 1000, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let fd = sys("bpf", &[0, at(&attributes), 72])?;
    keep(call, fd)
}

fn programs(cases: &mut Cases) {
    cases.add("bpf", "a map is made", |call| {
        let attributes = Structure::new().u32(2).u32(4).u32(1000).u32(4).zeros(56);
        call.number(0).structure(attributes).number(72).returns_descriptor();
        Ok(())
    });
    for (what, command) in [("a value is set", 2), ("a value is looked at", 1)] {
        cases.add("bpf", what, move |call| {
            let fd = bpf_array(call)?;
            let (key, value) = (call.place(&1u32.to_ne_bytes()), call.place(&pattern(1000)));
            call.number(command)
                .structure(Structure::new().u32(fd as u32).u32(0).pointer(key).pointer(value).u64(0))
                .volatile(0..4)
                .number(32);
            Ok(())
        });
    }
    cases.add("perf_event_open", "", |call| {
        // PERF_TYPE_SOFTWARE, the clock of the task; disabled, without the kernel.
        let event = Structure::new().u32(1).u32(128).u64(1).zeros(24).u64(1 | 1 << 5 | 1 << 6).zeros(80);
        call.structure(event).number(0).number(-1).number(-1).number(8).returns_descriptor();
        Ok(())
    });
    cases.add("perf_event_open", "a size that is not known", |call| {
        call.structure(Structure::new().u32(1).u32(4000).zeros(3991).bytes(&[1])).number(0).number(-1).number(-1).number(0);
        Ok(())
    });
}

fn policies(cases: &mut Cases) {
    cases.add("set_mempolicy", "", |call| {
        // MPOL_DEFAULT has no nodes.
        call.number(0).input(&[0; 8]).number(64);
        Ok(())
    });
    cases.add("get_mempolicy", "", |call| {
        call.room(4).room(128).number(1024).number(0).number(0);
        Ok(())
    });
    cases.add("get_mempolicy", "of a page", |call| {
        let page = call.place(&[1]);
        call.room(4).number(0).number(0).at(page).number(3);
        Ok(())
    });
    let page = || sys("mmap", &[0, 4096, 3, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE) as u64, u64::MAX, 0]);
    cases.add("mbind", "", move |call| {
        let start = page()?;
        call.finally(move || _ = sys("munmap", &[start, 4096]));
        call.number(start).number(4096).number(0).input(&[0; 8]).number(64).number(0);
        Ok(())
    });
    cases.add("move_pages", "", move |call| {
        let start = page()?;
        call.finally(move || _ = sys("munmap", &[start, 4096]));
        let pages = (0..300).fold(Structure::new(), |all, _| all.u64(start));
        call.number(0).number(300).structure(pages).volatile(0..2400).number(0).room(1200).number(0);
        Ok(())
    });
    cases.add("migrate_pages", "", |call| {
        call.number(0).number(64).input(&1u64.to_ne_bytes()).input(&1u64.to_ne_bytes());
        Ok(())
    });
}

fn security(cases: &mut Cases) {
    cases.add("landlock_create_ruleset", "", |call| {
        call.structure(Structure::new().u64(4)).number(8).number(0).returns_descriptor();
        Ok(())
    });
    cases.add("landlock_add_rule", "", |call| {
        let rules = sys("landlock_create_ruleset", &[at(&4u64), 8, 0])?;
        keep(call, rules)?;
        let parent = open(call, ".", libc::O_PATH)?;
        call.number(rules).number(1).structure(Structure::new().u64(4).u32(parent as u32)).volatile(8..12).number(0);
        Ok(())
    });
    cases.add("lsm_list_modules", "", |call| {
        call.room(400).input(&400u32.to_ne_bytes()).number(0);
        Ok(())
    });
    cases.add("lsm_get_self_attr", "", |call| {
        call.number(100).volatile_room(900).input(&900u32.to_ne_bytes()).number(0);
        Ok(())
    });
    cases.add("lsm_set_self_attr", "nobody's", |call| {
        call.number(100).structure(Structure::new().u64(9999).u64(0).u64(40).u64(8).u64(0)).number(40).number(0);
        Ok(())
    });
    // A filter would stay for good: tests/real/test_threads.py installs some.
    cases.add("seccomp", "SECCOMP_GET_ACTION_AVAIL", |call| {
        call.number(2).number(0).input(&0x7fff_0000u32.to_ne_bytes());
        Ok(())
    });
    cases.add("seccomp", "SECCOMP_GET_NOTIF_SIZES", |call| {
        call.number(3).number(0).room(6);
        Ok(())
    });
    cases.add("finit_module", "not a module", |call| {
        let fd = super::set_up::file(call, "f", 100)?;
        call.number(fd).text("a=1 b=2").number(0);
        Ok(())
    });
    cases.add("init_module", "not a module", |call| {
        call.input(&pattern(5000)).number(5000).text("a=1 b=2");
        Ok(())
    });
}
