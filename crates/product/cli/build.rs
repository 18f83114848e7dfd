//! Links the command with libc's archive, where there is one: a start without the dynamic linker takes 0.3 ms less, of the 2 that
//! `farshore run true` takes. The library goes into other programs, and is linked as all are.
//!
//! Cargo can ask for a static libc (`+crt-static`) only for all that is built. So the linker is told here: it makes a static
//! program, and finds nothing but archives by the names of the libraries that the standard library asks for.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// What a static program is made of: libc's archives, and the code that it begins with.
const NEEDED: [&str; 3] = ["libc.a", "libm.a", "rcrt1.o"];
/// An archive without members.
const EMPTY: &[u8] = b"!<arch>\n";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    match archives(&out.join("archives")) {
        Ok(Some(folder)) => {
            println!("cargo:rustc-link-arg-bin=farshore=-L{}", folder.display());
            println!("cargo:rustc-link-arg-bin=farshore=-static-pie");
        }
        // Some distributions have it in a package of its own (glibc-static). The command is the same, and starts more slowly.
        Ok(None) => {}
        Err(error) => println!("cargo:warning=the command is not linked statically: {error}"),
    }
}

/// A folder with the archives alone; `None`: the machine has no static libc.
fn archives(folder: &Path) -> io::Result<Option<PathBuf>> {
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") || env::var_os("HOST") != env::var_os("TARGET") {
        return Ok(None);
    }
    let Some(found) = NEEDED.map(|name| path_of(name).map(|path| (name, path))).into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for (name, path) in found.into_iter().filter(|(name, _)| name.ends_with(".a")) {
        std::os::unix::fs::symlink(path, folder.join(name))?;
    }
    // The unwinder is linked from its archive already (`main.rs`).
    fs::write(folder.join("libgcc_s.a"), EMPTY)?;
    Ok(Some(folder.to_owned()))
}

/// Where the linker finds a file; `None`: nowhere. The C compiler that is asked is the one that rustc links with, whatever `CC` is.
fn path_of(name: &str) -> Option<PathBuf> {
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let output = Command::new(linker).arg(format!("-print-file-name={name}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // A compiler that does not find it says the name.
    path.is_absolute().then_some(path).filter(|path| path.exists())
}
