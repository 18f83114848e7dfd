//! `libfarshore_map.so`: the memory of a virtual machine, in C programs. `farshore_map.h` says what each function does; [`mapped`] does it.

use core::ffi::{c_char, c_int, c_void};
use std::cell::RefCell;
use std::ffi::CString;

use mapped::{Error, Map};

thread_local! {
    static SAID: RefCell<CString> = RefCell::default();
}

/// A region, as C sees it.
#[repr(C)]
#[derive(Debug)]
pub struct Region {
    at: *mut c_void,
    bytes: u64,
    address: u64,
    offset: u64,
}

fn status(done: Result<(), Error>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(why) => {
            let errno = why.errno();
            SAID.set(CString::new(why.to_string()).unwrap_or_default());
            -errno
        }
    }
}

/// The last error of this thread, a line.
#[unsafe(no_mangle)]
pub extern "C" fn farshore_map_error() -> *const c_char {
    SAID.with_borrow(|said| said.as_ptr())
}

/// Maps the memory of a process.
///
/// # Safety
/// `map` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_map_open(process: u32, map: *mut *mut Map) -> c_int {
    status(Map::open(process).map(|it| {
        // SAFETY: the caller's promise.
        unsafe { map.write(Box::into_raw(Box::new(it))) };
    }))
}

/// Unmaps it.
///
/// # Safety
/// It comes from [`farshore_map_open`], and nobody uses it, or the memory, any more. `NULL` is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_map_close(map: *mut Map) {
    if !map.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(map) });
    }
}

/// How many regions it has.
///
/// # Safety
/// It comes from [`farshore_map_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_map_regions(map: *const Map) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*map }.places().len()
}

/// One of them.
///
/// # Safety
/// It comes from [`farshore_map_open`], and `region` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_map_region(map: *const Map, number: usize, region: *mut Region) -> c_int {
    // SAFETY: the caller's promise.
    let places = unsafe { &*map }.places();
    let place = places.get(number).ok_or(Error::Outside);
    status(place.map(|place| {
        let told = Region { at: place.at.cast(), bytes: place.bytes as u64, address: place.address, offset: place.offset };
        // SAFETY: the caller's promise.
        unsafe { region.write(told) };
    }))
}

/// Locks pages.
///
/// # Safety
/// It comes from [`farshore_map_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_lock(map: *const Map, at: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { &*map }.lock(at.cast(), bytes))
}

/// Takes a lock of each of them back.
///
/// # Safety
/// It comes from [`farshore_map_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_unlock(map: *const Map, at: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { &*map }.unlock(at.cast(), bytes))
}

/// Pages that are locked.
///
/// # Safety
/// It comes from [`farshore_map_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_map_locked(map: *const Map) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { &*map }.locked()
}
