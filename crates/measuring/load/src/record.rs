//! How operations are timed.
//!
//! The clock is the time stamp counter where it is steady (quanta finds out), read once an operation: the end of one is
//! the start of the next. Each thread records for itself; records are put together when the threads are done. An
//! operation counts if it began in the measured time, and for its latency it does not matter when it ended: a
//! stall that lasts beyond the end is not lost.

use std::thread;
use std::time::Duration;

use farshore_load::outcome::{Histogram, Timeline};
use hdrhistogram::Histogram as Hdr;
use quanta::Clock;

/// Length of a step of the timeline.
pub const STEP: Duration = Duration::from_millis(100);

/// A value in a histogram is exact to this many digits.
const DIGITS: u8 = 2;
/// Longer operations are recorded as this long: an hour, in ns.
const LONGEST: u64 = 3_600_000_000_000;

/// What one thread did in the measured time.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    pauses: Option<Pauses>,
    /// When the next pause begins.
    pause_begins: u64,
    /// When the measured time began, as the clock reads.
    start: u64,
    /// When the last operation ended.
    before: u64,
    latency: Hdr<u64>,
    /// Operations of the steps that are over.
    steps: Vec<u64>,
    /// Operations of the step that runs.
    in_step: u64,
    /// When that ends.
    step_end: u64,
    /// Length of a step in ticks of the clock.
    step_ticks: u64,
}

impl Recorder {
    /// A recorder that counts from now on.
    pub fn new(clock: &Clock) -> Self {
        let now = clock.raw();
        // The bounds are constant and in order: the histogram can always be made.
        let latency = Hdr::new_with_bounds(1, LONGEST, DIGITS).unwrap_or_else(|_| unreachable!("constant bounds"));
        let pauses = Ballast::from_environment().ok().and_then(|ballast| Pauses::new(ballast, clock));
        let mut recorder = Recorder {
            clock: clock.clone(),
            pause_begins: pauses.map_or(u64::MAX, |_| now),
            pauses,
            start: now,
            before: now,
            latency,
            steps: Vec::new(),
            in_step: 0,
            step_end: 0,
            step_ticks: ticks(clock, STEP).max(1),
        };
        recorder.measure_since(now);
        recorder
    }

    /// Forgets what was recorded: the measured time began at `start`. The operation that runs now still began before it.
    pub fn measure_since(&mut self, start: u64) {
        self.start = start;
        self.latency.clear();
        self.steps.clear();
        self.in_step = 0;
        self.step_end = start + self.step_ticks;
    }

    /// The next operation begins now.
    pub fn begin(&mut self) {
        self.before = self.clock.raw();
    }

    /// An operation has ended, the next one begins.
    pub fn done(&mut self) {
        let (now, ns) = self.end();
        self.latency.saturating_record(ns);
        self.count(now, 1);
    }

    /// Several have, which are too short to be timed one by one.
    pub fn done_untimed(&mut self, operations: u64) {
        let (now, _) = self.end();
        self.count(now, operations);
    }

    /// One has, outside the measured time.
    pub fn done_uncounted(&mut self) {
        self.end();
    }

    /// The end of the operation, after ballast, and how many ns it took.
    fn end(&mut self) -> (u64, u64) {
        let mut now = self.clock.raw();
        if now >= self.pause_begins {
            now = self.pause(now);
        }
        let ns = self.clock.delta_as_nanos(self.before, now);
        self.before = now;
        (now, ns)
    }

    /// Waits until the operation ends that would have ended now; gives that time.
    #[cold]
    fn pause(&mut self, now: u64) -> u64 {
        let Some(pauses) = self.pauses else { return now };
        let end = pauses.end(self.before, now);
        if end > now {
            // Asleep, not busy: threads that compete for processors with the system under test would slow that down
            // far more than by their share.
            thread::sleep(Duration::from_nanos(self.clock.delta_as_nanos(now, end)));
        }
        let now = self.clock.raw();
        self.pause_begins = pauses.next(now);
        now
    }

