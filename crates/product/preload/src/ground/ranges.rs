//! A set of addresses, as ranges of bytes.

use std::ops::Range;

/// Ranges in order, no two of which touch, and how long they are in all. Where no memory is left for one more, it is left out: a program may have used up
/// its address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>, u64);

impl Ranges {
    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.1
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().cloned()
    }

    /// Whether a byte of `start..end` is in the set.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        let first = self.0.partition_point(|range| range.end <= start);
        self.0.get(first).is_some_and(|range| range.start < end)
    }

    /// Adds `start..end`.
    pub fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if self.0.try_reserve(1).is_err() {
            return;
        }
        // The ranges that touch it become one with it.
        let first = self.0.partition_point(|range| range.end < start);
        let last = self.0.partition_point(|range| range.start <= end);
        let joined = self.0.get(first..last).unwrap_or_default();
        let from = joined.first().map_or(start, |range| range.start.min(start));
        let to = joined.last().map_or(end, |range| range.end.max(end));
        self.1 = self.1 - sum(joined) + (to - from);
        self.0.splice(first..last, core::iter::once(from..to));
    }

    /// Takes `start..end` out.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.end <= start);
        let last = self.0.partition_point(|range| range.start < end);
        if first >= last {
            return;
        }
        let (head, tail) = (self.0[first].start..start, end..self.0[last - 1].end);
        self.1 -= sum(&self.0[first..last]);
        self.0.drain(first..last);
        // The second one may need room, the first has that of what was there.
        for part in [tail, head] {
            if !part.is_empty() && self.0.try_reserve(1).is_ok() {
                self.1 += part.end - part.start;
                self.0.insert(first, part);
            }
        }
    }
}

/// The parts of `range` that are in none of `others`.
pub fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = Vec::from_iter((!range.is_empty()).then_some(range));
    for other in others {
        let cut = |part: Range<u64>| [part.start..part.end.min(other.start), part.start.max(other.end)..part.end];
        // Not at the end: parts without bytes would double with each of the others, of which there may be dozens.
        parts = parts.into_iter().flat_map(cut).filter(|part| !part.is_empty()).collect();
    }
    parts
}

fn sum(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn are_a_set_of_addresses(steps in prop::collection::vec((any::<bool>(), 0..64u64, 0..64u64), 0..40)) {
            let (mut ranges, mut plain) = (Ranges::default(), [false; 64]);
            for (adds, start, end) in steps {
                if adds { ranges.add(start, end) } else { ranges.remove(start, end) }
                (start..end).for_each(|at| plain[at as usize] = adds);
                prop_assert_eq!(ranges.bytes(), plain.iter().filter(|&&there| there).count() as u64);
                prop_assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
                prop_assert!(ranges.iter().all(|range| range.start < range.end && range.into_iter().all(|at| plain[at as usize])));
                let touched = plain.get(start as usize..end as usize).is_some_and(|part| part.contains(&true));
                prop_assert_eq!(ranges.touches(start, end) && start < end, touched);
            }
        }

        #[test]
        fn the_rest_is_in_no_other(others in prop::collection::vec((0..64u64, 0..16u64), 0..16)) {
            let others: Vec<Range<u64>> = others.into_iter().map(|(start, length)| start..start + length).collect();
            let rest = without(16..48, &others);
            let plain: Vec<u64> = (16..48).filter(|at| !others.iter().any(|other| other.contains(at))).collect();
            prop_assert_eq!(rest.iter().cloned().flatten().collect::<Vec<u64>>(), plain);
            // One more for each of the others, at most; a vector grows to twice that. (Copies of variables are 28 in Node: they came to 6 GB once.)
            prop_assert!(rest.capacity() <= 4 * (others.len() + 1), "{} parts of {:?}", rest.capacity(), others);
        }
    }
}
