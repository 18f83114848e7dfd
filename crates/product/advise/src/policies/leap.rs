//! `leap`: pages come by the stride that the majority of a thread's last faults have (Al Maruf and Chowdhury, Effectively prefetching remote memory
//! with Leap, USENIX ATC 2020). A few faults elsewhere in between do not break a trend, as they break a run of equal strides.
//!
//! Leap sees each access to a page that came ahead; a process that is mapped such a page is not seen to use it. A fault just behind a window
//! says that the window was used up: it stands for as many steps as the window had. So windows double while that goes on, and halve when it ends.

use std::collections::HashMap;

use farshore_beside::{Event, Kind};

use super::AHEAD_MOST;
use crate::policy::{Parameter, Policy, Seen, page};
use crate::say::Say;

/// Strides that are remembered of a thread, a power of two.
const HISTORY: usize = 32;
/// The fewest that a majority is looked for in.
const FEWEST: usize = 4;
/// Strides that are farther are none.
const FARTHEST: i64 = 1 << 16;
/// Threads that are remembered.
const THREADS: usize = 1024;

/// `ahead`: the most pages of a window.
pub const PARAMETERS: &[Parameter] = &[("ahead", 64, (1, AHEAD_MOST))];

#[derive(Debug, Default)]
struct Thread {
    last: Option<i64>,
    strides: Vec<i64>,
    /// The window that was asked for last: its stride, and its pages.
    window: (i64, u64),
}

/// See the head.
#[derive(Debug, Default)]
pub struct Leap {
    threads: HashMap<u32, Thread>,
}

/// The stride that more than half of `strides` are (Boyer and Moore: one candidate, then a count).
fn majority(strides: &[i64]) -> Option<i64> {
    let (mut candidate, mut votes) = (0, 0);
    for &stride in strides {
        if votes == 0 {
            candidate = stride;
        }
        votes += if stride == candidate { 1 } else { -1 };
    }
    let count = strides.iter().filter(|&&stride| stride == candidate).count();
    (candidate != 0 && count * 2 > strides.len()).then_some(candidate)
}

impl Thread {
    fn note(&mut self, stride: i64) {
        if self.strides.len() == HISTORY {
            self.strides.remove(0);
        }
        self.strides.push(stride);
    }

    /// In the last few strides, then in twice as many, until there is a majority.
    fn trend(&self) -> Option<i64> {
        let sizes = std::iter::successors(Some(FEWEST), |size| Some(size * 2)).take_while(|&size| size <= HISTORY);
        sizes.filter(|&size| size <= self.strides.len()).find_map(|size| majority(&self.strides[self.strides.len() - size..]))
    }

    fn hear(&mut self, at: i64, most: u64) -> Option<(i64, u64)> {
        let last = self.last.replace(at)?;
        let far = at - last;
        if far == 0 {
            return None;
        }
        let (stride, pages) = self.window;
        let used = pages > 0 && far == stride * (pages as i64 + 1);
        if used {
            (0..=pages.min(HISTORY as u64)).for_each(|_| self.note(stride));
        } else {
            self.note(if far.abs() <= FARTHEST { far } else { 0 });
        }
        let pages = match self.trend() {
            Some(trend) => {
                let next = if used { pages * 2 } else { (pages / 2).max(1) };
                (trend, next.clamp(1, most))
            }
            None => (0, 0),
        };
        self.window = pages;
        (pages.1 > 0).then_some(pages)
    }
}

impl Policy for Leap {
    fn hears(&self) -> &'static [Kind] {
        &[Kind::Fault]
    }

    fn hear(&mut self, event: &Event, seen: &Seen<'_>, say: &mut Say) {
        if self.threads.len() >= THREADS && !self.threads.contains_key(&event.thread) {
            self.threads.clear();
        }
        let at = page(event.address) as i64;
        let Some((stride, pages)) = self.threads.entry(event.thread).or_default().hear(at, seen.value(0)) else { return };
        for n in 1..=pages as i64 {
            if let Ok(page) = u64::try_from(at + stride * n) {
                say.come(page, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    #[test]
    fn most_strides_make_a_trend() {
        assert_eq!(majority(&[3, 9, 3, 3]), Some(3));
        assert_eq!(majority(&[3, 9, 3, 9]), None);
        assert_eq!(majority(&[0, 0, 0, 1]), None, "no stride is no trend");
        assert_eq!(majority(&[]), None);
    }

    #[test]
    fn a_stride_is_followed_through_noise_and_windows_grow() {
        let mut rig = Rig::new(Box::new(Leap::default()), PARAMETERS);
        for page in [1000, 1007, 1014, 5, 1021, 1028, 1035] {
            rig.fault_by(page, 0, 1);
        }
        rig.say.all();
        rig.fault_by(1042, 0, 1);
        assert_eq!(rig.say.pages_of(Wanted::Prefetch), [1049]);
        rig.fault_by(1056, 0, 1);
        assert_eq!(rig.say.pages_of(Wanted::Prefetch), [1063, 1070], "the window was used, so it doubles");
        rig.fault_by(1077, 0, 1);
        assert_eq!(rig.say.pages_of(Wanted::Prefetch).len(), 4);
    }

    #[test]
    fn threads_do_not_disturb_each_other_and_random_faults_bring_nothing() {
        let mut rig = Rig::new(Box::new(Leap::default()), PARAMETERS);
        for n in 0..20 {
            rig.fault_by(500 + n, 0, 1);
            rig.fault_by(90_000 + n * n * 7919 % 6007, 0, 2);
        }
        let came = rig.say.pages_of(Wanted::Prefetch);
        assert!(came.iter().all(|page| *page < 2000) && came.contains(&510), "{came:?}");
    }
}
