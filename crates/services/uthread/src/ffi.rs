//! The C interface: `farshore_uthread.h` (crate `farshore-uthread-c`, which makes a library of this) says what each function does. One runtime a process.

use crate::ground::error::{Error, SpawnError};
use crate::scheduler::dispatch::Policy;
use crate::scheduler::{api, hold, worker};
use crate::services::io;
use crate::{Config, Handle, JoinHandle, Runtime, WaitMode};
use core::ffi::{c_int, c_void};
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

mod requests;

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

fn runtime() -> MutexGuard<'static, Option<Runtime>> {
    RUNTIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A way to the runtime that runs.
fn running() -> Option<Handle> {
    // The hold goes last: nobody is switched away from with the lock.
    let _hold = hold::hold();
    runtime().as_ref().map(Runtime::handle)
}

/// The negative number of an error.
fn refusal(error: &std::io::Error) -> c_int {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// Tells an error on stderr, and gives its number.
fn told(error: &Error) -> c_int {
    eprintln!("farshore-uthread: {error}");
    match error {
        Error::System { error, .. } => refusal(error),
        _ => -libc::EINVAL,
    }
}

/// `struct farshore_uthread_config`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CConfig {
    workers: u32,
    unithreads: u32,
    stack_bytes: u64,
    guard_bytes: u64,
    buffer_bytes: u64,
    policy: u32,
    wait: u32,
    poll: u64,
    slice: u64,
    do_not_pin: u32,
    do_not_guard_libc: u32,
}

/// A pointer that goes from one thread to another.
#[derive(Debug)]
struct Sent(*mut c_void);
// SAFETY: what it points to is the program's business.
unsafe impl Send for Sent {}

impl Sent {
    fn into_inner(self) -> *mut c_void {
        self.0
    }
}

fn or_default(value: u64, default: usize) -> usize {
    if value == 0 { default } else { value as usize }
}

impl CConfig {
    fn config(&self) -> Result<Config, Error> {
        let default = Config::default();
        let refuse = |what, value: u32, want| Err(Error::Config { what, value: u64::from(value), want });
        Ok(Config {
            workers: self.workers as usize,
            unithreads: or_default(u64::from(self.unithreads), default.unithreads),
            stack_bytes: or_default(self.stack_bytes, default.stack_bytes),
            guard_bytes: or_default(self.guard_bytes, default.guard_bytes),
            buffer_bytes: or_default(self.buffer_bytes, default.buffer_bytes),
            pin: match self.do_not_pin {
                0 => true,
                1 => false,
                other => return refuse("do_not_pin", other, "0 or 1"),
            },
            policy: match self.policy {
                0 => Policy::FewestFetches,
                1 => Policy::RoundRobin,
                other => return refuse("policy", other, "0 (fewest fetches) or 1 (round robin)"),
            },
            wait: match self.wait {
                0 => WaitMode::Yield,
                1 => WaitMode::Block,
                2 => WaitMode::Busy,
                other => return refuse("wait", other, "0 (yield), 1 (block) or 2 (busy)"),
            },
            replies: default.replies,
            breakdown: default.breakdown,
            poll: Duration::from_nanos(self.poll),
            slice: if self.slice == 0 { default.slice } else { Duration::from_nanos(self.slice) },
            panics: default.panics,
            guard_libc: match self.do_not_guard_libc {
                0 => true,
                1 => false,
                other => return refuse("do_not_guard_libc", other, "0 or 1"),
            },
        })
    }
}

