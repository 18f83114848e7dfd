//! `csr`: memory of a graph in compressed sparse rows (ExtMem, section 3.4 and 4.3). Vertices and what is computed of them stay; of the edges, which
//! are gone over in their order, a window is in memory: the pages ahead of it come, and those behind it leave.
//!
//! Which pages are which is said by hints ([`crate::places`]), or learned. A **stream** is a place at which faults go up in small steps. Faults that
//! continue none are at random; the chunks of [`CHUNK`] pages that have most of them stay, together a part of the limit, as long as there are
//! streams. Chunks that stay are never read ahead and never sent away.

use std::collections::HashMap;
use std::ops::Range;

use farshore_beside::{Event, Kind};

use super::AHEAD_MOST;
use crate::places::{Hints, Mapping, Use};
use crate::policy::{Parameter, Policy, Seen, page};
use crate::say::Say;

/// Pages that stay, or do not, together: a granule.
const CHUNK: u64 = 512;
/// Streams that are followed at a time.
const STREAMS: usize = 16;
/// A fault this far behind the last one of a stream continues it, before anything is read ahead for it.
const STEP: u64 = 33;
/// Steps after which a stream is believed.
const BELIEVED: u32 = 3;
/// Faults at random in a chunk after which it may stay.
const AT_RANDOM: u32 = 6;
/// Chunks are chosen anew as often.
const CHOICE_NS: u64 = 100_000_000;
/// A stream that has not moved for so long is over.
const OVER_NS: u64 = 2_000_000_000;

/// `ahead` and `behind`: pages of the window. `stay`: percent of the limit that may stay.
pub const PARAMETERS: &[Parameter] = &[("ahead", 256, (1, AHEAD_MOST)), ("behind", 32, (1, AHEAD_MOST)), ("stay", 60, (0, 90))];

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The page that was touched last.
    at: u64,
    /// Pages from here on were not sent away.
    behind: u64,
    /// Pages before this were asked for.
    asked: u64,
    steps: u32,
    moved_ns: u64,
}

/// See the head.
#[derive(Debug, Default)]
pub struct Csr {
    hints: Hints,
    regions: Vec<(Range<u64>, Use)>,
    streams: Vec<Stream>,
    at_random: HashMap<u64, u32>,
    staying: Vec<u64>,
    chosen_ns: u64,
}

impl Csr {
    /// With what hints say; without any it learns.
    pub fn new(hints: Hints) -> Csr {
        Csr { hints, ..Csr::default() }
    }

    fn hint(&self, page: u64) -> Option<Use> {
        // They are by their numbers, and none has a page of another.
        let next = self.regions.partition_point(|(range, _)| range.end <= page);
        self.regions.get(next).filter(|(range, _)| range.contains(&page)).map(|(_, verb)| *verb)
    }

    fn stays(&self, page: u64) -> bool {
        match self.hint(page) {
            Some(verb) => verb == Use::Stay,
            None => self.staying.binary_search(&(page / CHUNK)).is_ok(),
        }
    }

    /// The pages of a range that do not stay.
    fn streamed(&self, range: Range<u64>, mut wish: impl FnMut(u64, u64)) {
        if !self.hints.is_empty() {
            let first = self.regions.partition_point(|(region, _)| region.end <= range.start);
            let touched = self.regions[first..].iter().take_while(|(region, _)| region.start < range.end);
            for (region, _) in touched.filter(|(_, verb)| *verb == Use::Stream) {
                let from = region.start.max(range.start);
                wish(from, region.end.min(range.end) - from);
            }
            return;
        }
        let mut from = range.start;
        while from < range.end {
            let end = ((from / CHUNK + 1) * CHUNK).min(range.end);
            if !self.stays(from) {
                wish(from, end - from);
            }
            from = end;
        }
    }

