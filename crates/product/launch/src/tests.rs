extern crate std;
use super::*;
use object::elf;
use std::ffi::CString;
use std::format;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec;
use std::vec::Vec;

const GLIBC: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
/// Program headers that are read at once.
const TABLE_SEGMENTS: usize = super::elf::TABLE / 56;

/// A directory, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("farshore-launch-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("the temporary directory is writable");
        Folder(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("it can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero byte")
}

/// A 64-bit header for `machine` of type `kind`, with one `PT_INTERP` segment that names `loader`.
fn image(class: u8, machine: u16, kind: u16, loader: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = vec![0_u8; 64];
    bytes[..4].copy_from_slice(b"\x7fELF");
    bytes[4..7].copy_from_slice(&[class, elf::ELFDATA2LSB, 1]);
    bytes[16..18].copy_from_slice(&kind.to_le_bytes());
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[20..24].copy_from_slice(&1_u32.to_le_bytes());
    bytes[52..54].copy_from_slice(&64_u16.to_le_bytes());
    let Some(name) = loader else { return bytes };
    bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
    bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
    bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
    let mut segment = vec![0_u8; 56];
    segment[..4].copy_from_slice(&elf::PT_INTERP.to_le_bytes());
    segment[8..16].copy_from_slice(&120_u64.to_le_bytes());
    segment[32..40].copy_from_slice(&(name.len() as u64).to_le_bytes());
    bytes.extend(segment);
    bytes.extend(name);
    bytes
}

fn program() -> Vec<u8> {
    image(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_DYN, Some(GLIBC))
}

/// What a check of `path` says, and the interpreter that it came to.
fn checked(path: &Path) -> (Result<Loader, Obstacle>, String) {
    let mut buffer = vec![0xaa; Work::BYTES];
    let mut work = Work::new(&mut buffer);
    let answer = check(&Program::at(&text(path)), &Rights::of_this_thread(), &mut work);
    let name = work.interpreter().map_or(String::new(), |name| name.to_str().expect("plain").into());
    (answer, name)
}

/// A static program with these notes.
fn with_notes(notes: &[u8]) -> Vec<u8> {
    let mut bytes = image(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_DYN, Some(notes));
    bytes[64..68].copy_from_slice(&elf::PT_NOTE.to_le_bytes());
    bytes
}

#[test]
fn the_command_is_known_by_its_note() {
    let folder = Folder::new("command");
    let mark = b"\x09\0\0\0\0\0\0\0\x01\0\0\0Farshore\0\0\0\0";
    let other = b"\x04\0\0\0\x04\0\0\0\x01\0\0\0GNU\0\0\0\0\0";
    let of = |notes: &[u8]| checked(&folder.file("program", &with_notes(notes))).0;
    let refused = Err(Obstacle::Elf(Elf::Program { dynamic: false }));
    assert_eq!(of(mark), Err(Obstacle::Command));
    assert_eq!(of(&[&other[..], mark].concat()), Err(Obstacle::Command));
    assert_eq!((of(other), of(&mark[..20]), of(b"")), (refused, refused, refused));
    let length = with_notes(mark).len();
    assert_eq!(checked(&folder.file("cut", &with_notes(mark)[..length - 1])).0, refused);
    // A dynamic program with such a note is a program.
    assert!(checked(&folder.file("dynamic", &program())).0.is_ok());
}

fn elf_of(folder: &Folder, bytes: &[u8]) -> Elf {
    let path = text(&folder.file("elf", bytes));
    let mut buffer = vec![0xaa; Work::BYTES];
    let file = Program::at(&path).open().expect("it is there");
    headers(&file, &mut Work::new(&mut buffer)).expect("it can be read")
}

#[test]
fn kinds_of_files_are_told_apart() {
    let folder = Folder::new("kinds");
    assert_eq!(elf_of(&folder, &program()), Elf::Program { dynamic: true });
    let of = |class, machine, kind| elf_of(&folder, &image(class, machine, kind, None));
    assert_eq!(of(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_EXEC), Elf::Program { dynamic: false });
    assert_eq!(of(elf::ELFCLASS32, elf::EM_386, elf::ET_EXEC), Elf::Not64Bit(Machine(elf::EM_386)));
    assert_eq!(of(elf::ELFCLASS64, elf::EM_AARCH64, elf::ET_DYN), Elf::OtherMachine(Machine(elf::EM_AARCH64)));
    assert_eq!(of(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_REL), Elf::NotAProgram { kind: elf::ET_REL });
    assert_eq!(format!("{} {}", Machine(elf::EM_386), Machine(9999)), "i386 processor number 9999");
}

