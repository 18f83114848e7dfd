//! Threads that start together, and workloads that run for a time.
//!
//! Each phase has threads of its own. They wait at a gate until all are there: what it costs to start them is in no phase.
//! In a run for a time, the main thread tells the [`Stage`] by one atomic that the workers look at before each operation:
//!
//! ```text
//! WarmUp → Measure → (Moved) → Stop        never back
//! ```
//!
//! The moment at which the measured time began is written before the stage becomes `Measure` (release), and read by a
//! worker when it has seen that (acquire).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farshore_load::outcome::MEASURE;
use farshore_load::workload::Common;
use quanta::Clock;

use crate::record::{Recorder, Total};
use crate::report::{Report, faults_of_this_thread};

/// How far a run for a time is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Operations do not count yet.
    WarmUp,
    /// They do.
    Measure,
    /// They do, and half of the time is over.
    Moved,
    /// No more of them.
    Stop,
}

/// Runs `work`, with its number, in each of so many threads. When all are there, `opening` is called, and they start;
/// while they work, `meanwhile` is. The results come in the order of the numbers.
///
/// # Errors
/// If a thread cannot be started (no one works then), or if one panics.
pub fn run<T: Send>(
    threads: u32,
    work: impl Fn(usize) -> T + Sync,
    opening: impl FnOnce(),
    meanwhile: impl FnOnce(),
) -> Result<Vec<T>, String> {
    let gate = Gate::default();
    thread::scope(|scope| {
        let (gate, work) = (&gate, &work);
        let mut team = Vec::new();
        for number in 0..threads as usize {
            let spawned = thread::Builder::new()
                .name(format!("work-{number}"))
                .spawn_scoped(scope, move || gate.pass().then(|| work(number)));
            match spawned {
                Ok(thread) => team.push(thread),
                Err(error) => {
                    gate.set(Door::Closed);
                    return Err(format!("cannot start thread {} of {threads}: {error}; give fewer --threads", number + 1));
                }
            }
        }
        gate.wait_for(team.len());
        opening();
        gate.set(Door::Open);
        meanwhile();
        let results = team.into_iter().map(|thread| thread.join().ok().flatten());
        results.collect::<Option<Vec<T>>>().ok_or_else(|| "a thread panicked".into())
    })
}

/// [`run`] as one phase of the report.
///
/// # Errors
/// As [`run`].
pub fn phase<T: Send>(report: &mut Report, name: &str, threads: u32, work: impl Fn(usize) -> T + Sync) -> Result<Vec<T>, String> {
    run(threads, work, || report.phase(name), || {})
}

/// What the threads wait at.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    arrived: usize,
    door: Door,
}

#[derive(Clone, Copy, PartialEq, Default)]
enum Door {
    #[default]
    Shut,
    Open,
    /// Nobody works: some could not be started.
    Closed,
}

impl Gate {
    /// Waits until the door is open; false if it never will be.
    fn pass(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.arrived += 1;
        self.changed.notify_all();
        while state.door == Door::Shut {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.door == Door::Open
    }

    fn wait_for(&self, threads: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.arrived < threads {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn set(&self, door: Door) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).door = door;
        self.changed.notify_all();
    }
}

/// A measured time that ends when the work is done. The work may have several parts, one after another, each of which all
/// threads begin together.
#[derive(Debug)]
pub struct Fixed {
    clock: Clock,
    start: Option<(Instant, u64)>,
    recorders: Vec<Recorder>,
    /// Page faults of the threads, by number, in all parts.
    faults: Vec<u64>,
}

/// What came of a part.
#[derive(Debug)]
pub struct Part<T> {
    /// What the threads gave back.
    pub results: Vec<T>,
    /// The most page faults of one thread.
    pub worst_faults: u64,
}

impl Fixed {
    /// Nothing has begun.
    pub fn new(threads: u32) -> Self {
        Fixed { clock: Clock::new(), start: None, recorders: Vec::new(), faults: vec![0; threads as usize] }
    }