    /// The stream that a touch of `page` continues, moved there.
    fn follow(&mut self, page: u64, ns: u64) -> Option<Stream> {
        let goes_on = |stream: &Stream| {
            let reach = if stream.steps >= BELIEVED { stream.asked.max(stream.at) + STEP } else { stream.at + STEP };
            (stream.at..reach).contains(&page)
        };
        if let Some(n) = self.streams.iter().position(goes_on) {
            let mut stream = self.streams.remove(n);
            stream.steps += u32::from(page > stream.at);
            (stream.at, stream.moved_ns) = (page, ns);
            self.streams.push(stream);
            return Some(stream);
        }
        if self.streams.len() == STREAMS {
            // The one that was not continued for the longest; believed ones last.
            let oldest = self.streams.iter().position(|stream| stream.steps < BELIEVED).unwrap_or(0);
            self.streams.remove(oldest);
        }
        self.streams.push(Stream { at: page, behind: page, asked: page + 1, steps: 0, moved_ns: ns });
        None
    }

    fn advance(&mut self, seen: &Seen<'_>, say: &mut Say) {
        let (ahead, behind) = (seen.value(0), seen.value(1));
        let Some(mut stream) = self.streams.pop() else { return };
        let keep_from = stream.at.saturating_sub(behind);
        if keep_from > stream.behind {
            // Not what was passed over long ago.
            let from = stream.behind.max(keep_from.saturating_sub(4 * ahead));
            self.streamed(from..keep_from, |page, pages| say.leave(page, pages));
            stream.behind = keep_from;
        }
        // By halves of the window, so that a part is always on its way.
        if stream.at + ahead / 2 >= stream.asked {
            let end = stream.at + 1 + ahead;
            self.streamed(stream.asked.max(stream.at + 1)..end, |page, pages| say.come(page, pages));
            stream.asked = end;
        }
        self.streams.push(stream);
    }

    /// Chooses the chunks that stay: those with most faults at random.
    fn choose(&mut self, seen: &Seen<'_>, say: &mut Say) {
        self.chosen_ns = seen.ns;
        self.streams.retain(|stream| stream.steps < BELIEVED || seen.ns.saturating_sub(stream.moved_ns) < OVER_NS);
        let room = seen.limit * seen.value(2) / 100 / CHUNK;
        let mut by_count: Vec<(u32, u64)> =
            self.at_random.iter().filter(|(_, count)| **count >= AT_RANDOM).map(|(chunk, count)| (*count, *chunk)).collect();
        by_count.sort_unstable_by(|a, b| b.cmp(a));
        let any_stream = self.streams.iter().any(|stream| stream.steps >= BELIEVED);
        let most = if any_stream { room as usize } else { 0 };
        let mut chosen: Vec<u64> = by_count.into_iter().take(most).map(|(_, chunk)| chunk).collect();
        chosen.sort_unstable();
        for &chunk in self.staying.iter().filter(|chunk| chosen.binary_search(chunk).is_err()) {
            say.free(chunk * CHUNK, CHUNK);
        }
        for &chunk in chosen.iter().filter(|chunk| self.staying.binary_search(chunk).is_err()) {
            say.stay(chunk * CHUNK, CHUNK);
        }
        self.staying = chosen;
        // What was long ago counts less. A chunk that stays has few faults, so it keeps its count.
        let staying = &self.staying;
        self.at_random.retain(|chunk, count| {
            *count -= if staying.binary_search(chunk).is_ok() { 0 } else { count.div_ceil(64) };
            *count > 0
        });
    }
}

