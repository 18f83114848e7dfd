//! Attaches a policy, tells it events, and makes its wishes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farshore_beside::{Attachment, Kind, PAGE, Wanted};
use farshore_command::refusal::Refusal;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::PolicyArgs;
use crate::places::{Hints, mappings_of};
use crate::policies;
use crate::policy::{Parameter, Policy, Seen};
use crate::say::Say;

/// Events that are heard before wishes are made.
const BATCH: usize = 64;
/// A policy rests at least as often.
const REST: Duration = Duration::from_millis(20);
/// Mappings are read again at most as often.
const MAPS: Duration = Duration::from_millis(200);
/// Pages whose states are asked for at a time: half of the ring of events.
const LOOK: u64 = 1 << 17;
/// The tag of these requests.
const TAG: u32 = 1;

/// Answers that a full ring of events has lost do not come: it is asked again after so long.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs a policy beside a program until that ends, or a signal ends the policy; the exit status.
pub fn run(arguments: &PolicyArgs) -> Result<u8, Refusal> {
    let known = policies::ALL.iter().find(|policy| policy.name == arguments.name).expect("the name was looked up");
    let hints = read_hints(arguments)?;
    let mut values: Vec<i64> = known.parameters.iter().map(|parameter| parameter.1).collect();
    for (name, value) in &arguments.parameters {
        let place = known.parameters.iter().position(|parameter| parameter.0 == name).ok_or_else(|| {
            let names: Vec<&str> = known.parameters.iter().map(|parameter| parameter.0).collect();
            Refusal::cannot_start(format!("policy {} has no parameter '{name}': it has {}", known.name, names.join(", ")))
        })?;
        let (least, most) = known.parameters[place].2;
        if !(least..=most).contains(value) {
            return Err(Refusal::cannot_start(format!("{name}={value}: {name} is from {least} to {most}")));
        }
        values[place] = *value;
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|why| Refusal::failed(format!("signal handlers could not be set: {why}")))?;
    }
    let mut program = farshore_beside::attach(arguments.pid)?;
    for (parameter, value) in known.parameters.iter().zip(&values) {
        program.register(parameter.0, *value);
    }
    let mut beside = Beside {
        pid: arguments.pid,
        policy: (known.make)(hints),
        values,
        known: known.parameters,
        say: Say::default(),
        survey: Survey::default(),
        mapped: Some(Instant::now()),
        heard: 0,
        ended,
    };
    beside.listen(&mut program);
    // From now on it misses nothing.
    crate::print(&format!("{} beside {}: {}", known.name, arguments.pid, known.about))?;
    beside.serve(&mut program);
    let (counts, state) = (beside.say.counts(), program.state());
    crate::print(&format!(
        "{}: {} events heard, {} lost; pages wished to leave {}, to come {}, to stay {}, estimated {}; {} requests lost",
        known.name, beside.heard, state.events_lost, counts.leave, counts.come, counts.stay, counts.expected, counts.lost
    ))?;
    Ok(0)
}

fn read_hints(arguments: &PolicyArgs) -> Result<Hints, Refusal> {
    let Some(path) = &arguments.regions else { return Ok(Hints::default()) };
    if arguments.name != "csr" {
        return Err(Refusal::cannot_start(format!("--regions is for csr: policy {} does not read it", arguments.name)));
    }
    let failed = |why: String| Refusal::failed(format!("--regions {}: {why}", path.display()));
    Hints::of_file(path).map_err(failed)
}

struct Beside {
    pid: u32,
    policy: Box<dyn Policy>,
    values: Vec<i64>,
    known: &'static [Parameter],
    say: Say,
    survey: Survey,
    /// Pages were mapped, and the policy does not know of it yet: when that was.
    mapped: Option<Instant>,
    heard: u64,
    /// A signal has ended the policy.
    ended: Arc<AtomicBool>,
}

