//! What of a process lies in RAM, by kind, as the kernel tells it in `/proc/PID/smaps`; and why a process is not managed.
//!
//! The command asks the kernel, not the program: so the numbers do not depend on what Farshore believes of itself, and a program pays
//! for them only when somebody looks. A mapping belongs to the first kind that fits, in the order of [`kind_of`].

use std::ffi::CString;
use std::time::Duration;

use farshore_command::process::{PATIENCE, ask, told_within};
use farshore_config::stats::Kinds;
use farshore_launch::{Program, Rights, Work};

/// A mapping's line, and what is told below it.
#[derive(Default)]
struct Mapping<'t> {
    start: u64,
    end: u64,
    rights: &'t str,
    inode: &'t str,
    name: &'t str,
    resident: u64,
    flags: &'t str,
    /// It begins where the mapping of a file ends, and is of none: the rest of an image's data.
    behind_file: bool,
}

impl Mapping<'_> {
    /// Whether it is registered with a userfaultfd.
    fn is_managed(&self) -> bool {
        self.has("um") || self.has("uw")
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|one| one == flag)
    }
}

/// What of process `pid` lies in RAM. `None`: it has ended, or belongs to somebody else, or the kernel does not tell it within this time.
pub fn of(pid: u32, patience: Duration) -> Option<Kinds> {
    let text = told_within(pid, "smaps", patience).ok().filter(|text| !text.is_empty())?;
    Some(sum(&text))
}

/// Memory of a process that Farshore manages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Managed {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// What the kernel calls the mapping: a path, `[heap]`, or nothing.
    pub name: String,
}

/// The memory of process `pid` that Farshore manages, by address. `None`: it has ended, or belongs to somebody else, or the kernel does not tell it within this time.
#[must_use]
pub fn managed(pid: u32, patience: Duration) -> Option<Vec<Managed>> {
    let text = told_within(pid, "smaps", patience).ok().filter(|text| !text.is_empty())?;
    Some(managed_in(&text))
}

fn managed_in(text: &str) -> Vec<Managed> {
    let (mut found, mut mapping) = (Vec::<Managed>::new(), Mapping::default());
    for line in text.lines() {
        if let Some(head) = head(line) {
            mapping = head;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            mapping.flags = flags;
            if !mapping.is_managed() {
                continue;
            }
            match found.last_mut() {
                // The kernel may have cut one mapping into several.
                Some(last) if last.end == mapping.start && last.name == mapping.name => last.end = mapping.end,
                _ => found.push(Managed { start: mapping.start, end: mapping.end, name: mapping.name.into() }),
            }
        }
    }
    found
}

fn sum(text: &str) -> Kinds {
    let mut kinds = Kinds::default();
    let mut mapping = Mapping::default();
    let mut file_end = 0;
    for line in text.lines() {
        if let Some(head) = head(line) {
            // An image's data go on behind its file, and a named rest of it does, too.
            let behind_file = head.inode == "0" && head.start == file_end;
            file_end = if head.inode != "0" || behind_file { head.end } else { 0 };
            mapping = Mapping { behind_file, ..head };
        } else if let Some(value) = line.strip_prefix("Rss:") {
            mapping.resident = value.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            mapping.flags = flags;
            // The last line of a mapping.
            *kind_of(&mapping, &mut kinds) += mapping.resident;
        }
    }
    kinds
}

/// `start-end rights offset device inode [name]`.
fn head(line: &str) -> Option<Mapping<'_>> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let (rights, inode) = (fields.next()?, fields.nth(2)?);
    Some(Mapping { start, end, rights, inode, name: fields.next().unwrap_or_default().trim_start(), ..Mapping::default() })
}

/// Where a mapping counts.
fn kind_of<'k>(mapping: &Mapping<'_>, kinds: &'k mut Kinds) -> &'k mut u64 {
    let is_ours = mapping.name.ends_with("/libfarshore.so")
        // What Farshore maps for itself is left out of core dumps, and does not count against overcommitment.
        || mapping.inode == "0" && mapping.has("dd") && mapping.has("nr");
    match mapping {
        _ if mapping.is_managed() => &mut kinds.managed_bytes,
        _ if is_ours => &mut kinds.farshore_bytes,
        _ if mapping.has("lo") => &mut kinds.locked_bytes,
        _ if mapping.has("ht") => &mut kinds.huge_bytes,
        _ if mapping.rights.ends_with('s') => &mut kinds.shared_bytes,
        _ if mapping.inode != "0" => &mut kinds.file_bytes,
        _ if mapping.rights.contains('x') => &mut kinds.executable_bytes,
        _ if mapping.name == "[stack]" || mapping.has("gd") => &mut kinds.stack_bytes,
        _ if mapping.behind_file => &mut kinds.static_bytes,
        _ => &mut kinds.other_bytes,
    }
}

