//! The table against lists that others keep.

use super::document::markdown;
use super::*;

/// Names that differ between lists for the same number.
fn same(ours: &str, theirs: &str) -> bool {
    ours == theirs || (ours == "newfstatat" && theirs == "fstatat")
}

#[test]
fn names_and_numbers_match_the_syscalls_crate() {
    let mut seen = 0;
    for nr in 0..COUNT {
        let theirs = syscalls::Sysno::new(nr);
        match (describe(nr as u64), theirs) {
            (Some(ours), Some(theirs)) => {
                assert!(same(ours.name, theirs.name()), "{nr}: {} is called {theirs} elsewhere", ours.name);
                seen += 1;
            }
            (None, Some(theirs)) => panic!("{nr} ({theirs}) has no entry"),
            // The crate may be older than the table, but has no holes that the table fills.
            (Some(ours), None) => {
                assert!(nr > syscalls::Sysno::last() as usize || nr == 335 || nr == 336, "{nr} is {} here only", ours.name);
            }
            (None, None) => {}
        }
    }
    assert!(seen > 360, "only {seen} numbers were compared");
    assert!((syscalls::Sysno::last() as usize) < COUNT, "the crate knows newer calls than the table");
}

#[test]
fn names_and_numbers_match_the_kernel_headers() {
    let paths = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"];
    let Some(header) = paths.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
        println!("skipped: no kernel headers on this machine");
        return;
    };
    let numbers = header.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(char::is_whitespace));
    let mut seen = 0;
    for (name, nr) in numbers {
        let nr: u64 = nr.trim().parse().expect("a number");
        assert_eq!(describe(nr).map(|entry| entry.name), Some(name), "call {nr}");
        seen += 1;
    }
    assert!(seen > 340, "only {seen} numbers were compared");
}

#[test]
fn rules_make_sense() {
    for nr in 0..COUNT as u64 {
        let Some(Entry { name, kind: Kind::Pointers(rules) }) = describe(nr) else { continue };
        assert!(!rules.is_empty() && rules.len() <= 6, "{name}: scratch memory has room for six rules");
        for (index, rule) in rules.iter().enumerate() {
            assert!(rule.arg < 6, "{name}");
            assert!(rules[..index].iter().all(|other| other.arg != rule.arg), "{name}: two rules for one argument");
            let by = match rule.extent {
                Extent::Counted { by, .. } | Extent::Bits { by } | Extent::Pages { by } | Extent::Behind { by, .. } => by,
                _ => continue,
            };
            assert!(by < 6 && by != rule.arg, "{name}");
        }
    }
}

#[test]
fn newer_numbers_are_not_known() {
    assert!(lookup(COUNT as u64).is_none());
    assert!(lookup(u64::MAX).is_none());
    assert!(describe(400).is_none());
}

#[test]
fn the_document_has_a_line_for_each_call() {
    let text = markdown();
    for nr in 0..COUNT as u64 {
        if let Some(entry) = describe(nr) {
            assert!(text.contains(&format!("| {nr} | `{}` | ", entry.name)), "{}", entry.name);
        }
    }
    assert!(text.contains("| 2 | `open` | argument 0 in: string |"));
    assert!(text.contains("| 425 | `io_uring_setup` | **refused with `ENOSYS`**: "));
}

#[test]
fn the_document_in_the_repository_is_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/system-calls.md");
    if std::env::var_os("FARSHORE_WRITE_DOCS").is_some() {
        std::fs::write(path, markdown()).expect("docs/system-calls.md can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/system-calls.md is not what the table says; this writes it: FARSHORE_WRITE_DOCS=1 cargo test -p farshore-preload document"
    );
}