/// Every shortened and every one-bit-off file ends in an answer, not in a crash.
#[test]
fn damaged_files_are_survived() {
    let folder = Folder::new("damaged");
    let program = program();
    for length in [4, 10, 17, 19, 30, 63, 64, 100, 119, 120, 130, 140, program.len() - 1] {
        let elf = elf_of(&folder, &program[..length]);
        assert!(matches!(elf, Elf::Damaged(_)), "{length}: {elf:?}");
    }
    for bit in 0..program.len() * 8 {
        let mut bytes = program.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        elf_of(&folder, &bytes);
    }
}

/// Behind many other program headers, which are read piece by piece.
#[test]
fn the_dynamic_linker_is_found_wherever_its_header_is() {
    let folder = Folder::new("many");
    for before in [0_usize, 6, 7, 8, 9, 40] {
        let mut bytes = program();
        let segment: Vec<u8> = bytes[64..120].to_vec();
        bytes.truncate(64);
        bytes[56..58].copy_from_slice(&u16::try_from(before + 1).expect("few").to_le_bytes());
        bytes.extend(vec![0; before * 56]);
        let mut segment = segment;
        segment[8..16].copy_from_slice(&(bytes.len() as u64 + 56).to_le_bytes());
        bytes.extend(segment);
        bytes.extend(GLIBC);
        assert_eq!(elf_of(&folder, &bytes), Elf::Program { dynamic: true }, "{before}");
    }
}

#[test]
fn programs_and_their_loaders() {
    let folder = Folder::new("loaders");
    let glibc = Place::of(c"/lib64/ld-linux-x86-64.so.2").expect("this test has it");
    assert_eq!(checked(Path::new("/bin/sh")), (Ok(glibc), String::new()));
    assert_eq!(checked(Path::new("/proc/self/exe")).0, Ok(glibc));
    let mut buffer = vec![0; Work::BYTES];
    assert_eq!(loader_of(c"/proc/self/exe", &mut Work::new(&mut buffer)), Ok(glibc));
    let with = |name: &str, loader: &[u8]| {
        checked(&folder.file(name, &image(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_DYN, Some(loader)))).0
    };
    let loader = |name| [folder.file(name, b"").as_os_str().as_encoded_bytes(), b"\0"].concat();
    assert_eq!(with("musl", &loader("ld-musl-x86_64.so.1")), Err(Obstacle::Musl));
    assert_eq!(with("other", &loader("ld.so")), Err(Obstacle::Loader));
    assert_eq!(with("no-other", b"/no/ld.so\0"), Err(Obstacle::LoaderMissing(Errno::ENOENT)));
    assert_eq!(with("missing", b"/no/ld-linux-x86-64.so.2\0"), Err(Obstacle::LoaderMissing(Errno::ENOENT)));
    assert_eq!(checked(&folder.file("text", b"hello\n")).0, Err(Obstacle::Unknown));
    assert_eq!(checked(&folder.file("empty", b"")).0, Err(Obstacle::Unknown));
    assert_eq!(checked(&folder.0).0, Err(Obstacle::NotAFile));
    assert_eq!(checked(Path::new("/dev/null")).0, Err(Obstacle::NotAFile));
    assert_eq!(checked(Path::new("/no/such/program")).0, Err(Obstacle::Missing(Errno::ENOENT)));
}

