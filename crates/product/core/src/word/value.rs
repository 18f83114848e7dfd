//! One value of a page word: which bits mean what. The table is at the head of [`word`](super).

use crate::limits::{FILE_PAGE_BITS, MAPPED_FILES};
use crate::page::Access;

pub(super) const STATE: u64 = 0x7;
pub(super) const WAITERS: u64 = 1 << 3;
pub(super) const RESCUED: u64 = 1 << 4;
pub(super) const WRITTEN: u64 = 1 << 5;
pub(super) const GUESSED: u64 = 1 << 6;
pub(super) const PROTECTED: u64 = 1 << 7;
const PINS_SHIFT: u32 = 8;
pub(super) const PIN_ONE: u64 = 1 << PINS_SHIFT;
pub(super) const PINS: u64 = 0xffff << PINS_SHIFT;
pub(super) const PLACE_SHIFT: u32 = 24;
/// Where a `Busy` word keeps the state that its owner found, and a `Resident` one its chances. Places are below 2^37 (see
/// `limits`).
pub(super) const TOP_SHIFT: u32 = 61;
pub(super) const TOP: u64 = 0x7 << TOP_SHIFT;
/// The most chances that a page can have.
pub const CHANCES_MAX: u8 = 7;

/// State of a page. The numbers are the bits of the word; `Untouched` is 0 so that
/// fresh zeroed memory is a table of untouched pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Managed, never touched or discarded: reads as zeros.
    Untouched = 0,
    /// Not managed, in a granule that holds managed pages too: memory that is not ours, or a guard in ours.
    Foreign = 1,
    /// One thread owns the page.
    Busy = 2,
    /// Mapped.
    Resident = 3,
    /// Unmapped, bytes still in RAM (in a stage), perhaps being written.
    Leaving = 4,
    /// Unmapped, bytes in swap space only.
    Out = 5,
}

/// A place in swap space, or a page of a file that the program has mapped ([`FilePage`]). Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(core::num::NonZeroU64);

impl Slot {
    /// The slot with this number; `None` for 0, which means "no slot".
    pub const fn new(number: u64) -> Option<Slot> {
        match core::num::NonZeroU64::new(number) {
            Some(n) => Some(Slot(n)),
            None => None,
        }
    }
    /// The slot's number: byte offset in the swap space / 4096.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0.get()
    }
    /// The slot `n` further on in the same extent.
    #[inline]
    pub const fn plus(self, n: u64) -> Slot {
        Slot(self.0.saturating_add(n))
    }
    /// The page of a mapped file that the slot stands for; `None`: it is a place in swap space.
    #[inline]
    pub const fn of_file(self) -> Option<FilePage> {
        if self.0.get() & FILE == 0 {
            return None;
        }
        Some(FilePage {
            file: (self.0.get() >> FILE_PAGE_BITS) as usize % MAPPED_FILES,
            page: self.0.get() & ((1 << FILE_PAGE_BITS) - 1),
        })
    }
    /// Whether the slot stands for a page of a mapped file: it is never written, and was never given out.
    #[inline]
    pub const fn is_of_file(self) -> bool {
        self.0.get() & FILE != 0
    }
}

/// Set in the numbers of slots that stand for pages of mapped files, which swap space does not reach (see `limits`).
const FILE: u64 = 1 << (FILE_PAGE_BITS + MAPPED_FILES.ilog2());

/// A page of a file that the program has mapped. Pages side by side in a file are slots side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePage {
    /// Which of the mapped files, below [`MAPPED_FILES`].
    pub file: usize,
    /// Pages from the file's beginning, below 2^[`FILE_PAGE_BITS`].
    pub page: u64,
}

impl FilePage {
    /// The slot that stands for it; `None`: the page lies too far from the file's beginning.
    pub const fn slot(self) -> Option<Slot> {
        if self.file >= MAPPED_FILES || self.page >> FILE_PAGE_BITS != 0 {
            return None;
        }
        Slot::new(FILE | (self.file as u64) << FILE_PAGE_BITS | self.page)
    }
}

/// What a page was when its engine ended ([`Word::left`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It had no bytes.
    Fresh,
    /// It was mapped.
    Mapped,
    /// Its bytes were in a stage.
    Staged(Stage),
    /// Its bytes were in a slot alone.
    Stored(Slot),
    /// Its owner was unmapping it, and had copied its bytes to a stage.
    Leaves(Stage),
}

/// A page-sized piece of an evictor's staging memory, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stage(pub u32);

/// One value of a page word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub(super) u64);

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.state())?;
        if self.place() != 0 || self.state() == State::Leaving {
            write!(f, "@{}", self.place())?;
        }
        for (bit, name) in [
            (WAITERS, "+waiters"),
            (RESCUED, "+rescued"),
            (WRITTEN, "+written"),
            (GUESSED, "+guessed"),
            (PROTECTED, "+protected"),
        ] {
            if self.0 & bit != 0 {
                f.write_str(name)?;
            }
        }
        if self.pins() != 0 {
            write!(f, "+{}pins", self.pins())?;
        }
        Ok(())
    }
}

