//! The header and the library, from C and, as far as the header goes, from C++. What the library does is tested with a manager, in `tests/real`.
#![cfg(not(loom))]

use std::path::{Path, PathBuf};
use std::process::Command;

/// False: there is no such compiler.
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

#[test]
fn the_example_says_that_there_is_no_manager() {
    let (libraries, program) = (library(), out("direct"));
    let (source, search) = (format!("{}/tests/c/direct.c", env!("CARGO_MANIFEST_DIR")), format!("-L{}", libraries.display()));
    if !compile("cc", &["-std=gnu11", &source, &search, "-lfarshore_map"], &program) {
        return;
    }
    let own = std::process::id().to_string();
    let done = Command::new(&program).args([&own, "/dev/null", "0"]).env("LD_LIBRARY_PATH", &libraries).output().unwrap();
    let _ = std::fs::remove_file(&program);
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && told.contains("it has no manager that could be asked"), "{done:?}");
}

#[test]
fn the_header_is_cxx() {
    let (source, object) = (out("header.cc"), out("header.o"));
    std::fs::write(&source, "#include \"farshore_map.h\"\nint main() { return farshore_map_error() == nullptr; }\n").unwrap();
    compile("c++", &["-c", source.to_str().unwrap()], &object);
    let _ = (std::fs::remove_file(&source), std::fs::remove_file(&object));
}
