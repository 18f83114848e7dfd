//! What the time of requests went to: a [`Record`] for each, and what those around a percentile have in common ([`Breakdown::around`]).

use core::fmt::Write;

/// What the time of one request went to, in ns. All but `arrived`, `total`, `spun` and `pages` are parts of `total`, and add up to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// When it came to the machine, as the kernel has it, by the monotonic clock.
    pub arrived: u64,
    /// From then until its reply was sent.
    pub total: u64,
    /// Until it was taken from the socket.
    pub socket: u64,
    /// From then until a worker ran it.
    pub queue: u64,
    /// In which it ran: its own work, and its page faults as far as it did not wait.
    pub run: u64,
    /// In which it waited for pages, or for a file as for a page; a worker that is busy with that spins meanwhile.
    pub page: u64,
    /// In which it waited for anything else.
    pub other: u64,
    /// From when what it had waited for was there until it ran again.
    pub again: u64,
    /// From when it had let others run until it ran again.
    pub gave_way: u64,
    /// From when it had made its reply until that was sent.
    pub reply: u64,
    /// Of `socket`, `queue`, `again` and `gave_way` together: while its worker spun for a page of another request.
    pub spun: u64,
    /// How often it has waited for pages.
    pub pages: u64,
}

/// Names of the fields, as [`Record::words`] has them.
const NAMES: [&str; 12] = [
    "arrived_ns",
    "total_ns",
    "socket_ns",
    "queue_ns",
    "run_ns",
    "page_ns",
    "other_ns",
    "again_ns",
    "gave_way_ns",
    "reply_ns",
    "spun_ns",
    "pages",
];

impl Record {
    /// Its parts, which add up to `total`.
    pub fn parts(&self) -> [u64; 8] {
        [self.socket, self.queue, self.run, self.page, self.other, self.again, self.gave_way, self.reply]
    }

    pub(crate) fn words(&self) -> [u64; 12] {
        let [socket, queue, run, page, other, again, gave_way, reply] = self.parts();
        [self.arrived, self.total, socket, queue, run, page, other, again, gave_way, reply, self.spun, self.pages]
    }

    pub(crate) fn of_words(words: [u64; 12]) -> Record {
        let [arrived, total, socket, queue, run, page, other, again, gave_way, reply, spun, pages] = words;
        Record { arrived, total, socket, queue, run, page, other, again, gave_way, reply, spun, pages }
    }
}

/// Records of the last requests that were answered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Breakdown {
    /// In the order in which they ended.
    pub records: Vec<Record>,
    /// How many had ended before those, and were dropped to make room.
    pub dropped: u64,
}

/// Requests whose latency is near a percentile.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Around {
    /// How many they are.
    pub requests: u64,
    /// The mean of each field of theirs, `arrived` not among them: names as in [`Breakdown::to_csv`].
    pub means: Vec<(&'static str, f64)>,
}

impl Breakdown {
    /// A line for each request, behind one with the names; the first line says how many were dropped.
    pub fn to_csv(&self) -> String {
        let mut text = format!("# dropped {}\n{}\n", self.dropped, NAMES.join(","));
        for record in &self.records {
            let words = record.words();
            for (place, word) in words.iter().enumerate() {
                // Writing to a string cannot fail.
                let _ = write!(text, "{word}{}", if place + 1 == words.len() { "\n" } else { "," });
            }
        }
        text
    }

    /// The inverse of [`Breakdown::to_csv`]. `None`: it is something else.
    pub fn from_csv(text: &str) -> Option<Breakdown> {
        let mut lines = text.lines();
        let dropped = lines.next()?.strip_prefix("# dropped ")?.parse().ok()?;
        if lines.next()? != NAMES.join(",") {
            return None;
        }
        let record = |line: &str| {
            let words: Option<Vec<u64>> = line.split(',').map(|word| word.parse().ok()).collect();
            words?.try_into().ok().map(Record::of_words)
        };
        Some(Breakdown { records: lines.map(record).collect::<Option<_>>()?, dropped })
    }