#[test]
fn an_exec_by_descriptor_is_followed_to_its_file() {
    use std::os::fd::AsRawFd;
    let folder = Folder::new("at");
    let path = folder.file("sh", &std::fs::read("/bin/sh").expect("it is there"));
    std::os::unix::fs::symlink(&path, folder.0.join("link")).expect("a link");
    let mut buffer = vec![0; Work::BYTES];
    let mut of = |directory, path, flags| {
        let program = Program { directory, path, flags };
        check(&program, &Rights::of_this_thread(), &mut Work::new(&mut buffer)).map(drop)
    };
    let file = std::fs::File::open(&path).expect("it is there");
    assert_eq!(of(file.as_raw_fd(), c"", AT_EMPTY_PATH), Ok(()));
    assert_eq!(of(file.as_raw_fd(), c"", 0), Err(Obstacle::Missing(Errno::ENOENT)));
    let handle = farshore_sys::fd::open_at(AT_FDCWD, &text(&path), 0o10_000_000).expect("O_PATH");
    assert_eq!(of(handle.raw(), c"", AT_EMPTY_PATH), Ok(()));
    let directory = std::fs::File::open(&folder.0).expect("it is there");
    assert_eq!(of(directory.as_raw_fd(), c"sh", 0), Ok(()));
    assert_eq!(of(directory.as_raw_fd(), c"link", 0), Ok(()));
    assert_eq!(of(directory.as_raw_fd(), c"link", AT_SYMLINK_NOFOLLOW), Err(Obstacle::NotAFile));
    assert_eq!(of(directory.as_raw_fd(), c"", AT_EMPTY_PATH), Err(Obstacle::NotAFile));
    assert_eq!(of(-1, c"", AT_EMPTY_PATH), Err(Obstacle::Missing(Errno::ENOENT)));
    assert_eq!(of(-1, &text(&path), 0), Ok(()));
}

/// As many scripts as the kernel takes, which is asked too.
#[test]
fn scripts_are_followed_as_deep_as_the_kernel_goes() {
    let folder = Folder::new("scripts");
    let mut interpreter = PathBuf::from("/bin/sh");
    for level in 1..=SCRIPTS_MAX + 1 {
        let path = folder.file(&format!("script{level}"), format!("#!{}\nexit 7\n", interpreter.display()).as_bytes());
        let status = std::process::Command::new(&path).status();
        let answer = checked(&path).0.map(drop);
        if level <= SCRIPTS_MAX {
            assert_eq!(status.ok().and_then(|status| status.code()), Some(7), "{level}");
            assert_eq!(answer, Ok(()), "{level}");
        } else {
            assert!(status.is_err());
            assert_eq!(answer, Err(Obstacle::Scripts));
        }
        interpreter = path;
    }
}

#[test]
fn interpreters_that_cannot_be_run() {
    let folder = Folder::new("interpreters");
    let script = |name: &str, first: &str| checked(&folder.file(name, first.as_bytes()));
    assert_eq!(script("missing", "#!/no/such/shell -e\n"), (Err(Obstacle::Missing(Errno::ENOENT)), "/no/such/shell".into()));
    assert_eq!(script("nameless", "#!"), (Err(Obstacle::Missing(Errno::ENOENT)), String::new()));
    let plain = folder.file("plain", b"#!/bin/sh\n");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let name = String::from(plain.to_str().expect("plain"));
    assert_eq!(script("plainly", &format!("#!{name}\n")), (Err(Obstacle::NotExecutable(Errno::EACCES)), name));
    assert_eq!(script("folder", "#!/tmp\n"), (Err(Obstacle::NotAFile), "/tmp".into()));
}

#[test]
fn other_rights_than_ones_own_are_an_obstacle() {
    let mut buffer = vec![0; Work::BYTES];
    let rights = Rights { real: (1000, 1000), effective: (0, 1000), no_new_privs: true };
    assert_eq!(check(&Program::at(c"/bin/sh"), &rights, &mut Work::new(&mut buffer)), Err(Obstacle::Secure));
}

#[test]
fn what_says_nothing_about_the_program_is_told_apart() {
    assert!(Obstacle::Missing(Errno::EMFILE).is_passing() && Obstacle::Unreadable(Errno::ENOMEM).is_passing());
    assert!(!Obstacle::Missing(Errno::ENOENT).is_passing() && !Obstacle::Scripts.is_passing());
}

