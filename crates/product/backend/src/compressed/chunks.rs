//! Memory of the pool: chunks of many sizes.
//!
//! The pool is one mapping, reserved and not committed, in *spans* of 64 KiB. A span holds chunks of one size, a multiple of 64
//! bytes. A span that becomes empty can hold chunks of any size again.
//!
//! # Waste
//!
//! A chunk is on average 32 bytes larger than its contents (1.6 % of a page that was compressed to half). The end of a span that
//! no chunk fits into is on average half a chunk (1.6 %). Free chunks in spans that are partly in use go to the next pages of
//! that size. The rest is won back by emptying the sparsest spans ([`Chunks::sparse`]); when no more memory may be used, larger
//! chunks serve too. [`Chunks::touched`] and [`Chunks::held`] tell how much is wasted in all.
//!
//! # What is counted
//!
//! A page of memory is counted from its first write until its span is empty and goes back. The chunks of a span are used from the
//! lowest on, so taking a chunk makes the count one page larger at most. That lets the pool be held to a limit, batch by batch.
//!
//! Not shared between threads: the pool that uses it has a lock.

use crate::reserved::Reserved;
use core::ops::{Index, IndexMut};
use farshore_core::limits::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

/// The unit of places and of sizes, in bytes.
pub const UNIT: usize = 64;
/// Bytes of a span.
pub const SPAN: usize = 64 << 10;
const SPAN_UNITS: usize = SPAN / UNIT;
/// Sizes of chunks: `UNIT`, two of them, and so on up to a page.
const SIZES: usize = PAGE_SIZE / UNIT;
/// Empty spans whose memory is kept for the next pages, since giving it to the kernel and fetching it again costs two system
/// calls and 16 faults.
const KEPT_EMPTY: usize = 4;
/// Sizes whose chunks are moved: all but the largest, which holds pages uncompressed.
const MOVED_SIZES: usize = SIZES - 1;
/// Spans of one size that are looked at for a sparse one.
const LOOKED_AT: usize = 16;
/// No span: spans are numbered from 1.
const NONE: u32 = 0;

/// One span. All zeros, as a span is mapped, are an empty span.
#[derive(Debug)]
#[repr(C)]
struct Span {
    /// Bit set: the chunk is free.
    free: [u64; SPAN_UNITS / 64],
    /// Chunks in use.
    used: u16,
    /// Units of each chunk; 0: the span is empty and of no size.
    units: u8,
    /// How many of its pages have memory: the first ones.
    touched: u8,
    /// Neighbours in the list of spans of this size that have room; `next` also in the list of empty spans without
    /// memory.
    previous: u32,
    next: u32,
}

impl Span {
    fn chunks(units: u8) -> usize {
        SPAN_UNITS / usize::from(units)
    }

    fn is_full(&self) -> bool {
        usize::from(self.used) == Span::chunks(self.units)
    }

    /// Free chunks whose memory was touched already.
    fn free_and_touched(&self) -> usize {
        let touched = usize::from(self.touched) * PAGE_SIZE / (usize::from(self.units) * UNIT);
        touched.min(Span::chunks(self.units)).saturating_sub(usize::from(self.used))
    }
}

/// All spans, by number; reserved as the pool itself is, since a pool may be as large as the machine's RAM.
#[derive(Debug)]
struct Spans {
    memory: Reserved,
    count: u32,
}

impl Index<u32> for Spans {
    type Output = Span;

    fn index(&self, number: u32) -> &Span {
        // SAFETY: within the mapping, whose zeros are a valid span, and which is read and written through `self` alone.
        unsafe { &*self.memory.nth::<Span>(number as usize - 1) }
    }
}

impl IndexMut<u32> for Spans {
    fn index_mut(&mut self, number: u32) -> &mut Span {
        // SAFETY: as above.
        unsafe { &mut *self.memory.nth::<Span>(number as usize - 1) }
    }
}

/// Which chunks are in use.
#[derive(Debug)]
pub struct Chunks {
    base: *mut u8,
    spans: Spans,
    /// By size less one: the first span in the list of those that have room.
    roomy: [u32; SIZES],
    /// Empty spans whose memory was kept.
    kept: Vec<u32>,
    /// The first of the empty spans that had memory and gave it back.
    empty: u32,
    /// How many spans were ever used: those numbered up to this.
    ever: u32,
    /// Units of chunks in use.
    held: u64,
    /// Pages that have memory.
    touched: u64,
    /// The size that was last looked at for a sparse span.
    turn: usize,
}

