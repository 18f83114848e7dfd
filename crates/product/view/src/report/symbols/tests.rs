//! Files that are made to keep a reader busy, or to be shown as something else than they are.

use super::*;
use tempfile::TempDir;

/// Where the file's first byte is in memory.
const BASE: u64 = 0x40_0000;
const COMPRESSED: u64 = 0x800;
const ZLIB: u32 = 1;
const ZSTD: u32 = 2;

/// A section: its name, its flags, and what it has.
type Section<'a> = (&'a str, u64, Vec<u8>);

/// A program with these sections and one function, which is all of it.
fn elf(function: &str, more: &[Section]) -> Vec<u8> {
    let mut symbols = vec![0_u8; 24];
    symbols.extend(1_u32.to_le_bytes());
    // A global function, in the first section.
    symbols.extend([0x12, 0, 1, 0]);
    symbols.extend([BASE.to_le_bytes(), 0x1000_u64.to_le_bytes()].concat());
    let strings = [b"\0", function.as_bytes(), b"\0"].concat();
    // Name, type, flags, contents, the section that goes with it, and the size of an entry.
    let mut sections = vec![("", 0_u32, 0, Vec::new(), 0_u32, 0_u64), (".text", 1, 6, vec![0x90; 64], 0, 0)];
    sections.extend(more.iter().map(|(name, flags, data)| (*name, 1, *flags, data.clone(), 0, 0)));
    let strings_at = sections.len() as u32 + 1;
    sections.push((".symtab", 2, 0, symbols, strings_at, 24));
    sections.push((".strtab", 3, 0, strings, 0, 0));
    let mut names = vec![0_u8];
    let mut places: Vec<u32> = Vec::new();
    for (name, ..) in sections.iter().chain([&(".shstrtab", 3, 0, Vec::new(), 0, 0)]) {
        places.push(names.len() as u32);
        names.extend([name.as_bytes(), b"\0"].concat());
    }
    sections.push((".shstrtab", 3, 0, names, 0, 0));
    let (mut body, mut headers) = (vec![0_u8; 64 + 56], Vec::new());
    for ((_, kind, flags, data, link, entry), name) in sections.iter().zip(places) {
        headers.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        headers.extend([*flags, 0, body.len() as u64, data.len() as u64].map(u64::to_le_bytes).concat());
        headers.extend([*link, 1].map(u32::to_le_bytes).concat());
        headers.extend([1, *entry].map(u64::to_le_bytes).concat());
        body.extend(data);
        body.resize(body.len().next_multiple_of(8), 0);
    }
    let mut head = b"\x7fELF\x02\x01\x01".to_vec();
    head.resize(16, 0);
    head.extend([2_u16.to_le_bytes(), 62_u16.to_le_bytes()].concat());
    head.extend(1_u32.to_le_bytes());
    head.extend([BASE, 64, body.len() as u64].map(u64::to_le_bytes).concat());
    head.extend(0_u32.to_le_bytes());
    head.extend([64, 56, 1, 64, sections.len() as u16, sections.len() as u16 - 1].map(u16::to_le_bytes).concat());
    // One segment: all of the file, readable and executable.
    head.extend([1_u32, 5].map(u32::to_le_bytes).concat());
    head.extend([0, BASE, BASE, body.len() as u64, body.len() as u64, 4096].map(u64::to_le_bytes).concat());
    body[..head.len()].copy_from_slice(&head);
    body.extend(headers);
    body
}

/// The head of compressed contents, and they.
fn packed(kind: u32, size: u64, data: &[u8]) -> Vec<u8> {
    [[kind, 0].map(u32::to_le_bytes).concat().as_slice(), [size, 1].map(u64::to_le_bytes).concat().as_slice(), data].concat()
}

