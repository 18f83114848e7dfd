//! From the command line to the end: listeners, signals, threads.

use std::path::PathBuf;
use std::sync::Arc;

use farshore_command::handed;
use farshore_command::listen::{Address, Listener};
use farshore_command::refusal::Refusal;
use farshore_command::say::tell;
use farshore_command::token::Tokens;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::api::{self, Api};
use crate::args::DaemonArgs;
use crate::guard::Guard;
use crate::watch;

/// Serves until a signal ends it.
///
/// # Errors
/// A wrong option (125), or it cannot listen (1).
pub fn daemon(arguments: &DaemonArgs, farshore: Option<PathBuf>) -> Result<u8, Refusal> {
    let tokens = arguments.token_file.as_deref().map(Tokens::read).transpose().map_err(Refusal::cannot_start)?;
    let handed = handed::sockets()?;
    let failed = |error: std::io::Error| Refusal::failed(format!("cannot listen for signals ({error}): is there memory left?"));
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(failed)?;
    signal_hook::flag::register(SIGPIPE, Arc::default()).map_err(failed)?;
    let mut listeners = handed.into_iter().map(Listener::of).collect::<Result<Vec<_>, _>>().map_err(Refusal::failed)?;
    let addresses = match &arguments.listen[..] {
        [] if listeners.is_empty() => vec![usual()],
        given => given.to_vec(),
    };
    let open = addresses.iter().any(|address| matches!(address, Address::Tcp(_)));
    if (open || listeners.iter().any(|listener| matches!(listener, Listener::Tcp(_)))) && tokens.is_none() {
        return Err(Refusal::cannot_start(
            "every user of this machine can reach a port: give --token-file FILE with it, or listen at unix:PATH alone",
        ));
    }
    let names = addresses.iter().filter_map(|address| match address {
        Address::Tcp(text) => text.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']).to_owned()),
        Address::Unix(_) => None,
    });
    let guard = Guard::new(rustix::process::geteuid().as_raw(), tokens, names.collect());
    for address in &addresses {
        match Listener::at(address) {
            Ok(listener) => listeners.push(listener),
            Err(why) => {
                listeners.iter().for_each(Listener::remove);
                return Err(Refusal::failed(why));
            }
        }
    }
    let listeners: Vec<Arc<Listener>> = listeners.into_iter().map(Arc::new).collect();
    let api = Arc::new(Api::new(guard, farshore.unwrap_or_else(|| "farshore".into())));
    let done = begin(&api, &listeners);
    if done.is_ok() {
        listeners.iter().for_each(|listener| tell(&format!("daemon listens at {}", shown(listener))));
        let signal = signals.forever().next().unwrap_or(SIGTERM);
        listeners.iter().for_each(|listener| listener.remove());
        return Ok(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)));
    }
    listeners.iter().for_each(|listener| listener.remove());
    done.map(|()| 0)
}

/// Where it listens if nobody says.
fn usual() -> Address {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let is_root = rustix::process::geteuid().is_root();
    let folder = folder.filter(|_| !is_root).unwrap_or_else(|| {
        if is_root { "/run".into() } else { format!("/run/user/{}", rustix::process::geteuid().as_raw()).into() }
    });
    Address::Unix(folder.join("farshore.sock"))
}

/// Starts the threads.
fn begin(api: &Arc<Api>, listeners: &[Arc<Listener>]) -> Result<(), Refusal> {
    let failed =
        |error: std::io::Error| Refusal::failed(format!("cannot start a thread ({error}): raise the limits of processes"));
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.into()).spawn(work).map(drop).map_err(failed)
    };
    let watched = api.watch.clone();
    start("daemon-look", Box::new(move || watch::look(&watched)))?;
    for listener in listeners {
        let (listener, api) = (listener.clone(), api.clone());
        start("daemon-door", Box::new(move || listener.serve(api::wrong, move |request| api.answer(request))))?;
    }
    Ok(())
}

fn shown(listener: &Listener) -> String {
    match listener {
        Listener::Tcp(listener) => listener.local_addr().map_or_else(|_| "a port".into(), |address| format!("http://{address}/")),
        Listener::Unix(_, path, _) => format!("unix:{}", path.display()),
    }
}