// SAFETY: the mapping belongs to the pool; nothing here depends on the thread.
unsafe impl Send for Chunks {}

impl Chunks {
    /// All chunks of a mapping of `bytes` bytes, whole spans, at `base`. Reserves all memory that is ever needed.
    ///
    /// # Errors
    /// When the address space cannot be reserved.
    ///
    /// # Panics
    /// When the length is not a multiple of [`SPAN`], or is 0.
    pub fn new(base: *mut u8, bytes: usize) -> Result<Chunks, Errno> {
        assert!(bytes > 0 && bytes.is_multiple_of(SPAN), "{bytes} bytes are no spans");
        let count = u32::try_from(bytes / SPAN).map_err(|_| Errno::NOMEM)?;
        let memory = Reserved::new(u64::from(count) * size_of::<Span>() as u64)?;
        Ok(Chunks {
            base,
            spans: Spans { memory, count },
            roomy: [NONE; SIZES],
            kept: Vec::with_capacity(KEPT_EMPTY),
            empty: NONE,
            ever: 0,
            held: 0,
            touched: 0,
            turn: 0,
        })
    }

    /// Bytes of memory for the bookkeeping itself.
    pub fn mapped_bytes(&self) -> u64 {
        u64::from(self.ever) * size_of::<Span>() as u64
    }

    /// Bytes that have memory.
    pub fn touched(&self) -> u64 {
        self.touched * PAGE_SIZE as u64
    }

    /// Bytes of chunks in use.
    pub fn held(&self) -> u64 {
        self.held * UNIT as u64
    }

    /// Goes through the sizes in turn. Finds the span with the fewest chunks in use among the first few that have room, if other
    /// spans of its size have room for all of them, and puts its chunks in use in `into`. The caller should move them with
    /// [`Chunks::take_beside`] and [`Chunks::give`], until the span is empty and goes back.
    pub fn sparse(&mut self, into: &mut Vec<u64>) -> Option<u32> {
        for _ in 0..MOVED_SIZES {
            self.turn = (self.turn + 1) % MOVED_SIZES;
            let (mut at, mut free, mut sparsest) = (self.roomy[self.turn], 0, None::<(u32, u16)>);
            for _ in 0..LOOKED_AT {
                if at == NONE {
                    break;
                }
                let it = &self.spans[at];
                free += it.free_and_touched();
                if sparsest.is_none_or(|(_, used)| it.used < used) {
                    sparsest = Some((at, it.used));
                }
                at = it.next;
            }
            let Some((span, used)) = sparsest else { continue };
            let it = &self.spans[span];
            if free - it.free_and_touched() < usize::from(used) {
                continue;
            }
            into.clear();
            let units = usize::from(it.units);
            let first = (span as usize - 1) * SPAN_UNITS;
            let is_used = |chunk: &usize| it.free[chunk / 64] & 1 << (chunk % 64) == 0;
            into.extend((0..Span::chunks(it.units)).filter(is_used).map(|chunk| (first + chunk * units) as u64));
            return Some(span);
        }
        None
    }

    /// A chunk of the same size as those of `span`, in another span, without more memory.
    pub fn take_beside(&mut self, span: u32) -> Option<u64> {
        let mut at = self.roomy[usize::from(self.spans[span].units) - 1];
        for _ in 0..LOOKED_AT {
            if at == NONE {
                break;
            }
            if at != span
                && let Some(chunk) = self.take_from(at, false)
            {
                return Some(chunk);
            }
            at = self.spans[at].next;
        }
        None
    }

    /// Takes a chunk for `len` bytes, 1 to 4096, and returns its place in units. With it no more than `allowed` bytes are
    /// touched, or no more than before. `None`: there is no room.
    pub fn take(&mut self, len: usize, allowed: u64) -> Option<u64> {
        debug_assert!((1..=PAGE_SIZE).contains(&len));
        let units = len.div_ceil(UNIT);
        let may_grow = self.touched() + PAGE_SIZE as u64 <= allowed;
        if self.roomy[units - 1] == NONE
            && let Some(span) = self.kept.pop().or_else(|| if may_grow { self.pop_empty() } else { None })
        {
            self.begin(span, units as u8);
        }
        // A larger chunk is better than none.
        (units..=SIZES).find_map(|units| match self.roomy[units - 1] {
            NONE => None,
            span => self.take_from(span, may_grow),
        })
    }