/// Debug information of a unit that has all that matters in another file.
fn skeleton(folder: &Path, other: &str) -> [Section<'static>; 2] {
    // A skeleton unit without children: name of the other file, folder, first address and length.
    let abbreviations = vec![1, 0x4a, 0, 0x76, 8, 0x1b, 8, 0x11, 1, 0x12, 7, 0, 0, 0];
    let strings = [other.as_bytes(), b"\0", folder.as_os_str().as_bytes(), b"\0"].concat();
    let unit = [
        [5, 0, 4, 8, 0, 0, 0, 0].as_slice(),
        &7_u64.to_le_bytes(),
        &[1],
        &strings,
        &BASE.to_le_bytes(),
        &0x1000_u64.to_le_bytes(),
    ];
    let unit = unit.concat();
    let info = [(unit.len() as u32).to_le_bytes().as_slice(), &unit].concat();
    [(".debug_abbrev", 0, abbreviations), (".debug_info", 0, info)]
}

fn pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("it is new");
}

fn of(path: &Path, limits: Limits) -> Result<Symbols, String> {
    Symbols::of(path, path.metadata().map(|data| as_looked_at(&data)).unwrap_or_default(), limits)
}

/// What is known of an instruction of the function, and what there is to say.
fn told(folder: &TempDir, function: &str, more: &[Section], limits: Limits) -> (Vec<String>, Vec<String>) {
    let path = folder.path().join("program");
    std::fs::write(&path, elf(function, more)).expect("there is room");
    let symbols = of(&path, limits).expect("it is one");
    let names = symbols.of_offset(0x80);
    assert!(symbols.of_offset(1 << 40).is_empty(), "nothing is there");
    (names, symbols.notes())
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("there is room")
}

#[test]
fn a_program_without_debug_information_has_its_symbols() {
    assert_eq!(told(&folder(), "sweep", &[], Limits::default()), (vec!["sweep".into()], Vec::new()));
}

#[test]
fn pipes_in_place_of_files_are_not_waited_for() {
    let folder = folder();
    let (one, other) = (folder.path().join("pipe"), folder.path().join("rest.dwo"));
    pipe(&one);
    pipe(&other);
    let why = of(&one, Limits::default()).expect_err("it is none");
    assert_eq!(why, "it cannot be read: it is no regular file");
    // What the debug information names.
    let units = skeleton(folder.path(), "rest.dwo");
    let (names, notes) = told(&folder, "sweep", &units, Limits::default());
    assert_eq!(names, ["sweep"]);
    assert_eq!(notes, [format!("{}: it cannot be read: it is no regular file", other.display())]);
    // What lies beside the program.
    pipe(&folder.path().join("program.dwp"));
    let (names, notes) = told(&folder, "sweep", &units, Limits::default());
    assert_eq!((names.as_slice(), notes.len()), (["sweep".to_owned()].as_slice(), 1));
    assert!(notes[0].contains("program.dwp: it cannot be read: it is no regular file"), "{notes:?}");
}

#[test]
fn what_is_too_large_is_not_read() {
    let folder = folder();
    let path = folder.path().join("large");
    std::fs::File::create(&path).and_then(|file| file.set_len(3 << 30)).expect("a hole takes no room");
    let why = of(&path, Limits::default()).expect_err("it is too large");
    assert_eq!(why, "it is too large: it has 3.0 GiB, and 1.0 GiB are read for one file");
    // Another file that it names, which no file of a size tells.
    let unit = skeleton(Path::new("/proc/self"), "maps");
    let (names, notes) = told(&folder, "sweep", &unit, Limits::default());
    assert!(names == ["sweep"] && notes.len() == 1 && notes[0].starts_with("/proc/self/maps: it cannot be read: "), "{notes:?}");
    let unit = skeleton(folder.path(), "large");
    let (_, notes) = told(&folder, "sweep", &unit, Limits::default());
    assert!(notes[0].contains("/large: it is too large"), "{notes:?}");
}