#[test]
fn what_goes_first_is_found_in_a_program() {
    use std::process::Command;
    for (name, first) in [
        ("libasan.so.8", true),
        ("/usr/lib/libclang_rt.asan-x86_64.so", true),
        ("libasan_preload.so", false),
        ("/libasan.so.8/libc.so", false),
        ("a:libasan.so", false),
        ("", false),
    ] {
        assert_eq!(goes_first(name.as_bytes()), first, "{name}");
    }
    let folder = std::env::temp_dir().join(format!("first-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("it.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    for (flag, begins) in [("-O0", ""), ("-fsanitize=address", "libasan.so")] {
        let program = folder.join("it");
        let built = Command::new("cc").arg(flag).arg(&source).arg("-o").arg(&program).status();
        if !built.is_ok_and(|status| status.success()) {
            std::println!("skipped: cc {flag} does not work here");
            continue;
        }
        let name = CString::new(program.as_os_str().as_encoded_bytes()).unwrap();
        let mut buffer = vec![0; Work::BYTES];
        let mut work = Work::new(&mut buffer);
        check(&Program::at(&name), &Rights::of_this_thread(), &mut work).unwrap();
        let first = work.first_library();
        assert_eq!(first.name().is_empty(), begins.is_empty());
        assert!(first.name().starts_with(begins.as_bytes()), "{first:?}");
        // The user's own, where the program needs none.
        assert_eq!(first.or_of(b"/x/libasan.so.8:/y.so") == b"/x/libasan.so.8", begins.is_empty());
        assert_eq!(FirstLibrary::NONE.or_of(b"/y.so:libasan.so"), b"");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Lists and headers longer than what is read of them at once, in a file whose bytes are elsewhere in memory.
#[test]
fn what_goes_first_is_found_anywhere_in_a_long_list() {
    let folder = Folder::new("long-list");
    let strings = b"\0libplain.so\0libasan.so.8\0";
    for (plain, asan, after, first) in [
        (0, true, 0, "libasan.so.8"),
        (31, true, 5, "libasan.so.8"),
        (32, true, 0, "libasan.so.8"),
        (100, true, 0, "libasan.so.8"),
        (100, false, 0, ""),
        // What follows the end of the list is no entry.
        (3, false, 1, ""),
    ] {
        // Two more segments of no meaning than are read at once, then the list and the names.
        let count = TABLE_SEGMENTS + 4;
        let begin = 64 + 56 * count;
        let mut list: Vec<[u64; 2]> = vec![[u64::from(elf::DT_NEEDED), 1]; plain];
        list.extend(asan.then_some([u64::from(elf::DT_NEEDED), 13]));
        let names = begin + 16 * (list.len() + 2 + after);
        list.extend([[u64::from(elf::DT_STRTAB), 0x10_0000 + names as u64], [0, 0]]);
        list.extend(vec![[u64::from(elf::DT_NEEDED), 13]; after]);
        let mut bytes = program();
        bytes.truncate(64);
        bytes[56..58].copy_from_slice(&u16::try_from(count).expect("few").to_le_bytes());
        let mut add = |kind: u32, offset: usize, address: usize, length: usize| {
            let mut segment = vec![0_u8; 56];
            segment[..4].copy_from_slice(&kind.to_le_bytes());
            for (at, value) in [(8, offset), (16, address), (32, length)] {
                segment[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
            }
            bytes.extend(segment);
        };
        let end = names + strings.len();
        add(elf::PT_INTERP, end, 0, GLIBC.len());
        for _ in 0..TABLE_SEGMENTS {
            add(elf::PT_NOTE, 0, 0, 0);
        }
        add(elf::PT_LOAD, 0, 0, 0);
        add(elf::PT_DYNAMIC, begin, 0x10_0000 + begin, 16 * list.len());
        add(elf::PT_LOAD, 0, 0x10_0000, end);
        bytes.extend(list.iter().flatten().flat_map(|word| word.to_le_bytes()));
        bytes.extend(strings);
        bytes.extend(GLIBC);
        let path = folder.file("program", &bytes);
        let mut buffer = vec![0xaa; Work::BYTES];
        let mut work = Work::new(&mut buffer);
        check(&Program::at(&text(&path)), &Rights::of_this_thread(), &mut work).expect("it makes sense");
        assert_eq!(work.first_library().name(), first.as_bytes(), "{plain} {asan} {after}");
    }
}
