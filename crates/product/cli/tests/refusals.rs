//! Every bad input ends with 125, 126 or 127 and one line that says what, with which value, and what to do.

mod common;

use common::{Folder, elf, farshore, farshore_as_nobody, harmless_library, refused, run};

const X86_64: u16 = 62;
const PROGRAM: u16 = 3;
const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";

#[test]
fn usage_errors() {
    for (words, parts) in [
        (&[][..], &["no command given"][..]),
        (&["walk"], &["'walk'", "use run"]),
        (&["run", "--memory", "64M"], &["no PROGRAM given"]),
        (&["run", "--bogus", "ls"], &["'--bogus'", "--help"]),
        (&["run", "--memory", "64Q", "ls"], &["--memory", "\"64Q\"", "64M"]),
        (&["run", "--memory", "", "ls"], &["--memory"]),
        (&["run", "--memory", "-1", "ls"], &["--memory"]),
        (&["run", "--memory", "99999999T", "ls"], &["--memory", "99999999T"]),
        (&["run", "ls"], &["--memory is missing"]),
        (&["run", "--memory", "0", "ls"], &["--memory is 0", "4M"]),
        (&["run", "--memory", "4095K", "ls"], &["--memory", "4095K", "at least 4M"]),
        (&["run", "--memory", "64M", "--fault", "push", "ls"], &["\"push\"", "upcall or poll"]),
        (&["run", "--memory", "64M", "--policy", "oracle", "ls"], &["\"oracle\"", "second-chance"]),
        (&["run", "--memory", "64M", "--prefetch", "psychic", "ls"], &["\"psychic\"", "none"]),
        (&["run", "--memory", "64M", "--evictors", "0", "ls"], &["--evictors", "\"0\"", "1 to 16"]),
        (&["run", "--memory", "64M", "--evictors", "17", "ls"], &["--evictors", "\"17\""]),
        (&["run", "--memory", "64M", "--threshold", "1", "ls"], &["--threshold", "4K"]),
        (&["run", "--memory", "64M", "--swap", "tape:/dev/st0", "ls"], &["\"tape:/dev/st0\"", "dir:PATH"]),
        (&["run", "--memory", "64M", "--swap", "rediss://h", "ls"], &["rediss://h", "not built yet"]),
        (&["run", "--memory", "64M", "--swap", "rediss://h:1", "ls"], &["rediss://h:1", "not built yet"]),
        (&["stat", "abc"], &["\"abc\""]),
        (&["set", "1", "memory"], &["\"memory\"", "KEY=VALUE"]),
        (&["doctor", "--swap", "rediss://h"], &["rediss://h", "not built yet"]),
        (&["run", "--memory", "64M", "--swap", "dev:/dev/null", "ls"], &["dev:/dev/null", "not a block device"]),
        (&["run", "--memory", "64M", "--swap", "dev:/no/such", "ls"], &["dev:/no/such", "cannot be reached"]),
    ] {
        refused(farshore().args(words), 125, parts);
    }
}

#[test]
fn config_files() {
    let folder = Folder::new();
    let with = |text: &str| {
        let path = folder.file("far.toml", text.as_bytes(), 0o644);
        let mut command = farshore();
        command.arg("run").arg("--config").arg(path).args(["--", "ls"]);
        command
    };
    refused(&mut with("memory = \"64M\"\nspeed = 9\n"), 125, &["far.toml:2", "speed"]);
    refused(&mut with("memory = \"lots\"\n"), 125, &["far.toml:1", "lots"]);
    refused(&mut with("memory = = 1\n"), 125, &["far.toml:1"]);
    refused(&mut with("memory = 0\n"), 125, &["memory is 0"]);
    refused(&mut with("evictors = 2\n"), 125, &["--memory is missing"]);
    refused(farshore().args(["run", "--config", "/nonexistent.toml", "ls"]), 125, &["/nonexistent.toml", "--config"]);
}

#[test]
fn programs_that_are_not_there_or_not_executable() {
    let folder = Folder::new();
    refused(&mut run(&[], "no-such-program"), 127, &["'no-such-program'", "PATH"]);
    refused(&mut run(&[], "/no/such/program"), 127, &["'/no/such/program'", "does not exist"]);
    refused(&mut run(&[], "/etc/passwd/x"), 127, &["'/etc/passwd/x'"]);
    refused(&mut run(&[], ""), 127, &["empty"]);
    refused(&mut run(&[], "/tmp"), 126, &["'/tmp'", "directory"]);
    refused(&mut run(&[], "/dev/null"), 126, &["'/dev/null'"]);
    let plain = folder.file("plain", b"#!/bin/sh\n", 0o644);
    refused(&mut run(&[], &plain), 126, &["plain", "0644", "chmod +x"]);
    // Found in PATH, not executable, and nowhere else.
    refused(run(&[], "plain").env("PATH", &folder.0), 126, &["plain", "chmod +x"]);
    // A line end in a name does not make a second line.
    refused(&mut run(&[], "/no/such\nprogram"), 127, &["such\\nprogram"]);
}