#[test]
fn bombs_are_not_unpacked() {
    let folder = folder();
    // A frame with 100 blocks of 128 KiB, each one byte again and again.
    let block = [&(131_072_u32 << 3 | 1 << 1).to_le_bytes()[..3], &[7]].concat();
    let frame = [b"\x28\xb5\x2f\xfd\x00\x50".as_slice(), &block.repeat(100), &[1, 0, 0]].concat();
    let mebibytes = 100 * 131_072;
    for (kind, size, data, part) in [
        (
            ZLIB,
            1 << 40,
            b"x".as_slice(),
            "its section .debug_info is too large: unpacked it has 1.0 TiB, and 16.0 MiB are unpacked for one file",
        ),
        (ZSTD, 1 << 40, frame.as_slice(), "its section .debug_info is too large"),
        (ZSTD, 1000, frame.as_slice(), "it has more bytes than it says"),
        (ZSTD, mebibytes + 1, frame.as_slice(), "it has fewer bytes than it says"),
        (ZSTD, 10, b"nonsense".as_slice(), "its section .debug_info cannot be read"),
        (ZLIB, 10, b"nonsense".as_slice(), "its section .debug_info cannot be read"),
        (9, 10, b"nonsense".as_slice(), "its section .debug_info"),
    ] {
        let section = (".debug_info", COMPRESSED, packed(kind, size, data));
        let limits = Limits { unpacked: 16 << 20, ..Limits::default() };
        let (names, notes) = told(&folder, "sweep", &[section], limits);
        // The table of symbols is used all the same.
        assert_eq!(names, ["sweep"], "{kind} {size}");
        assert!(notes.len() == 1 && notes[0].contains(part), "{kind} {size}: {notes:?}");
    }
    // All sections together, too.
    assert_eq!(unpacked(&frame, mebibytes).map(|all| all.len() as u64), Ok(mebibytes));
    let each = |name| (name, COMPRESSED, packed(ZSTD, mebibytes, &frame));
    let limits = Limits { unpacked: 2 * mebibytes - 1, ..Limits::default() };
    let (_, notes) = told(&folder, "sweep", &[each(".debug_abbrev"), each(".debug_info")], limits);
    assert!(notes[0].contains("is too large: unpacked it has 12.5 MiB"), "{notes:?}");
}

#[test]
fn names_obey_nobody_and_end() {
    let (names, _) = told(&folder(), "\u{1b}[2J<b>\u{202e}\n", &[], Limits::default());
    assert_eq!(names, ["\\u{1b}[2J<b>\\u{202e}\\n"]);
    // One that would be taken apart to no end.
    let long = format!("_ZN{}E", "1a".repeat(100_000));
    let (names, _) = told(&folder(), &long, &[], Limits::default());
    assert!(names[0].starts_with("_ZN1a1a") && names[0].chars().count() == SHOWN_MAX + 1, "{}", names[0].len());
}

#[test]
fn a_file_that_has_changed_or_is_gone_is_not_believed() {
    let folder = folder();
    let path = folder.path().join("program");
    std::fs::write(&path, elf("f", &[])).expect("there is room");
    let was = as_looked_at(&path.metadata().expect("it is there"));
    assert!(Symbols::of(&path, was, Limits::default()).is_ok());
    for other in [(was.0 + 1, was.1), (was.0, was.1 + 1)] {
        assert_eq!(Symbols::of(&path, other, Limits::default()).expect_err("it is another"), "it has changed since");
    }
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(Symbols::of(&path, was, Limits::default()).expect_err("it is gone"), "it is not there any more");
}

/// Any byte may be another, and any number of them missing.
#[test]
fn damaged_files_end_in_no_panic() {
    let folder = folder();
    let path = folder.path().join("program");
    let whole = elf("sweep", &skeleton(folder.path(), "none.dwo"));
    let mut looked = 0;
    let mut look = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("there is room");
        if let Ok(symbols) = of(&path, Limits::default()) {
            looked += 1;
            let _ = (symbols.of_offset(0x80), symbols.notes());
        }
    };
    (0..whole.len()).step_by(3).for_each(|length| look(&whole[..length]));
    for at in 0..whole.len() {
        for value in [0, 0xff, whole[at] ^ 0x10] {
            let mut other = whole.clone();
            other[at] = value;
            look(&other);
        }
    }
    assert!(looked > whole.len(), "{looked}");
}