    /// Runs a part. The phase `measure` begins with the first one. `opening` is called as the part begins, with the
    /// seconds since the start.
    ///
    /// # Errors
    /// As [`run`].
    pub fn part<T: Send>(
        &mut self,
        report: &mut Report,
        opening: impl FnOnce(&mut Report, f64),
        work: impl Fn(usize, &mut Recorder) -> T + Sync,
    ) -> Result<Part<T>, String> {
        let Fixed { clock, start, recorders, faults } = self;
        let start_raw = AtomicU64::new(0);
        let open = || {
            let (begun, raw) = *start.get_or_insert_with(|| {
                report.phase(MEASURE);
                (Instant::now(), clock.raw())
            });
            // Threads see this: they pass the gate, whose lock the main thread takes and gives back after it.
            start_raw.store(raw, Ordering::Relaxed);
            opening(report, begun.elapsed().as_secs_f64());
        };
        let thread = |number| {
            let mut recorder = Recorder::new(clock);
            recorder.measure_since(start_raw.load(Ordering::Relaxed));
            let faults = faults_of_this_thread();
            recorder.begin();
            let result = work(number, &mut recorder);
            (result, recorder, faults_of_this_thread() - faults)
        };
        let threads = u32::try_from(faults.len()).unwrap_or(u32::MAX);
        let mut part = Part { results: Vec::new(), worst_faults: 0 };
        for ((result, recorder, taken), faults) in run(threads, thread, open, || {})?.into_iter().zip(faults) {
            part.results.push(result);
            part.worst_faults = part.worst_faults.max(taken);
            recorders.push(recorder);
            *faults += taken;
        }
        Ok(part)
    }

    /// Ends the measured time, and tells the report of it.
    pub fn end(self, report: &mut Report) -> Total {
        let seconds = self.start.map_or(0.0, |(start, _)| start.elapsed().as_secs_f64());
        let total = Total::of(self.recorders, seconds);
        report.operations(total.operations);
        report.worst_thread_faults(self.faults.into_iter().max().unwrap_or(0));
        total
    }
}

/// What a thread does again and again for a time.
pub trait Worker: Send {
    /// One operation.
    fn operate(&mut self, stage: Stage);
}

/// The stage for all threads, with nothing else in its cache lines that changes.
#[repr(align(128))]
struct Signal {
    stage: AtomicU8,
    /// When the measured time began, as the clock reads.
    start: AtomicU64,
}

impl Signal {
    fn tell(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::WarmUp,
            1 => Stage::Measure,
            2 => Stage::Moved,
            _ => Stage::Stop,
        }
    }
}

/// Runs the workers for the warm-up and the measured time. `halfway` names what changes when half of that is over, if
/// something does. Gives the workers back.
///
/// # Errors
/// As [`run`].
pub fn timed<W: Worker>(
    common: &Common,
    report: &mut Report,
    halfway: Option<&str>,
    worker: impl Fn(usize) -> W + Sync,
) -> Result<(Total, Vec<W>), String> {
    let clock = Clock::new();
    let signal = Signal { stage: AtomicU8::new(Stage::WarmUp as u8), start: AtomicU64::new(0) };
    let mut seconds = 0.0;
    let mut marks = Vec::new();
    let [warmup, measured] = [common.warmup, common.seconds].map(Duration::from_secs_f64);
    // The conductor: phases and stages in their order, in the main thread.
    let conduct = || {
        if !warmup.is_zero() {
            report.phase("warm-up");
            thread::sleep(warmup);
        }
        report.phase(MEASURE);
        let start = Instant::now();
        signal.start.store(clock.raw(), Ordering::Relaxed);
        signal.tell(Stage::Measure);
        if let Some(what) = halfway {
            thread::sleep(measured / 2);
            signal.tell(Stage::Moved);
            marks.push((start.elapsed().as_secs_f64(), what.to_string()));
        }
        thread::sleep(measured.saturating_sub(start.elapsed()));
        signal.tell(Stage::Stop);
        seconds = start.elapsed().as_secs_f64();
    };
    let work = |number| operate(worker(number), &clock, &signal);
    let done = run(common.threads, work, || {}, conduct)?;
    let worst = done.iter().map(|done| done.faults).max().unwrap_or(0);
    let (recorders, workers): (Vec<_>, Vec<_>) = done.into_iter().map(|done| (done.recorder, done.worker)).unzip();
    let mut total = Total::of(recorders, seconds);
    total.timeline.marks = marks;
    report.operations(total.operations);
    report.worst_thread_faults(worst);
    Ok((total, workers))
}

/// A thread at its end.
struct Done<W> {
    worker: W,
    recorder: Recorder,
    /// Page faults in the measured time.
    faults: u64,
}