/// See the header.
///
/// # Safety
/// `config` is null or points to a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_start(config: *const CConfig) -> c_int {
    // SAFETY: the caller's duty.
    let config = unsafe { config.as_ref() }.map_or_else(|| Ok(Config::default()), CConfig::config);
    let mut runtime = runtime();
    if runtime.is_some() {
        return -libc::EBUSY;
    }
    match config.and_then(Runtime::start) {
        Ok(started) => {
            *runtime = Some(started);
            0
        }
        Err(error) => told(&error),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_uthread_shutdown(time: u64) -> c_int {
    if worker::this().is_some() {
        return -libc::EDEADLK;
    }
    let Some(runtime) = runtime().take() else { return -libc::ESHUTDOWN };
    let ended = if time == 0 { runtime.shutdown() } else { runtime.shutdown_within(Duration::from_nanos(time)) };
    match ended {
        Ok(()) => 0,
        Err(Error::Forked) => -libc::ESHUTDOWN,
        Err(_) => -libc::ETIME,
    }
}

/// See the header.
///
/// # Safety
/// `function` may be called with `argument` on another thread; `thread` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_spawn(
    thread: *mut *mut c_void,
    function: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let argument = Sent(argument);
    // SAFETY: the caller's duty.
    let work = move || Sent(unsafe { function(argument.into_inner()) });
    let spawned = match worker::inside() {
        Some(_) => api::spawn(work),
        None => match running() {
            Some(handle) => handle.spawn(work),
            None => return -libc::ESHUTDOWN,
        },
    };
    match spawned {
        Err(SpawnError::Full(_)) => -libc::EAGAIN,
        Err(_) => -libc::ESHUTDOWN,
        Ok(handle) if thread.is_null() => {
            drop(handle);
            0
        }
        Ok(handle) => {
            let handle = Box::into_raw(Box::new(handle));
            // SAFETY: the caller's duty.
            unsafe { thread.write(handle.cast()) };
            0
        }
    }
}

/// The handle that `spawn` gave.
///
/// # Safety
/// `thread` came from there and was not used up.
unsafe fn handle(thread: *mut c_void) -> JoinHandle<Sent> {
    // SAFETY: the caller's duty.
    *unsafe { Box::from_raw(thread.cast::<JoinHandle<Sent>>()) }
}

/// See the header.
///
/// # Safety
/// `thread` came from `farshore_uthread_spawn` and was not used up; `result` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_join(thread: *mut c_void, result: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's duty.
    let handle = unsafe { handle(thread) };
    if !handle.can_end() {
        return -libc::ESHUTDOWN;
    }
    match handle.join() {
        Ok(value) => {
            if !result.is_null() {
                // SAFETY: the caller's duty.
                unsafe { result.write(value.into_inner()) };
            }
            0
        }
        // A panic of Rust code that the function called.
        Err(_) => -libc::EIO,
    }
}

/// See the header.
///
/// # Safety
/// `thread` came from `farshore_uthread_spawn` and was not used up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_detach(thread: *mut c_void) {
    // SAFETY: the caller's duty.
    drop(unsafe { handle(thread) });
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_uthread_yield() {
    api::yield_now();
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_uthread_sleep(time: u64) -> c_int {
    api::sleep(Duration::from_nanos(time)).map_or(-libc::ECANCELED, |()| 0)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_uthread_checkpoint() {
    api::checkpoint();
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_uthread_stopping() -> c_int {
    c_int::from(api::stopping())
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_uthread_worker() -> c_int {
    api::worker_index().map_or(-1, |number| number as c_int)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_uthread_hold() {
    core::mem::forget(hold::hold());
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_uthread_release() {
    hold::release();
}

/// See the header.
///
/// # Safety
/// `function` may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_as_before(function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the caller's duty.
    api::as_before(|| unsafe { function(argument) });
}

/// See the header.
///
/// # Safety
/// `into` has `bytes` bytes that may be written, and `fd` stays open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_read(fd: c_int, into: *mut c_void, bytes: usize, offset: i64) -> i64 {
    if fd < 0 {
        return -i64::from(libc::EBADF);
    }
    // SAFETY: the caller's duty.
    let into = unsafe { core::slice::from_raw_parts_mut(into.cast::<u8>(), bytes) };
    // SAFETY: the caller's duty.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    answer(io::read(fd, into, offset as u64))
}

/// See the header.
///
/// # Safety
/// `from` has `bytes` bytes, and `fd` stays open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_write(fd: c_int, from: *const c_void, bytes: usize, offset: i64) -> i64 {
    if fd < 0 {
        return -i64::from(libc::EBADF);
    }
    // SAFETY: the caller's duty.
    let from = unsafe { core::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    // SAFETY: the caller's duty.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    answer(io::write(fd, from, offset as u64))
}

fn answer(done: std::io::Result<usize>) -> i64 {
    match done {
        Ok(bytes) => bytes as i64,
        Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EOPNOTSUPP)),
    }
}
