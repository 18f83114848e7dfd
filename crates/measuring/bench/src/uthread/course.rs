//! Which comparisons are made, one after the other.
//!
//! ```text
//! of several numbers of threads the best ─▶ highest throughput ─▶ latency at a share of it ─▶ both with all data local ─▶ highest rate with a latency that is wanted
//! ```

use std::path::PathBuf;

use farshore_config::SwapSpec;
use farshore_load::rates::{Goal, Rates};
use farshore_load::size::Bytes;

use super::args::{Mode, Modes, Percent, Phase, Transport, UthreadArgs, Wait, What};
use super::cores::Split;
use super::service::{Comparison, Load, Setting};
use crate::args::BenchArgs;
use crate::plan::{Experiment, Subject};
use crate::result;
use crate::run::Failure;
use crate::table::quantity;
use crate::targets::spec::Spec;

/// The modes where none is named.
const USUAL: [&str; 4] = ["yield:1", "busy:1", "block:8,16,32,64", "swap:8,16,32"];
/// Where pages go where nothing is said.
const USUAL_SWAP: &str = "delay:10us";
/// Seconds of a run that only finds out which number of threads is best.
const CHOICE_SECONDS: f64 = 2.0;
/// What all data local need, in multiples of the data: a memcached has an index besides, and slabs that are not full.
const ALL_LOCAL: u64 = 2;
/// And what anything needs besides its data.
const BESIDES: u64 = 64 << 20;

/// The comparisons of a call.
#[derive(Clone, Debug)]
pub struct Course {
    setting: Setting,
    modes: Vec<Modes>,
    swaps: Vec<String>,
    phases: Vec<Phase>,
    at: Percent,
    reference: Wait,
    rate: Option<f64>,
    rates: Rates,
    target: Goal,
    seconds: f64,
    swap_size: Option<u64>,
}

/// How an experiment is made: with all rounds, or with one, to choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounds {
    /// As many as were asked for.
    All,
    /// One, without a warm-up.
    One,
}

/// Whoever makes the comparisons.
pub trait Maker {
    /// Makes one; `None`: the user has ended it.
    ///
    /// # Errors
    /// It cannot be made: one line.
    fn make(&mut self, experiment: &Experiment, rounds: Rounds) -> Result<Option<result::Experiment>, Failure>;

    /// Tells the user what follows.
    fn say(&mut self, line: &str);
}

impl Course {
    /// As the command line says. `serve` is `farshore-serve`.
    ///
    /// # Errors
    /// What does not go together: one line.
    pub fn new(arguments: &UthreadArgs, all: &BenchArgs, serve: PathBuf) -> Result<Course, String> {
        refuse_foreign(all)?;
        let usual = || USUAL.iter().map(|text| text.parse()).collect();
        let modes: Vec<Modes> = if arguments.modes.is_empty() { usual() } else { Ok(arguments.modes.clone()) }?;
        refuse_twice(&modes)?;
        if let (true, Some(mode)) = (arguments.what != What::Kv, all_of(&modes).find(|mode| mode.wait.is_memcached())) {
            return Err(format!("--mode {mode} is for kv: write farshore bench uthread kv"));
        }
        let swaps = if arguments.swaps.is_empty() { vec![USUAL_SWAP.to_string()] } else { arguments.swaps.clone() };
        let reference = reference(arguments.reference, &modes, &swaps)?;
        let phase = |phase| arguments.phases.contains(&phase);
        if (phase(Phase::Latency) || phase(Phase::Floor)) && !phase(Phase::Throughput) && arguments.rate.is_none() {
            return Err(
                "--phases latency or floor without throughput: say by --rate how many requests a second there shall be".into()
            );
        }
        if arguments.breakdown && arguments.transport != Transport::Udp {
            return Err("--breakdown is for requests over UDP: leave --transport tcp out".into());
        }
        let setting = Setting::new(arguments, serve, Split::new(arguments.cores.into())?);
        if setting.items() == 0 {
            return Err(format!("--data {} is less than one item: give more", arguments.data));
        }
        if arguments.what == What::Scan && !arguments.value_size.is_multiple_of(8) {
            return Err(format!("--value-size {}: scan wants a multiple of 8", arguments.value_size));
        }
        Ok(Course {
            setting,
            modes,
            swaps,
            phases: arguments.phases.clone(),
            at: arguments.at,
            reference,
            rate: arguments.rate,
            rates: arguments.rates,
            target: arguments.target,
            seconds: arguments.seconds,
            swap_size: all.swap_size.map(|size| size.0),
        })
    }

    /// Who is bound to which cores, for a reader.
    #[must_use]
    pub fn bound(&self) -> String {
        self.setting.split.text()
    }

