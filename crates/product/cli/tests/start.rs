//! Programs that are started: the command becomes them and changes nothing that they could notice.
//! The library is a harmless one here, as these are tests of the command; one test takes the real one.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use common::{Folder, farshore, harmless_library, outcome, real_library, run};

fn harmless(options: &[&str], program: &str, arguments: &[&str]) -> Command {
    let mut command = run(options, program);
    command.args(arguments).env("FARSHORE_LIBRARY", harmless_library());
    command
}

fn text(output: &Output) -> String {
    let (status, errors) = outcome(output);
    assert_eq!((status, errors.as_str()), (0, ""));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_environment_arrives() {
    let folder = Folder::new();
    let swap = format!("dir:{}", folder.0.display());
    let program = "printf '%s\\n' \"$FARSHORE_OPTIONS\" \"$LD_PRELOAD\" \"$FARSHORE_OLD_PRELOAD\" \"$FOO\"";
    let options = ["--swap", swap.as_str(), "--swap", "ram,size=1G", "--fault", "poll", "--evictors", "3", "--stats", "out.json"];
    let library = harmless_library();
    let shown = library.display().to_string();
    let mut command = harmless(&options, "sh", &["-c", program]);
    command.current_dir(&folder.0).env("LD_PRELOAD", &library).env("FOO", "bar");
    let output = text(&command.output().expect("it starts"));
    let lines: Vec<&str> = output.lines().collect();
    let options = farshore_config::Options::from_json(lines[0]).expect("the library could read it");
    assert_eq!(options.memory.to_string(), "64M");
    assert_eq!(options.swap.iter().map(ToString::to_string).collect::<Vec<_>>(), [swap.as_str(), "ram,size=1G"]);
    assert_eq!((options.fault.to_string().as_str(), options.evictors), ("poll", Some(3)));
    // The program may change its directory before it ends.
    let stats = options.stats.expect("it was asked for").to_string();
    assert_eq!(stats, folder.path("out.json").display().to_string());
    assert_eq!(lines[1..], [format!("{shown}:{shown}").as_str(), &shown, "bar"]);
}

#[test]
fn relative_swap_paths_become_absolute() {
    let folder = Folder::new();
    for (spec, expected) in [("dir:.", "dir:HERE"), ("file:swap,size=1G", "file:HERE/swap,size=1G")] {
        let mut command = harmless(&["--swap", spec], "printenv", &["FARSHORE_OPTIONS"]);
        let output = text(&command.current_dir(&folder.0).output().expect("it starts"));
        let options = farshore_config::Options::from_json(output.trim_end()).expect("the library could read it");
        assert_eq!(options.swap[0].to_string(), expected.replace("HERE", &folder.0.display().to_string()));
    }
}

#[test]
fn a_config_file_is_read_and_the_command_line_wins() {
    let folder = Folder::new();
    let path = folder.file("far.toml", b"memory = \"32M\"\nevictors = 2\nswap = [\"ram\"]\n", 0o644);
    let mut command = farshore();
    command.arg("run").arg("--config").arg(path).args(["--evictors", "4", "--", "printenv", "FARSHORE_OPTIONS"]);
    let output = text(&command.env("FARSHORE_LIBRARY", harmless_library()).output().expect("it starts"));
    let options = farshore_config::Options::from_json(output.trim_end()).expect("the library could read it");
    assert_eq!((options.memory.to_string().as_str(), options.evictors), ("32M", Some(4)));
}

#[test]
fn the_command_becomes_the_program() {
    let child = harmless(&[], "sh", &["-c", "echo $$"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let pid = child.id();
    assert_eq!(text(&child.wait_with_output().expect("it is ours")).trim_end(), pid.to_string());
    for (program, expected) in [("exit 7", Some(7)), ("kill -9 $$", None)] {
        let status = harmless(&[], "sh", &["-c", program]).status().expect("it starts");
        assert_eq!(status.code(), expected);
        assert_eq!(status.signal(), expected.is_none().then_some(9));
    }
}

#[test]
fn arguments_and_the_programs_name_arrive() {
    let output =
        text(&harmless(&[], "printf", &["%s|", "--memory", "-x", "--", "", "a b", "--help"]).output().expect("it starts"));
    assert_eq!(output, "--memory|-x|--|||a b|--help|".replace("|||", "||"));
    // As the user wrote it, not as it was found.
    let output =
        text(&harmless(&[], "sh", &["-c", "tr '\\0' '\\n' < /proc/$$/cmdline | head -n 1"]).output().expect("it starts"));
    assert_eq!(output, "sh\n");
}

#[test]
fn scripts_run() {
    let folder = Folder::new();
    let inner = folder.file("inner", b"#!/bin/sh\necho \"$@\"\n", 0o755);
    let outer = folder.file("outer", format!("#!{} from outer\n", inner.display()).as_bytes(), 0o755);
    let output = text(&harmless(&[], outer.to_str().expect("plain"), &["x"]).output().expect("it starts"));
    assert_eq!(output, format!("from outer {} x\n", outer.display()));
    let output =
        text(&harmless(&[], "outer", &[]).env("PATH", format!("{}:/bin", folder.0.display())).output().expect("it starts"));
    assert_eq!(output, format!("from outer {}\n", outer.display()));
}

/// Signals and descriptors are natively and under the command the same: ignored ones stay ignored,
/// others stay as they are, closed descriptors stay closed, none is added.
#[test]
fn signals_and_descriptors_are_left_alone() {
    let look = "grep -E '^(SigBlk|SigIgn|SigCgt|NoNewPrivs|Seccomp|CoreDumping)' /proc/self/status; ls /proc/self/fd | grep -v '^[3-9]$'; ulimit -a";
    for around in ["\"$@\"", "trap '' PIPE USR1; \"$@\"", "exec <&-; exec 9</dev/null; \"$@\""] {
        let command = env!("CARGO_BIN_EXE_farshore");
        let natively = ["-c", around, "sh", "sh", "-c", look];
        let under = ["-c", around, "sh", command, "run", "--memory", "64M", "--", "sh", "-c", look];
        let of = |words: &[&str]| {
            let mut shell = Command::new("sh");
            shell.args(words).env("FARSHORE_LIBRARY", harmless_library()).env_remove("LD_PRELOAD").stdin(Stdio::null());
            text(&shell.output().expect("it starts"))
        };
        assert_eq!(of(&under), of(&natively), "{around}");
    }
}

#[test]
fn help_and_version() {
    let version = text(&farshore().arg("--version").output().expect("it starts"));
    assert_eq!(version, format!("farshore {}\n", env!("CARGO_PKG_VERSION")));
    let help = text(&farshore().arg("--help").output().expect("it starts"));
    assert!(["run", "doctor", "stat", "set", "Examples:"].iter().all(|word| help.contains(word)), "{help}");
    let help = text(&farshore().args(["run", "--help"]).output().expect("it starts"));
    let names = ["--memory", "--swap", "--fault", "--policy", "--prefetch", "--evictors", "--stats", "--config", "--threshold"];
    assert!(names.iter().all(|name| help.contains(name)), "{help}");
    assert!(["125", "126", "127", "FARSHORE_SWAP_DIR", "delay:TIME"].iter().all(|word| help.contains(word)), "{help}");
}

#[test]
fn doctor_gives_a_verdict() {
    for words in [&["doctor"][..], &["doctor", "--json"]] {
        let output = farshore().args(words).output().expect("it starts");
        let (status, errors) = outcome(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(errors.is_empty() && (status == 0 || status == 1), "{status}: {errors}");
        assert!(!text.contains('\x1b'), "colours only on a terminal: {text}");
        assert!(text.contains("libfarshore.so") && text.contains("swap dir:/var/tmp"), "{text}");
        if words.len() > 1 {
            let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
            assert_eq!(value["usable"], status == 0);
            let findings = value["findings"].as_array().expect("a list");
            let stops = findings.iter().any(|finding| finding["ok"] == false && finding["required"] == true);
            assert_eq!(stops, status == 1, "{text}");
        }
    }
    let output = farshore().args(["doctor", "--swap", "dir:/no/such/dir"]).output().expect("it starts");
    assert_eq!(outcome(&output).0, 1);
    assert!(String::from_utf8_lossy(&output.stdout).contains("'/no/such/dir' does not exist"));
}

#[test]
fn a_program_runs_with_the_real_library() {
    let Some(library) = real_library() else { return };
    let mut command = run(&[], "sh");
    command.args(["-c", "echo hello; exit 3"]).env("FARSHORE_LIBRARY", library);
    let output = command.output().expect("it starts");
    assert_eq!(outcome(&output).0, 3, "{}", outcome(&output).1);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
}