fn operate<W: Worker>(mut worker: W, clock: &Clock, signal: &Signal) -> Done<W> {
    let mut recorder = Recorder::new(clock);
    recorder.begin();
    let mut stage = signal.stage();
    while stage == Stage::WarmUp {
        worker.operate(stage);
        recorder.done_uncounted();
        stage = signal.stage();
    }
    recorder.measure_since(signal.start.load(Ordering::Relaxed));
    let faults = faults_of_this_thread();
    recorder.begin();
    while stage != Stage::Stop {
        worker.operate(stage);
        recorder.done();
        stage = signal.stage();
    }
    Done { worker, recorder, faults: faults_of_this_thread() - faults }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_load::size::Bytes;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn all_are_there_when_the_door_opens() {
        let working = AtomicU32::new(0);
        let open = AtomicU32::new(0);
        let work = |number: usize| {
            working.fetch_add(1, Ordering::Relaxed);
            (number, open.load(Ordering::Relaxed))
        };
        let opening = || {
            assert_eq!(working.load(Ordering::Relaxed), 0);
            open.store(1, Ordering::Relaxed);
        };
        let results = run(5, work, opening, || {});
        assert_eq!(results, Ok((0..5).map(|number| (number, 1)).collect()));
    }

    #[test]
    fn a_closed_door_lets_nobody_in() {
        let gate = Gate::default();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.pass());
            gate.wait_for(1);
            gate.set(Door::Closed);
            assert!(waiting.join().is_ok_and(|passed| !passed));
        });
    }

    #[test]
    fn parts_are_one_measured_time() -> Result<(), String> {
        let mut report = Report::new(false)?;
        let mut fixed = Fixed::new(2);
        let work = |number, recorder: &mut Recorder| {
            thread::sleep(Duration::from_millis(60));
            recorder.done();
            number
        };
        let mut first_at = 0.0;
        let first = fixed.part(&mut report, |_, at| first_at = at, work)?;
        assert_eq!(first.results, [0, 1]);
        fixed.part(&mut report, |_, at| assert!(at >= first_at + 0.06), work)?;
        let total = fixed.end(&mut report);
        assert!(total.seconds >= 0.12);
        assert_eq!(total.operations, 4);
        assert_eq!(total.latency.total(), 4);
        assert_eq!(total.timeline.operations.iter().sum::<u64>(), 4);
        let phases = report.finish()?;
        assert_eq!(phases.len(), 1);
        assert_eq!((phases[0].name.as_str(), phases[0].operations), ("measure", 4));
        Ok(())
    }

    /// Writes down the stages that it sees, each once.
    struct Witness {
        seen: Vec<Stage>,
        measured: u64,
    }

    impl Worker for Witness {
        fn operate(&mut self, stage: Stage) {
            if self.seen.last() != Some(&stage) {
                self.seen.push(stage);
            }
            self.measured += u64::from(stage != Stage::WarmUp);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn stages_come_in_order_and_measured_operations_count() -> Result<(), String> {
        // Each worker gets a processor within half of the time.
        let common = Common { size: Bytes(0), threads: 3, seconds: 2.0, warmup: 0.2, seed: 1 };
        let mut report = Report::new(false)?;
        let (total, workers) = timed(&common, &mut report, Some("half"), |_| Witness { seen: Vec::new(), measured: 0 })?;
        for worker in &workers {
            assert!(worker.seen.is_sorted() && !worker.seen.contains(&Stage::Stop), "{:?}", worker.seen);
            assert_eq!(worker.seen.last(), Some(&Stage::Moved));
        }
        assert_eq!(total.operations, workers.iter().map(|worker| worker.measured).sum::<u64>());
        assert_eq!(total.latency.total(), total.operations);
        assert!(total.latency.quantile(0.0) >= Some(990_000), "{:?}", total.latency);
        assert_eq!(total.timeline.operations.len(), (total.seconds / 0.1 - 0.05).ceil() as usize);
        assert_eq!(total.timeline.marks.len(), 1);
        assert_eq!(total.timeline.marks[0].1, "half");
        let phases = report.finish()?;
        assert_eq!(phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(), ["warm-up", "measure"]);
        assert_eq!(phases[1].operations, total.operations);
        Ok(())
    }

    #[test]
    fn without_a_warm_up_there_is_no_such_phase() -> Result<(), String> {
        let common = Common { size: Bytes(0), threads: 1, seconds: 0.05, warmup: 0.0, seed: 1 };
        let mut report = Report::new(false)?;
        let (total, _) = timed(&common, &mut report, None, |_| Witness { seen: Vec::new(), measured: 0 })?;
        assert!(total.operations > 0 && total.timeline.marks.is_empty());
        assert_eq!(report.finish()?.len(), 1);
        Ok(())
    }
}
