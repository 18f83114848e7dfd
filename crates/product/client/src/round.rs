//! All programs are asked at once, until one deadline. One that does not answer (it is stopped, or has no core) keeps no other waiting.
//!
//! The connection to a program that has not answered in time stays, with the question on its way, and the next round takes the answer that
//! came meanwhile. So a stopped program gets one question, not one each round, and no later round waits for it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farshore_command::process::{is_unknown_now, remedy};
use farshore_config::control::Request;
use farshore_config::stats::Stats;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::client::{ANSWER_LIMIT, connect_to, peer};
use crate::programs::{self, Program, State};

/// What came of asking a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Its counters.
    Answered(Box<Stats>),
    /// It has not answered yet: it is stopped, or has no core.
    Silent,
    /// It was not asked, as it is dormant; its limit in bytes.
    Dormant(u64),
    /// It has ended, or what listens is not the program.
    Gone,
    /// It answers with something else: a line that says what.
    Refused(String),
    /// It was not asked now: a line that says why.
    Unasked(String),
}

/// How many programs of a user may owe an answer from one round to the next. Each takes a descriptor.
const LATE_OF_USER: usize = 64;
/// Descriptors that a round leaves to others.
const SPARE: usize = 128;
/// How many are asked at a time at least, however few descriptors this process may have.
const AT_LEAST: usize = 16;

/// What a round has found.
#[derive(Debug)]
pub struct Found {
    /// The programs.
    pub programs: Vec<Program>,
    /// What came of asking each.
    pub outcomes: Vec<Outcome>,
    /// Why these are those of the round before: a line.
    pub trouble: Option<String>,
}

/// Asks programs round by round.
#[derive(Debug, Default)]
pub struct Rounds {
    /// Those of the last round.
    last: Vec<Program>,
    /// Questions that have no answer yet, by process and start.
    asked: BTreeMap<(u32, u64), Talk>,
}

/// A question and what has come of its answer.
#[derive(Debug)]
struct Talk {
    stream: UnixStream,
    line: Vec<u8>,
    user: u32,
    /// Asked in an earlier round: this one does not wait for it.
    is_late: bool,
}

impl Rounds {
    /// Asks all programs of a user, for so long at most. Where they cannot be looked for, they are those of the round before, and not asked.
    pub fn look(&mut self, user: u32, patience: Duration) -> Found {
        self.found(programs::of_user(user), patience)
    }

    fn found(&mut self, programs: io::Result<Vec<Program>>, patience: Duration) -> Found {
        match programs {
            Ok(programs) => {
                self.last.clone_from(&programs);
                let outcomes = self.ask(&programs, Instant::now() + patience);
                Found { programs, outcomes, trouble: None }
            }
            Err(error) => {
                let why = unlooked(&error);
                let programs = self.last.clone();
                let outcomes = programs.iter().map(|_| Outcome::Unasked(why.clone())).collect();
                Found { programs, outcomes, trouble: Some(why) }
            }
        }
    }

