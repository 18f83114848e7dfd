//! The table as a document for people: `docs/system-calls.md`, which a test compares with this.

use super::{Area, COUNT, Dir, Extent, Kind, Ptr, Special, Transfer, describe};
use std::fmt::Write as _;

/// The whole table as a Markdown document: one line a call.
pub fn markdown() -> String {
    let mut text = String::from(
        "# What Farshore does with each system call\n\n\
         Written by the tests from the table in `crates/preload/src/net/table`, which is what the library goes by. \
         *In*: the kernel reads, *out*: it writes, *both*: it does both. The pages are made present before the call and stay until it has ended.\n\n\
         | number | call | what is done |\n|---|---|---|\n",
    );
    for nr in 0..COUNT as u64 {
        if let Some(entry) = describe(nr) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "| {nr} | `{}` | {} |", entry.name, summary(&entry.kind));
        }
    }
    text
}

fn summary(kind: &Kind) -> String {
    match kind {
        Kind::NoPointers => "passed through: no pointers".into(),
        Kind::Pointers(rules) => rules.iter().map(rule_text).collect::<Vec<_>>().join("; "),
        Kind::Transfer(transfer) => transfer_text(*transfer).into(),
        Kind::Special(special) => special_text(*special).into(),
        Kind::Elsewhere(Area::Memory) => "followed: changes the program's memory".into(),
        Kind::Elsewhere(Area::Signals) => "followed: changes signal handling".into(),
        Kind::Elsewhere(Area::Process) => "followed: starts or ends a thread or process".into(),
        Kind::Kept(why) => format!("passed through: {why}"),
        Kind::Refused(why) => format!("**refused with `ENOSYS`**: {why}"),
        Kind::Gone => "passed through: this call has left the kernel".into(),
    }
}

fn rule_text(rule: &Ptr) -> String {
    let dir = match rule.dir {
        Dir::In => "in",
        Dir::Out => "out",
        Dir::Both => "both",
    };
    let extent = match rule.extent {
        Extent::Bytes(n) => format!("{n} bytes"),
        Extent::Text => "string".into(),
        Extent::Bits { by } => format!("one bit for each of argument {by}"),
        Extent::Pages { by } => format!("one byte for each page of argument {by}"),
        Extent::Sized { at } => format!("structure with its size at byte {at}"),
        Extent::Behind { by, cap } => format!("length behind argument {by}{}", cap_text(cap)),
        Extent::Counted { by, unit, plus, cap, int: _ } => {
            let head = if plus == 0 { String::new() } else { format!("{plus} + ") };
            let unit = if unit == 1 { String::new() } else { format!(" × {unit}") };
            format!("{head}argument {by}{unit} bytes{}", cap_text(cap))
        }
    };
    format!("argument {} {dir}: {extent}", rule.arg)
}

fn cap_text(cap: u64) -> String {
    if cap == u64::MAX { String::new() } else { format!(", at most {cap}") }
}

fn transfer_text(transfer: Transfer) -> &'static str {
    match transfer {
        Transfer::Flat(_) => "buffer; in pieces if it is larger than the budget",
        Transfer::Vector(_) => "iovec array and its buffers; in pieces if they are larger than the budget",
        Transfer::SendTo | Transfer::RecvFrom => "buffer and address; streams in pieces, datagrams whole",
        Transfer::SendMsg | Transfer::RecvMsg => {
            "message with name, control data and buffers; streams in pieces, datagrams whole"
        }
        Transfer::SendMany | Transfer::RecvMany => "array of messages, as many at once as the budget holds",
        Transfer::Random => "buffer; in pieces if it is larger than the budget",
        Transfer::Entries => "buffer; a smaller one is offered if it is larger than the budget",
    }
}

fn special_text(special: Special) -> &'static str {
    match special {
        Special::Close | Special::Dup | Special::DupTo => "`EBADF` for Farshore's own descriptors",
        Special::CloseRange => "leaves Farshore's own descriptors out",
        Special::Fcntl => "by command; `EBADF` for Farshore's own descriptors",
        Special::Ioctl => "by the size in the request; the ones that hand memory to a device or a guest are refused",
        Special::Prctl => {
            "by option; Syscall User Dispatch is Farshore's own and refused with `EINVAL`, as are filters (`PR_SET_SECCOMP`)"
        }
        Special::ArchPrctl => "by option",
        Special::Futex => "by operation: the futex words and the timeout",
        Special::FutexArray => "array of waiters and their futex words",
        Special::Ptrace => "by request",
        Special::Bpf => "structure, and a page behind each pointer in it",
        Special::Keyctl => "by operation",
        Special::Fsconfig => "by command",
        Special::Semctl => "by command",
        Special::MqNotify => "structure, and the cookie of `SIGEV_THREAD`",
        Special::SetSockOpt => "value; filter programs are followed",
        Special::GetSockOpt => "value and its length",
        Special::EpollWait => "events (fewer are offered if they are larger than the budget), timeout, filtered signal mask",
        Special::Ppoll => "poll array, timeout, filtered signal mask",
        Special::Pselect => "descriptor sets, timeout, filtered signal mask",
        Special::Suspend => "filtered signal mask",
        Special::Seccomp => "**refused with `EINVAL`**: a filter would cut Farshore off from the kernel",
        Special::ProcessVm(_) => "both iovec arrays and the local buffers; on the program itself done by copying",
        Special::Exec => "path, arguments and environment are copied to memory that is not managed",
        Special::XattrAt(_) => "path, name, structure and the value behind it",
        Special::KexecLoad => "array of segments and their buffers",
    }
}
