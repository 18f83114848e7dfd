//! The process' side: it asks for the memory, maps it, and locks pages of it.

use core::fmt;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use farshore_core::limits::PAGE_SIZE;
use farshore_sys::raw::Errno;
use farshore_sys::uffd::{Features, Uffd, UffdOptions};
use farshore_sys::vm::{self, advice, map, prot};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::table::{State, Table};
use crate::wire::{self, Came};

const PAGE: u64 = PAGE_SIZE as u64;
/// Faults of shared memory, and write protection of it.
const SHARED: Features = Features(1 << 5 | 1 << 12);

/// Why something cannot be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// There is no manager of this process' memory, or it refuses. What it says.
    Refused(String),
    /// The memory cannot be mapped here.
    NotMapped(String),
    /// The bytes do not lie in one region of the memory.
    Outside,
    /// More pages would be locked than this process may lock at a time.
    TooMany,
    /// A page is locked as often as can be counted.
    TooOften,
    /// The manager honours this process' locks no more, as it has locked more than it may, or a part of the memory was taken away. Close the map; what a device has found before may be lost.
    CutOff,
    /// A page cannot be had: its bytes are lost, or there is no memory for it.
    Page(Errno),
    /// This is a forked child of the process that has opened the map.
    Forked,
}

impl Error {
    /// The errno of C.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Refused(_) | Error::NotMapped(_) => 111,
            Error::Outside => 22,
            Error::TooMany => 105,
            Error::TooOften => 11,
            Error::CutOff => 104,
            Error::Page(errno) => errno.0,
            Error::Forked => 108,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(why) | Error::NotMapped(why) => f.write_str(why),
            Error::Outside => f.write_str("the bytes do not lie in one region of the memory"),
            Error::TooMany => {
                f.write_str("too many pages would be locked at a time: unlock some, or raise the limit of the memory")
            }
            Error::TooOften => f.write_str("a page is locked 255 times: unlock it"),
            Error::CutOff => f.write_str("the manager has cut this process off: close the map, and open it anew"),
            Error::Page(errno) => write!(f, "a page of the memory cannot be had ({errno})"),
            Error::Forked => f.write_str("this process is a forked child of the one that has opened the map"),
        }
    }
}

impl core::error::Error for Error {}

/// A region of the memory, as it is mapped here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its first byte here.
    pub at: *mut u8,
    /// Its size.
    pub bytes: usize,
    /// Its address in the virtual machine's monitor: what vhost-user calls the user address.
    pub address: u64,
    /// Its first byte's place in its file.
    pub offset: u64,
}

/// The memory of a virtual machine, mapped here.
#[derive(Debug)]
pub struct Map {
    places: Vec<Place>,
    table: Table,
    /// Open until the memory is unmapped: with its last descriptor, pages that are out would be zeros.
    _uffd: Uffd,
    /// Its end tells the manager that this process has no locks any more.
    _socket: OwnedFd,
    process: u32,
}

