//! `farshore run`: checks everything, sets the environment, becomes the program.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use farshore_command::refusal::Refusal;
use farshore_command::swap;
use farshore_config::{
    MEMORY_MIN, OLD_PRELOAD_VARIABLE, OPTIONS_VARIABLE, Options, PRELOAD_VARIABLE, Partial, Size, StatsTarget,
};
use rustix::fs::Access;
use rustix::io::FdFlags;

use farshore_host::{FAULTS, Guest, Refused};
use farshore_launch::FirstLibrary;
use farshore_sys::probe::kernel_release;

use crate::args::RunArgs;
use crate::program::Way;
use crate::{library, program};

/// Becomes the program. Returns only when it cannot.
///
/// # Errors
/// Why not: 125, 126 or 127.
pub fn run(mut arguments: RunArgs) -> Result<u8, Refusal> {
    kernel_release()
        .map_err(|why| Refusal::cannot_start(format!("this kernel cannot be used, {why}: boot Linux 6.8 or newer")))?;
    let command = std::mem::take(&mut arguments.command);
    let mut options = options(arguments)?;
    let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let path = program::find(name)?;
    let way = program::check(&path)?;
    let library = library::find()?;
    options.library = Some(library.clone());
    leave_family();
    take_seat(&mut options)?;
    match way {
        Way::Preloaded(first) => execute(&path, &command, environment(std::env::vars_os(), &library, &first, &options)),
        Way::Hosted => execute_hosted(&path, &command, &library, &options),
    }
}

/// Puts the layers together, and looks at what they name.
fn options(arguments: RunArgs) -> Result<Options, Refusal> {
    let wrong = |error: farshore_config::ConfigError| Refusal::cannot_start(error.to_string());
    let file = arguments.config.as_deref().map(Partial::from_file).transpose().map_err(wrong)?;
    let line = Partial {
        memory: arguments.memory,
        slowdown: arguments.slowdown,
        memory_min: arguments.memory_min,
        memory_max: arguments.memory_max,
        budget: arguments.budget,
        swap: (!arguments.swap.is_empty()).then_some(arguments.swap),
        fault: arguments.fault,
        policy: arguments.policy,
        prefetch: arguments.prefetch,
        evictors: arguments.evictors,
        batch: arguments.batch,
        writes: arguments.writes,
        free: arguments.free,
        ablate: arguments.ablate,
        stats: arguments.stats,
        threshold: arguments.threshold,
        io_timeout: arguments.io_timeout,
        encrypt: arguments.encrypt.then_some(true),
        memory_per_process: arguments.memory_per_process.then_some(true),
        trace: None,
        follow: arguments.no_follow.then_some(false),
        require: arguments.require.then_some(true),
        files: arguments.files.then_some(true),
        trim: arguments.no_trim.then_some(false),
    };
    let layers = file.unwrap_or_default().merge(line);
    if layers.memory == Some(Size(0)) {
        return Err(Refusal::cannot_start(format!("--memory is 0, no program can run in that: give it at least {MEMORY_MIN}")));
    }
    let mut options = layers.finish().map_err(wrong)?;
    options.swap = options.swap.into_iter().map(swap::absolute).collect::<Result<_, _>>()?;
    options.swap.iter().try_for_each(swap::check)?;
    if let Some(StatsTarget::File(path)) = &options.stats {
        check_stats(path)?;
    }
    Ok(options)
}

/// Whether the counters can be written at the end. Better to know now than after hours of work.
fn check_stats(path: &Path) -> Result<(), Refusal> {
    let shown = path.display();
    let refuse = |why: String| Err(Refusal::cannot_start(format!("--stats: '{shown}' {why}")));
    if path.is_dir() {
        return refuse("is a directory: name a file in it".into());
    }
    // The file, or where it is not there yet, the directory that it will be in.
    let place = if path.exists() { path } else { path.parent().unwrap_or(Path::new("/")) };
    if !place.exists() {
        return refuse(format!(
            "cannot be made, the directory '{}' does not exist: make it, or name another file",
            place.display()
        ));
    }
    if place != path && !place.is_dir() {
        return refuse(format!("cannot be made, '{}' is not a directory: name another file", place.display()));
    }
    match rustix::fs::access(place, Access::WRITE_OK) {
        Ok(()) => Ok(()),
        Err(errno) => refuse(format!("is not writable for you ({errno}): name another file")),
    }
}

/// Where this command was started by a program under Farshore: what belongs to that program's family stays behind. A new family
/// begins here.
fn leave_family() {
    let outer = std::env::var(OPTIONS_VARIABLE).ok().and_then(|text| Options::from_json(&text).ok());
    outer.iter().flat_map(Options::descriptors).for_each(farshore_sys::fd::leave_at_exec);
}

/// Where the options name a budget: takes a seat there, which the program has until its last process ends.
fn take_seat(options: &mut Options) -> Result<(), Refusal> {
    let taken = farshore_budgets::join::take_seat(options, std::process::id()).map_err(Refusal::cannot_start)?;
    if let (Some(list), Some(budget)) = (taken, &options.budget) {
        // It stays open when this process becomes the program.
        rustix::io::fcntl_setfd(&list, FdFlags::empty())
            .map_err(|errno| Refusal::cannot_start(format!("--budget {budget}: its list cannot be handed on ({errno})")))?;
        _ = list.into_raw_fd();
    }
    Ok(())
}

