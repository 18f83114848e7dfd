//! The table as a document for people: `docs/src/reference/system-calls.md`, which a test compares with this.

use super::special::{inside, pointers};
use super::{Area, COUNT, Dir, Extent, Kind, Ptr, Special, Transfer, describe};
use std::fmt::Write as _;

const HEAD: &str = "# What Farshore does with each system call

Written by the tests from the table in `crates/product/net/src/table`, which is what the library goes by; a test compares its
pointers with the kernel's own prototypes, and `farshore-call-matrix` (`make calls`) makes the calls: with memory that is absent, half absent,
at the edge of what is managed, write-protected, and being evicted at that moment.

Arguments are counted from 0. *In*: the kernel reads there, *out*: it writes, *both*: it does both. What the last column says:

| word | meaning |
|---|---|
| no pointers | the kernel touches no memory of the program: the call is made as it is |
| pinned | the pages are made present, and writable where the kernel writes; they cannot be evicted until the call has ended. What finds no room (a call may pin a sixteenth of the limit, all calls together a quarter) goes through *scratch* memory, which is not managed: copied in, one call, copied out. Memory that is not managed needs nothing, and what the program itself cannot access is left to the kernel, which answers `EFAULT` |
| in pieces | what finds no room is done by several calls, as long as the result could have been the kernel's own for the one (`crates/product/net/src/transfer.rs` says when); otherwise on scratch memory |
| copied | the kernel works on a copy that is not managed |
| followed | Farshore changes its own records with the call: mappings, signals, processes. Structures are read and written by Farshore as the program would |
| handed over | the kernel remembers the address and touches it later: the pages there stop being managed, for good |
| refused | the answer of a kernel that does not have the call, with the reason |

A number that is not in the table gets `ENOSYS`, whatever its arguments are, as do numbers with x32's bit: a call that is newer
than Farshore could keep pages for later, follow pointers inside structures, or change mappings, and none of that can be seen in
its arguments. Programs that know such a call must run on kernels without it.

A call with † takes descriptors: Farshore's own (its userfaultfd, its swap file, …) answer `EBADF` there, as if they were not open. Where
other arguments decide whether it is looked at (the directory of a path that may be absolute), the kernel decides likewise.

| number | call | user pointers and lengths | how they are made safe |
|---|---|---|---|
";

/// The whole table as a Markdown document: one line a call.
pub fn markdown() -> String {
    let mut text = String::from(HEAD);
    for nr in 0..COUNT as u64 {
        if let Some(entry) = describe(nr) {
            let (pointers, how) = summary(entry.name, &entry.kind);
            // Writing to a String cannot fail.
            let mark = if entry.descriptors | entry.perhaps == 0 { "" } else { " †" };
            let _ = writeln!(text, "| {nr} | `{}`{mark} | {pointers} | {how} |", entry.name);
        }
    }
    text
}

/// A bit for each argument that the table knows as a pointer.
pub fn pointer_arguments(name: &str, kind: &Kind) -> u8 {
    let bit = |rule: &Ptr| match rule.extent {
        Extent::Behind { by, .. } => 1u8 << rule.arg | 1 << by,
        _ => 1 << rule.arg,
    };
    match kind {
        Kind::Pointers(rules) => rules.iter().map(bit).fold(0, |all, one| all | one),
        Kind::Kept(rule, _) => bit(rule),
        _ => pointers(name).iter().fold(0, |all, (arg, _, _)| all | 1 << arg),
    }
}

fn summary(name: &str, kind: &Kind) -> (String, String) {
    let listed = || pointers(name).iter().map(|&(arg, dir, what)| one(arg, dir, what)).collect::<Vec<_>>().join("; ");
    match kind {
        Kind::NoPointers => ("–".into(), "no pointers".into()),
        Kind::Pointers(rules) => (rules.iter().map(rule_text).collect::<Vec<_>>().join("; "), "pinned".into()),
        Kind::Transfer(transfer) => (listed(), transfer_text(*transfer).into()),
        Kind::Special(special) => {
            let more = inside(name);
            let pointers = if listed().is_empty() { "–".into() } else { listed() };
            (if more.is_empty() { pointers } else { format!("{pointers}; {more}") }, special_text(*special).into())
        }
        Kind::Elsewhere(area) => {
            let pointers = if listed().is_empty() { "–".into() } else { listed() };
            let how = match area {
                Area::Memory => "followed: changes the program's memory; nothing is accessed",
                Area::Signals => "followed: changes signal handling",
                Area::Process => "followed: starts or ends a thread or process",
            };
            (pointers, how.into())
        }
        Kind::Kept(rule, why) => (rule_text(rule), format!("handed over: {why}")),
        Kind::Passed(why) => ("–".into(), format!("passed through: {why}")),
        Kind::Refused(why) => {
            (if listed().is_empty() { "–".into() } else { listed() }, format!("**refused with `ENOSYS`**: {why}"))
        }
        Kind::Gone => ("–".into(), "passed through: this call has left the kernel".into()),
    }
}

