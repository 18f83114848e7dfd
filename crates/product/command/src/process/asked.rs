//! Questions that may never be answered, each by a thread that is waited for no longer than is said.
//!
//! A question that is *late* stays with its thread until the kernel answers, or this process ends (the kernel's waits for locks and for servers of file systems end with it). Until then
//! nothing more is asked of that process. So one that does not answer costs one thread, and is waited for once.
//!
//! Nor can many of them take all time and all threads: with each that is late a user's next ones are waited for less, and beyond [`LATE_OF_USER`] not asked at all. A user's is what
//! that user has started, whatever rights it has got: it is its real user that counts.

use std::io::{self, ErrorKind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many of a user's processes may be late at a time.
const LATE_OF_USER: usize = 4;
/// The same of all users.
const LATE: usize = 64;

type Work = Box<dyn FnOnce() + Send>;

/// A thread that puts questions, by its number.
struct Worker(u64, Sender<Work>);

/// A process that has not answered yet.
struct Late {
    worker: u64,
    pid: u32,
    user: u32,
}

/// The threads, and what is late.
struct Asker(Mutex<Workers>);

struct Workers {
    idle: Vec<Worker>,
    late: Vec<Late>,
    made: u64,
}

static ASKER: Asker = Asker::new();

/// Asks for something of process `pid` that may never be answered, and waits so long, or less.
///
/// # Errors
/// That of the question; or there is no thread for it. [`ErrorKind::TimedOut`]: it has not been answered in time, or one before it has not been answered yet.
pub fn ask<T: Send + 'static>(
    pid: u32,
    patience: Duration,
    question: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    ASKER.ask(pid, patience, question)
}

impl Asker {
    const fn new() -> Asker {
        Asker(Mutex::new(Workers { idle: Vec::new(), late: Vec::new(), made: 0 }))
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask<T: Send + 'static>(
        &'static self,
        pid: u32,
        patience: Duration,
        question: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let patience = self.patience_with(pid, patience)?;
        let (answer, told) = sync_channel(1);
        let idle = self.workers().idle.pop();
        let worker = idle.map_or_else(|| self.worker(), Ok)?;
        let work: Work = Box::new(move || _ = answer.send(question()));
        let asked = worker.1.send(work).map_err(|_| RecvTimeoutError::Disconnected);
        match asked.and_then(|()| told.recv_timeout(patience)) {
            Ok(it) => {
                self.workers().idle.push(worker);
                it
            }
            Err(RecvTimeoutError::Timeout) => self.leave(worker, pid, &told, patience),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the thread that asked has ended")),
        }
    }

    /// How long a process is waited for, beside what has not answered yet.
    fn patience_with(&self, pid: u32, patience: Duration) -> io::Result<Duration> {
        if self.workers().late.is_empty() {
            return Ok(patience);
        }
        let user = user_of(pid)?;
        let workers = self.workers();
        let of_user = workers.late.iter().filter(|late| late.user == user).count();
        let late = |why: String| Err(io::Error::new(ErrorKind::TimedOut, why));
        if workers.late.iter().any(|late| late.pid == pid) {
            return late(
                "the kernel has not told it yet since it was asked before: does the process wait for a file system?".into(),
            );
        }
        if of_user >= LATE_OF_USER {
            return late(format!("it is not asked for, as {of_user} other processes of user {user} keep the kernel waiting"));
        }
        if workers.late.len() >= LATE {
            return late(format!("it is not asked for, as {LATE} other processes keep the kernel waiting"));
        }
        Ok(patience / (1 + of_user as u32))
    }

