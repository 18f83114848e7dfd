//! Looks at all programs each second, as `farshore top` does, and keeps some minutes of it.
//!
//! A request is answered with what the last look saw. So it asks no program, and one that is stopped keeps no request waiting.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farshore_client::look::{Looker, Row, Status};
use farshore_client::{programs, vms};
use farshore_command::say::tell;
use farshore_config::stats::Stats;

use crate::shapes::{Budget, Kind, Level, Sample, Slowdown, State, Vm};

/// From one look to the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long what was seen is kept.
pub const KEPT: Duration = Duration::from_secs(900);
/// The most programs of which it is kept, of all users together.
const PROGRAMS: usize = 1024;

/// A process that is not mistaken for a later one of its number.
type Key = (u32, u64);

/// One that runs, as it was at the last look.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What is told of it.
    pub vm: Vm,
    /// The process that answers: the manager's, or the program's.
    pub answers: u32,
    /// Its counters.
    pub stats: Option<Arc<Stats>>,
    key: Key,
    user: u32,
    /// The virtual machine that it manages, if it does; nothing, as long as the kernel does not tell whether.
    is: Option<Option<vms::Vm>>,
}

/// What looks have seen.
#[derive(Debug, Default)]
pub struct Watch {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    seen: Vec<Seen>,
    history: BTreeMap<Key, Past>,
}

/// What was seen of one.
#[derive(Debug)]
struct Past {
    /// Whose it is.
    user: u32,
    samples: VecDeque<(Instant, Sample)>,
}

impl Seen {
    /// Whether the process that answers is still the one that was seen, and no other of its number.
    ///
    /// # Errors
    /// It cannot be looked at now.
    pub fn is_there(&self) -> io::Result<bool> {
        Ok(programs::started(self.answers)? == Some(self.key.1))
    }
}

impl Watch {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that run, by their numbers.
    pub fn all(&self) -> Vec<Vm> {
        self.inner().seen.iter().map(|seen| seen.vm.clone()).collect()
    }

    /// The one of this process, or of this manager.
    pub fn one(&self, pid: u32) -> Option<Seen> {
        let inner = self.inner();
        let of = |seen: &&Seen| seen.vm.pid == pid;
        inner.seen.iter().find(of).or_else(|| inner.seen.iter().find(|seen| seen.vm.manager == Some(pid))).cloned()
    }

    /// What was seen of one within the last time, oldest first.
    pub fn history(&self, seen: &Seen, within: Duration) -> Vec<Sample> {
        let inner = self.inner();
        let now = Instant::now();
        let samples = inner.history.get(&seen.key).into_iter().flat_map(|past| &past.samples);
        let samples = samples.map(|(at, sample)| (now.saturating_duration_since(*at), sample));
        samples
            .filter(|(age, _)| *age <= within)
            .map(|(age, sample)| Sample { age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX), ..*sample })
            .collect()
    }

    /// `vm_of`: the virtual machine of a manager. `started`: when a process was started, if there is one.
    fn take(
        &self,
        rows: Vec<Row>,
        vm_of: impl Fn(u32) -> io::Result<Option<vms::Vm>>,
        started: impl Fn(u32) -> io::Result<Option<u64>>,
        now: Instant,
    ) {
        let seen: Vec<Seen> = rows
            .into_iter()
            .map(|row| {
                // What it is does not change, so the kernel is asked once: but for a monitor that has ended before its manager, or was a daemon's first process. Its number
                // may be another's by now.
                let known = self.inner().seen.iter().find(|seen| seen.key == (row.pid, row.started)).map(|seen| seen.is.clone());
                let is = match known.flatten() {
                    Some(Some(vm)) if started(vm.pid).is_ok_and(|started| started != Some(vm.started)) => vm_of(row.pid).ok(),
                    Some(known) => Some(known),
                    None => vm_of(row.pid).ok(),
                };
                told(row, is)
            })
            .collect();
        let mut inner = self.inner();
        for one in &seen {
            let Some(sample) = sample(&one.vm) else { continue };
            if inner.has_room(one) {
                let past = inner.history.entry(one.key).or_insert_with(|| Past { user: one.user, samples: VecDeque::new() });
                past.samples.push_back((now, sample));
            }
        }
        inner.history.retain(|key, Past { samples, .. }| {
            while samples.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > KEPT) {
                samples.pop_front();
            }
            seen.iter().any(|one| one.key == *key)
        });
        inner.seen = seen;
        inner.seen.sort_by_key(|one| one.vm.pid);
    }
}