    /// Asks all of them. Returns in their order, at `until` at the latest.
    pub fn ask(&mut self, programs: &[Program], until: Instant) -> Vec<Outcome> {
        self.asked.retain(|key, _| programs.iter().any(|program| key_of(program) == *key));
        let mut late = BTreeMap::<u32, usize>::new();
        self.asked.retain(|_, talk| {
            talk.is_late = true;
            let of_user = late.entry(talk.user).or_default();
            *of_user += 1;
            *of_user <= LATE_OF_USER
        });
        let mut outcomes: Vec<Option<Outcome>> = programs.iter().map(|_| None).collect();
        let room = room();
        for at in in_turn(programs) {
            let program = &programs[at];
            let is_new = !self.asked.contains_key(&key_of(program)) && matches!(program.state, State::Awake(_));
            outcomes[at] = match late.get(&program.user) {
                Some(&late) if is_new && late >= LATE_OF_USER => Some(Outcome::Unasked(format!(
                    "{late} other programs of user {} owe an answer: are they stopped?",
                    program.user
                ))),
                _ if is_new && self.asked.len() >= room => Some(Outcome::Unasked(format!(
                    "{room} programs are asked at a time: raise the limit of open files (ulimit -n) to ask more"
                ))),
                _ => self.begin(program),
            };
        }
        let waiting: Vec<usize> = (0..programs.len()).filter(|&at| outcomes[at].is_none()).collect();
        self.listen(programs, &waiting, &mut outcomes, until);
        outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Silent)).collect()
    }

    /// Puts the question, unless it is on its way. The outcome, if there is one already.
    fn begin(&mut self, program: &Program) -> Option<Outcome> {
        let names = match &program.state {
            State::Dormant { limit } => return Some(Outcome::Dormant(*limit)),
            State::Hidden(why) => return Some(Outcome::Unasked(why.clone())),
            State::Awake(names) => names,
        };
        if self.asked.contains_key(&key_of(program)) {
            return None;
        }
        let mut outcome = Outcome::Gone;
        for name in names {
            match connect_to(name) {
                Ok(stream) if peer(&stream).is_ok_and(|(pid, _)| pid == program.pid) => {
                    // The question is short, so a socket on which nothing was sent yet takes it whole.
                    let sent =
                        stream.set_nonblocking(true).and_then(|()| (&stream).write_all(Request::Stat {}.to_line().as_bytes()));
                    // A program that turns us away has closed the connection and left a line that says why.
                    if sent.is_ok() || sent.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
                        self.asked.insert(key_of(program), Talk { stream, line: Vec::new(), user: program.user, is_late: false });
                        return None;
                    }
                }
                // Somebody else's, who has taken the name.
                Ok(_) => {}
                // So many wait already that it has no room for us.
                Err(error) if error.kind() == ErrorKind::WouldBlock => outcome = Outcome::Silent,
                Err(error) if is_unknown_now(&error) => outcome = Outcome::Unasked(unlooked(&error)),
                Err(_) => {}
            }
        }
        Some(outcome)
    }

    /// Takes answers until all have come that are not late, or it is `until`.
    fn listen(&mut self, programs: &[Program], waiting: &[usize], outcomes: &mut [Option<Outcome>], until: Instant) {
        let mut waiting = waiting.to_vec();
        loop {
            let is_needed = |&at: &usize| self.asked.get(&key_of(&programs[at])).is_some_and(|talk| !talk.is_late);
            let left = if waiting.iter().any(is_needed) {
                until.saturating_duration_since(Instant::now())
            } else {
                std::time::Duration::ZERO
            };
            let talks: Vec<&Talk> = waiting.iter().filter_map(|&at| self.asked.get(&key_of(&programs[at]))).collect();
            let mut polled: Vec<PollFd<'_>> = talks.iter().map(|talk| PollFd::new(&talk.stream, PollFlags::IN)).collect();
            match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
                Ok(0) | Err(Errno::INTR) if left.is_zero() => return,
                // What cannot be waited for is silent.
                Err(error) if error != Errno::INTR => return,
                _ => {}
            }
            let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            waiting.retain(|&at| {
                if ready.next() != Some(true) {
                    return true;
                }
                let key = key_of(&programs[at]);
                let outcome = self.asked.get_mut(&key).map_or(Some(Outcome::Gone), Talk::take);
                if outcome.is_some() {
                    self.asked.remove(&key);
                    outcomes[at] = outcome;
                }
                outcomes[at].is_none()
            });
            if waiting.is_empty() {
                return;
            }
        }
    }
}

impl Talk {
    /// Takes what has come; the outcome, if that is all.
    fn take(&mut self) -> Option<Outcome> {
        let mut piece = [0; 16384];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Some(Outcome::Gone),
                Ok(count) => self.line.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It has closed the connection with our question unread.
                Err(_) => return Some(Outcome::Gone),
            }
            if self.line.last() == Some(&b'\n') {
                return Some(read(&String::from_utf8_lossy(&self.line)));
            }
            if self.line.len() > ANSWER_LIMIT {
                return Some(Outcome::Refused(format!("an answer of more than {} KiB: is it Farshore's?", ANSWER_LIMIT >> 10)));
            }
        }
    }
}

