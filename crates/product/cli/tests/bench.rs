//! `farshore bench` becomes the command `farshore-bench`, `node` becomes `farshore-node`, `top` and `metrics` become `farshore-view`. A script stands for it here, which tells what has arrived; the command itself is tested where it
//! is made.

mod common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Folder, clean, farshore, outcome, refused};

/// Tells who it is, what it was called with and what it finds, then ends by what its last word says.
const SCRIPT: &str = "#!/bin/sh
echo \"at $0\"
echo \"pid $$\"
for word; do echo \"word [$word]\"; done
echo \"input $(cat)\"
echo \"environment $FOO\"
grep -E '^Sig(Blk|Ign)' /proc/self/status
eval \"$word\"
";

/// Copies the built command to `path`, by another process: a descriptor of ours for writing would go to what other tests start just then, and the file be busy.
fn copy_to(path: &Path) -> Command {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_farshore")).arg(path).status();
    assert!(copied.is_ok_and(|status| status.success()), "it can be copied");
    clean(Command::new(path))
}

/// What the script at `path` tells of these words, called by the command at `farshore`.
fn told(path: &Path, pid: u32, farshore: &Path, words: &[&str], input: &str, environment: &str) -> String {
    let mut text = format!("at {}\npid {pid}\nword [--farshore={}]\n", path.display(), farshore.display());
    for word in words {
        let _ = writeln!(text, "word [{word}]");
    }
    let _ = write!(text, "input {input}\nenvironment {environment}\n");
    text
}

fn script(folder: &Folder, name: &str) -> PathBuf {
    folder.file(name, SCRIPT.as_bytes(), 0o755)
}

/// The end of a first word of PATH that has nothing of ours; the script needs its tools.
fn system_path(first: &Path) -> String {
    format!("{}:/usr/bin:/bin", first.display())
}

#[test]
fn it_becomes_the_command_beside_it() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("elsewhere")).expect("it is ours");
    let other = script(&folder, "elsewhere/farshore-bench");
    let beside = script(&folder, "farshore-bench");
    copy_to(&folder.path("farshore"));
    std::os::unix::fs::symlink(folder.path("farshore"), folder.path("elsewhere/link")).expect("it is ours");
    // Another one in PATH is not taken, nor one beside the link.
    for name in ["farshore", "elsewhere/link"] {
        let words = ["random", "--size", "1 G", "", "--", "sort", "--help", "exit 7"];
        let mut command = clean(Command::new(folder.path(name)));
        command.arg("bench").args(words).env("FOO", "bar").env("PATH", system_path(other.parent().expect("it has one")));
        let input = std::fs::File::open(folder.file("input", b"what was typed", 0o644)).expect("it is there");
        let child = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let pid = child.id();
        let output = child.wait_with_output().expect("it is ours");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = told(&beside, pid, &folder.path("farshore"), &words, "what was typed", "bar");
        assert!(text.starts_with(&expected), "{name}: {text}\n{expected}");
        assert_eq!(outcome(&output), (7, String::new()), "{name}");
    }
}

#[test]
fn every_word_is_the_commands() {
    let folder = Folder::new();
    let path = script(&folder, "farshore-bench");
    for (words, arrive) in [
        (&["bench"][..], &[][..]),
        (&["bench", "--help"], &["--help"]),
        (&["bench", "-h"], &["-h"]),
        (&["bench", "--version"], &["--version"]),
        (&["bench", "--", "true"], &["--", "true"]),
        (&["bench", "help"], &["help"]),
        (&["help", "bench"], &["--help"]),
        (&["help", "bench", "random"], &["random", "--help"]),
    ] {
        let child = copy_once(&folder).args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let pid = child.id();
        let text = String::from_utf8_lossy(&child.wait_with_output().expect("it is ours").stdout).into_owned();
        let expected = told(&path, pid, &folder.path("farshore"), arrive, "", "");
        assert!(text.starts_with(&expected), "{words:?}: {text}\n{expected}");
    }
}