impl Inner {
    /// Whether there is room for what is seen of this one. Where there is none, the user with the most programs makes some, unless this one's would have as many then: of that user's
    /// the youngest is forgotten.
    fn has_room(&mut self, one: &Seen) -> bool {
        if self.history.len() < PROGRAMS || self.history.contains_key(&one.key) {
            return true;
        }
        let mut of_users = BTreeMap::<u32, usize>::new();
        self.history.values().for_each(|past| *of_users.entry(past.user).or_default() += 1);
        let own = of_users.get(&one.user).copied().unwrap_or(0);
        let most = of_users.into_iter().max_by_key(|(_, count)| *count);
        let Some((user, _)) = most.filter(|(_, count)| *count > own + 1) else { return false };
        let theirs = self.history.iter().filter(|(_, past)| past.user == user).map(|(key, _)| *key);
        let youngest = theirs.max_by_key(|(pid, started)| (*started, *pid));
        youngest.is_some_and(|key| self.history.remove(&key).is_some())
    }
}

/// Looks again and again, for as long as this process lives.
pub fn look(watch: &Watch) {
    let mut looker = Looker::new(rustix::process::geteuid().as_raw());
    let mut said = None;
    loop {
        let began = Instant::now();
        let rows = looker.look();
        if said.as_deref() != looker.trouble() {
            said = looker.trouble().map(String::from);
            said.iter().for_each(|why| tell(why));
        }
        watch.take(rows, vms::of_manager, programs::started, Instant::now());
        std::thread::sleep(INTERVAL.saturating_sub(began.elapsed()));
    }
}

/// What is told of a row.
fn told(row: Row, is: Option<Option<vms::Vm>>) -> Seen {
    let vm = is.as_ref().and_then(Option::as_ref);
    let (state, why) = match &row.status {
        Status::Answers => (State::Running, None),
        Status::Dormant => (State::Dormant, Some("its memory has always fitted: it has no counters yet".into())),
        Status::Silent(since) => (State::Silent, Some(format!("no answer for {} s: is it stopped?", since.as_secs()))),
        Status::Refuses(why) => (State::Refusing, Some(why.clone())),
        Status::Unasked(why) => (State::Silent, Some(format!("it cannot be asked: {why}"))),
    };
    let stats = row.stats.as_deref();
    let budget = stats.and_then(|stats| stats.budget.as_ref()).map(|it| Budget {
        name: farshore_config::plain(&it.name),
        size_bytes: it.size_bytes,
        taken_bytes: it.taken_bytes,
        share_bytes: it.share_bytes,
        programs: it.programs,
    });
    let slowdown = row.slowed.map(|(measured_ppm, target_ppm)| Slowdown { target_ppm, measured_ppm });
    let level = stats.map(|_| match (&budget, slowdown) {
        (Some(_), _) => Level::Budget,
        (None, Some(_)) => Level::Slowdown,
        (None, None) => Level::Fixed,
    });
    let parameters = stats.into_iter().flat_map(|stats| &stats.policies).flat_map(|policy| policy.parameters.clone());
    let vm = Vm {
        pid: vm.map_or(row.pid, |vm| vm.pid),
        started: vm.map_or(row.started, |vm| vm.started),
        name: vm.map_or(row.name, |vm| vm.name.clone()),
        kind: if vm.is_some() { Kind::Vm } else { Kind::Program },
        manager: vm.map(|vm| vm.manager),
        state,
        why,
        created: false,
        level,
        limit_bytes: row.limit,
        managed_bytes: stats.map(|stats| stats.managed_bytes),
        resident_bytes: row.resident,
        out_bytes: row.out,
        faults_per_second: row.rates.map(|rates| rates.faults),
        evicted_per_second: row.rates.map(|rates| rates.evicted),
        stall: row.rates.map(|rates| rates.stall),
        slowdown,
        budget,
        policy: stats.map(|stats| farshore_config::plain(&stats.policy)),
        prefetcher: stats.map(|stats| farshore_config::plain(&stats.prefetcher)),
        parameters: parameters.map(|(name, value)| (farshore_config::plain(&name), value)).collect(),
    };
    Seen { vm, answers: row.pid, key: (row.pid, row.started), user: row.user, is, stats: row.stats }
}