    /// Leaves a question to its thread, unless it is answered just now.
    fn leave<T>(&self, worker: Worker, pid: u32, told: &Receiver<io::Result<T>>, patience: Duration) -> io::Result<T> {
        // Before the lock is taken. Of one that has ended meanwhile nothing more is asked.
        let user = user_of(pid).unwrap_or(u32::MAX);
        let mut workers = self.workers();
        if let Ok(it) = told.try_recv() {
            workers.idle.push(worker);
            return it;
        }
        // The thread ends when it finds that nobody has work for it any more, and takes this away.
        workers.late.push(Late { worker: worker.0, pid, user });
        let why =
            format!("the kernel has not told it within {} ms: does the process wait for a file system?", patience.as_millis());
        Err(io::Error::new(ErrorKind::TimedOut, why))
    }

    fn worker(&'static self) -> io::Result<Worker> {
        let (sender, works) = channel::<Work>();
        let mut workers = self.workers();
        workers.made += 1;
        let number = workers.made;
        drop(workers);
        let work = move || {
            works.iter().for_each(|work| work());
            self.workers().late.retain(|late| late.worker != number);
        };
        std::thread::Builder::new().name("ask".into()).spawn(work)?;
        Ok(Worker(number, sender))
    }
}

/// The user who has started a process: the real one.
fn user_of(pid: u32) -> io::Result<u32> {
    let status = super::told(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let user = line.split_ascii_whitespace().next().and_then(|user| user.parse().ok());
    user.ok_or_else(|| io::Error::other("the kernel does not tell whose process it is"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(20);

    /// Processes of this user that do nothing.
    fn sleepers(count: usize) -> Vec<Child> {
        (0..count).map(|_| Command::new("sleep").arg("600").spawn().expect("it can be run")).collect()
    }

    #[test]
    fn what_does_not_answer_is_waited_for_once() {
        static ASKER: Asker = Asker::new();
        let sleepers = sleepers(LATE_OF_USER + 1);
        let pid = |at: usize| sleepers[at].id();
        assert_eq!(ASKER.ask(pid(0), SHORT * 5000, || Ok(7)).expect("it is answered"), 7);
        assert_eq!(
            ASKER.ask(pid(0), SHORT * 5000, || Err::<(), _>(ErrorKind::NotFound.into())).map_err(|why| why.kind()),
            Err(ErrorKind::NotFound)
        );
        assert_eq!(ASKER.workers().idle.len(), 1, "one thread has put both");
        let locks: Vec<Sender<u32>> = (0..LATE_OF_USER)
            .map(|at| {
                let (lock, held) = channel();
                let why = ASKER.ask(pid(at), SHORT, move || held.recv().map_err(io::Error::other)).expect_err("it is held");
                assert!(why.kind() == ErrorKind::TimedOut && why.to_string().contains("has not told it within"), "{why}");
                lock
            })
            .collect();
        // Neither of them again, nor another one of this user's: at once.
        let begun = Instant::now();
        let refused = |at: usize| ASKER.ask(pid(at), SHORT * 5000, || Ok(())).expect_err("it is not asked").to_string();
        assert!(refused(0).contains("since it was asked before"), "{}", refused(0));
        assert!(refused(LATE_OF_USER).contains("4 other processes of user"), "{}", refused(LATE_OF_USER));
        assert!(begun.elapsed() < SHORT * 2500, "{:?}", begun.elapsed());
        // One that is answered at last can be asked, and so can others.
        locks[0].send(1).expect("it is waited for");
        let until = Instant::now() + Duration::from_secs(60);
        while ASKER.workers().late.len() == LATE_OF_USER && Instant::now() < until {
            std::thread::sleep(SHORT);
        }
        assert_eq!(ASKER.ask(pid(0), SHORT * 5000, || Ok(8)).expect("it is answered"), 8);
        assert_eq!(ASKER.patience_with(pid(LATE_OF_USER), SHORT).expect("it may be asked"), SHORT / LATE_OF_USER as u32);
        drop(locks);
        for mut sleeper in sleepers {
            sleeper.kill().and_then(|()| sleeper.wait()).expect("it runs");
        }
        // Nothing is asked of one that has ended.
        assert!(user_of(2_000_000_000).is_err());
    }
}