/// One program has both commands, and is told which.
#[test]
fn top_and_metrics_are_one_program() {
    let folder = Folder::new();
    let path = script(&folder, "farshore-view");
    for (words, arrive) in [
        (&["top"][..], &["top"][..]),
        (&["top", "--once", "--", "--help"], &["top", "--once", "--", "--help"]),
        (&["metrics", "--help"], &["metrics", "--help"]),
        (&["help", "top"], &["top", "--help"]),
    ] {
        let child = copy_once(&folder).args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let pid = child.id();
        let text = String::from_utf8_lossy(&child.wait_with_output().expect("it is ours").stdout).into_owned();
        let expected = told(&path, pid, &folder.path("farshore"), arrive, "", "");
        assert!(text.starts_with(&expected), "{words:?}: {text}\n{expected}");
    }
    std::fs::remove_file(&path).expect("it is ours");
    let missing = ["'farshore top'", &path.display().to_string(), "make install"];
    refused(copy_once(&folder).args(["top"]).env_remove("PATH"), 127, &missing);
}

/// It is no one of several commands, so it is not told which.
#[test]
fn node_is_a_program_of_its_own() {
    let folder = Folder::new();
    let path = script(&folder, "farshore-node");
    for (words, arrive) in [(&["node", "--listen", "a"][..], &["--listen", "a"][..]), (&["help", "node"], &["--help"])] {
        let child = copy_once(&folder).args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let pid = child.id();
        let text = String::from_utf8_lossy(&child.wait_with_output().expect("it is ours").stdout).into_owned();
        let expected = told(&path, pid, &folder.path("farshore"), arrive, "", "");
        assert!(text.starts_with(&expected), "{words:?}: {text}\n{expected}");
    }
}

/// The copy in `folder`, which is made by the first call.
fn copy_once(folder: &Folder) -> Command {
    let path = folder.path("farshore");
    if path.exists() { clean(Command::new(path)) } else { copy_to(&path) }
}

/// Signals are as natively: ignored ones stay ignored, and a signal is how it ends.
#[test]
fn signals_are_left_alone() {
    let folder = Folder::new();
    let path = script(&folder, "farshore-bench");
    copy_once(&folder);
    let shell = |around: &str, command: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", around, "sh"]).args(command).stdin(Stdio::null());
        let output = shell.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let signals: Vec<String> = text.lines().filter(|line| line.starts_with("Sig")).map(String::from).collect();
        (signals, outcome(&output))
    };
    let (farshore, path) = (folder.path("farshore").display().to_string(), path.display().to_string());
    for around in ["exec \"$@\"", "trap '' PIPE INT USR1; exec \"$@\""] {
        let natively = shell(around, &[&path, "kill -TERM $$"]);
        assert_eq!(natively.0.len(), 2, "{natively:?}");
        assert_eq!(shell(around, &[&farshore, "bench", "kill -TERM $$"]), natively, "{around}");
    }
}

#[test]
fn without_it_one_line_says_so() {
    let folder = Folder::new();
    let elsewhere = folder.path("elsewhere");
    std::fs::create_dir(&elsewhere).expect("it is ours");
    let missing = ["farshore-bench", &folder.path("farshore-bench").display().to_string(), "make build", "make install"];
    let mut command = copy_once(&folder);
    refused(command.args(["bench", "random"]).env("PATH", &elsewhere), 127, &missing);
    refused(copy_once(&folder).args(["bench", "--help"]).env_remove("PATH"), 127, &missing);
    // In PATH it is found; not in the current directory, whatever PATH says.
    let path = script(&folder, "elsewhere/farshore-bench");
    let mut command = copy_once(&folder);
    let output = command.args(["bench", "exit 3"]).env("PATH", system_path(&elsewhere)).output().expect("it starts");
    assert_eq!(outcome(&output), (3, String::new()));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with(&format!("at {}\n", path.display())));
    for relative in ["", ".", ":/usr/bin", "./:/usr/bin"] {
        let mut command = copy_once(&folder);
        refused(command.args(["bench", "random"]).current_dir(&elsewhere).env("PATH", relative), 127, &missing);
    }
    // One that is broken is not passed over for another.
    for (name, text, mode, part) in [
        ("farshore-bench", SCRIPT, 0o644, "is not executable"),
        ("farshore-bench", "#!/no/such/shell\n", 0o755, "does not exist"),
    ] {
        folder.file(name, text.as_bytes(), mode);
        let status = if mode == 0o644 { 126 } else { 127 };
        let mut command = copy_once(&folder);
        refused(command.args(["bench", "random"]).env("PATH", system_path(&elsewhere)), status, &[part, "farshore-bench"]);
    }
}

#[test]
fn help_names_it() {
    let output = farshore().arg("--help").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().any(|line| line.trim_start().starts_with("bench ") && line.contains("Compare Farshore")), "{text}");
    refused(farshore().arg("benhc"), 125, &["'benhc'", "daemon or bench"]);
}
