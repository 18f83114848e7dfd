//! Whether a program can be run under Farshore.
//!
//! Farshore enters a program by `LD_PRELOAD`. Where the dynamic linker does not run, or ignores
//! that variable, the program would run without Farshore and nobody would know. So the command refuses
//! these before it starts anything, and the library leaves them alone when its program starts them:
//!
//! - no dynamic linker: static programs (no `PT_INTERP`, static-pie among them);
//! - another one: musl's and others, whose libc the library was not built for;
//! - other machines: 32-bit programs, x32, other processors;
//! - programs that would gain rights: set-user-ID, set-group-ID, file capabilities. The kernel then
//!   sets `AT_SECURE`, and the linker drops `LD_PRELOAD`. The rule here is the kernel's: no rights
//!   are gained on a `nosuid` mount, under `no_new_privs`, or by one who has them already;
//! - files that are neither ELF nor a script.
//!
//! Farshore's own command may be static, too. It needs no library: what it starts loads it ([`Obstacle::Command`]).
//!
//! For a script (`#!`) the interpreter is what the kernel loads, so that is what is checked; an
//! interpreter may be a script too. What an interpreter starts later (`/usr/bin/env python3`) is
//! not looked at: it is a program that the program starts.
//!
//! # Where it runs
//!
//! In the command, and in the library between a program's `execve` and the kernel's: in a child of `vfork`
//! too, which shares its parent's memory and may be killed at any instruction. So nothing here allocates, takes a lock or
//! enters libc: the crate is `no_std`, calls the kernel through `farshore_sys` and rustix' own system calls, and what it reads
//! goes to a buffer of the caller's ([`Work`]).
#![no_std]
#![forbid(unsafe_code)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod elf;
mod open;
mod rights;
mod script;

use core::ffi::CStr;
use farshore_sys::fd::Fd;
use farshore_sys::raw::Errno;

pub use elf::{Elf, Machine, Mark, goes_first, headers};
pub use open::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, Place, Program};
pub use rights::Rights;
pub use script::Line;

/// Scripts that may be run by scripts before there is a program.
pub const SCRIPTS_MAX: usize = 5;
/// How much of a file's beginning the kernel looks at.
const HEAD: usize = 256;
/// Longest path, with its zero byte.
const PATH: usize = 4096;

/// Why a program cannot be run under Farshore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The file (or a script's interpreter) is not there, or cannot be reached.
    Missing(Errno),
    /// It is no regular file.
    NotAFile,
    /// A script's interpreter is there and cannot be executed.
    NotExecutable(Errno),
    /// It cannot be read, so what it is is not known.
    Unreadable(Errno),
    /// Neither ELF nor a script.
    Unknown,
    /// More than [`SCRIPTS_MAX`] scripts, each run by the next.
    Scripts,
    /// An ELF file that is not a program for this machine and dynamic linker.
    Elf(Elf),
    /// It is Farshore's command, linked statically. With Farshore's variables in its environment, what it becomes runs under
    /// Farshore, unless it is `farshore run`, whose own options count.
    Command,
    /// It has glibc's dynamic linker and no library, not even libc: a Go program that can be loaded anywhere. Its thread pointer is not libc's.
    Alone,
    /// The dynamic linker is musl's.
    Musl,
    /// The dynamic linker is not glibc's.
    Loader,
    /// The dynamic linker is not there.
    LoaderMissing(Errno),
    /// This process has other effective rights than real ones: every program ignores `LD_PRELOAD`.
    Secure,
    /// It runs with the rights of this user.
    SetUser(u32),
    /// It runs with the rights of this group.
    SetGroup(u32),
    /// It has file capabilities.
    Capabilities,
    /// It loads no library, and root's program regains capabilities that this process has given away, which it would not where a helper puts the library there.
    Regains,
}

impl Obstacle {
    /// What such a program is, where the kernel starts it all the same; `None`: it starts no program of that file, or it is our own command.
    ///
    /// Those that are [hosted](Obstacle::is_hosted) run natively for other reasons, if they do.
    /// A file that it cannot execute (damaged, for another machine, with an interpreter that is not there) is its to refuse. A shell
    /// reads one that is neither ELF nor a script itself.
    pub fn runs_natively(self) -> Option<&'static str> {
        match self {
            Obstacle::Elf(Elf::Not64Bit(machine)) if machine.is_x86() => Some("it is a 32-bit program"),
            Obstacle::Secure => Some("its user and the user whose rights it has are not the same"),
            Obstacle::SetUser(_) => Some("it is set-user-ID"),
            Obstacle::SetGroup(_) => Some("it is set-group-ID"),
            Obstacle::Capabilities => Some("it has file capabilities"),
            Obstacle::Regains => Some("it is static, and regains capabilities by its start"),
            Obstacle::Unreadable(_) => Some("it cannot be read, so it is not known whether it can run under Farshore"),
            Obstacle::Elf(_)
            | Obstacle::Missing(_)
            | Obstacle::NotAFile
            | Obstacle::NotExecutable(_)
            | Obstacle::Unknown
            | Obstacle::Scripts
            | Obstacle::Command
            | Obstacle::Alone
            | Obstacle::Musl
            | Obstacle::Loader
            | Obstacle::LoaderMissing(_) => None,
        }
    }

    /// Whether the library can be put into such a program by a helper (`farshore_host`): it loads none, but all else is as it must be.
    pub fn is_hosted(self) -> bool {
        matches!(self, Obstacle::Elf(Elf::Program { .. }) | Obstacle::Alone | Obstacle::Musl | Obstacle::Loader)
    }

    /// It could not be found out, for want of descriptors or memory: it says nothing about the program.
    pub fn is_passing(self) -> bool {
        const PASSING: [i32; 3] = [Errno::EMFILE.0, Errno::ENFILE.0, Errno::ENOMEM.0];
        match self {
            Obstacle::Missing(why) | Obstacle::NotExecutable(why) | Obstacle::Unreadable(why) | Obstacle::LoaderMissing(why) => {
                PASSING.contains(&why.0)
            }
            _ => false,
        }
    }
}