    /// Whether the real memcached is among the servers.
    #[must_use]
    pub fn has_memcached(&self) -> bool {
        all_of(&self.modes).any(|mode| mode.wait.is_memcached())
    }

    /// Experiments that need as much as those that will be made.
    #[must_use]
    pub fn needs(&self) -> Vec<Experiment> {
        let modes: Vec<Mode> = self.modes.iter().filter_map(|modes| modes.0.first().copied()).collect();
        let mut needs = vec![self.throughput(&modes, self.seconds, "")];
        needs.extend(self.choice());
        needs.extend(self.has(Phase::Local).then(|| self.local(&modes)).flatten());
        needs
    }

    /// Makes all comparisons.
    ///
    /// # Errors
    /// One could not be made: one line.
    pub fn run(&self, maker: &mut dyn Maker) -> Result<(), Failure> {
        let Some(modes) = self.choose(maker)? else { return Ok(()) };
        let mut rate = self.rate;
        if self.has(Phase::Throughput) {
            let Some(made) = maker.make(&self.throughput(&modes, self.seconds, ""), Rounds::All)? else { return Ok(()) };
            if rate.is_none() && (self.has(Phase::Latency) || self.has(Phase::Floor)) {
                rate = Some(self.rate_after(&made, &modes).map_err(Failure::Failed)?);
            }
        }
        if let (true, Some(rate)) = (self.has(Phase::Latency), rate) {
            maker.say(&format!("latency: {} come", quantity(rate, "/s")));
            if maker.make(&self.latency(&modes, rate), Rounds::All)?.is_none() {
                return Ok(());
            }
        }
        let floor = rate.filter(|_| self.has(Phase::Floor)).and_then(|rate| self.floor(&modes, rate));
        let local = self.has(Phase::Local).then(|| self.local(&modes)).flatten();
        let capacity = self.has(Phase::Capacity).then(|| self.capacity(&modes));
        for experiment in floor.into_iter().chain(local).chain(capacity) {
            if maker.make(&experiment, Rounds::All)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Makes the comparisons of a figure over load: the highest throughput, then latencies at so many percent of what the reference reached. `mark` gives each its
    /// place: nothing for the first, else percent and requests a second.
    ///
    /// # Errors
    /// One could not be made: one line.
    pub fn over_load(
        &self,
        maker: &mut dyn Maker,
        percents: &[f64],
        mark: &dyn Fn(Experiment, Option<(f64, f64)>) -> Experiment,
    ) -> Result<(), Failure> {
        let Some(modes) = self.choose(maker)? else { return Ok(()) };
        let peak = mark(self.throughput(&modes, self.seconds, ""), None);
        let Some(made) = maker.make(&peak, Rounds::All)? else { return Ok(()) };
        for percent in percents {
            let course = Course { at: Percent(*percent), ..self.clone() };
            let rate = course.rate_after(&made, &modes).map_err(Failure::Failed)?;
            let latency = mark(course.latency(&modes, rate), Some((*percent, rate)));
            if maker.make(&latency, Rounds::All)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Makes the comparisons of a figure over local memory: the highest throughput with so many percent of the data local.
    ///
    /// # Errors
    /// One could not be made: one line.
    pub fn over_local(
        &self,
        maker: &mut dyn Maker,
        percents: &[f64],
        mark: &dyn Fn(Experiment, f64) -> Experiment,
    ) -> Result<(), Failure> {
        let Some(modes) = self.choose(maker)? else { return Ok(()) };
        for percent in percents {
            let setting = Setting { share: Percent(*percent), ..self.setting.clone() };
            let course = Course { setting, ..self.clone() };
            let experiment = course.throughput(&modes, course.seconds, "");
            // All data are more than the items alone.
            let memory_bytes = if *percent < 100.0 { experiment.memory_bytes } else { course.all_bytes() };
            if maker.make(&mark(Experiment { memory_bytes, ..experiment }, *percent), Rounds::All)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Makes the comparisons of a figure over local memory under one load: the highest throughput with all data local, then latencies with so many percent of the
    /// data local at `load` percent of what the reference reached. `mark` gives each its place: nothing for the first, else percent.
    ///
    /// # Errors
    /// One could not be made: one line.
    pub fn over_local_under(
        &self,
        maker: &mut dyn Maker,
        percents: &[f64],
        load: f64,
        mark: &dyn Fn(Experiment, Option<f64>) -> Experiment,
    ) -> Result<(), Failure> {
        let Some(modes) = self.choose(maker)? else { return Ok(()) };
        let peak = self.local(&modes).ok_or_else(|| Failure::Failed("no mode shows what all data local give".into()))?;
        let Some(made) = maker.make(&mark(peak, None), Rounds::All)? else { return Ok(()) };
        let rate = Course { at: Percent(load), ..self.clone() }.rate_after(&made, &modes).map_err(Failure::Failed)?;
        for percent in percents {
            let setting = Setting { share: Percent(*percent), ..self.setting.clone() };
            let course = Course { setting, at: Percent(load), ..self.clone() };
            let experiment = course.latency(&modes, rate);
            // All data are more than the items alone.
            let memory_bytes = if *percent < 100.0 { experiment.memory_bytes } else { course.all_bytes() };
            if maker.make(&mark(Experiment { memory_bytes, ..experiment }, Some(*percent)), Rounds::All)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn has(&self, phase: Phase) -> bool {
        self.phases.contains(&phase)
    }

    /// One mode of each kind, the best one where there are several. `None`: ended by the user.
    fn choose(&self, maker: &mut dyn Maker) -> Result<Option<Vec<Mode>>, Failure> {
        let made = match self.choice() {
            Some(choice) => match maker.make(&choice, Rounds::One)? {
                Some(made) => Some(made),
                None => return Ok(None),
            },
            None => None,
        };
        let mut chosen = Vec::new();
        for modes in &self.modes {
            let best = match &made {
                Some(made) if modes.0.len() > 1 => best(made, &modes.0),
                _ => modes.0.first().copied().map(|mode| (mode, None)),
            };
            match best {
                Some((mode, Some(figure))) => {
                    maker.say(&format!("{mode} is the best of {} with {}", list(&modes.0), quantity(figure, "/s")));
                    chosen.push(mode);
                }
                Some((mode, None)) => chosen.push(mode),
                None => maker.say(&format!("none of {} could be measured: left out", list(&modes.0))),
            }
        }
        if chosen.is_empty() { Err(Failure::Failed("no mode could be measured".into())) } else { Ok(Some(chosen)) }
    }

    /// What is set against each other to choose; `None` if there is no choice.
    fn choice(&self) -> Option<Experiment> {
        let several = self.modes.iter().filter(|modes| modes.0.len() > 1);
        let modes: Vec<Mode> = several.flat_map(|modes| modes.0.clone()).collect();
        (!modes.is_empty()).then(|| self.throughput(&modes, self.seconds.min(CHOICE_SECONDS), ", to choose"))
    }

    fn throughput(&self, modes: &[Mode], seconds: f64, why: &str) -> Experiment {
        let title = format!("{}, {} under way{why}", self.place(), self.setting.outstanding);
        self.experiment(title, modes, Load::Closed(self.setting.outstanding), seconds, self.local_bytes())
    }

    fn latency(&self, modes: &[Mode], rate: f64) -> Experiment {
        let load = match self.rate {
            Some(_) => "a fixed load".to_string(),
            None => format!("{} % of the load of {}", self.at.0, self.reference.name()),
        };
        self.experiment(format!("{}, {load}", self.place()), modes, Load::Open(rate), self.seconds, self.local_bytes())
    }

    fn capacity(&self, modes: &[Mode]) -> Experiment {
        let load = Load::Search(self.rates, self.target);
        self.experiment(format!("{}, rates {}", self.place(), self.rates), modes, load, self.seconds, self.local_bytes())
    }

    /// `None` if neither yield nor block nor memcached is among the modes.
    fn local(&self, modes: &[Mode]) -> Option<Experiment> {
        let title = format!("all local, {} under way", self.setting.outstanding);
        self.all_local(title, shown_local(modes), Load::Closed(self.setting.outstanding))
    }

    /// As [`Course::local`]; for the first of them.
    fn floor(&self, modes: &[Mode], rate: f64) -> Option<Experiment> {
        let title = format!("all local, the same load as {} local", Bytes(self.local_bytes() >> 20 << 20));
        self.all_local(title, shown_local(modes).take(1), Load::Open(rate))
    }

    fn all_local(&self, title: String, modes: impl Iterator<Item = Mode>, load: Load) -> Option<Experiment> {
        let modes: Vec<Mode> = modes.collect();
        let memory = self.all_bytes();
        (!modes.is_empty()).then(|| self.experiment(title, &modes, load, self.seconds, memory))
    }

    /// What keeps all data local, in bytes.
    fn all_bytes(&self) -> u64 {
        self.setting.data_bytes.saturating_mul(ALL_LOCAL).max(self.setting.swap_bytes()).saturating_add(BESIDES)
    }

    fn experiment(&self, title: String, modes: &[Mode], load: Load, seconds: f64, memory_bytes: u64) -> Experiment {
        let comparison = Comparison { setting: self.setting.clone(), title, modes: modes.to_vec(), load, seconds };
        Experiment {
            name: comparison.name(),
            subject: Subject::Served(Box::new(comparison)),
            memory_bytes,
            pool_bytes: 0,
            swap_bytes: self.swap_size.unwrap_or_else(|| self.setting.swap_bytes()),
            swap_files: 1,
            sweep: None,
            targets: modes.iter().map(|mode| target(*mode, &self.swaps)).collect(),
            family: String::new(),
            paper: None,
            raised: None,
        }
    }

    /// `102M local, delay:10us`.
    fn place(&self) -> String {
        format!("{} local, {}", Bytes(self.local_bytes() >> 20 << 20), self.swaps.join(" + "))
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn local_bytes(&self) -> u64 {
        self.setting.share.of(self.setting.data_bytes as f64) as u64
    }

    /// The load of the latency phase.
    fn rate_after(&self, made: &result::Experiment, modes: &[Mode]) -> Result<f64, String> {
        let reference = modes.iter().find(|mode| mode.wait == self.reference);
        let (_, most) = reference.and_then(|mode| best(made, &[*mode])).ok_or_else(|| {
            format!(
                "{} could not be measured, whose load the latencies were to be taken at: name another --reference",
                self.reference.name()
            )
        })?;
        Ok(self.at.of(most.unwrap_or(0.0)).max(1.0))
    }
}

/// The best of `modes`, and its figure.
fn best(made: &result::Experiment, modes: &[Mode]) -> Option<(Mode, Option<f64>)> {
    let figure = |mode: &Mode| {
        let target = made.targets.iter().find(|target| target.label == mode.to_string())?;
        Some((*mode, target.summary.as_ref()?.figure.median))
    };
    modes.iter().filter_map(figure).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(mode, figure)| (mode, Some(figure)))
}

/// Those whose work with all data local is of interest.
fn shown_local(modes: &[Mode]) -> impl Iterator<Item = Mode> {
    modes.iter().copied().filter(|mode| matches!(mode.wait, Wait::Yield | Wait::Block | Wait::Memcached))
}

fn all_of(modes: &[Modes]) -> impl Iterator<Item = Mode> {
    modes.iter().flat_map(|modes| modes.0.iter().copied())
}

fn list(modes: &[Mode]) -> String {
    modes.iter().map(Mode::to_string).collect::<Vec<_>>().join(", ")
}

/// What a mode is run under.
fn target(mode: Mode, swaps: &[String]) -> Spec {
    let label = mode.to_string();
    match mode.wait {
        Wait::Swap | Wait::MemcachedSwap => Spec::linux_swap(&label),
        Wait::Zram | Wait::MemcachedZram => Spec::zram(&label),
        Wait::Yield | Wait::Busy | Wait::Preempt | Wait::Block | Wait::Memcached => Spec::of_swaps(swaps, &label),
    }
}

/// Whose load the latencies are taken at: where pages come soon, busy is the best that was known; on a disk it only waits.
fn reference(asked: Option<Wait>, modes: &[Modes], swaps: &[String]) -> Result<Wait, String> {
    let there = |wait: &Wait| all_of(modes).any(|mode| mode.wait == *wait);
    if let Some(wait) = asked {
        return if there(&wait) { Ok(wait) } else { Err(format!("--reference {}: it is not among the modes", wait.name())) };
    }
    let on_disk =
        swaps.iter().any(|swap| matches!(swap.parse(), Ok(SwapSpec::Dir(_) | SwapSpec::File { .. } | SwapSpec::Dev { .. })));
    let first = if on_disk { [Wait::Block, Wait::Busy] } else { [Wait::Busy, Wait::Block] };
    let others = [Wait::Yield, Wait::Preempt, Wait::Swap, Wait::Zram, Wait::Memcached, Wait::MemcachedSwap, Wait::MemcachedZram];
    first.into_iter().chain(others).find(there).ok_or_else(|| "no mode is given".into())
}

/// Two `--mode` of one kind would be chosen from apart, and a mode that comes twice could not be told from itself.
fn refuse_twice(modes: &[Modes]) -> Result<(), String> {
    let all: Vec<Mode> = all_of(modes).collect();
    match all.iter().enumerate().find(|(index, mode)| all[..*index].contains(mode)) {
        Some((_, mode)) => Err(format!("--mode {mode} is given twice: give it once")),
        None => Ok(()),
    }
}

/// Options of other comparisons.
fn refuse_foreign(all: &BenchArgs) -> Result<(), String> {
    let given = [
        ("--against", !all.against.is_empty(), "--mode"),
        ("--builds", all.builds.is_some(), "two calls and --compare"),
        ("--sweep", all.sweep.is_some(), "several calls"),
        ("--memory", all.memory.is_some(), "--share"),
        ("--pool", all.pool.is_some(), "--share"),
        ("--swap-files", all.swap_files != 1, "--swap several times"),
        ("a PROGRAM", !all.program.is_empty(), "array, kv or scan"),
    ];
    match given.iter().find(|(_, given, _)| *given) {
        Some((option, _, instead)) => Err(format!("uthread does not go with {option}: use {instead}")),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "course/tests.rs"]
mod tests;