fn direction(dir: Dir) -> &'static str {
    match dir {
        Dir::In => "in",
        Dir::Out => "out",
        Dir::Both => "both",
    }
}

fn one(arg: u8, dir: Dir, what: &str) -> String {
    format!("argument {arg} {}: {what}", direction(dir))
}

fn rule_text(rule: &Ptr) -> String {
    let extent = match rule.extent {
        Extent::Bytes(1) => "1 byte".into(),
        Extent::Bytes(n) => format!("{n} bytes"),
        Extent::Text => "string".into(),
        Extent::Bits { by } => format!("one bit for each of argument {by}"),
        Extent::Pages { by } => format!("one byte for each page of argument {by}"),
        Extent::Sized { at } => format!("structure with its size at byte {at}"),
        Extent::Behind { by, cap } => format!("as many bytes as the integer says to which argument {by} points{}", cap_text(cap)),
        Extent::Counted { by, unit, plus, cap, int: _ } => {
            let head = if plus == 0 { String::new() } else { format!("{plus} + ") };
            let unit = if unit == 1 { String::new() } else { format!(" × {unit}") };
            format!("{head}argument {by}{unit} bytes{}", cap_text(cap))
        }
    };
    one(rule.arg, rule.dir, &extent)
}

fn cap_text(cap: u64) -> String {
    if cap == u64::MAX { String::new() } else { format!(", at most {cap}") }
}

fn transfer_text(transfer: Transfer) -> &'static str {
    match transfer {
        Transfer::Flat(_) | Transfer::Vector(_) | Transfer::Random => "pinned; in pieces",
        Transfer::SendTo | Transfer::RecvFrom | Transfer::SendMsg | Transfer::RecvMsg => {
            "pinned; streams in pieces, datagrams and messages with control data on scratch memory"
        }
        Transfer::SendMany | Transfer::RecvMany => {
            "pinned; as many messages at once as find room, one without room like a single message"
        }
        Transfer::Entries => "pinned; a smaller buffer is offered if it finds no room",
    }
}

fn special_text(special: Special) -> &'static str {
    match special {
        Special::CloseRange => "no pointers; leaves Farshore's own descriptors out",
        Special::FetchDescriptor => "no pointers; of the process itself it brings none of Farshore's own",
        Special::Fcntl => "pinned, by command",
        Special::Ioctl => {
            "pinned, by the size in the request, and what pointers inside lead to; **refused** are requests that hand memory to a device \
             or a guest, which touches it at any time (`ENOSYS`; video buffers of the program: `EINVAL`)"
        }
        Special::Prctl => {
            "pinned, by option; **refused with `EINVAL`**: Syscall User Dispatch, which is Farshore's own, and filters (`PR_SET_SECCOMP`) that would \
             stop a call of Farshore's"
        }
        Special::ArchPrctl | Special::Ptrace | Special::Keyctl | Special::Fsconfig | Special::Semctl => "pinned, by command",
        Special::Futex => {
            "pinned, by operation. Not pinned: a word that is waited for (the kernel reads it at the start of the wait; if it has left by then, \
             the wait begins anew), and one that a private waker names (its address is enough)"
        }
        Special::FutexArray | Special::FutexWait => {
            "made present; not pinned while a thread waits: if a word has left when the kernel reads it, the wait begins anew"
        }
        Special::Bpf => "pinned, and a page behind each pointer inside",
        Special::MqNotify | Special::XattrAt(_) | Special::KexecLoad => "pinned, with what is behind the pointers inside",
        Special::SetSockOpt => {
            "pinned, with what is behind the pointers inside; **refused**: memory for `AF_XDP` (`ENOPROTOOPT`), to which a network card would write at any time"
        }
        Special::GetSockOpt => "pinned",
        Special::EpollWait => {
            "pinned; fewer events are asked for if they find no room. The mask is copied, without the signals that Farshore needs"
        }
        Special::Ppoll | Special::Pselect => "pinned. The mask is copied, without the signals that Farshore needs",
        Special::Suspend => "copied, without the signals that Farshore needs",
        Special::Seccomp => {
            "pinned. A filter is installed if it lets Farshore's own calls pass; otherwise, and in strict mode, **refused with `EINVAL`** and a line on stderr"
        }
        Special::ProcessVm(_) => "pinned; on the program itself done by copying, without the kernel",
        Special::Ring => {
            "pinned, also beyond the call. The mask is copied, without the signals that Farshore needs. A ring that another process has made: `EOPNOTSUPP`"
        }
        Special::Aio => "pinned, also beyond the call. The mask is copied, without the signals that Farshore needs",
        Special::Exec => "copied: a successful call never comes back to unpin",
    }
}