impl Beside {
    /// Chooses the kinds of events, and waits until that is known over there: an answer comes after it.
    fn listen(&mut self, program: &mut Attachment) {
        let mut kinds = self.policy.hears().to_vec();
        kinds.extend([Kind::Mapped, Kind::Pages]);
        kinds.sort_unstable_by_key(|kind| *kind as u8);
        kinds.dedup();
        program.want(&kinds);
        let mut asked: Option<Instant> = None;
        while self.goes_on(program) && program.take().is_none_or(|event| event.kind != Kind::Pages) {
            if asked.is_none_or(|since| since.elapsed() >= AGAIN) {
                program.ask(Wanted::Look { tag: TAG }, PAGE, 1);
                asked = Some(Instant::now());
            }
            program.wait(REST);
        }
        // A policy that compares limits has to know the first one.
        while self.goes_on(program) && program.state().limit_bytes == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let first = seen(program, &mut self.values, self.known, now_ns());
        self.policy.rest(&first, &mut self.say);
    }

    fn goes_on(&self, program: &Attachment) -> bool {
        !self.ended.load(Ordering::Relaxed) && program.is_there()
    }

    fn serve(&mut self, program: &mut Attachment) {
        let (mut rested, mut read) = (Instant::now(), Instant::now());
        loop {
            let there = program.wait(REST);
            let mut count = 0;
            while count < BATCH
                && let Some(event) = program.take()
            {
                count += 1;
                self.heard += 1;
                match event.kind {
                    Kind::Mapped => _ = self.mapped.get_or_insert_with(Instant::now),
                    Kind::Pages => self.survey.heard(event.pages),
                    _ => {}
                }
                if self.policy.hears().contains(&event.kind) {
                    let seen = seen(program, &mut self.values, self.known, event.ns);
                    self.policy.hear(&event, &seen, &mut self.say);
                }
            }
            if let Some(since) = self.mapped
                && (read.elapsed() >= MAPS || self.heard == 0 || since <= read)
            {
                read = Instant::now();
                self.mapped = None;
                self.policy.mapped(&mappings_of(self.pid), &mut self.say);
            }
            // After each batch: a wish that is late is for nothing.
            let seen = seen(program, &mut self.values, self.known, now_ns());
            self.policy.rest(&seen, &mut self.say);
            if self.say.take_survey() {
                self.survey.begin(self.pid);
            }
            self.survey.go_on(program);
            self.say.make(|wish| program.ask(wish.wanted, wish.page * PAGE, wish.pages));
            if !there || rested.elapsed() >= REST {
                rested = Instant::now();
                if !self.goes_on(program) {
                    return;
                }
            }
        }
    }
}

fn seen<'s>(program: &Attachment, values: &'s mut [i64], known: &'s [Parameter], ns: u64) -> Seen<'s> {
    for (place, value) in values.iter_mut().enumerate() {
        *value = program.parameter(place);
    }
    let state = program.state();
    Seen { ns, limit: state.limit_bytes / PAGE, resident: state.resident_bytes / PAGE, parameters: values, known }
}

/// `CLOCK_MONOTONIC`, as the times of events are.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Asks for the states of all pages, a part at a time, so that the answers fit the ring of events.
#[derive(Default)]
struct Survey {
    ranges: VecDeque<Range<u64>>,
    /// Pages that were asked for and not answered yet, and since when.
    awaited: Option<(u64, Instant)>,
}

impl Survey {
    fn begin(&mut self, pid: u32) {
        self.ranges = mappings_of(pid).into_iter().map(|mapping| mapping.pages).collect();
    }

    fn heard(&mut self, pages: u64) {
        self.awaited =
            self.awaited.and_then(|(left, since)| left.checked_sub(pages).filter(|left| *left > 0).map(|left| (left, since)));
    }

    fn go_on(&mut self, program: &mut Attachment) {
        if self.awaited.is_some_and(|(_, since)| since.elapsed() < AGAIN) {
            return;
        }
        self.awaited = None;
        let mut asked = 0;
        while asked < LOOK
            && let Some(range) = self.ranges.front_mut()
        {
            let pages = (range.end - range.start).min(LOOK - asked);
            if pages > 0 && !program.ask(Wanted::Look { tag: TAG }, range.start * PAGE, pages) {
                break;
            }
            range.start += pages;
            asked += pages;
            if range.is_empty() {
                self.ranges.pop_front();
            }
        }
        self.awaited = (asked > 0).then(|| (asked, Instant::now()));
    }
}