/// Why programs cannot be looked at: a line.
#[must_use]
pub fn unlooked(error: &io::Error) -> String {
    format!("programs cannot be looked at now ({error}): {}", remedy(error).unwrap_or("is /proc mounted?"))
}

/// An answer's line.
fn read(line: &str) -> Outcome {
    let error =
        serde_json::from_str::<serde_json::Value>(line).ok().and_then(|answer| Some(answer.get("error")?.as_str()?.to_owned()));
    match (error, Stats::from_json(line)) {
        (Some(why), _) | (None, Err(why)) => Outcome::Refused(why),
        (None, Ok(stats)) => Outcome::Answered(Box::new(stats)),
    }
}

/// How many programs can be asked at a time.
fn room() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    descriptors.saturating_sub(SPARE).max(AT_LEAST)
}

/// The order in which programs are asked, by their places: first one of each user, then a second one of each. So none goes without, since another has many.
fn in_turn(programs: &[Program]) -> Vec<usize> {
    let mut of_users = BTreeMap::<u32, usize>::new();
    let turn = |(at, program): (usize, &Program)| {
        let turn = of_users.entry(program.user).or_default();
        *turn += 1;
        (*turn, at)
    };
    let mut turns: Vec<(usize, usize)> = programs.iter().enumerate().map(turn).collect();
    turns.sort_unstable();
    turns.into_iter().map(|(_, at)| at).collect()
}

