//! Moves pages together, so that the memory between them can be used for chunks of other sizes, or goes back.

use super::{Pool, State};
use crate::compressed::chunks::{SPAN, UNIT};
use core::sync::atomic::Ordering;
use farshore_core::pooled::Place;

/// The most spans that are emptied for one page that has no room.
const SPANS_A_TAKE: usize = 4;
/// Spans that are emptied at a sweep, while more memory than an eighth and [`SPARE_BYTES`] is free between chunks.
const SPANS_A_SWEEP: u64 = 2;
const SPARE_BYTES: u64 = 16 * SPAN as u64;

impl Pool {
    /// Takes a chunk; if there is none, empties spans first. None while more memory is used than may be, if the tier below takes
    /// pages: new pages would fill each hole that old ones leave, and no memory would ever go back.
    pub(super) fn take_chunk(&self, state: &mut State, len: usize) -> Option<u64> {
        let allowed = self.allowed.load(Ordering::Relaxed);
        if self.has_lower && state.chunks.touched() > allowed && !self.lower_fails.load(Ordering::Relaxed) {
            return None;
        }
        state.chunks.take(len, allowed).or_else(|| {
            (0..SPANS_A_TAKE).find_map(|_| if self.empty_sparse(state) { state.chunks.take(len, allowed) } else { None })
        })
    }

    /// Empties the next sparse span, except for pages that are being read. False: there is none.
    fn empty_sparse(&self, state: &mut State) -> bool {
        let mut moving = core::mem::take(&mut state.moving);
        let span = state.chunks.sparse(&mut moving);
        if let Some(span) = span {
            moving.iter().for_each(|&from| self.move_chunk(state, span, from));
        }
        state.moving = moving;
        span.is_some()
    }

    /// Moves a page from a span that is to be emptied to another one.
    fn move_chunk(&self, state: &mut State, span: u32, from: u64) {
        // SAFETY: spans that are emptied have chunks that begin with their owners.
        let place = unsafe { self.memory.base().add(from as usize * UNIT) };
        // SAFETY: as above; it was written when the chunk was filled, under the lock.
        let owner = unsafe { place.cast::<u64>().read() };
        let Some(entry) = self.entry(owner) else { return };
        let Some(Place::Chunk { at, len }) = entry.word.place() else { return };
        debug_assert_eq!(at, from, "slot {owner} has another chunk");
        let Some(to) = state.chunks.take_beside(span) else { return };
        // SAFETY: the chunk is the page's, and no other thread changes it: we have the lock.
        let bytes = unsafe { core::slice::from_raw_parts(self.bytes_at(at, len as usize), len as usize) };
        self.fill(to, owner, bytes);
        let unused = if entry.word.relocate(Place::Chunk { at: to, len }) { from } else { to };
        state.chunks.give(unused, self.allowed.load(Ordering::Relaxed));
    }

    /// Empties some spans if many bytes are free between chunks, or more memory is used than may be.
    pub(super) fn empty_some(&self, state: &mut State) {
        for _ in 0..SPANS_A_SWEEP {
            let (held, touched) = (state.chunks.held(), state.chunks.touched());
            let much = touched >= held + held / 8 + SPARE_BYTES || touched > self.allowed.load(Ordering::Relaxed);
            if !much || !self.empty_sparse(state) {
                break;
            }
        }
    }
}
