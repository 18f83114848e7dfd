//! Requests over the fake memory and the real kernel: every call of the fake's takes away each page that is not pinned.

use super::super::buffers::fake::Fake;
use super::super::buffers::{Memory, PAGE, errno};
use super::super::calls::dispatch;
use super::{TABLE, before_change, mapped};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard};

/// Requests are in one table for the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const BUDGET: u64 = 64 << 10;

fn call(fake: &Fake, nr: u64, args: &[u64]) -> i64 {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    dispatch(fake, nr, &all).expect("a call of this part of the net")
}

fn is_empty() -> bool {
    TABLE.with(|table| table.holds.is_empty())
}

/// A ring, made through the net.
struct Ring {
    _closed: OwnedFd,
    fd: u64,
    queues: u64,
    entries: u64,
    params: [u32; 30],
    pending: u32,
}

impl Ring {
    fn make(fake: &Fake, entries: u64, flags: u32) -> Option<Ring> {
        let at = fake.base();
        fake.put(at, &[0; 120]);
        fake.put(at + 8, &flags.to_ne_bytes());
        let fd = call(fake, 425, &[entries, at]);
        if fd == errno(libc::ENOSYS) || fd == errno(libc::EPERM) {
            println!("skipped: there is no io_uring here");
            return None;
        }
        assert!(fd >= 0, "{fd}");
        let bytes = fake.get(at, 120);
        let params: Vec<u32> = bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().expect("four"))).collect();
        let map = |offset: i64, len: usize| {
            // SAFETY: a new mapping.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), len, 3, libc::MAP_SHARED, fd as i32, offset) };
            assert_ne!(at, libc::MAP_FAILED);
            mapped(fake, fd as u64, offset as u64, at as u64, len as u64);
            at as u64
        };
        let params: [u32; 30] = params.try_into().expect("thirty words");
        let len = (params[25] + params[1] * 16).max(params[16] + params[0] * 4) as usize;
        // SAFETY: it was just made.
        let _closed = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Some(Ring {
            _closed,
            fd: fd as u64,
            queues: map(0, len),
            entries: map(0x1000_0000, params[0] as usize * 64),
            params,
            pending: 0,
        })
    }

    fn word(&self, at: u32) -> *mut u32 {
        (self.queues + u64::from(at)) as *mut u32
    }

    fn push(&mut self, fake: &Fake, words: [u64; 8]) {
        // SAFETY: the ring's own memory, which the kernel reads when it is entered.
        let tail = unsafe { self.word(self.params[11]).read_volatile() };
        let place = tail & (self.params[0] - 1);
        fake.put_words(self.entries + u64::from(place) * 64, &words);
        fake.put(self.queues + u64::from(self.params[16] + place * 4), &place.to_ne_bytes());
        // SAFETY: as above.
        unsafe { self.word(self.params[11]).write_volatile(tail + 1) };
        self.pending += 1;
    }

    fn enter(&mut self, fake: &Fake, wait: u64) -> i64 {
        let answer = call(fake, 426, &[self.fd, u64::from(self.pending), wait, u64::from(wait > 0), 0, 0]);
        self.pending -= u32::try_from(answer).unwrap_or(0);
        answer
    }

    /// The next completion: name and result.
    fn take(&self) -> Option<(u64, i32)> {
        // SAFETY: the ring's own memory.
        let [head, tail] = [20, 21].map(|index| unsafe { self.word(self.params[index]).read_volatile() });
        if head == tail {
            return None;
        }
        let at = self.queues + u64::from(self.params[25]) + u64::from(head & (self.params[1] - 1)) * 16;
        // SAFETY: as above.
        let [name, result] = unsafe { (at as *const [u64; 2]).read_volatile() };
        // SAFETY: as above.
        unsafe { self.word(self.params[20]).write_volatile(head + 1) };
        Some((name, result as i32))
    }
}

fn entry(code: u64, fd: i32, addr: u64, len: u64, offset: u64, name: u64) -> [u64; 8] {
    [code | u64::from(fd as u32) << 32, offset, addr, len, name, 0, 0, 0]
}

/// A pipe: what is read from, what is written to, and the number of the first.
fn pipe() -> (io::PipeReader, io::PipeWriter, i32) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let fd = reader.as_raw_fd();
    (reader, writer, fd)
}

fn write(to: &mut io::PipeWriter, bytes: &[u8]) {
    to.write_all(bytes).expect("room in a pipe");
}

const READ: u64 = 22;