#[test]
fn programs_that_cannot_work_with_farshore() {
    let folder = Folder::new();
    for (name, bytes, parts) in [
        ("small", elf(1, 3, 2, None), &["32-bit", "i386"][..]),
        ("x32", elf(1, X86_64, 2, None), &["32-bit", "x86-64"]),
        ("arm", elf(2, 183, PROGRAM, Some("/lib/ld-linux-aarch64.so.1")), &["AArch64", "x86-64"]),
        ("object", elf(2, X86_64, 1, None), &["object file"]),
        ("damaged", elf(2, X86_64, PROGRAM, Some(GLIBC))[..100].to_vec(), &["damaged"]),
        ("tiny", b"\x7fELF\x02".to_vec(), &["damaged"]),
        ("text", b"echo no first line\n".to_vec(), &["neither an ELF program nor a script"]),
        ("empty", Vec::new(), &["neither an ELF program nor a script"]),
    ] {
        let path = folder.file(name, &bytes, 0o755);
        let shown = format!("'{}'", path.display());
        refused(&mut run(&[], &path), 125, &[&[shown.as_str()], parts].concat());
    }
    for linker in ["/nix/store/x/ld-linux-x86-64.so.2", "/system/bin/linker64", "/no/ld-musl-x86_64.so.1"] {
        let missing = folder.file("missing", &elf(2, X86_64, PROGRAM, Some(linker)), 0o755);
        refused(&mut run(&[], &missing), 127, &["missing", linker]);
    }
}

#[test]
fn scripts() {
    let folder = Folder::new();
    let small = folder.file("small", &elf(1, 3, 2, None), 0o755);
    let by_small = folder.file("by-small", format!("#! {} -x\n", small.display()).as_bytes(), 0o755);
    refused(&mut run(&[], &by_small), 125, &["/small'", "runs the script", "/by-small'", "32-bit"]);
    let by_nothing = folder.file("by-nothing", b"#!/no/such/shell\n", 0o755);
    refused(&mut run(&[], &by_nothing), 127, &["/by-nothing'", "/no/such/shell"]);
    let by_text = folder.file("by-text", b"#!/etc/passwd\n", 0o755);
    refused(&mut run(&[], &by_text), 126, &["/by-text'", "'/etc/passwd'", "not executable"]);
    let itself = folder.path("itself");
    folder.file("itself", format!("#!{}\n", itself.display()).as_bytes(), 0o755);
    refused(&mut run(&[], &itself), 125, &["/itself'", "script", "5 times"]);
}

#[test]
fn swap_spaces() {
    let folder = Folder::new();
    let file = folder.file("file", b"something", 0o644);
    let inside = |name: &str| folder.path(name).display().to_string();
    let shown = file.display().to_string();
    refused(&mut run(&["--swap", "dir:/no/such/dir"], "ls"), 125, &["dir:/no/such/dir", "does not exist", "make it"]);
    refused(&mut run(&["--swap", &format!("dir:{shown}")], "ls"), 125, &[&shown, "not a directory"]);
    refused(&mut run(&["--swap", "file:/no/such/dir/swap"], "ls"), 125, &["/no/such/dir", "does not exist"]);
    refused(&mut run(&["--swap", &format!("file:{shown}")], "ls"), 125, &[&shown, "not empty", "remove it"]);
    refused(&mut run(&["--swap", &format!("file:{}", folder.0.display())], "ls"), 125, &["directory", "dir:"]);
    refused(run(&[], "ls").env("FARSHORE_SWAP_DIR", inside("gone")), 125, &["gone", "does not exist"]);
    // The second of two is looked at too.
    refused(&mut run(&["--swap", "ram", "--swap", "dir:/no/such/dir"], "ls"), 125, &["/no/such/dir"]);
}

#[test]
fn a_full_file_system() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can mount a small file system");
        return;
    }
    let folder = Folder::new();
    let mounted = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=8M", "tmpfs"]).arg(&folder.0).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: a tmpfs cannot be mounted here");
        return;
    }
    let spec = format!("dir:{}", folder.0.display());
    let result = std::panic::catch_unwind(|| refused(&mut run(&["--swap", &spec], "ls"), 125, &["full", "16M"]));
    let _ = std::process::Command::new("umount").arg(&folder.0).status();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn stats_files() {
    let folder = Folder::new();
    let here = folder.0.display().to_string();
    refused(&mut run(&["--stats", &here], "ls"), 125, &["--stats", &here, "directory"]);
    refused(&mut run(&["--stats", "/no/such/dir/x"], "ls"), 125, &["--stats", "'/no/such/dir'", "does not exist"]);
}