/// What is kept of a look; none, if it told no rates.
fn sample(vm: &Vm) -> Option<Sample> {
    Some(Sample {
        age_ms: 0,
        limit_bytes: vm.limit_bytes?,
        resident_bytes: vm.resident_bytes?,
        out_bytes: vm.out_bytes?,
        faults_per_second: vm.faults_per_second?,
        evicted_per_second: vm.evicted_per_second?,
        stall: vm.stall?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_client::look::Rates;

    fn row(pid: u32, started: u64) -> Row {
        Row {
            pid,
            started,
            user: 1,
            name: "x".into(),
            status: Status::Answers,
            limit: Some(3),
            resident: Some(2),
            out: Some(1),
            rates: Some(Rates { faults: 5.0, evicted: 4.0, stall: 0.5 }),
            history: Vec::new(),
            slowed: None,
            family: None,
            budget: None,
            stats: Some(Arc::new(Stats { policy: "clock".into(), ..Stats::default() })),
        }
    }

    #[test]
    fn virtual_machines_go_by_their_monitor() {
        let watch = Watch::default();
        let asked = std::cell::Cell::new(0);
        let vm_of = |pid: u32| {
            asked.set(asked.get() + 1);
            Ok((pid == 8).then(|| vms::Vm { pid: 7, started: 1, manager: 8, name: "one".into() }))
        };
        let now = Instant::now();
        for at in 0..3 {
            watch.take(vec![row(8, 1), row(9, 1)], vm_of, |_| Ok(Some(1)), now + Duration::from_secs(at));
        }
        assert_eq!(asked.get(), 2, "what a process is does not change");
        let all = watch.all();
        assert_eq!(
            all.iter().map(|vm| (vm.pid, vm.kind, vm.manager)).collect::<Vec<_>>(),
            [(7, Kind::Vm, Some(8)), (9, Kind::Program, None)]
        );
        let one = watch.one(7).expect("it runs");
        assert_eq!((one.answers, one.vm.name.as_str(), one.vm.level), (8, "one", Some(Level::Fixed)));
        assert_eq!(watch.one(8).map(|seen| seen.vm.pid), Some(7), "by its manager");
        assert!(watch.one(10).is_none());
        assert_eq!(watch.history(&one, KEPT).len(), 3);
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_asked_again() {
        let watch = Watch::default();
        let told = std::cell::Cell::new(false);
        let vm_of = |_| match told.get() {
            true => Ok(Some(vms::Vm { pid: 7, started: 1, manager: 8, name: "one".into() })),
            false => Err(io::ErrorKind::TimedOut.into()),
        };
        for (is_told, kind) in [(false, Kind::Program), (true, Kind::Vm), (false, Kind::Vm)] {
            told.set(is_told);
            watch.take(vec![row(8, 1)], vm_of, |_| Ok(Some(1)), Instant::now());
            assert_eq!(watch.all().iter().map(|vm| vm.kind).collect::<Vec<_>>(), [kind]);
        }
        let unasked = Row { status: Status::Unasked("a lock".into()), ..row(8, 1) };
        watch.take(vec![unasked], vm_of, |_| Ok(Some(1)), Instant::now());
        let one = watch.one(8).expect("it is there").vm;
        assert_eq!((one.state, one.why.as_deref()), (State::Silent, Some("it cannot be asked: a lock")));
    }

    #[test]
    fn a_monitors_number_that_came_again_is_not_the_virtual_machine() {
        let watch = Watch::default();
        let now = Instant::now();
        let vm = |pid, started| move |_| Ok(Some(vms::Vm { pid, started, manager: 8, name: "one".into() }));
        watch.take(vec![row(8, 5)], vm(7, 4), |_| Ok(Some(4)), now);
        assert_eq!(watch.one(7).map(|seen| seen.vm.started), Some(4));
        // The monitor was the first process of a daemon. Somebody else's process has its number now.
        watch.take(vec![row(8, 5)], vm(8, 5), |_| Ok(Some(6)), now + Duration::from_secs(1));
        let all = watch.all();
        assert_eq!(all.iter().map(|vm| (vm.pid, vm.started, vm.manager)).collect::<Vec<_>>(), [(8, 5, Some(8))]);
    }

    #[test]
    fn what_is_kept_is_shared_by_users() {
        let watch = Watch::default();
        let now = Instant::now();
        let of = |user: u32, count: u32| (0..count).map(move |n| Row { user, ..row(user * 10_000 + n, u64::from(n)) });
        let take = |users: [u32; 3], at| {
            let rows = [1, 2, 3].into_iter().zip(users).flat_map(|(user, count)| of(user, count)).collect();
            watch.take(rows, |_| Ok(None), |_| Ok(None), now + Duration::from_secs(at));
        };
        let kept = |user: u32, count: u32| {
            let all = of(user, count).filter_map(|row| watch.one(row.pid));
            all.map(|seen| watch.history(&seen, KEPT).len()).filter(|samples| *samples > 0).collect::<Vec<_>>()
        };
        let programs = PROGRAMS as u32;
        take([programs + 100, 0, 0], 0);
        assert_eq!(kept(1, programs + 100).len(), PROGRAMS);
        // Others come: those of one user make room, and what was seen longest stays.
        take([programs + 100, 2, 0], 1);
        take([programs + 100, 2, 0], 2);
        assert_eq!(kept(2, 2), [2, 2]);
        assert_eq!(kept(1, programs + 100), vec![3; PROGRAMS - 2]);
        take([programs + 100, 2, programs * 2], 3);
        assert_eq!(
            [kept(1, programs + 100).len(), kept(2, 2).len(), kept(3, programs * 2).len()],
            [PROGRAMS / 2 - 1, 2, PROGRAMS / 2 - 1]
        );
        assert_eq!((kept(1, 1), kept(2, 2), kept(3, 1)), (vec![4], vec![3, 3], vec![1]), "the first of each are kept");
    }

    #[test]
    fn another_process_of_its_number_is_not_it() {
        let (watch, own) = (Watch::default(), std::process::id());
        let started = programs::started(own).expect("there are descriptors").expect("it runs");
        for (started, is_there) in [(started, true), (started - 1, false)] {
            watch.take(vec![row(own, started)], |_| Ok(None), |_| Ok(None), Instant::now());
            assert_eq!(watch.one(own).and_then(|seen| seen.is_there().ok()), Some(is_there));
        }
    }

    #[test]
    fn what_ends_is_forgotten_and_what_is_old_too() {
        let watch = Watch::default();
        let now = Instant::now();
        watch.take(vec![row(8, 1)], |_| Ok(None), |_| Ok(None), now);
        watch.take(vec![row(8, 1)], |_| Ok(None), |_| Ok(None), now + KEPT + Duration::from_secs(1));
        let one = watch.one(8).expect("it runs");
        assert_eq!(watch.history(&one, KEPT).len(), 1);
        // The number came again.
        watch.take(vec![row(8, 2)], |_| Ok(None), |_| Ok(None), now + KEPT + Duration::from_secs(2));
        assert!(watch.history(&one, KEPT).is_empty());
        assert_eq!(watch.inner().history.len(), 1);
        let silent = Row { status: Status::Silent(Duration::from_secs(3)), rates: None, ..row(8, 2) };
        watch.take(vec![silent], |_| Ok(None), |_| Ok(None), now);
        let one = watch.one(8).expect("it is there");
        assert_eq!((one.vm.state, one.vm.why.as_deref()), (State::Silent, Some("no answer for 3 s: is it stopped?")));
    }
}
