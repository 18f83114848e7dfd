//! A clean page leaves without a write: its slot has its bytes. The window between finding it clean and unmapping it, in which the program may write.
//!
//! With write-protection faults it is closed: the kernel does not let a write pass until the page's owner has taken the protection away, and the evictor is the owner.
//! With asynchronous write-protection (`UFFD_FEATURE_WP_ASYNC`, and `PAGEMAP_SCAN` to ask what was written) the kernel lets the write pass by itself, so it stays open, also
//! if the scan protects in the same call: the models find the lost write. That is why Farshore does not use it
//! (`docs/src/decisions/0016-writes-are-noticed-by-a-fault.md`).
#![cfg(loom)]

use farshore_core::page::Access;
use farshore_core::word::{AtomicWord, BeginEvict, BeginFault, Claim, Release, State, Word};
use farshore_models::explore;
use farshore_models::kernel::slot;
use loom::sync::{Arc, Mutex};
use loom::thread;

const OLD: u32 = 1;
const NEW: u32 = 2;
const HOME: u64 = 3;
const OTHER: u64 = 4;

/// Who lifts the protection of a page that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tracking {
    /// The page's owner, in a fault.
    Faults,
    /// The kernel; an evictor asks what was written, and then unmaps.
    Scan,
    /// The kernel; an evictor asks and protects again in one call, and then unmaps.
    ScanAndProtect,
}

/// What the kernel has of the page. Each access to it is one step of the kernel's.
struct Mapping {
    mapped: bool,
    protected: bool,
    bytes: u32,
}

struct Page {
    tracking: Tracking,
    word: AtomicWord,
    kernel: Mutex<Mapping>,
    /// Bytes of the slots [`HOME`] and [`OTHER`].
    slots: Mutex<[u32; 2]>,
}

impl Page {
    /// Fetched and not written since.
    fn clean(tracking: Tracking) -> Page {
        let word = AtomicWord::new(Word::UNTOUCHED);
        assert!(matches!(word.claim(), Claim::Owned { .. }));
        let _ = word.release(Release::Clean { slot: slot(HOME), chances: 0 });
        let kernel = Mapping { mapped: true, protected: true, bytes: OLD };
        Page { tracking, word, kernel: Mutex::new(kernel), slots: Mutex::new([OLD, 0]) }
    }

    /// One attempt to write; otherwise whether the page is there, and protected.
    fn write(&self) -> Result<(), bool> {
        let mut kernel = self.kernel.lock().unwrap();
        if kernel.mapped && (!kernel.protected || self.tracking != Tracking::Faults) {
            kernel.protected = false;
            kernel.bytes = NEW;
            return Ok(());
        }
        Err(kernel.mapped)
    }

    /// A thread of the program writes.
    fn writer(&self) {
        loop {
            let Err(protected) = self.write() else { return };
            match self.word.begin_fault(Access::Write, protected) {
                BeginFault::Owned { was } => {
                    let mut kernel = self.kernel.lock().unwrap();
                    if was.state() == State::Out {
                        kernel.bytes = self.slots.lock().unwrap()[(was.slot().unwrap().number() - HOME) as usize];
                        kernel.mapped = true;
                    }
                    kernel.protected = false;
                    drop(kernel);
                    let _ = self.word.release(Release::Dirty { chances: 0, guessed: false, protected: false });
                }
                BeginFault::Wait => thread::yield_now(),
                BeginFault::Satisfied => {}
                BeginFault::Foreign => unreachable!(),
            }
        }
    }

    /// Whether the evictor, who owns the page, may take it for unwritten.
    fn is_clean(&self, was: Word) -> bool {
        match self.tracking {
            Tracking::Faults => was.slot().is_some(),
            Tracking::Scan => self.kernel.lock().unwrap().protected,
            Tracking::ScanAndProtect => {
                let mut kernel = self.kernel.lock().unwrap();
                core::mem::replace(&mut kernel.protected, true)
            }
        }
    }

    /// An evictor takes it out.
    fn evictor(&self) {
        let BeginEvict::Owned { was } = self.word.begin_evict(false) else { return };
        let to = if self.is_clean(was) {
            HOME
        } else {
            // Written: protected, copied and written to another slot.
            let mut kernel = self.kernel.lock().unwrap();
            kernel.protected = true;
            let bytes = kernel.bytes;
            drop(kernel);
            self.slots.lock().unwrap()[(OTHER - HOME) as usize] = bytes;
            OTHER
        };
        thread::yield_now();
        self.kernel.lock().unwrap().mapped = false;
        let _ = self.word.release(Release::Out { slot: slot(to) });
    }

    /// What the program finds there in the end.
    fn content(&self) -> u32 {
        let word = self.word.load();
        match word.state() {
            State::Resident => self.kernel.lock().unwrap().bytes,
            State::Out => self.slots.lock().unwrap()[(word.slot().unwrap().number() - HOME) as usize],
            state => unreachable!("{state:?}"),
        }
    }
}

/// All interleavings of a write and an eviction.
fn write_and_evict(tracking: Tracking) {
    explore(4, move || {
        let page = Arc::new(Page::clean(tracking));
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.writer())
        };
        page.evictor();
        writer.join().unwrap();
        assert_eq!(page.content(), NEW, "a write was lost");
    });
}

#[test]
fn with_faults_no_write_is_lost() {
    write_and_evict(Tracking::Faults);
}

#[test]
#[should_panic(expected = "a write was lost")]
fn a_scan_loses_one() {
    write_and_evict(Tracking::Scan);
}

#[test]
#[should_panic(expected = "a write was lost")]
fn so_does_a_scan_that_protects() {
    // The page counts as written in the word too when the kernel has let a write pass: the copy is made of protected bytes, which stay writable.
    write_and_evict(Tracking::ScanAndProtect);
}