    /// Takes the lowest free chunk of a span that has one, unless that needs more memory and may not have it.
    fn take_from(&mut self, span: u32, may_grow: bool) -> Option<u64> {
        let it = &mut self.spans[span];
        let word = it.free.iter().position(|&word| word != 0)?;
        let bit = it.free[word].trailing_zeros() as usize;
        let units = usize::from(it.units);
        let at = (word * 64 + bit) * units;
        let pages = ((at + units) * UNIT).div_ceil(PAGE_SIZE) as u8;
        let more = pages.saturating_sub(it.touched);
        if more > 0 && !may_grow {
            return None;
        }
        it.touched += more;
        it.free[word] &= it.free[word] - 1;
        it.used += 1;
        if it.is_full() {
            self.unlist(span);
        }
        self.touched += u64::from(more);
        self.held += units as u64;
        Some(((span as usize - 1) * SPAN_UNITS + at) as u64)
    }

    /// Frees the chunk at `at`.
    ///
    /// The span's memory goes back if the span is empty, and either more than `allowed` bytes are touched or some empty spans are
    /// kept already.
    ///
    /// # Panics
    /// When no chunk at `at` is in use.
    pub fn give(&mut self, at: u64, allowed: u64) {
        let (span, within) = ((at / SPAN_UNITS as u64) as u32 + 1, at as usize % SPAN_UNITS);
        let it = &mut self.spans[span];
        let units = usize::from(it.units);
        assert!(units > 0 && within.is_multiple_of(units), "{at} is no chunk");
        let (word, bit) = (within / units / 64, within / units % 64);
        assert!(it.free[word] & 1 << bit == 0, "{at} was freed twice");
        let was_full = it.is_full();
        it.free[word] |= 1 << bit;
        it.used -= 1;
        self.held -= units as u64;
        if it.used == 0 {
            if !was_full {
                self.unlist(span);
            }
            self.end(span, allowed);
        } else if was_full {
            self.list(span);
        }
    }

    /// Gives an empty span a size.
    fn begin(&mut self, span: u32, units: u8) {
        let it = &mut self.spans[span];
        let chunks = Span::chunks(units);
        for (word, bits) in it.free.iter_mut().enumerate() {
            *bits = match chunks.saturating_sub(word * 64) {
                0 => 0,
                some @ 1..64 => (1 << some) - 1,
                _ => u64::MAX,
            };
        }
        it.units = units;
        self.list(span);
    }

    /// A span is empty.
    fn end(&mut self, span: u32, allowed: u64) {
        self.spans[span].units = 0;
        if self.touched() > allowed {
            while let Some(kept) = self.kept.pop() {
                self.give_back(kept);
            }
        } else if self.kept.len() < KEPT_EMPTY {
            return self.kept.push(span);
        }
        self.give_back(span);
    }

    /// Gives the memory of an empty span back to the kernel.
    fn give_back(&mut self, span: u32) {
        // SAFETY: the span lies in the mapping.
        let start = unsafe { self.base.add((span as usize - 1) * SPAN) };
        // SAFETY: no thread reads an empty span, and private anonymous memory comes back as zeros. An error would leave the
        // memory committed, and do nothing else.
        let _ = unsafe { madvise(start.cast(), SPAN, Advice::LinuxDontNeed) };
        self.touched -= u64::from(core::mem::take(&mut self.spans[span].touched));
        self.spans[span].next = core::mem::replace(&mut self.empty, span);
    }

    /// Takes an empty span without memory, one that had memory before if there is one.
    fn pop_empty(&mut self) -> Option<u32> {
        match self.empty {
            NONE if self.ever == self.spans.count => None,
            NONE => {
                self.ever += 1;
                Some(self.ever)
            }
            span => {
                self.empty = self.spans[span].next;
                Some(span)
            }
        }
    }

    fn list(&mut self, span: u32) {
        let head = &mut self.roomy[usize::from(self.spans[span].units) - 1];
        let next = core::mem::replace(head, span);
        self.spans[span].previous = NONE;
        self.spans[span].next = next;
        if next != NONE {
            self.spans[next].previous = span;
        }
    }