#[test]
fn the_library() {
    let folder = Folder::new();
    let with = |path: &std::path::Path| {
        let mut command = run(&[], "true");
        command.env("FARSHORE_LIBRARY", path);
        command
    };
    refused(&mut with("/no/such/lib.so".as_ref()), 125, &["'/no/such/lib.so'", "FARSHORE_LIBRARY"]);
    refused(&mut with(&folder.file("lib.so", b"not a library", 0o644)), 125, &["lib.so", "not a shared library"]);
    refused(&mut with(&folder.file("arm.so", &elf(2, 183, 3, None), 0o644)), 125, &["arm.so", "not a shared library"]);
    refused(&mut with(&folder.file("with space.so", &elf(2, X86_64, 3, None), 0o644)), 125, &["with space.so", "LD_PRELOAD"]);
    // Moved away from its library, the command says where it looked.
    let alone = folder.path("farshore");
    // By another process: a descriptor of ours for writing would go to what other tests start just then, and the file be busy.
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_farshore")).arg(&alone).status();
    assert!(copied.is_ok_and(|status| status.success()), "it can be copied");
    let mut command = std::process::Command::new(alone);
    command.args(["run", "--memory", "64M", "true"]).env_remove("FARSHORE_LIBRARY");
    refused(&mut command, 125, &["libfarshore.so was not found", "/../lib/farshore/libfarshore.so", "FARSHORE_LIBRARY"]);
}

#[test]
fn what_an_ordinary_user_may_not() {
    let folder = Folder::new();
    let closed = folder.path("closed");
    std::fs::create_dir(&closed).expect("it is ours");
    folder.set_mode("closed", 0o700);
    folder.file("secret", b"#!/bin/sh\n", 0o711);
    folder.file("closed/inside", b"#!/bin/sh\n", 0o755);
    let here = |name: &str| folder.path(name).display().to_string();
    let as_nobody = |options: &[String], program: &str| {
        let mut command = farshore_as_nobody()?;
        command.args(["run", "--memory", "64M"]).args(options).args(["--", program]);
        command.env("FARSHORE_LIBRARY", harmless_library());
        Some(command)
    };
    let refused_as_nobody = |options: &[String], program: &str, status: i32, parts: &[&str]| {
        if let Some(mut command) = as_nobody(options, program) {
            refused(&mut command, status, parts);
        }
    };
    refused_as_nobody(&["--swap".into(), format!("dir:{}", here("closed"))], "true", 125, &["closed", "not writable"]);
    refused_as_nobody(&["--stats".into(), here("closed/stats")], "true", 125, &["--stats"]);
    refused_as_nobody(&["--stats".into(), here("stats")], "true", 125, &["--stats", "not writable"]);
    refused_as_nobody(&[], &here("secret"), 125, &["secret", "cannot be read", "chmod +r"]);
    refused_as_nobody(&[], &here("closed/inside"), 126, &["closed/inside", "cannot be reached"]);
}

/// A copy of `true` that gains rights is refused to an ordinary user, and not to one who has them.
#[test]
fn programs_that_gain_rights() {
    let Some(true_path) = ["/usr/bin/true", "/bin/true"].into_iter().find(|path| std::path::Path::new(path).exists()) else {
        println!("skipped: no program 'true' here");
        return;
    };
    let folder = Folder::new();
    let bytes = std::fs::read(true_path).expect("it can be read");
    let suid = folder.file("suid", &bytes, 0o4755);
    let sgid = folder.file("sgid", &bytes, 0o2755);
    let locked = folder.file("locked", &bytes, 0o2745);
    let caps = folder.file("caps", &bytes, 0o755);
    let flags = [0x0200_0001_u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let has_caps = rustix::fs::setxattr(&caps, c"security.capability", &flags, rustix::fs::XattrFlags::empty()).is_ok();
    let library = harmless_library();
    let nosuid = rustix::fs::statvfs(&folder.0).is_ok_and(|about| about.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    if nosuid {
        println!("skipped: the temporary directory is mounted nosuid");
        return;
    }
    for (path, part) in [(&suid, "set-user-ID"), (&sgid, "set-group-ID"), (&caps, "file capabilities")] {
        let Some(mut command) = farshore_as_nobody() else { return };
        if path == &caps && !has_caps {
            println!("skipped: file capabilities cannot be set here");
            continue;
        }
        command.args(["run", "--memory", "64M"]).arg(path).env("FARSHORE_LIBRARY", &library);
        refused(&mut command, 125, &[part, "LD_PRELOAD"]);
    }
    for path in [&suid, &sgid, &caps, &locked] {
        let status = run(&[], path).env("FARSHORE_LIBRARY", &library).status().expect("it starts");
        assert!(status.success(), "{} as root: {status}", path.display());
    }
    // Where rights cannot be gained, there is nothing to refuse.
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
    command.arg(env!("CARGO_BIN_EXE_farshore")).args(["run", "--memory", "64M"]).arg(&suid).env("FARSHORE_LIBRARY", &library);
    let status = command.status().expect("it starts");
    assert!(status.success(), "no_new_privs: {status}");
}

#[test]
fn stat_and_set_of_what_is_not_there() {
    refused(farshore().args(["stat", "2000000000"]), 1, &["no process 2000000000"]);
    let own = std::process::id().to_string();
    refused(farshore().args(["stat", &own]), 1, &[&own, "no control socket", "farshore run"]);
    refused(farshore().args(["set", &own, "memory=64M"]), 1, &[&own, "no control socket"]);
}