    fn count(&mut self, now: u64, operations: u64) {
        while now >= self.step_end {
            self.steps.push(std::mem::take(&mut self.in_step));
            self.step_end += self.step_ticks;
        }
        self.in_step += operations;
    }
}

/// What all threads did in the measured time.
#[derive(Debug, Default)]
pub struct Total {
    /// Operations.
    pub operations: u64,
    /// The measured time.
    pub seconds: f64,
    /// How long they took; empty if they were not timed one by one.
    pub latency: Histogram,
    /// Operations over time.
    pub timeline: Timeline,
}

impl Total {
    /// Puts the records together. The measured time was `seconds` from the start that all of them know.
    pub fn of(recorders: Vec<Recorder>, seconds: f64) -> Self {
        let step_seconds = STEP.as_secs_f64();
        // A last step that is next to nothing belongs to the one before. Not a day has more than 2^52 steps.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let count = ((seconds / step_seconds - 0.05).ceil() as usize).max(1);
        let mut steps = vec![0; count];
        let mut latency: Option<Hdr<u64>> = None;
        for mut recorder in recorders {
            recorder.steps.push(recorder.in_step);
            // What ended after the measured time is in its last step.
            for (step, operations) in recorder.steps.iter().enumerate() {
                steps[step.min(count - 1)] += operations;
            }
            match &mut latency {
                None => latency = Some(recorder.latency),
                // All have the same bounds: they can always be added.
                Some(all) => all.add(&recorder.latency).unwrap_or_else(|_| unreachable!("the same bounds")),
            }
        }
        Total {
            operations: steps.iter().sum(),
            seconds,
            latency: latency.map_or_else(Histogram::default, |all| counts(&all)),
            timeline: Timeline { step_seconds, operations: steps, marks: Vec::new() },
        }
    }
}

/// The counts that are not zero.
pub fn counts(histogram: &Hdr<u64>) -> Histogram {
    let recorded = histogram.iter_recorded();
    let counts = recorded.map(|step| (histogram.median_equivalent(step.value_iterated_to()), step.count_at_value()));
    Histogram { counts: counts.collect() }
}

/// How far the clock goes in that time.
fn ticks(clock: &Clock, time: Duration) -> u64 {
    // The clock tells ns from ticks, not the other way round: a second's worth of ticks has enough digits.
    let probe = 1 << 30;
    let ns = clock.delta_as_nanos(0, probe).max(1);
    u64::try_from(u128::from(probe) * time.as_nanos() / u128::from(ns)).unwrap_or(u64::MAX)
}

/// Slows operations down on purpose: see `LOAD_BALLAST` in the help.
///
/// Time is cut into periods. Each begins with a pause in which no thread works, and work goes on only outside of
/// pauses: an operation that ran into one ends as much later. All threads keep the same pauses. Were each to wait on its
/// own after each operation, then those that do not wait would find the disk the less busy, and a program with more threads
/// than the disk has use for would not be slowed down at all.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Ballast {
    /// The pause in each period.
    pause: Duration,
}

const BALLAST: &str = "LOAD_BALLAST";
const PERIOD: Duration = Duration::from_millis(50);

impl Ballast {
    /// What `LOAD_BALLAST` says; nothing if it is not set.
    ///
    /// # Errors
    /// If it is not a number from 0 to 95.
    pub fn from_environment() -> Result<Self, String> {
        std::env::var_os(BALLAST).map_or(Ok(Ballast::default()), |text| Self::read(&text.to_string_lossy()))
    }

    fn read(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(percent) if (0.0..=95.0).contains(&percent) => Ok(Ballast { pause: PERIOD.mul_f64(percent / 100.0) }),
            _ => Err(format!("invalid {BALLAST} {text:?}: write a percentage from 0 to 95")),
        }
    }
}

/// When [`Ballast`] lets threads work, in ticks of their clock.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Pauses {
    period: u64,
    /// How much of it, at its start, is a pause.
    pause: u64,
}

impl Pauses {
    /// `None` if there are none.
    fn new(ballast: Ballast, clock: &Clock) -> Option<Self> {
        let pauses = Pauses { period: ticks(clock, PERIOD), pause: ticks(clock, ballast.pause) };
        (pauses.pause > 0).then_some(pauses)
    }