#[test]
fn the_memory_of_a_request_stays_until_it_has_completed() {
    let _alone = alone();
    let fake = Fake::new(16, BUDGET);
    let Some(mut ring) = Ring::make(&fake, 8, 0) else { return };
    let (mut one, mut two) = (pipe(), pipe());
    let to = fake.base() + 3 * PAGE;
    // The same name twice.
    ring.push(&fake, entry(READ, one.2, to + 100, 5, u64::MAX, 7));
    ring.push(&fake, entry(READ, two.2, to + PAGE, 5, u64::MAX, 7));
    assert_eq!(ring.enter(&fake, 0), 2);
    // Calls that have to do with something else take away what is not pinned.
    (0..5).for_each(|_| _ = call(&fake, 39, &[]));
    write(&mut one.1, b"first");
    assert_eq!(ring.enter(&fake, 1), 0);
    assert_eq!(ring.take(), Some((7, 5)));
    assert!(!is_empty(), "one of the two is in flight");
    write(&mut two.1, b"again");
    assert_eq!(ring.enter(&fake, 1), 0);
    assert_eq!(ring.take(), Some((7, 5)));
    assert!(is_empty());
    assert_eq!((fake.get(to + 100, 5), fake.get(to + PAGE, 5)), (b"first".to_vec(), b"again".to_vec()));
}

#[test]
fn what_cannot_be_made_safe_is_refused_in_its_completion() {
    let _alone = alone();
    let own = pipe();
    let fake = Fake::new(16, BUDGET).with_own(vec![own.2]);
    let Some(mut ring) = Ring::make(&fake, 8, 0) else { return };
    // URING_CMD, MADVISE, one of the future.
    for words in [entry(46, 0, 0, 0, 0, 1), entry(25, 0, 0, 0, 0, 2), entry(120, 0, 0, 0, 0, 3)] {
        ring.push(&fake, words);
        assert_eq!(ring.enter(&fake, 1), 1);
        assert_eq!(ring.take(), Some((words[4], -libc::EINVAL)));
        let tail = ring.params[0] - 1;
        let shown = (0..=u64::from(tail)).any(|n| fake.get(ring.entries + n * 64, 1)[0] == words[0] as u8);
        assert!(shown, "the program's entry is as it was");
    }
    // Farshore's own descriptor is not open: for a reader, and for who would close it.
    for words in [entry(READ, own.2, fake.base(), 5, 0, 5), entry(19, own.2, 0, 0, 0, 6)] {
        ring.push(&fake, words);
        assert_eq!(ring.enter(&fake, 1), 1);
        assert_eq!(ring.take(), Some((words[4], -libc::EBADF)));
    }
    assert!(is_empty());
}

#[test]
fn a_ring_is_made_as_an_older_kernel_would() {
    let _alone = alone();
    let fake = Fake::new(16, BUDGET);
    let at = fake.base();
    for (flags, answer) in [(1 << 1, libc::EPERM), (1 << 14, libc::EINVAL), (1 << 17, libc::EINVAL)] {
        fake.put(at, &[0; 120]);
        fake.put(at + 8, &(flags as u32).to_ne_bytes());
        assert_eq!(call(&fake, 425, &[8, at]), errno(answer), "{flags:#x}");
    }
    let Some(ring) = Ring::make(&fake, 8, 0) else { return };
    assert_eq!(ring.params[5] & super::super::asynchronous::ring::HIDDEN_FEATURES, 0);
    // Of a probe, and of what is refused.
    let probe = fake.base() + PAGE;
    fake.put(probe, &[0; 16 + 8 * 64]);
    assert_eq!(call(&fake, 427, &[ring.fd, 8, probe, 64]), 0);
    let supported = |code: u64| fake.get(probe + 16 + code * 8 + 2, 1)[0] & 1 == 1;
    assert!(supported(READ) && !supported(46) && !supported(25));
    for operation in [20, 22, 34] {
        assert_eq!(call(&fake, 427, &[ring.fd, operation, probe, 1]), errno(libc::EINVAL));
    }
    // Not a ring, and one that nobody here has made.
    assert_eq!(call(&fake, 426, &[0, 1, 0, 0, 0, 0]), errno(libc::EOPNOTSUPP));
    // SAFETY: a ring of its own: the kernel writes to words of ours.
    let other = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, [0u32; 30].as_mut_ptr()) };
    // SAFETY: it was just made.
    let closed = unsafe { OwnedFd::from_raw_fd(other as i32) };
    assert_eq!(call(&fake, 426, &[other as u64, 1, 0, 0, 0, 0]), errno(libc::EOPNOTSUPP));
    assert_eq!(call(&fake, 427, &[other as u64, 8, probe, 64]), errno(libc::EOPNOTSUPP));
    drop(closed);
}

#[test]
fn a_ring_whose_completions_cannot_be_counted_keeps() {
    let _alone = alone();
    let fake = Fake::new(16, BUDGET);
    let Some(mut ring) = Ring::make(&fake, 4, 0) else { return };
    let (one, two) = (pipe(), pipe());
    let to = fake.base() + 3 * PAGE;
    ring.push(&fake, entry(READ, one.2, to, 5, u64::MAX, 7));
    assert_eq!(ring.enter(&fake, 0), 1);
    // A poll that goes on and on.
    let mut poll = entry(6, two.2, 0, 1, 0, 8);
    poll[3] |= 1 << 32;
    ring.push(&fake, poll);
    assert_eq!(ring.enter(&fake, 0), 1);
    assert_eq!(fake.kept(), [(to, PAGE)], "what was in flight");
    assert!(is_empty());
    ring.push(&fake, entry(READ, one.2, to + PAGE, 5, u64::MAX, 9));
    assert_eq!(ring.enter(&fake, 0), 1);
    assert_eq!(fake.kept(), [(to, PAGE), (to + PAGE, 5)], "and what comes after");
}