/// The program's environment: the user's, the options and the library.
fn environment(
    user: impl Iterator<Item = (OsString, OsString)>,
    library: &Path,
    first: &FirstLibrary,
    options: &Options,
) -> Vec<(OsString, OsString)> {
    let ours = [OPTIONS_VARIABLE, OLD_PRELOAD_VARIABLE, PRELOAD_VARIABLE];
    let mut old = None;
    let mut variables: Vec<(OsString, OsString)> = Vec::new();
    for (name, value) in user {
        if name == PRELOAD_VARIABLE {
            old = Some(value);
        } else if !ours.iter().any(|ours| name == *ours) {
            variables.push((name, value));
        }
    }
    let (preload, kept) = library::preload(library, first, old.as_deref());
    variables.push((PRELOAD_VARIABLE.into(), preload));
    variables.extend(kept.map(|kept| (OLD_PRELOAD_VARIABLE.into(), kept)));
    variables.push((OPTIONS_VARIABLE.into(), options.to_json().into()));
    variables
}

/// Becomes the program at `path`, into which a helper puts the library. Returns only when it cannot.
///
/// # Errors
/// As [`execute`]; or there can be no helper (125).
fn execute_hosted(path: &Path, command: &[OsString], library: &Path, options: &Options) -> Result<u8, Refusal> {
    let user = std::env::vars_os().filter(|(name, _)| name != OPTIONS_VARIABLE && name != OLD_PRELOAD_VARIABLE);
    let without_ours = |(name, value): (OsString, OsString)| {
        let kept = if name == PRELOAD_VARIABLE { library::preload(library, &FirstLibrary::NONE, Some(&value)).1? } else { value };
        Some((name, kept))
    };
    let call = Call::new(path, command, user.filter_map(without_ours)).map_err(|error| not_executed(path, &error))?;
    let options = format!("{OPTIONS_VARIABLE}={}", options.to_json());
    let faults = std::env::var_os(FAULTS).map(|value| [FAULTS.as_bytes(), b"=", value.as_bytes()].concat());
    let environment: Vec<&[u8]> = [options.as_bytes(), farshore_host::TUNABLES].into_iter().chain(faults.as_deref()).collect();
    let name = CString::new(library.as_os_str().as_bytes()).unwrap_or_default();
    let guest = Guest { library: &name, environment: &environment, required: true };
    match farshore_host::execute(&guest, || call.make()) {
        Ok(answer) => Err(not_executed(path, &io::Error::from_raw_os_error(-answer as i32))),
        Err(Refused(why, errno)) => Err(Refusal::cannot_start(format!(
            "'{}' loads no library, so a helper has to put Farshore's into it, and {why} ({errno}): 'farshore doctor' tells more",
            path.display()
        ))),
    }
}

/// Becomes the program at `path`. Not by the standard library, which would reset signals on the way. Returns only when it cannot.
///
/// # Errors
/// It is not there any more (127), or it cannot be executed (126).
pub fn execute(
    path: &Path,
    command: &[OsString],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<u8, Refusal> {
    let call = Call::new(path, command, environment).map_err(|error| not_executed(path, &error))?;
    Err(not_executed(path, &io::Error::from_raw_os_error(-call.make() as i32)))
}

/// An `execve`, as the kernel wants it.
struct Call {
    path: CString,
    words: Vec<CString>,
    variables: Vec<CString>,
}

impl Call {
    fn new(path: &Path, command: &[OsString], environment: impl IntoIterator<Item = (OsString, OsString)>) -> io::Result<Call> {
        let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let variable = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            text(name.into_vec())
        };
        Ok(Call {
            path: text(path.as_os_str().as_bytes().to_vec())?,
            words: command.iter().map(|word| text(word.as_bytes().to_vec())).collect::<io::Result<_>>()?,
            variables: environment.into_iter().map(variable).collect::<io::Result<_>>()?,
        })
    }

    /// Makes the call. The negative error, if it returns.
    fn make(&self) -> i64 {
        let pointers =
            |strings: &[CString]| strings.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>();
        let (arguments, environment) = (pointers(&self.words), pointers(&self.variables));
        // SAFETY: `path` and every pointer in both lists lead to strings that end with a zero byte, both
        // lists end with a null pointer, and all of them live until the call returns, if it does.
        unsafe { libc::execve(self.path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

fn not_executed(path: &Path, error: &io::Error) -> Refusal {
    let shown = path.display();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Refusal::not_found(format!("'{shown}' does not exist any more: check the path")),
        Some(libc::E2BIG) => Refusal::not_executable(format!(
            "'{shown}' cannot be executed ({error}): give it fewer arguments or a smaller environment (ulimit -s raises the limit)"
        )),
        _ => Refusal::not_executable(format!("'{shown}' cannot be executed ({error}): check its rights and its file system")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_config::SwapSpec;

    #[test]
    fn the_environment_is_the_users_plus_ours() {
        let options = Options::new(Size::mib(64), SwapSpec::Dir("/var/tmp".into()));
        let of = |user: &[(&str, &str)]| {
            let user = user.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
            environment(user, Path::new("/l/libfarshore.so"), &FirstLibrary::NONE, &options)
                .into_iter()
                .map(|(name, value)| format!("{}={}", name.display(), value.display()))
                .collect::<Vec<_>>()
        };
        let json = format!("FARSHORE_OPTIONS={}", options.to_json());
        assert_eq!(of(&[("A", "1")]), ["A=1", "LD_PRELOAD=/l/libfarshore.so", &json]);
        // What an outer run has left there is replaced.
        let user = [("LD_PRELOAD", "/l/libfarshore.so:/x.so"), ("FARSHORE_OPTIONS", "{}"), ("FARSHORE_OLD_PRELOAD", "/y.so")];
        assert_eq!(of(&user), ["LD_PRELOAD=/l/libfarshore.so:/x.so", "FARSHORE_OLD_PRELOAD=/x.so", &json]);
    }
}