    fn unlist(&mut self, span: u32) {
        let Span { previous, next, units, .. } = self.spans[span];
        match previous {
            NONE => self.roomy[usize::from(units) - 1] = next,
            before => self.spans[before].next = next,
        }
        if next != NONE {
            self.spans[next].previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserved::Reserved;
    use proptest::prelude::*;

    fn chunks(spans: usize) -> (Reserved, Chunks) {
        let memory = Reserved::new((spans * SPAN) as u64).expect("address space");
        let chunks = Chunks::new(memory.base(), spans * SPAN).expect("address space");
        (memory, chunks)
    }

    const ANY: u64 = u64::MAX;

    #[test]
    fn a_span_holds_what_fits_and_no_more() {
        for len in [1_usize, 64, 65, 2048, 2049, 4095, 4096] {
            let (_memory, mut chunks) = chunks(2);
            let size = len.next_multiple_of(UNIT);
            let fit = SPAN / size;
            let places: Vec<u64> = (0..2 * fit).map(|_| chunks.take(len, ANY).expect("room")).collect();
            let touched = 2 * (fit * size).next_multiple_of(PAGE_SIZE) as u64;
            assert_eq!((chunks.take(len, ANY), chunks.touched()), (None, touched), "{len}");
            places.iter().for_each(|&at| chunks.give(at, ANY));
            assert_eq!((chunks.held(), chunks.touched()), (0, touched), "{len}: both are kept");
        }
    }

    #[test]
    fn without_an_empty_span_a_larger_chunk_serves() {
        let (_memory, mut chunks) = chunks(1);
        let large = chunks.take(4096, ANY).expect("room");
        let small = chunks.take(1, ANY).expect("room in the span of large ones");
        assert_eq!(chunks.held(), 8192);
        chunks.give(large, ANY);
        chunks.give(small, ANY);
        assert_eq!(chunks.held(), 0);
    }

    #[test]
    fn memory_of_empty_spans_goes_back() {
        let (_memory, mut chunks) = chunks(KEPT_EMPTY + 3);
        let fill = |chunks: &mut Chunks| -> Vec<u64> {
            (0..(KEPT_EMPTY + 3) * 16).map(|_| chunks.take(4096, ANY).expect("room")).collect()
        };
        let places = fill(&mut chunks);
        assert_eq!(chunks.touched(), ((KEPT_EMPTY + 3) * SPAN) as u64);
        places.iter().for_each(|&at| chunks.give(at, ANY));
        assert_eq!(chunks.touched(), (KEPT_EMPTY * SPAN) as u64);
        // Less is allowed by now: no empty span is kept.
        let places = fill(&mut chunks);
        places.iter().for_each(|&at| chunks.give(at, SPAN as u64));
        assert_eq!(chunks.touched(), SPAN as u64);
    }

    #[test]
    fn no_more_is_touched_than_allowed() {
        let (_memory, mut chunks) = chunks(4);
        let allowed = 10 * PAGE_SIZE as u64;
        let mut places = Vec::new();
        while let Some(at) = chunks.take(1500, allowed) {
            places.push(at);
            assert!(chunks.touched() <= allowed);
        }
        assert!(chunks.touched() == allowed && places.len() == 26, "{} places", places.len());
        // Chunks that are free already may be taken whatever is allowed.
        chunks.give(places[3], 0);
        assert_eq!((chunks.take(1500, 0), chunks.take(1500, 0)), (Some(places[3]), None));
    }

    proptest! {
        #[test]
        fn chunks_do_not_overlap(
            ops in prop::collection::vec((any::<bool>(), 1usize..=4096, any::<prop::sample::Index>()), 1..400),
            allowed in 1u64..=48,
        ) {
            let (_memory, mut chunks) = chunks(3);
            let allowed = allowed * PAGE_SIZE as u64;
            let mut taken: Vec<(u64, usize)> = Vec::new();
            for (take, len, which) in ops {
                if take || taken.is_empty() {
                    let Some(at) = chunks.take(len, allowed) else { continue };
                    let end = at as usize * UNIT + len;
                    prop_assert!(end <= 3 * SPAN && at as usize * UNIT / SPAN == (end - 1) / SPAN);
                    for &(other, size) in &taken {
                        let (start, stop) = (other as usize * UNIT, other as usize * UNIT + size);
                        prop_assert!(end <= start || stop <= at as usize * UNIT, "{at} and {other}");
                    }
                    taken.push((at, len));
                } else {
                    let (at, _) = taken.swap_remove(which.index(taken.len()));
                    chunks.give(at, allowed);
                }
                prop_assert!(chunks.held() <= chunks.touched() && chunks.touched() <= allowed);
            }
            prop_assert!(taken.iter().map(|&(_, len)| len as u64).sum::<u64>() <= chunks.held());
            for (at, _) in taken { chunks.give(at, allowed); }
            prop_assert_eq!(chunks.held(), 0);
        }
    }
}