fn key_of(program: &Program) -> (u32, u64) {
    (program.pid, program.started)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    /// No round of these tests comes to it, unless something hangs.
    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn listener(name: &str) -> (String, UnixListener) {
        let name = format!("farshore-test-{}-{name}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("short name")).expect("it is free");
        (name, listener)
    }

    /// This process, as who listens there.
    fn program(started: u64, names: &[&str]) -> Program {
        let state = State::Awake(names.iter().map(|name| (*name).into()).collect());
        Program { pid: std::process::id(), started, user: 0, name: "x".into(), state }
    }

    /// Takes a connection and answers its question.
    fn answer(listener: &UnixListener, text: &str) {
        let (stream, _) = listener.accept().expect("somebody asks");
        let mut question = String::new();
        std::io::BufReader::new(&stream).read_line(&mut question).expect("it asks");
        assert_eq!(question, Request::Stat {}.to_line());
        (&stream).write_all(text.as_bytes()).expect("it takes the answer");
    }

    #[test]
    fn who_does_not_answer_keeps_nobody_waiting() {
        let ((stopped, one), (works, two)) = (listener("stopped"), listener("works"));
        let programs = [program(1, &[&stopped]), program(2, &[&works])];
        let mut rounds = Rounds::default();
        let works = std::thread::spawn(move || (0..2).for_each(|pid| answer(&two, &format!("{{\"pid\":{pid}}}\n"))));
        let pids = |outcomes: &[Outcome]| -> Vec<Option<u32>> {
            outcomes.iter().map(|outcome| if let Outcome::Answered(stats) = outcome { Some(stats.pid) } else { None }).collect()
        };
        // The first round waits until its end, and has the other one's answer all the same: two seconds, since the other one has to get a processor.
        let first = rounds.ask(&programs, Instant::now() + Duration::from_secs(2));
        assert_eq!((pids(&first), &first[0]), (vec![None, Some(0)], &Outcome::Silent));
        // No later one waits: it would do so for a minute, and a test for less.
        assert_eq!(pids(&rounds.ask(&programs, later())), [None, Some(1)]);
        works.join().expect("it has answered");
        // It goes on, and has been asked once.
        answer(&one, "{\"pid\":7}\n");
        let outcomes = rounds.ask(&programs[..1], later());
        assert_eq!(pids(&outcomes), [Some(7)], "{outcomes:?}");
        one.set_nonblocking(true).expect("it is ours");
        assert_eq!(one.accept().map(drop).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock), "it was asked again");
    }

    #[test]
    fn programs_of_one_user_that_do_not_answer_take_no_descriptors_from_others() {
        let ((stopped, _one), (works, two)) = (listener("many"), listener("few"));
        let many = LATE_OF_USER as u64 + 20;
        let mut programs: Vec<Program> = (0..many).map(|n| program(n, &[&stopped])).collect();
        programs.push(Program { user: 1, ..program(many, &[&works]) });
        assert_eq!(in_turn(&programs)[..3], [0, many as usize, 1]);
        let mut rounds = Rounds::default();
        let works = std::thread::spawn(move || (0..2).for_each(|pid| answer(&two, &format!("{{\"pid\":{pid}}}\n"))));
        let first = rounds.ask(&programs, Instant::now() + Duration::from_secs(2));
        assert!(matches!(first.last(), Some(Outcome::Answered(_))), "{:?}", first.last());
        assert_eq!((&first[0], &first[many as usize - 1]), (&Outcome::Silent, &Outcome::Silent));
        // Of those that owe an answer so many are listened to further, and the others are not asked again.
        let second = rounds.ask(&programs, later());
        assert!(matches!(second.last(), Some(Outcome::Answered(_))), "{:?}", second.last());
        assert_eq!((&second[0], rounds.asked.len()), (&Outcome::Silent, LATE_OF_USER));
        assert!(matches!(&second[many as usize - 1], Outcome::Unasked(why) if why.contains("other programs of user 0")));
        works.join().expect("it has answered");
        assert!(room() >= AT_LEAST);
    }

    #[test]
    fn what_is_no_answer_is_told() {
        let (name, listener) = listener("odd");
        for (said, told) in
            [("{\"error\":\"not you\"}\n", "not you"), ("nonsense\n", "cannot be read"), ("{\"schema\":9}\n", "schema")]
        {
            let one = listener.try_clone().expect("it is ours");
            let other = std::thread::spawn(move || answer(&one, said));
            let outcomes = Rounds::default().ask(&[program(1, &[&name])], later());
            assert!(matches!(&outcomes[..], [Outcome::Refused(why)] if why.contains(told)), "{outcomes:?}");
            other.join().expect("it has answered");
        }
        // An answer that breaks off, and one that never ends.
        for (said, told) in [(vec![b'{'; 10], None), (vec![b' '; ANSWER_LIMIT + 1], Some("more than"))] {
            let one = listener.try_clone().expect("it is ours");
            let other = std::thread::spawn(move || one.accept().and_then(|(mut stream, _)| stream.write_all(&said)));
            let outcomes = Rounds::default().ask(&[program(1, &[&name])], later());
            match (&outcomes[..], told) {
                ([Outcome::Gone], None) => {}
                ([Outcome::Refused(why)], Some(told)) => assert!(why.contains(told), "{why}"),
                _ => panic!("{outcomes:?}"),
            }
            let _ = other.join().expect("it ends");
        }
    }

    #[test]
    fn a_round_without_descriptors_forgets_nobody() {
        let mut rounds = Rounds::default();
        let nowhere = || vec![program(1, &["farshore-nobody-listens-here"])];
        let patience = Duration::from_secs(60);
        assert_eq!(rounds.found(Ok(nowhere()), patience).trouble, None);
        for errno in [Errno::MFILE, Errno::NFILE] {
            let found = rounds.found(Err(errno.into()), patience);
            let why = found.trouble.expect("it says why");
            assert!(why.contains("raise the limits of open files") && why.contains("Too many open files"), "{why}");
            assert_eq!((found.programs, found.outcomes), (nowhere(), vec![Outcome::Unasked(why)]));
        }
        // It is over.
        let dormant = || Program { state: State::Dormant { limit: 5 }, ..program(1, &[]) };
        assert_eq!(rounds.found(Ok(vec![dormant()]), patience).outcomes, [Outcome::Dormant(5)]);
    }

    #[test]
    fn an_impostor_is_not_believed() {
        let (name, _listener) = listener("impostor");
        let other = Program { pid: 1, ..program(1, &[&name]) };
        let nobody = program(1, &["farshore-nobody-listens-here"]);
        let dormant = Program { state: State::Dormant { limit: 5 }, ..program(3, &[]) };
        assert_eq!(
            Rounds::default().ask(&[other, nobody, dormant], later()),
            [Outcome::Gone, Outcome::Gone, Outcome::Dormant(5)]
        );
    }
}
