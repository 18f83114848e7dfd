//! The header and the library, from C and, as far as the header goes, from C++.
#![cfg(not(loom))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn compile(compiler: &str, arguments: &[&str], out: &Path) -> bool {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(here.join("include"))
        .args(arguments)
        .arg("-o")
        .arg(out)
        .output();
    match done {
        Ok(done) => {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            true
        }
        Err(error) => {
            println!("skipped: {compiler}: {error}");
            false
        }
    }
}

/// Builds the library, as this test is built, and says where it is: for tests, Cargo builds only libraries that Rust programs can be linked to.
fn library() -> PathBuf {
    let profile = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_path_buf();
    let (name, target) = (profile.file_name().unwrap(), profile.parent().unwrap());
    let name = if name == "debug" { "dev".as_ref() } else { name };
    let arguments = ["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--profile"];
    let built = Command::new(env!("CARGO")).args(arguments).arg(name).arg("--target-dir").arg(target).status().unwrap();
    assert!(built.success());
    profile
}

fn out(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

/// Runs a program of `tests/c`, which must say that all is well; `None` if it cannot be compiled here.
fn run(compiler: &str, source: &str, arguments: &[&str]) -> Option<Output> {
    let libraries = library();
    // The program has the watchdog's time.
    std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_secs(120));
        eprintln!("hung for 120 s");
        std::process::abort();
    });
    let path = format!("{}/tests/c/{source}", env!("CARGO_MANIFEST_DIR"));
    let (program, search) = (out(&format!("{source}{}", arguments.concat())), format!("-L{}", libraries.display()));
    if !compile(compiler, &[arguments, &[&path, &search, "-lfarshore_uthread"]].concat(), &program) {
        return None;
    }
    let done = Command::new(&program).env("LD_LIBRARY_PATH", &libraries).output().unwrap();
    let _ = std::fs::remove_file(&program);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "ok\n", "{done:?}");
    assert!(done.status.success(), "{done:?}");
    Some(done)
}

#[test]
fn a_c_program_uses_it() {
    if let Some(done) = run("cc", "uthread.c", &["-std=gnu11"]) {
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(told, "farshore-uthread: wait cannot be 7: 0 (yield), 1 (block) or 2 (busy)\n");
    }
}

#[test]
fn a_c_program_serves_requests() {
    if let Some(done) = run("cc", "requests.c", &["-std=gnu11", "-pthread"]) {
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(told, "farshore-uthread: request_bytes cannot be 4096: 1 to buffer_bytes of the runtime\n");
    }
}

/// The example is a service: it has the square of each number, and knows what is none.
#[test]
fn the_example_looks_numbers_up() {
    use std::io::{BufRead, BufReader, Read};
    let (libraries, program) = (library(), out("table"));
    let source = format!("{}/examples/table.c", env!("CARGO_MANIFEST_DIR"));
    let search = format!("-L{}", libraries.display());
    if !compile("cc", &["-std=gnu11", &source, &search, "-lfarshore_uthread"], &program) {
        return;
    }
    let mut running = Command::new(&program)
        .arg("0")
        .env("LD_LIBRARY_PATH", &libraries)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(running.stdout.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    let port: u16 = line.split(' ').find_map(|word| word.strip_suffix(';')).and_then(|word| word.parse().ok()).expect(&line);
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    client.send(&(1u64 << 27).to_le_bytes()).unwrap();
    client.send(b"short").unwrap();
    for number in [0, 3, (1 << 27) - 1] {
        client.send(&u64::to_le_bytes(number)).unwrap();
        let mut value = [0; 9];
        assert_eq!(client.recv(&mut value).unwrap(), 8);
        assert_eq!(value[..8], (number * number).to_le_bytes());
    }
    drop(running.stdin.take());
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "5 requests, 2 malformed\n");
    assert!(running.wait().unwrap().success());
    let _ = std::fs::remove_file(&program);
}

#[test]
fn exceptions_are_each_unithreads_own() {
    run("c++", "exceptions.cc", &["-std=c++17"]);
}

/// The program has the functions of the C++ library, and the runtime finds them there.
#[test]
fn so_are_those_of_a_program_with_its_own_library() {
    run("c++", "exceptions.cc", &["-std=c++17", "-static-libstdc++"]);
}

#[test]
fn the_header_is_cxx() {
    let (source, object) = (out("header.cc"), out("header.o"));
    std::fs::write(&source, "#include \"farshore_uthread.h\"\nint main() { return farshore_uthread_worker(); }\n").unwrap();
    compile("c++", &["-c", source.to_str().unwrap()], &object);
    let _ = (std::fs::remove_file(&source), std::fs::remove_file(&object));
}