impl Word {
    /// The word of a managed page that no thread has touched.
    pub const UNTOUCHED: Word = Word(State::Untouched as u64);
    /// The word of a page that is not ours.
    pub const FOREIGN: Word = Word(State::Foreign as u64);

    /// The word of a page that a thread owns and whose bytes are in a stage: for whoever takes over from an engine that has ended.
    pub const fn held_in_stage(stage: Stage) -> Word {
        Word(State::Busy as u64 | (stage.0 as u64) << PLACE_SHIFT | (State::Leaving as u64) << TOP_SHIFT)
    }

    /// The page's state.
    #[inline]
    pub fn state(self) -> State {
        match self.0 & STATE {
            0 => State::Untouched,
            1 => State::Foreign,
            2 => State::Busy,
            3 => State::Resident,
            4 => State::Leaving,
            5 => State::Out,
            // Only `word` and its modules write words, and only with the six values above.
            _ => unreachable!("page word {:#x} has no such state", self.0),
        }
    }
    #[inline]
    pub(super) fn place(self) -> u64 {
        (self.0 & !TOP) >> PLACE_SHIFT
    }
    /// Whether the kernel lets a resident page be accessed like this.
    #[inline(always)]
    pub(super) fn may_be_accessed(self, access: Access) -> bool {
        access == Access::Read || (Slot::new(self.place()).is_none() && !self.protected())
    }
    /// The slot that holds the page's bytes: for an `Out` page always, for a `Resident` one when it is clean.
    #[inline]
    pub fn slot(self) -> Option<Slot> {
        match self.state() {
            State::Resident | State::Out => Slot::new(self.place()),
            _ => None,
        }
    }
    /// The stage that holds a `Leaving` page's bytes.
    #[inline]
    pub fn stage(self) -> Option<Stage> {
        (self.state() == State::Leaving).then_some(Stage(self.place() as u32))
    }
    /// Whether the stage's slot holds the bytes of a `Leaving` page.
    #[inline]
    pub fn written(self) -> bool {
        self.0 & WRITTEN != 0
    }
    /// What the page was when the engine ended whose word this is, and whether a thread owned it then: it was so when the thread took it. `None`: no engine leaves such a word.
    pub fn left(self) -> Option<(Left, bool)> {
        let (held, state) = match self.0 & STATE {
            state if state == State::Busy as u64 => (true, self.0 >> TOP_SHIFT),
            state => (false, state),
        };
        let stage = || u32::try_from(self.place()).ok().map(Stage);
        let left = match state {
            state if state == State::Untouched as u64 || state == State::Foreign as u64 => Left::Fresh,
            state if state == State::Resident as u64 => Left::Mapped,
            state if state == State::Leaving as u64 => Left::Staged(stage()?),
            state if state == State::Out as u64 => Left::Stored(Slot::new(self.place())?),
            state if state == State::Busy as u64 => Left::Leaves(stage()?),
            _ => return None,
        };
        Some((left, held))
    }
    /// How often evictors still pass a resident page over.
    #[inline]
    pub fn chances(self) -> u8 {
        if self.0 & STATE == State::Resident as u64 { (self.0 >> TOP_SHIFT) as u8 } else { 0 }
    }
    /// Whether the page came from a stage since its bytes were in a slot only.
    #[inline]
    pub fn rescued(self) -> bool {
        self.0 & RESCUED != 0
    }
    /// Whether a read fault mapped the page writable because its neighbours were all written.
    #[inline]
    pub fn guessed(self) -> bool {
        self.0 & GUESSED != 0
    }
    /// Whether the kernel's page may be write-protected although it is dirty.
    #[inline]
    pub fn protected(self) -> bool {
        self.0 & PROTECTED != 0
    }
    /// Number of system calls that use the page.
    #[inline]
    pub fn pins(self) -> u32 {
        ((self.0 & PINS) >> PINS_SHIFT) as u32
    }
    /// The word of the same page once a thread owns it.
    #[inline]
    pub(super) fn in_hands(self) -> Word {
        Word(self.0 & !(STATE | TOP) | State::Busy as u64 | (self.state() as u64) << TOP_SHIFT)
    }
    /// Whether a thread owns the page and found its bytes in `stage`.
    #[inline]
    pub(super) fn held_in(self, stage: Stage) -> bool {
        self.state() == State::Busy && self.0 >> TOP_SHIFT == State::Leaving as u64 && self.place() == u64::from(stage.0)
    }
    #[inline]
    pub(super) fn with(self, state: State, place: u64, flags: u64) -> Word {
        Word((self.0 & PINS) | state as u64 | flags | (place << PLACE_SHIFT))
    }
}