/// The dynamic linker that a program names is this file.
pub type Loader = Place;

/// The name of a library that goes before ours.
#[derive(Clone, Copy, Debug)]
pub struct FirstLibrary([u8; elf::FIRST]);

impl FirstLibrary {
    /// There is none.
    pub const NONE: FirstLibrary = FirstLibrary([0; elf::FIRST]);

    /// It; empty if there is none.
    pub fn name(&self) -> &[u8] {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default().to_bytes()
    }

    /// What of `LD_PRELOAD` comes before our library: it, or else the first of what the user has there, if that must be first.
    pub fn or_of<'l>(&'l self, preload: &'l [u8]) -> &'l [u8] {
        let users = preload.split(|&byte| matches!(byte, b' ' | b':')).next().unwrap_or_default();
        if self.name().is_empty() && goes_first(users) { users } else { self.name() }
    }
}

/// Memory for one check.
#[derive(Debug)]
pub struct Work<'w> {
    head: &'w mut [u8],
    table: &'w mut [u8],
    name: &'w mut [u8],
    loader: &'w mut [u8],
    first: [u8; elf::FIRST],
}

impl<'w> Work<'w> {
    /// Bytes that [`Work::new`] needs.
    pub const BYTES: usize = HEAD + elf::TABLE + HEAD + PATH;

    /// Takes `buffer`, whatever is in it.
    ///
    /// # Panics
    /// If it has fewer than [`Work::BYTES`].
    pub fn new(buffer: &'w mut [u8]) -> Work<'w> {
        let (head, rest) = buffer.split_at_mut(HEAD);
        let (table, rest) = rest.split_at_mut(elf::TABLE);
        let (name, rest) = rest.split_at_mut(HEAD);
        name.fill(0);
        rest[..PATH].fill(0);
        Work { head, table, name, loader: &mut rest[..PATH], first: [0; elf::FIRST] }
    }

    /// After a check: the interpreter of the script that was looked at last; `None` if no script was.
    pub fn interpreter(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(self.name).ok().filter(|name| !name.is_empty())
    }

    /// After a check: the library that the program needs and that must be the first to be loaded; empty if there is none. See [`goes_first`].
    pub fn first_library(&self) -> FirstLibrary {
        FirstLibrary(self.first)
    }

    /// After a check: the dynamic linker that the program names; empty if it was not read.
    pub fn loader(&self) -> &CStr {
        CStr::from_bytes_until_nul(self.loader).unwrap_or_default()
    }
}

/// Whether `program` will load the library, and with which dynamic linker. Whether it may be executed at all
/// is left to the kernel, but for interpreters.
///
/// # Errors
/// It will not, or it could not be found out.
pub fn check(program: &Program<'_>, rights: &Rights, work: &mut Work<'_>) -> Result<Loader, Obstacle> {
    work.name.fill(0);
    if rights.differ() {
        return Err(Obstacle::Secure);
    }
    let mut file = program.open()?;
    for _ in 0..=SCRIPTS_MAX {
        match script::read(&file, work.head)? {
            script::Kind::Elf => {
                let loader = loader(&file, work);
                rights.check(&file)?;
                if loader == Err(Obstacle::Elf(Elf::Program { dynamic: false }))
                    && elf::marked(&file, work.table)? == elf::Marked::Command
                {
                    return Err(Obstacle::Command);
                }
                if loader.is_err_and(Obstacle::is_hosted) && rights.regains_capabilities() {
                    return Err(Obstacle::Regains);
                }
                let loader = loader?;
                let names_any = elf::first_library(&file, work.table, &mut work.first)?;
                return match names_any {
                    true => Ok(loader),
                    false if rights.regains_capabilities() => Err(Obstacle::Regains),
                    false => Err(Obstacle::Alone),
                };
            }
            script::Kind::Script(line) => {
                work.name.fill(0);
                work.name[..line.len()].copy_from_slice(&work.head[line.clone()]);
            }
            script::Kind::Other => return Err(Obstacle::Unknown),
        }
        // An empty name is a file that is not there, as for the kernel.
        let name = work.interpreter().unwrap_or_default();
        file = Program::at(name).open()?;
        open::may_execute(name)?;
    }
    Err(Obstacle::Scripts)
}

/// The dynamic linker of the ELF program at `path`, which is not looked at otherwise.
///
/// # Errors
/// It has none that Farshore works with, or it could not be found out.
pub fn loader_of(path: &CStr, work: &mut Work<'_>) -> Result<Loader, Obstacle> {
    let file = Program::at(path).open()?;
    loader(&file, work)
}

fn loader(file: &Fd, work: &mut Work<'_>) -> Result<Loader, Obstacle> {
    match headers(file, work)? {
        Elf::Program { dynamic: true } => {}
        other => return Err(Obstacle::Elf(other)),
    }
    let path = work.loader();
    let place = Place::of(path).map_err(Obstacle::LoaderMissing)?;
    let name = path.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if name.starts_with(b"ld-musl") {
        return Err(Obstacle::Musl);
    }
    if !name.starts_with(b"ld-linux-x86-64.so") {
        return Err(Obstacle::Loader);
    }
    Ok(place)
}

#[cfg(test)]
mod tests;