    /// Those that came in the last `ns` before the last one.
    #[must_use]
    pub fn last(self, ns: u64) -> Breakdown {
        let from = self.records.iter().map(|record| record.arrived).max().unwrap_or(0).saturating_sub(ns);
        let (records, before): (Vec<_>, Vec<_>) = self.records.into_iter().partition(|record| record.arrived >= from);
        // What was dropped had ended before, and may have come later than that.
        let dropped = if before.is_empty() { self.dropped } else { 0 };
        Breakdown { records, dropped }
    }

    /// The requests around the percentile `share` (0 to 1) of `total`: those whose rank is at most half of the way to the nearer end from it, and at most half a percent
    /// of all. `None` without requests.
    pub fn around(&self, share: f64) -> Option<Around> {
        let mut sorted: Vec<&Record> = self.records.iter().collect();
        sorted.sort_by_key(|record| record.total);
        let count = sorted.len();
        let half = (share.min(1.0 - share) / 2.0).min(0.005);
        let rank = |share: f64| ((share.clamp(0.0, 1.0) * count as f64).ceil() as usize).clamp(1, count.max(1)) - 1;
        let near = sorted.get(rank(share - half)..=rank(share + half)).filter(|_| count > 0)?;
        let mean = |place: usize| near.iter().map(|record| record.words()[place] as f64).sum::<f64>() / near.len() as f64;
        let means = (1..NAMES.len()).map(|place| (NAMES[place], mean(place))).collect();
        Some(Around { requests: near.len() as u64, means })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(total: u64) -> Record {
        Record { arrived: 1000 + total, total, run: total / 4, page: total - total / 4, ..Record::default() }
    }

    #[test]
    fn a_file_comes_back() {
        let breakdown = Breakdown { records: vec![record(7), record(900)], dropped: 3 };
        let text = breakdown.to_csv();
        assert_eq!(Breakdown::from_csv(&text), Some(breakdown));
        assert_eq!(text.lines().nth(2), Some("1007,7,0,0,1,6,0,0,0,0,0,0"));
        for wrong in ["", "# dropped 1", "# dropped x\n", "a,b\n1,2\n", &text.replace(",0\n", "\n"), &text.replace("900", "x")] {
            assert_eq!(Breakdown::from_csv(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn requests_around_a_percentile_are_near_it_and_their_parts_add_up() {
        let records = (1..=10_000).rev().map(record).collect();
        let breakdown = Breakdown { records, dropped: 0 };
        for (share, low, high) in [(0.1, 950, 1050), (0.5, 4950, 5050), (0.99, 9850, 9950), (0.999, 9985, 9995)] {
            let around = breakdown.around(share).unwrap();
            let of = |name: &str| around.means.iter().find(|(other, _)| *other == name).unwrap().1;
            assert_eq!(around.requests, high - low + 1, "{share}");
            assert!((of("total_ns") - (low + high) as f64 / 2.0).abs() < 1.0, "{share}: {around:?}");
            assert!((of("run_ns") + of("page_ns") - of("total_ns")).abs() < 1e-6, "{share}: {around:?}");
        }
        assert_eq!(Breakdown::default().around(0.5), None);
        let one = Breakdown { records: vec![record(8)], dropped: 0 };
        assert_eq!([0.0, 0.1, 0.999, 1.0].map(|share| one.around(share).unwrap().requests), [1; 4]);
    }

    #[test]
    fn the_last_ones_are_those_that_came_last() {
        let breakdown = Breakdown { records: vec![record(10), record(500), record(400)], dropped: 9 };
        assert_eq!(breakdown.clone().last(100), Breakdown { records: vec![record(500), record(400)], dropped: 0 });
        assert_eq!(breakdown.clone().last(10_000), breakdown);
    }
}
