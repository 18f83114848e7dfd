//! Runs `tests/program` natively and with its system calls caught in each of the three ways: what a `syscall`
//! instruction preserves must be preserved, and threads, processes, signals and unwinding must work.
//!
//! The program is C and is built here with the C compiler of the machine; without one the tests say so and pass.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What the program can be asked to test.
const TESTS: [&str; 12] = [
    "registers",
    "clone",
    "redzone",
    "threads",
    "processes",
    "unwind",
    "restart",
    "longjmp",
    "cancel",
    "altstack",
    "storm",
    "steps",
];
/// Those that can be run where not all calls are caught: the others have signals, whose handlers and stacks must all be known.
const WITHOUT_SIGNALS: usize = 6;
const SOURCES: [&str; 7] = ["main.c", "registers.c", "processes.c", "signals.c", "unwind.c", "steps.c", "probe.S"];
/// After so long one of them hangs.
const PATIENCE: Duration = Duration::from_secs(400);

fn compiler() -> Option<&'static str> {
    let works = |name: &&str| Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    ["gcc", "cc"].into_iter().find(works)
}

/// The built program; `None` without a compiler. Each test may be a process of its own: it gets its name when it is whole.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = PROGRAM.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program");
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nettest");
        let partial = built.with_extension(std::process::id().to_string());
        let mut command = Command::new(compiler()?);
        command.args(["-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-o"]).arg(&partial);
        let output = command.args(SOURCES.map(|name| sources.join(name))).output().expect("the compiler runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&partial, &built).expect("a file of ours");
        Some(built)
    });
    if built.is_none() {
        println!("skipped: gcc");
    }
    built.as_deref()
}

/// The library of this crate, built by cargo as a program would get it.
///
/// What cargo builds *for* a test unwinds when it panics, and then a cancelled thread cannot be unwound past the dispatcher:
/// Rust ends the process instead. Libraries for programs are built with `panic = "abort"`, and have nothing in the way.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--quiet", "--offline", "--lib", "--package", env!("CARGO_PKG_NAME"), "--target-dir"]).arg(target);
        if !cfg!(debug_assertions) {
            command.arg("--release");
        }
        let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        target.join(if cfg!(debug_assertions) { "debug" } else { "release" }).join("libfarshore_net_rig.so")
    })
}

/// Runs it to its end. What it says on stderr is part of the error: whoever reads it may have no more than that.
fn run(command: &mut Command) -> Result<(), String> {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut stderr = child.stderr.take().expect("a pipe");
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = stderr.read_to_string(&mut said);
        said
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            break status.to_string();
        }
        if start.elapsed() > PATIENCE {
            // Our own child, which has not been waited for.
            let _ = child.kill();
            let _ = child.wait();
            // Children of its may still have stderr: what it said is not waited for.
            return Err(format!("did not end within {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let said = said.join().expect("it only reads");
    if status == "exit status: 0" { Ok(()) } else { Err(format!("{status}: {}", said.trim())) }
}

fn run_all(mode: Option<&str>) {
    let Some(program) = program() else { return };
    let tests = if mode.is_some_and(|mode| !matches!(mode, "sud" | "both")) { &TESTS[..WITHOUT_SIGNALS] } else { &TESTS };
    let failures: Vec<String> = tests
        .iter()
        .filter_map(|name| {
            let mut command = Command::new(program);
            command.arg(name).stdin(Stdio::null()).env_remove("LD_PRELOAD").env_remove("NETTEST_MODE");
            if let Some(mode) = mode {
                command.env("LD_PRELOAD", library()).env("NETTEST_MODE", mode);
            }
            run(&mut command).err().map(|why| format!("{name}: {why}"))
        })
        .collect();
    assert!(failures.is_empty(), "mode {}: {failures:?}", mode.unwrap_or("native"));
}

#[test]
fn the_program_passes_natively() {
    run_all(None);
}

#[test]
fn calls_at_patched_sites_preserve_what_they_should() {
    run_all(Some("patch"));
}

#[test]
fn sites_of_the_table_and_sites_that_are_searched_go_together() {
    run_all(Some("table-search"));
    run_all(Some("search-table"));
}

#[test]
fn trapped_calls_preserve_what_they_should() {
    run_all(Some("sud"));
}

#[test]
fn both_ways_work_together() {
    run_all(Some("both"));
}