// SAFETY: the places are addresses alone, and the table is reached through atomics.
unsafe impl Send for Map {}
// SAFETY: as for Send.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the memory that a process has handed over to a manager: that of a virtual machine's monitor, of the same user, or of any user if this process is root's.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::NotMapped`], with a line that says what to do.
    pub fn open(process: u32) -> Result<Map, Error> {
        let refused = |why: String| Error::Refused(format!("the memory of process {process}: {why}"));
        let user = std::fs::metadata(format!("/proc/{process}"))
            .map_err(|error| refused(format!("there is no such process ({error})")))?
            .uid();
        let socket = connect(user, process).map_err(refused)?;
        let failed = |errno: rustix::io::Errno| refused(format!("its manager cannot be asked ({errno})"));
        // One that refuses may have closed the connection already: its answer says why.
        match wire::send(socket.as_fd(), &[], &[]) {
            Ok(()) | Err(rustix::io::Errno::PIPE) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let (numbers, descriptors) = answer(&socket).map_err(refused)?;
        let mut descriptors = descriptors.into_iter();
        let table = descriptors.next().ok_or_else(|| refused("its manager has sent no table".into()))?;
        let table = Table::open(table).map_err(|errno| refused(format!("its manager's table cannot be mapped ({errno})")))?;
        let uffd = userfaultfd().map_err(Error::NotMapped)?;
        let mut map = Map { places: Vec::new(), table, _uffd: uffd, _socket: socket, process: std::process::id() };
        for region in numbers.as_chunks::<4>().0 {
            let [address, bytes, offset, file] = *region;
            let wrong = |why: &dyn fmt::Display| {
                Error::NotMapped(format!("{bytes} bytes of the memory of process {process} cannot be mapped ({why})"))
            };
            let file =
                usize::try_from(file).ok().and_then(|file| descriptors.as_slice().get(file)).ok_or_else(|| wrong(&"no file"))?;
            // SAFETY: new memory, at a place that the kernel chooses.
            let at =
                unsafe { vm::mmap(0, bytes, prot::READ | prot::WRITE, map::SHARED | map::NORESERVE, file.as_raw_fd(), offset) };
            let at = at.map_err(|errno| wrong(&errno))?;
            map.places.push(Place {
                at: core::ptr::with_exposed_provenance_mut(at as usize),
                bytes: bytes as usize,
                address,
                offset,
            });
            // SAFETY: the memory that was just mapped. In a child, which has no userfaultfd of its own for it, pages that are out would be zeros.
            unsafe { vm::madvise(at, bytes, advice::DONTFORK) }.map_err(|errno| wrong(&errno))?;
        }
        if map.pages() > map.table.pages() {
            return Err(refused("its manager's table is too small".into()));
        }
        let mapped: Vec<u64> = map.places.iter().map(|place| place.at.addr() as u64).collect();
        wire::send(map._socket.as_fd(), &mapped, &[map._uffd.fd().as_fd()]).map_err(failed)?;
        answer(&map._socket).map_err(refused)?;
        Ok(map)
    }

    fn pages(&self) -> usize {
        self.places.iter().map(|place| place.bytes / PAGE_SIZE).sum()
    }

    /// The regions, as the manager has told them.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The pages that have bytes from `at` on: their number in the table, how many they are, and the address of the first.
    fn pages_of(&self, at: *const u8, bytes: usize) -> Result<(usize, usize, u64), Error> {
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        let mut first = 0;
        for place in &self.places {
            let inside = at.addr().checked_sub(place.at.addr()).filter(|from| *from < place.bytes);
            if let Some(from) = inside {
                if bytes == 0 || bytes > place.bytes - from {
                    break;
                }
                let (start, end) = (from / PAGE_SIZE, (from + bytes).div_ceil(PAGE_SIZE));
                return Ok((first + start, end - start, (place.at.addr() + start * PAGE_SIZE) as u64));
            }
            first += place.bytes / PAGE_SIZE;
        }
        Err(Error::Outside)
    }

    /// Locks the pages that have `bytes` bytes from `at` on: they come, and none of them leaves until each lock of it was taken back. Waits for those that are out.
    ///
    /// # Errors
    /// Then none of them is locked once more than before.
    pub fn lock(&self, at: *const u8, bytes: usize) -> Result<(), Error> {
        let (first, pages, start) = self.pages_of(at, bytes)?;
        let is_served = || matches!(self.table.state(), State::Served | State::Free);
        if !is_served() {
            return Err(Error::CutOff);
        }
        if !self.table.take(pages as u64) {
            return Err(Error::TooMany);
        }
        let locks = self.table.locks();
        if locks.lock(first, pages).is_err() {
            self.table.give(pages as u64);
            return Err(Error::TooOften);
        }
        let done = match touch(start, pages as u64 * PAGE) {
            Err(errno) => Err(Error::Page(errno)),
            // Only now: a process that is cut off later hears of it when it locks the next time.
            Ok(()) if is_served() => Ok(()),
            Ok(()) => Err(Error::CutOff),
        };
        done.inspect_err(|_| {
            locks.unlock(first, pages);
            self.table.give(pages as u64);
        })
    }

    /// Takes one lock of each of these pages back. Nothing uses them for this process any more.
    ///
    /// # Errors
    /// [`Error::Outside`]: also if one of them is not locked.
    pub fn unlock(&self, at: *const u8, bytes: usize) -> Result<(), Error> {
        let (first, pages, _) = self.pages_of(at, bytes)?;
        let locks = self.table.locks();
        if !locks.are_locked(first, pages) {
            return Err(Error::Outside);
        }
        locks.unlock(first, pages);
        self.table.give(pages as u64);
        Ok(())
    }

    /// Pages that this process has locked, each counted once.
    pub fn locked(&self) -> u64 {
        self.table.locks().count()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // A child has none of it; what is there by now is its own.
        if self.process != std::process::id() {
            return;
        }
        for place in &self.places {
            // Before the userfaultfd is closed.
            // SAFETY: the mapping is ours, and whoever uses it has borrowed `self`, or has promised C's header to be done.
            let _ = unsafe { vm::munmap(place.at.addr() as u64, place.bytes as u64) };
        }
    }
}

/// Touches whole pages, for writing, without a change: they are there and writable then, or were before they were touched.
fn touch(start: u64, bytes: u64) -> Result<(), Errno> {
    loop {
        // SAFETY: no byte changes, and the memory is a mapping of ours.
        match unsafe { vm::madvise(start, bytes, advice::POPULATE_WRITE) } {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            other => return other,
        }
    }
}

/// Connects to the manager of a process' memory, which must be the user's.
fn connect(user: u32, process: u32) -> Result<OwnedFd, String> {
    let none = |errno: rustix::io::Errno| {
        format!(
            "it has no manager that could be asked ({errno}): start it with 'farshore vm run', or have it hand its memory over to 'farshore manage'"
        )
    };
    let address = SocketAddrUnix::new_abstract_name(wire::socket_name(user, process).as_bytes()).map_err(none)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(none)?;
    rustix::net::connect(&socket, &address).map_err(none)?;
    // Anybody may take a name.
    let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(none)?;
    if peer.uid.as_raw() != user {
        return Err(format!("who answers for it belongs to user {}, and not to user {user}", peer.uid.as_raw()));
    }
    Ok(socket)
}

/// What the manager answers.
fn answer(socket: &OwnedFd) -> Result<(Vec<u64>, Vec<OwnedFd>), String> {
    match wire::receive(socket.as_fd()) {
        Ok(Came::Numbers(numbers, descriptors)) => Ok((numbers, descriptors)),
        Ok(Came::Refused(why)) => Err(why),
        Ok(Came::Closed) => Err("its manager has closed the connection".into()),
        Err(errno) => Err(format!("its manager's answer cannot be read ({errno})")),
    }
}

/// One that also serves what the kernel needs for this process.
fn userfaultfd() -> Result<Uffd, String> {
    let options =
        UffdOptions { user_mode_only: false, required: Features::WP.with(SHARED), wanted: Features(0), nonblocking: true };
    Uffd::open(options).map(|(uffd, _)| uffd).map_err(|why| {
        format!(
            "the kernel's accesses to the memory cannot be served here ({}): as root, set 'sysctl vm.unprivileged_userfaultfd=1', \
             or give the user access to /dev/userfaultfd (setfacl -m u:USER:rw /dev/userfaultfd)",
            match why {
                farshore_sys::uffd::OpenError::KernelFaultsNotPermitted => "EPERM".to_owned(),
                why => why.to_string(),
            }
        )
    })
}