#[test]
fn buffers_that_are_provided_are_handed_over() {
    let _alone = alone();
    let fake = Fake::new(16, BUDGET);
    let Some(mut ring) = Ring::make(&fake, 4, 0) else { return };
    let to = fake.base() + 3 * PAGE;
    ring.push(&fake, entry(31, 2, to, PAGE, 0, 7));
    assert_eq!(ring.enter(&fake, 1), 1);
    assert_eq!((ring.take(), fake.kept()), (Some((7, 0)), vec![(to, 2 * PAGE)]));
}

#[test]
fn what_has_no_room_does_a_part() {
    let _alone = alone();
    // Four pages may be pinned, and four handed over.
    let fake = Fake::new(64, 4 * PAGE);
    let Some(mut ring) = Ring::make(&fake, 4, 0) else { return };
    let to = fake.base() + 8 * PAGE;
    let file = std::fs::File::open("/proc/self/exe").expect("our own program");
    ring.push(&fake, entry(READ, file.as_raw_fd(), to, 32 * PAGE, 0, 7));
    assert_eq!(ring.enter(&fake, 1), 1);
    assert_eq!(ring.take(), Some((7, 2 * PAGE as i32)));
    let bytes = std::fs::read("/proc/self/exe").expect("our own program");
    assert_eq!(fake.get(to, 2 * PAGE), bytes[..2 * PAGE as usize]);
    assert_eq!(fake.get(ring.entries + 24, 4), (32 * PAGE as u32).to_ne_bytes(), "the program's entry is as it was");
    assert!(is_empty());
}

#[test]
fn memory_in_flight_is_handed_over_before_it_changes() {
    let _alone = alone();
    let fake = Fake::new(16, BUDGET);
    let Some(mut ring) = Ring::make(&fake, 4, 0) else { return };
    let one = pipe();
    let to = fake.base() + 3 * PAGE;
    ring.push(&fake, entry(READ, one.2, to, 5000, u64::MAX, 7));
    assert_eq!(ring.enter(&fake, 0), 1);
    before_change(&fake, fake.base(), 16 * PAGE, true);
    assert_eq!(fake.kept(), [(to, 2 * PAGE)]);
    // The queues go: nothing can be known any more.
    before_change(&fake, ring.queues, PAGE, false);
    assert_eq!(fake.kept(), [(to, 2 * PAGE), (to, 2 * PAGE)]);
    assert!(is_empty());
}

#[test]
fn contexts_keep_the_memory_of_their_requests() {
    let _alone = alone();
    let fake = Fake::new(40, BUDGET);
    let at = fake.base();
    fake.put_words(at, &[0]);
    assert_eq!(call(&fake, 206, &[8, at]), 0);
    let id = u64::from_ne_bytes(fake.get(at, 8).try_into().expect("eight"));
    let mut one = pipe();
    // A poll of a pipe is in flight, and a read of a file has completed.
    let file = std::fs::File::open("/proc/self/exe").expect("our own program");
    let fd = file.as_raw_fd();
    let control = at + PAGE;
    fake.put_words(control, &[1, 0, 5 | u64::from(one.2 as u32) << 32, 1, 0, 0, 0, 0]);
    fake.put_words(control + 64, &[2, 0, u64::from(fd as u32) << 32, at + 5 * PAGE, 4 * PAGE, 0, 0, 0]);
    fake.put_words(at + 2 * PAGE, &[control, control + 64]);
    assert_eq!(call(&fake, 209, &[id, 2, at + 2 * PAGE]), 2);
    assert_eq!(call(&fake, 208, &[id, 1, 8, at + 20 * PAGE, 0]), 1);
    assert!(is_empty());
    let bytes = std::fs::read("/proc/self/exe").expect("our own program");
    assert_eq!(fake.get(at + 5 * PAGE, 4 * PAGE), bytes[..4 * PAGE as usize]);
    assert_eq!(call(&fake, 209, &[0, 1, at + 2 * PAGE]), errno(libc::EINVAL));
    write(&mut one.1, b"x");
    assert_eq!(call(&fake, 208, &[id, 1, 8, at + 20 * PAGE, 0]), 1);
    assert_eq!(call(&fake, 207, &[id]), 0);
    assert!(is_empty() && fake.frames() > 0);
}

#[test]
fn what_was_handed_over_counts_until_it_is_unmapped() {
    let mut holds = super::holds::Holds::new();
    holds.note_kept(10..20);
    holds.note_kept(15..25);
    holds.note_kept(40..50);
    assert_eq!(holds.kept_pages(), 25);
    holds.forget_kept(12..14);
    assert_eq!(holds.kept_pages(), 23);
    holds.forget_kept(0..45);
    assert_eq!(holds.kept_pages(), 5);
    holds.forget_kept(45..100);
    assert_eq!(holds.kept_pages(), 0);
}
