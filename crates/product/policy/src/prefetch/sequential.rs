//! Streams: faults that go on where the last fetch in their granule ended (ExtMem §3.4), up or down.
//!
//! A stream's first fetch brings one page, and each fetch that goes on with the stream brings twice as many as the one before, up
//! to [`WINDOW_MAX`]. Once a fetch brings [`AHEAD_FROM`], the pages behind it are asked for as well, so that they are read while
//! the program works on this window. From then on the stream's faults meet markers only (`farshore_core::seams`, prefetch):
//!
//! ```text
//!  asked for at the last marker            asked for at this one
//!  M ├──────── on its way ────────┤ M' ├──────── window ─────────┤
//!  └ the fault that is here: reads one page
//! ```
//!
//! Where the program has said that it goes through memory in order (`MADV_SEQUENTIAL`), a stream begins with the largest window.
//!
//! Streams are kept in the granule and not in the thread. So streams of several threads do not disturb each other, and merges of
//! several inputs, handlers of the poll mode, and pins of large buffers are all the same case. There are two in each granule, so
//! that two threads can go through it.

use core::cmp::Ordering::{Equal, Greater, Less};
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{GranuleId, Page};
use farshore_core::seams::{AHEAD_MAX, Ahead, Fetch, PIECE_MAX, Prefetcher};

/// Pages between the end of the last fetch and a fault that still goes on with it: pages that were resident …
const GAP: i32 = 16;
/// … or that the program has left out. Reading those as well is the better way as long as they are few.
const LEFT_OUT: i32 = 4;
/// The largest window, in pages, including the one that faults.
const WINDOW_MAX: i32 = PIECE_MAX as i32;
/// The most pages that are asked for at a time.
const ASKED_MAX: i32 = AHEAD_MAX as i32;
/// From this window on, pages are asked for ahead.
const AHEAD_FROM: i32 = 16;
/// How far a stream that began in one granule reaches into the next: its own window, a marker, the pages asked for, another
/// marker.
const REACH: i32 = WINDOW_MAX + ASKED_MAX + 2 * (GAP + 1);

const PAGES: i32 = GRANULE_PAGES as i32;

/// See the head of the module.
#[derive(Debug)]
pub struct Sequential;

/// What a granule remembers of a stream. Numbers of pages count from the granule's first, and may lie in its neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Stream {
    /// The last page that a fault has brought.
    last: i32,
    /// The page whose fault is due, beyond `last`.
    marker: i32,
    /// Pages behind the marker that were asked for.
    ahead: i32,
    /// Up: 1, down: -1; 0: the stream has just begun and may go either way.
    way: i32,
    /// The window, in pages; 0: there is no stream.
    window: i32,
    /// Pages that are proved to be used when the stream goes on.
    along: u32,
}

const PLACE_BIAS: i32 = 1 << 11;
const ALONG_MAX: u32 = 255;

impl Stream {
    fn load(place: &AtomicU64) -> Stream {
        // Relaxed: a hint, which any other thread may have written.
        let bits = place.load(Ordering::Relaxed);
        let field = |shift: u32, width: u32| (bits >> shift & ((1 << width) - 1)) as i32;
        Stream {
            last: field(0, 12) - PLACE_BIAS,
            marker: field(12, 12) - PLACE_BIAS,
            ahead: field(24, 8),
            way: field(32, 2) - 1,
            window: field(34, 8),
            along: field(42, 8) as u32,
        }
    }

    fn store(self, place: &AtomicU64) {
        let field = |value: i32, shift: u32| (value as u64) << shift;
        let places = field(self.last + PLACE_BIAS, 0) | field(self.marker + PLACE_BIAS, 12);
        let rest = field(self.ahead, 24) | field(self.way + 1, 32) | field(self.window, 34) | u64::from(self.along) << 42;
        place.store(places | rest, Ordering::Relaxed);
    }

    /// Which way the stream goes on with page `index`, if it does. Pages in front of the marker may not have come, so it is the
    /// program that meets them.
    fn goes_on_at(self, index: i32) -> Option<i32> {
        let goes = |way: i32| {
            let reach = if self.way == 0 { 1 } else { way * (self.marker - self.last) + self.ahead };
            (self.way == way || self.way == 0) && (1..=reach + GAP).contains(&(way * (index - self.last)))
        };
        [1, -1].into_iter().find(|&way| self.window > 0 && goes(way))
    }

    /// Whether `index` is the stream's marker, and the pages behind it are on their way.
    fn is_marker(self, index: i32) -> bool {
        self.ahead > 0 && index == self.marker
    }

    /// The stream as seen from a granule that lies `pages` further up.
    fn seen_from(self, pages: i32) -> Stream {
        Stream { last: self.last - pages, marker: self.marker - pages, ..self }
    }

