//! `farshore run --shared-memory`: starts the manager of the memory that the program's processes share, before this process becomes the program.
//!
//! It is a `farshore-manager` and nobody's child, as that of `farshore vm run`: the program would find one that it has not made. Anybody can read the name of its socket and the words of its command line,
//! so the number by which it knows its clients goes by its environment.

use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};

use farshore_command::process::{KIN_BESIDE, KIN_TOKEN, STARTED};
use farshore_command::refusal::Refusal;
use farshore_config::{Options, SharedMemory};

use crate::others;

/// Starts the manager, if there is to be one, and notes how it is reached.
///
/// # Errors
/// It cannot be started (125).
pub fn begin(options: &mut Options) -> Result<(), Refusal> {
    let Some(shared) = &mut options.shared else { return Ok(()) };
    let failed = |error: Error| {
        Refusal::cannot_start(format!("--shared-memory {}: its manager cannot be started ({error})", shared.memory))
    };
    let manager = others::MANAGE.path()?;
    let (listener, socket) = listen().map_err(failed)?;
    let token = token().map_err(failed)?;
    let told = SharedMemory { memory: shared.memory, socket, token: [0; 2] };
    let (words, own) = (told.clone(), std::process::id().to_string());
    *shared = SharedMemory { token, ..told };
    let options = Options { shared: Some(words), ..options.clone() };
    let failed = |error: &dyn std::fmt::Display| {
        Refusal::cannot_start(format!("--shared-memory: its manager cannot be started ({error})"))
    };
    let mut beside = Command::new(manager)
        .args([OsStr::new(KIN_BESIDE), OsStr::new(&options.to_json()), OsStr::new(&own)])
        .env(KIN_TOKEN, token.map(|number| number.to_string()).join(" "))
        .stdin(OwnedFd::from(listener))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let mut said = Vec::new();
    beside.stdout.take().map(|mut out| out.read_to_end(&mut said)).transpose().map_err(|error| failed(&error))?;
    // Whoever ignores SIGCHLD hears of no child's status.
    _ = beside.wait();
    if said != STARTED {
        return Err(failed(&"its line is above"));
    }
    Ok(())
}

/// Listens at a name that nobody else has.
fn listen() -> Result<(UnixListener, String), Error> {
    let own = std::process::id();
    let of = |number: u32| {
        let name = format!("farshore-shared-{own}-{number}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok((listener, name))
    };
    // A process of the same number in another PID namespace may have the first ones.
    let is_taken = |tried: &Result<_, Error>| tried.as_ref().is_err_and(|error: &Error| error.kind() == ErrorKind::AddrInUse);
    (0..100).map(of).find(|tried| !is_taken(tried)).unwrap_or_else(|| Err(ErrorKind::AddrInUse.into()))
}

fn token() -> Result<[u64; 2], Error> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let (numbers, _) = bytes.as_chunks::<8>();
    Ok([u64::from_ne_bytes(numbers[0]), u64::from_ne_bytes(numbers[1])])
}