impl Policy for Csr {
    fn hears(&self) -> &'static [Kind] {
        &[Kind::Fault, Kind::Unmapped]
    }

    fn mapped(&mut self, mappings: &[Mapping], say: &mut Say) {
        self.regions = self.hints.of(mappings);
        for (range, _) in self.regions.iter().filter(|(_, verb)| *verb == Use::Stay) {
            say.stay(range.start, range.end - range.start);
        }
    }

    fn hear(&mut self, event: &Event, seen: &Seen<'_>, say: &mut Say) {
        let page = page(event.address);
        match event.kind {
            Kind::Fault => {
                // Who was told learns nothing from other memory: a stream does not go on there.
                if !self.hints.is_empty() && self.hint(page) != Some(Use::Stream) {
                    return;
                }
                match self.follow(page, event.ns) {
                    Some(stream) if stream.steps >= BELIEVED => {
                        if !self.stays(page) {
                            self.advance(seen, say);
                        }
                    }
                    Some(_) => {}
                    None => *self.at_random.entry(page / CHUNK).or_default() += 1,
                }
            }
            Kind::Unmapped => {
                let gone = page..page + event.pages;
                self.streams.retain(|stream| !gone.contains(&stream.at));
                self.staying.retain(|chunk| !gone.contains(&(chunk * CHUNK)));
                self.at_random.retain(|chunk, _| !gone.contains(&(chunk * CHUNK)));
            }
            _ => {}
        }
    }

    fn rest(&mut self, seen: &Seen<'_>, say: &mut Say) {
        if self.hints.is_empty() && seen.ns.saturating_sub(self.chosen_ns) >= CHOICE_NS {
            self.choose(seen, say);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    fn of(hints: &str) -> Rig {
        let mut rig = Rig::new(Box::new(Csr::new(Hints::read(hints).expect("well formed"))), PARAMETERS);
        rig.limit = 10 * CHUNK;
        rig
    }

    #[test]
    fn edges_pass_through_a_window() {
        let mut rig = of("");
        (0..4).for_each(|n| rig.fault(1_000_000 + n));
        assert_eq!(rig.say.pages_of(Wanted::Prefetch), (1_000_004..1_000_260).collect::<Vec<_>>());
        // The next fault is behind what came.
        rig.fault(1_000_260);
        let all = rig.say.all();
        let pages =
            |wanted| all.iter().filter(|wish| wish.wanted == wanted).map(|wish| (wish.page, wish.pages)).collect::<Vec<_>>();
        let sum = |wanted| pages(wanted).iter().map(|run| run.1).sum::<u64>();
        assert_eq!(pages(Wanted::Reclaim)[0].0, 1_000_000);
        assert_eq!((sum(Wanted::Reclaim), sum(Wanted::Prefetch)), (228, 256));
    }

    #[test]
    fn what_is_read_at_random_stays_while_there_are_streams() {
        let mut rig = of("");
        let at_random = |rig: &mut Rig| (0..40).for_each(|n| rig.fault(10 * CHUNK + n * 7919 % 13 * 39));
        at_random(&mut rig);
        rig.rest(CHOICE_NS);
        assert_eq!(rig.say.pages_of(Wanted::Pin), [0; 0], "there is no stream");
        (0..4).for_each(|n| rig.fault(1_000_000 + n));
        rig.say.all();
        rig.rest(CHOICE_NS);
        assert_eq!(rig.say.pages_of(Wanted::Pin), (10 * CHUNK..11 * CHUNK).collect::<Vec<_>>());
        rig.rest(2 * OVER_NS);
        assert_eq!(rig.say.pages_of(Wanted::Unpin).len(), CHUNK as usize, "the stream is over");
    }

    #[test]
    fn hints_are_followed_at_once() {
        let mut rig = of("stay 1000-5000\nstream 100000-200000");
        rig.policy.mapped(&[Mapping { pages: 0..0x1000, name: String::new() }], &mut rig.say);
        assert_eq!(rig.say.pages_of(Wanted::Pin), [1, 2, 3, 4]);
        (0x1f6..0x1fa).for_each(|page| rig.fault(page));
        assert_eq!(rig.say.pages_of(Wanted::Prefetch), (0x1fa..0x200).collect::<Vec<_>>(), "not beyond the region");
        (0..20).for_each(|n| rig.fault(0x300 + n));
        rig.fault(3);
        assert_eq!(rig.say.all(), [], "of other memory nothing is wished");
    }

    #[test]
    fn what_an_earlier_line_lets_stream_does_not_stay() {
        let mut rig = of("stream 2000-3000\nstay 1000-7ffffffff000");
        rig.policy.mapped(&[Mapping { pages: 0..5, name: String::new() }], &mut rig.say);
        assert_eq!(rig.say.pages_of(Wanted::Pin), [1, 3, 4], "nor what is not there");
    }

    #[test]
    fn a_window_that_is_nonsense_has_an_end() {
        let mut rig = of("");
        rig.parameters = vec![9_000_000_000_000_000_000, i64::MIN, i64::MAX];
        (0..4).for_each(|n| rig.fault(1_000_000 + n));
        assert_eq!(rig.say.pages_of(Wanted::Prefetch).len(), AHEAD_MOST as usize);
    }
}