/// Why process `pid` cannot be managed, by the file that it runs; `None`: nothing is in the way, or it is not known.
pub fn obstacle(pid: u32) -> Option<&'static str> {
    // The file that runs, whatever its path names by now. It may lie in a file system that does not answer.
    let path = CString::new(format!("/proc/{pid}/exe")).ok()?;
    let check = move || {
        let mut buffer = vec![0; Work::BYTES];
        Ok(farshore_launch::check(&Program::at(&path), &Rights::of_this_thread(), &mut Work::new(&mut buffer)))
    };
    ask(pid, PATIENCE, check).ok()?.err()?.runs_natively()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(head: &str, kilobytes: u64, flags: &str) -> String {
        format!("{head}\nSize: 99 kB\nRss: {kilobytes:>10} kB\nPss: 7 kB\nVmFlags: {flags} \n")
    }

    #[test]
    fn each_mapping_counts_once_as_the_first_kind_that_fits() {
        let text = [
            entry("1000-2000 r-xp 00000000 fe:00 7 /bin/program", 1, "rd ex mr mw me"),
            entry("2000-3000 rw-p 00001000 fe:00 7 /bin/program", 2, "rd wr mr mw me ac"),
            entry("3000-9000 rw-p 00000000 00:00 0", 4, "rd wr mr mw me ac"),
            entry("a000-b000 rw-p 00000000 00:00 0 [heap]", 8, "rd wr mr mw me um uw ac"),
            entry("c000-d000 rw-p 00000000 00:00 0", 16, "rd wr mr mw me nr dd"),
            entry("d000-e000 r--p 00000000 fe:00 9 /opt/a b/libfarshore.so", 32, "rd mr mw me"),
            entry("e000-f000 rw-p 00000000 00:00 0", 64, "rd wr mr mw me ac lo"),
            entry("10000-11000 rw-s 00000000 00:01 12 /dev/zero (deleted)", 128, "rd wr sh mr mw me ms"),
            entry("12000-13000 rwxp 00000000 00:00 0", 256, "rd wr ex mr mw me ac"),
            entry("14000-15000 rw-p 00000000 00:00 0", 512, "rd wr mr mw me ac"),
            entry("16000-17000 rw-p 00000000 00:00 0 [stack]", 1024, "rd wr mr mw me gd ac"),
            entry("18000-19000 rw-p 00000000 00:0e 5 /anon_hugepage (deleted)", 2048, "rd wr mr mw me ht"),
        ]
        .concat();
        let kib = |count: u64| count << 10;
        let expected = Kinds {
            managed_bytes: kib(8),
            farshore_bytes: kib(16 + 32),
            locked_bytes: kib(64),
            huge_bytes: kib(2048),
            shared_bytes: kib(128),
            file_bytes: kib(1 + 2),
            executable_bytes: kib(256),
            stack_bytes: kib(1024),
            static_bytes: kib(4),
            other_bytes: kib(512),
        };
        assert_eq!(sum(&text), expected);
        assert_eq!(sum(""), Kinds::default());
        let more = entry("b000-c000 rw-p 00000000 00:00 0 [heap]", 8, "rd wr uw")
            + &entry("f0000-f1000 rw-s 0 00:01 4 /memfd:x", 8, "um");
        let found: Vec<_> = managed_in(&(text + &more)).into_iter().map(|it| (it.start, it.end, it.name)).collect();
        assert_eq!(found, [(0xa000, 0xc000, "[heap]".into()), (0xf0000, 0xf1000, "/memfd:x".into())]);
    }

    #[test]
    fn this_process_has_text_and_a_stack() {
        let kinds = of(std::process::id(), PATIENCE * 100).expect("one may look at oneself");
        assert!(kinds.file_bytes > 0 && kinds.stack_bytes > 0, "{kinds:?}");
        assert_eq!(of(u32::MAX, PATIENCE), None);
    }
}