    /// When an operation ends that began and ended at these moments, but has to stop in pauses.
    fn end(self, began: u64, ended: u64) -> u64 {
        let Pauses { period, pause } = self;
        let work_in_period = period - pause;
        let worked_before = began / period * work_in_period + (began % period).saturating_sub(pause);
        let worked = worked_before + ended.saturating_sub(began);
        ended.max(worked / work_in_period * period + pause + worked % work_in_period)
    }

    /// When the first pause after that moment begins.
    fn next(self, now: u64) -> u64 {
        (now / self.period + 1) * self.period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballast_is_a_percentage() {
        assert_eq!(Ballast::read("20"), Ok(Ballast { pause: Duration::from_millis(10) }));
        assert_eq!(Ballast::read("0"), Ok(Ballast::default()));
        assert_eq!(Pauses::new(Ballast::default(), &Clock::new()), None);
        for wrong in ["", "x", "-1", "96", "100", "nan", "inf", "20%"] {
            assert!(Ballast::read(wrong).is_err(), "{wrong:?}");
        }
    }

    const PAUSES: Pauses = Pauses { period: 50, pause: 10 };

    #[test]
    fn work_goes_on_outside_of_pauses() {
        // Within the working time of a period nothing waits.
        assert_eq!(PAUSES.end(10, 30), 30);
        assert_eq!(PAUSES.end(60, 99), 99);
        // What runs into a pause ends that much later: the whole pause.
        assert_eq!(PAUSES.end(45, 55), 65);
        assert_eq!(PAUSES.end(45, 50), 60);
        // What begins in a pause begins when it is over.
        assert_eq!(PAUSES.end(3, 4), 11);
        // Longer than a period: 80 of work take 100.
        assert_eq!(PAUSES.end(10, 90), 110);
        assert_eq!([0, 10, 49, 50].map(|now| PAUSES.next(now)), [50, 50, 50, 100]);
    }

    #[test]
    fn a_share_of_the_time_is_lost_whatever_the_operations_take() {
        for length in [1, 3, 17, 70, 900] {
            let (mut now, mut operations) = (0, 0);
            while now < 1_000_000 {
                now = PAUSES.end(now, now + length);
                operations += 1;
            }
            let worked = length * operations;
            assert!((now * 4 / 5).abs_diff(worked) < 20, "{length}: {worked} of {now}");
        }
    }

    #[test]
    fn operations_are_counted_in_the_step_in_which_they_end() {
        let clock = Clock::new();
        let mut recorder = Recorder::new(&clock);
        let (start, step) = (recorder.start, recorder.step_ticks);
        recorder.count(start + step / 2, 3);
        recorder.count(start + 3 * step + 1, 5);
        recorder.count(start + 9 * step, 7);
        let total = Total::of(vec![recorder], 0.6);
        assert_eq!(total.timeline.operations, [3, 0, 0, 5, 0, 7]);
        assert_eq!(total.operations, 15);
        assert!(total.latency.counts.is_empty());
    }

    #[test]
    fn steps_are_a_tenth_of_a_second_long() {
        let clock = Clock::new();
        let ns = clock.delta_as_nanos(0, ticks(&clock, STEP));
        assert!(ns.abs_diff(100_000_000) < 1000, "{ns}");
    }

    #[test]
    fn threads_are_put_together() {
        let clock = Clock::new();
        let start = clock.raw();
        let recorders = (0..3).map(|_| {
            let mut recorder = Recorder::new(&clock);
            recorder.done_uncounted();
            recorder.measure_since(start);
            for _ in 0..5 {
                recorder.done();
            }
            recorder.latency.saturating_record(u64::MAX);
            recorder
        });
        let total = Total::of(recorders.collect(), 0.05);
        assert_eq!(total.operations, 15);
        assert_eq!(total.latency.total(), 18);
        assert!(total.latency.counts.is_sorted());
        let longest = total.latency.max().unwrap_or_default();
        assert!(longest.abs_diff(LONGEST) < LONGEST / 100, "{longest}");
    }
}
