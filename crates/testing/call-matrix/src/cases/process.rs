//! Processes, limits, scheduling, and what a thread tells the kernel about itself.

use super::Cases;
use crate::call::{Call, Structure};
use crate::kernel::{at, at_mut, sys};
use std::process::{Child, Command};

/// A child that sleeps until it is dropped.
#[derive(Debug)]
pub struct Sleeper(Child);

impl Sleeper {
    /// Starts it.
    pub fn start() -> Result<Sleeper, String> {
        Command::new("sleep").arg("1000").spawn().map(Sleeper).map_err(|error| format!("sleep: {error}"))
    }
    /// Its number.
    pub fn pid(&self) -> u64 {
        u64::from(self.0.id())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // A child that is gone already is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child that ends with 7 at once.
fn ended() -> Result<u64, String> {
    let child = Command::new("sh").args(["-c", "exit 7"]).spawn().map_err(|error| format!("sh: {error}"))?;
    // Whoever makes the call waits for it.
    Ok(u64::from(child.id()))
}

pub fn add(cases: &mut Cases) {
    children(cases);
    limits(cases);
    rights(cases);
    scheduling(cases);
    itself(cases);
    traced(cases);
    starting(cases);
}

fn children(cases: &mut Cases) {
    cases.add("wait4", "", |call| {
        let pid = ended()?;
        call.number(pid).room(4).number(0).volatile_room(144).returns_any();
        // If it was not waited for, it is now.
        call.finally(move || _ = sys("wait4", &[pid, 0, 0, 0]));
        Ok(())
    });
    cases.add("waitid", "", |call| {
        let pid = ended()?;
        // The child's number and user differ.
        call.number(1).number(pid).room(128).volatile(12..24).number(4).volatile_room(144);
        call.finally(move || _ = sys("wait4", &[pid, 0, 0, 0]));
        Ok(())
    });
}

fn limits(cases: &mut Cases) {
    cases.add("getrlimit", "", |call| {
        call.number(3).room(16);
        Ok(())
    });
    cases.add("setrlimit", "", |call| {
        let mut limit = [0u64; 2];
        sys("prlimit64", &[0, 4, 0, at_mut(&mut limit)])?;
        call.number(4).structure(Structure::new().u64(limit[0]).u64(limit[1]));
        Ok(())
    });
    cases.add("prlimit64", "", |call| {
        let mut limit = [0u64; 2];
        sys("prlimit64", &[0, 4, 0, at_mut(&mut limit)])?;
        call.number(0).number(4).structure(Structure::new().u64(limit[0]).u64(limit[1])).room(16);
        Ok(())
    });
    cases.add("getrusage", "", |call| {
        call.number(0).volatile_room(144);
        Ok(())
    });
    cases.add("sysinfo", "", |call| {
        call.volatile_room(112);
        Ok(())
    });
    cases.add("uname", "", |call| {
        call.volatile_room(390);
        Ok(())
    });
    cases.add("syslog", "", |call| {
        // How large the kernel's buffer is.
        call.number(10).number(0).number(0);
        Ok(())
    });
    cases.add("syslog", "the last messages", |call| {
        call.number(3).volatile_room(900).number(900).returns_any();
        Ok(())
    });
}

fn rights(cases: &mut Cases) {
    cases.add("getgroups", "", |call| {
        call.number(100).room(400);
        Ok(())
    });
    cases.add("setgroups", "", |call| {
        let mut groups = [0u32; 1000];
        let count = sys("getgroups", &[1000, at_mut(&mut groups)])? as usize;
        // At least one group, or there is no buffer.
        let list: Vec<u8> = groups[..count.max(1)].iter().flat_map(|group| group.to_ne_bytes()).collect();
        call.number(count as i128).input(&list);
        Ok(())
    });
    for name in ["getresuid", "getresgid"] {
        cases.add(name, "", |call| {
            call.room(4).room(4).room(4);
            Ok(())
        });
    }
    // Version 3 of the header: two words for each of the three sets.
    let header = || Structure::new().u32(0x2008_0522).u32(0);
    cases.add("capget", "", move |call| {
        call.structure(header()).room(24);
        Ok(())
    });
    cases.add("capset", "", move |call| {
        let (head, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
        sys("capget", &[at(&head), at_mut(&mut data)])?;
        let sets: Vec<u8> = data.iter().flat_map(|word| word.to_ne_bytes()).collect();
        call.structure(header()).input(&sets);
        Ok(())
    });
    cases.add("capget", "another version", |call| {
        call.structure(Structure::new().u32(1).u32(0)).room(24);
        Ok(())
    });
}

fn scheduling(cases: &mut Cases) {
    cases.add("sched_setparam", "", |call| {
        call.number(0).input(&[0; 4]);
        Ok(())
    });
    cases.add("sched_getparam", "", |call| {
        call.number(0).room(4);
        Ok(())
    });
    cases.add("sched_setscheduler", "", |call| {
        call.number(0).number(libc::SCHED_OTHER).input(&[0; 4]);
        Ok(())
    });
    cases.add("sched_rr_get_interval", "", |call| {
        call.number(0).volatile_room(16);
        Ok(())
    });
    cases.add("sched_setaffinity", "", |call| {
        let mut mask = [0u64; 128];
        sys("sched_getaffinity", &[0, 1024, at_mut(&mut mask)])?;
        call.number(0).number(1024).input(&mask.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>());
        Ok(())
    });
    cases.add("sched_getaffinity", "", |call| {
        call.number(0).number(1024).room(1024);
        Ok(())
    });
    cases.add("sched_setattr", "", |call| {
        let mut attributes = [0u32; 14];
        sys("sched_getattr", &[0, at_mut(&mut attributes), 56, 0])?;
        call.number(0)
            .input(&attributes.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
            .volatile(0..56)
            .number(0);
        Ok(())
    });
    cases.add("sched_setattr", "a size that is not known", |call| {
        call.number(0).structure(Structure::new().u32(200).zeros(192).u32(1)).number(0);
        Ok(())
    });
    cases.add("sched_getattr", "", |call| {
        call.number(0).volatile_room(56).number(56).number(0);
        Ok(())
    });
    cases.add("getcpu", "", |call| {
        call.volatile_room(4).volatile_room(4).number(0);
        Ok(())
    });
}

fn itself(cases: &mut Cases) {
    cases.add("prctl", "PR_GET_NAME", |call| {
        call.number(libc::PR_GET_NAME).room(16);
        Ok(())
    });
    cases.add("prctl", "PR_SET_NAME", |call| {
        call.finally(|| _ = sys("prctl", &[libc::PR_SET_NAME as u64, at(c"farshore-call-matrix".to_bytes_with_nul())]));
        call.after(|_| {
            let mut name = [0u8; 16];
            let _ = sys("prctl", &[libc::PR_GET_NAME as u64, at_mut(&mut name)]);
            String::from_utf8_lossy(&name).trim_end_matches('\0').to_string()
        });
        call.number(libc::PR_SET_NAME).text("another name that is cut");
        Ok(())
    });
    cases.add("prctl", "PR_GET_PDEATHSIG", |call| {
        call.number(libc::PR_GET_PDEATHSIG).room(4);
        Ok(())
    });
    cases.add("prctl", "PR_GET_AUXV", |call| {
        call.number(0x4155_5856).volatile_room(600).number(600).number(0).number(0);
        Ok(())
    });
    cases.add("arch_prctl", "ARCH_GET_FS", |call| {
        call.number(0x1003).volatile_room(8);
        Ok(())
    });
    cases.add("get_robust_list", "", |call| {
        call.number(0).volatile_room(8).room(8);
        Ok(())
    });
    cases.add("set_robust_list", "", |call| {
        let (mut head, mut len) = (0u64, 0u64);
        sys("get_robust_list", &[0, at_mut(&mut head), at_mut(&mut len)])?;
        call.finally(move || _ = sys("set_robust_list", &[head, 24]));
        call.structure(Structure::new().zeros(24)).number(24);
        Ok(())
    });
    cases.add("set_tid_address", "", |call| {
        let mut address = 0u64;
        sys("prctl", &[40, at_mut(&mut address)])?;
        call.finally(move || _ = sys("set_tid_address", &[address]));
        call.input(&[1; 4]).returns_any();
        Ok(())
    });
    cases.add("rseq", "the thread has one", |call| {
        call.input(&[0; 32]).aligned(32).number(32).number(0).number(0x5305_3053);
        Ok(())
    });
    cases.add("modify_ldt", "", |call| {
        call.number(0).room(100).number(100);
        Ok(())
    });
    cases.add("kcmp", "", |call| {
        let pid = u64::from(std::process::id());
        let [from, _] = super::set_up::pipe(call, b"x")?;
        let epoll = sys("epoll_create1", &[libc::EPOLL_CLOEXEC as u64])?;
        super::set_up::keep(call, epoll)?;
        let event = [1u32, 0, 0];
        sys("epoll_ctl", &[epoll, 1, from, at(&event)])?;
        // KCMP_EPOLL_TFD: the descriptor, and where it is: epoll, target, offset.
        call.number(pid).number(pid).number(7).number(from).structure(Structure::new().u32(epoll as u32).u32(from as u32).u32(0));
        call.volatile(0..8);
        Ok(())
    });
}

/// A child that is stopped and traced by us.
fn tracee() -> Result<Sleeper, String> {
    const SEIZE: u64 = 0x4206;
    const INTERRUPT: u64 = 0x4207;
    let child = Sleeper::start()?;
    sys("ptrace", &[SEIZE, child.pid(), 0, 0])?;
    sys("ptrace", &[INTERRUPT, child.pid(), 0, 0])?;
    let mut status = 0u32;
    sys("wait4", &[child.pid(), at_mut(&mut status), 0, 0])?;
    Ok(child)
}

fn traced(cases: &mut Cases) {
    cases.add("ptrace", "PTRACE_GETREGSET", |call| {
        let child = tracee()?;
        let room = call.place_room(216);
        call.volatile(0..216);
        call.number(0x4204).number(child.pid()).number(1).structure(Structure::new().pointer(room).u64(216)).keep(child);
        Ok(())
    });
    cases.add("ptrace", "PTRACE_GETSIGINFO", |call| {
        let child = tracee()?;
        call.number(0x4202).number(child.pid()).number(0).volatile_room(128).keep(child);
        Ok(())
    });
    cases.add("ptrace", "PTRACE_GETREGS", |call| {
        let child = tracee()?;
        call.number(12).number(child.pid()).number(0).volatile_room(216).keep(child);
        Ok(())
    });
    cases.add("ptrace", "not a child", |call| {
        call.number(12).number(1 << 22).number(0).room(216);
        Ok(())
    });
}

fn starting(cases: &mut Cases) {
    let array = |call: &mut Call, words: &[&str]| {
        let mut array = Structure::new();
        for word in words {
            let text = call.place_text(word);
            array = array.pointer(text);
        }
        call.place_structure(array.u64(0))
    };
    cases.add("execve", "no such program", move |call| {
        let (args, environment) = (array(call, &["one", "two", "three"]), array(call, &["A=1", "B=2"]));
        call.text("/there/is/no/such/program").at(args).at(environment);
        Ok(())
    });
    cases.add("execveat", "no such program", move |call| {
        let (args, environment) = (array(call, &["one", "two", "three"]), array(call, &["A=1", "B=2"]));
        call.number(libc::AT_FDCWD).text("there-is-no-such-program").at(args).at(environment).number(0);
        Ok(())
    });
    cases.add("clone3", "no such flags", |call| {
        call.structure(Structure::new().u64(u64::MAX).zeros(80)).number(88);
        Ok(())
    });
}