    /// Asks for a window behind a marker, which is the next page that would have to be read; asks for nothing if no such page is
    /// near. The window has twice as many pages as `before`, at least a window.
    fn ask(&mut self, fetch: &dyn Fetch, before: i32) -> Option<Ahead> {
        let base = fetch.page().granule().range().start;
        let page = |index: i32| Some(Page(base.0.checked_add_signed(index.into())?));
        let is_out = |index: &i32| page(*index).is_some_and(|page| fetch.is_out(page));
        self.marker = (0..=GAP).map(|n| self.marker + self.way * n).find(is_out)?;
        self.ahead = (2 * before).clamp(self.window, ASKED_MAX);
        Some(Ahead { first: page(self.marker + self.way)?, step: self.way, pages: self.ahead as u32 })
    }
}

/// The stream that a fetch goes on with.
struct Found {
    /// Which note of the granule belongs to the stream from now on.
    which: usize,
    /// The stream as it was, seen from this granule; a window of 0: no stream goes on.
    stream: Stream,
    way: i32,
}

impl Found {
    fn of(fetch: &dyn Fetch, notes: &[AtomicU64; 2]) -> Found {
        let index = fetch.page().index_in_granule() as i32;
        for (which, stream) in notes.iter().map(Stream::load).enumerate() {
            if let Some(way) = stream.goes_on_at(index) {
                return Found { which, stream, way };
            }
        }
        let which = make_room(notes, index);
        // The stream comes from a neighbouring granule into this one.
        let id = fetch.page().granule().0;
        let below = (index < REACH).then(|| (id.wrapping_sub(1), PAGES, 1));
        let above = (index >= PAGES - REACH).then(|| (id + 1, -PAGES, -1));
        for (id, distance, way) in below.into_iter().chain(above) {
            let Some(notes) = fetch.notes(GranuleId(id)) else { continue };
            let mut streams = notes.iter().map(|note| Stream::load(note).seen_from(distance));
            if let Some(stream) = streams.find(|stream| stream.goes_on_at(index) == Some(way)) {
                return Found { which, stream, way };
            }
        }
        Found { which, stream: Stream::default(), way: 0 }
    }

    /// No stream goes on if the program has left out more than a few pages in front of this one.
    fn unless_it_jumps(self, fetch: &dyn Fetch, index: i32) -> Found {
        let before = Page(fetch.page().0.wrapping_add_signed(-i64::from(self.way)));
        let jumps = self.stream.window > 0 && self.way * (index - self.stream.last) > LEFT_OUT && fetch.is_out(before);
        if jumps { Found { stream: Stream::default(), way: 0, ..self } } else { self }
    }
}

impl Prefetcher for Sequential {
    fn fetch(&self, fetch: &dyn Fetch) -> Option<Ahead> {
        let notes = fetch.notes(fetch.page().granule())?;
        let index = fetch.page().index_in_granule() as i32;
        let Found { which, stream, way } = Found::of(fetch, notes).unless_it_jumps(fetch, index);
        let (way, window) = match stream.window {
            // A stream that the program has told of need not prove itself.
            0 if fetch.is_sequential() => (1, WINDOW_MAX),
            before => (way, (2 * before).clamp(1, WINDOW_MAX)),
        };
        let is_marker = stream.is_marker(index);
        let along = fetch.take(if is_marker { 0 } else { way * (window - 1) });
        let last = index + way * along as i32;
        if stream.ahead > 0 && way * (stream.marker - last) > 0 {
            // The pages that were asked for did not come, or not all of them. The next request waits for the marker.
            Stream { last, ..stream }.store(&notes[which]);
            return None;
        }
        if stream.window > 0 {
            fetch.count_used(stream.along);
        }
        let behind = if is_marker { stream.ahead } else { 0 };
        let mut now = Stream {
            last,
            marker: last + way * (1 + behind),
            ahead: 0,
            way,
            window,
            along: (along + behind as u32).min(ALONG_MAX),
        };
        if window >= AHEAD_FROM {
            fetch.in_stream();
        }
        let ahead = if window >= AHEAD_FROM { now.ask(fetch, stream.ahead) } else { None };
        now.store(&notes[which]);
        ahead
    }
}

/// Which note of a granule makes room for a new stream that begins at `index`: the one with the smaller window, or either. The
/// other one's window is halved, so that a stream that has ended makes room in the end; a stream that goes on doubles its window
/// again.
fn make_room(notes: &[AtomicU64; 2], index: i32) -> usize {
    let [a, b] = notes.each_ref().map(Stream::load);
    let which = match a.window.cmp(&b.window) {
        Less => 0,
        Greater => 1,
        Equal => (index.count_ones() % 2) as usize,
    };
    let other = [b, a][which];
    Stream { window: other.window - other.window / 2, ..other }.store(&notes[1 - which]);
    which
}
