//! Reads and writes in flight. All that is unsafe in measuring a device is here.
//!
//! # Protocol
//!
//! ```text
//! start(buffer) ─▶ the ring owns the buffer ─▶ wait() gives it back with what became of the request
//! ```
//!
//! 1. A request's buffer belongs to the ring from `start` on until its completion has been reaped; nobody else can touch it.
//! 2. Dropping the ring waits for what is in flight. Should waiting fail, the buffers are leaked rather than freed under the kernel's hands.
//! 3. The file outlives the ring, as its lifetime says: it is closed after the last completion.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

/// Bytes of a page, to which O_DIRECT wants addresses, offsets and lengths aligned.
pub(super) const PAGE: usize = 4096;

/// A page of a buffer.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE]);

const _: () = assert!(size_of::<Page>() == PAGE && align_of::<Page>() == PAGE);

/// Memory of a request.
pub(super) type Buffer = Vec<Page>;

/// The first byte of a file's page.
fn offset_of(page: u64) -> u64 {
    page * PAGE as u64
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
}

/// A request in flight.
#[derive(Debug)]
struct Request {
    kind: Kind,
    page: u64,
    buffer: Buffer,
    begun: Instant,
}

/// A request that has ended well.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) kind: Kind,
    /// Its first page in the file.
    pub(super) page: u64,
    /// What was read, or has been written.
    pub(super) buffer: Buffer,
    /// From `start` to when it was found complete.
    pub(super) took: Duration,
}

/// Requests to one file.
#[derive(Debug)]
pub(super) struct Ring<'file> {
    uring: Uring,
    file: &'file File,
    /// By the number that goes with the request; `None` is free.
    requests: Vec<Option<Request>>,
}

impl<'file> Ring<'file> {
    /// A ring for up to `depth` requests at a time.
    pub(super) fn new(file: &'file File, depth: u32) -> io::Result<Ring<'file>> {
        let uring = Uring(IoUring::new(depth)?);
        Ok(Ring { uring, file, requests: (0..depth).map(|_| None).collect() })
    }

    /// How many requests are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.requests.iter().flatten().count()
    }

    /// Puts a request for the pages from `page` on into the ring, as many as `buffer` has. It reaches the kernel at the next `wait`.
    ///
    /// # Panics
    /// If `depth` requests are in flight.
    pub(super) fn start(&mut self, kind: Kind, page: u64, buffer: Buffer) -> io::Result<()> {
        let free = self.requests.iter().position(Option::is_none).expect("no more than depth requests");
        let request = self.requests[free].insert(Request { kind, page, buffer, begun: Instant::now() });
        let (start, bytes) = (request.buffer.as_mut_ptr().cast::<u8>(), (request.buffer.len() * PAGE) as u32);
        let file = types::Fd(self.file.as_raw_fd());
        let entry = match kind {
            Kind::Read => opcode::Read::new(file, start, bytes).offset(offset_of(page)).build(),
            Kind::Write => opcode::Write::new(file, start, bytes).offset(offset_of(page)).build(),
        };
        // SAFETY: the memory must be valid until the request has ended: `buffer` is now in `requests`, which takes it out only for a
        // completion of that number, and whose other changes (`drop`) come after the last completion. Its heap block does not move
        // with the vector, and no reference to it is made meanwhile. `bytes` is its length. The file is open for as long as `'file`.
        let pushed = unsafe { self.uring.0.submission().push(&entry.user_data(free as u64)) };
        pushed.map_err(|_| {
            // The kernel has not seen it.
            self.requests[free] = None;
            io::Error::other("the ring is full")
        })
    }

    /// Waits until at least one request has ended, and takes all that have. With nothing in flight, and when a signal comes, it
    /// returns with none.
    ///
    /// # Errors
    /// The first request that failed, or that reached the end of the file; the others that ended with it are lost.
    pub(super) fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        if self.in_flight() == 0 {
            return Ok(());
        }
        match self.uring.0.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let now = Instant::now();
        let mut failed = None;
        for completion in self.uring.0.completion() {
            let Some(request) = self.requests.get_mut(completion.user_data() as usize).and_then(Option::take) else { continue };
            match outcome(completion.result(), &request) {
                Ok(()) => {
                    let Request { kind, page, buffer, begun } = request;
                    done.push(Done { kind, page, buffer, took: now.duration_since(begun) });
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// What the kernel's answer to a request means.
fn outcome(result: i32, request: &Request) -> io::Result<()> {
    let wanted = request.buffer.len() * PAGE;
    match usize::try_from(result) {
        Ok(bytes) if bytes == wanted => Ok(()),
        Ok(bytes) => Err(io::Error::other(format!("{bytes} of {wanted} bytes went through at page {}", request.page))),
        Err(_) => Err(io::Error::from_raw_os_error(-result)),
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight() > 0 {
            let before = self.in_flight();
            // A request that fails has ended too; only if waiting itself fails is there no progress.
            if self.wait(&mut done).is_err() && self.in_flight() == before {
                std::mem::forget(std::mem::take(&mut self.requests));
            }
        }
    }
}

/// The kernel's ring, which does not print itself.
struct Uring(IoUring);

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "io_uring {}", self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Buffer {
        vec![Page([byte; PAGE])]
    }

    fn all(ring: &mut Ring<'_>) -> io::Result<Vec<Done>> {
        let mut done = Vec::new();
        while ring.in_flight() > 0 {
            ring.wait(&mut done)?;
        }
        Ok(done)
    }

    #[test]
    fn what_was_written_is_read() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        let mut ring = Ring::new(&file, 4)?;
        for number in 0..4 {
            ring.start(Kind::Write, number, page(number as u8 + 1))?;
        }
        assert_eq!(all(&mut ring)?.len(), 4);
        for number in 0..4 {
            ring.start(Kind::Read, number, page(0))?;
        }
        for done in all(&mut ring)? {
            assert_eq!(done.kind, Kind::Read);
            assert!(done.buffer[0].0.iter().all(|byte| u64::from(*byte) == done.page + 1));
        }
        Ok(())
    }

    #[test]
    fn failures_come_back_and_end_the_request() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        let mut ring = Ring::new(&file, 1)?;
        ring.start(Kind::Read, 9, page(0))?;
        assert!(all(&mut ring).is_err_and(|error| error.to_string().contains("0 of 4096 bytes")));
        assert_eq!(ring.in_flight(), 0);
        let read_only = File::open("/proc/self/exe")?;
        let mut ring = Ring::new(&read_only, 1)?;
        ring.start(Kind::Write, 0, page(0))?;
        assert!(all(&mut ring).is_err_and(|error| error.raw_os_error() == Some(9)));
        Ok(())
    }

    #[test]
    fn a_dropped_ring_has_ended_its_requests() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        let mut ring = Ring::new(&file, 8)?;
        for number in 0..8 {
            ring.start(Kind::Write, number, vec![Page([7; PAGE])])?;
        }
        drop(ring);
        assert_eq!(file.metadata()?.len(), 8 * PAGE as u64);
        Ok(())
    }
}
