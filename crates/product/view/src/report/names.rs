//! Names of instructions, found out by a process of its own for each file.
//!
//! Debug information is anybody's, and looking into it may take any time and memory, or end in a bug of the code that reads it.
//! So `farshore-view` is called once more, as [`COMMAND`], for each file: it has a limit of memory, and is ended when its time is
//! over. What it has said until then counts, and the page says what is missing.
//!
//! It reads an [`Asked`] as JSON from standard input, and writes a [`Line`] of JSON for each answer.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use farshore_client::shown::duration;
use farshore_command::refusal::Refusal;
use rustix::process::{Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};

use super::symbols::{Limits, Symbols};

/// What this command is called with to be such a process.
pub const COMMAND: &str = "names-of-code";
/// How long one file may take, and all together.
const TIME_EACH: Duration = Duration::from_secs(20);
const TIME_ALL: Duration = Duration::from_secs(60);
/// Memory of the process, in bytes of its address space: for what is read and unpacked, and as much again to work on it.
const MEMORY: u64 = 4 << 30;
/// Bytes of an answer at most.
const LINE_MAX: u64 = 1 << 16;

/// What is asked of one file.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Asked {
    /// The file, …
    pub path: String,
    /// … how large it was, …
    pub size: u64,
    /// … and when it was changed last, as recordings have it.
    pub changed_ns: u64,
    /// Places in it, the most important first.
    pub offsets: Vec<u64>,
}

/// A part of the answer.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// What is at the place of this number: functions, the outermost first, and the line.
    Names(usize, Vec<String>),
    /// Something could not be used.
    Note(String),
    /// That was all.
    End,
}

/// What was found out of a file.
#[derive(Default, Debug)]
pub struct Answer {
    /// Functions and line by the place.
    pub names: HashMap<u64, Vec<String>>,
    /// What could not be found out, and why; empty: nothing.
    pub without: String,
}

impl Answer {
    /// Takes a part of it. Whether more comes.
    pub fn hear(&mut self, line: Line, asked: &Asked) -> bool {
        match line {
            Line::Names(at, names) => {
                if let Some(&offset) = asked.offsets.get(at) {
                    self.names.insert(offset, names);
                }
            }
            Line::Note(why) => self.note(&why),
            Line::End => return false,
        }
        true
    }

    fn note(&mut self, why: &str) {
        if !self.without.is_empty() {
            self.without.push_str("; ");
        }
        self.without.push_str(why);
    }
}

/// Finds it out here, in this process.
pub fn look_up(asked: &Asked, limits: Limits, say: &mut dyn FnMut(Line)) {
    match Symbols::of(Path::new(&asked.path), (asked.size, asked.changed_ns), limits) {
        Ok(symbols) => {
            for (at, &offset) in asked.offsets.iter().enumerate() {
                say(Line::Names(at, symbols.of_offset(offset)));
            }
            symbols.notes().into_iter().for_each(|note| say(Line::Note(note)));
        }
        Err(why) => say(Line::Note(why)),
    }
    say(Line::End);
}

/// Is such a process.
///
/// # Errors
/// It was called by somebody else, or nobody listens any more.
pub fn serve() -> Result<u8, Refusal> {
    let failed = |why: String| Refusal::failed(format!("{COMMAND} is for 'farshore report': {why}"));
    let bounded = |resource, most| {
        // One who has less may not have more.
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |now| now.min(most));
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(resource, limit).map_err(|why| failed(format!("no limit ({why})")))
    };
    bounded(Resource::As, MEMORY)?;
    bounded(Resource::Core, 0)?;
    // It waits for nobody whom it could tell.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|why| failed(why.to_string()))?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|why| failed(why.to_string()))?;
    let asked: Asked = serde_json::from_str(&text).map_err(|why| failed(why.to_string()))?;
    let (mut output, mut wrong) = (std::io::stdout().lock(), None);
    look_up(&asked, Limits::default(), &mut |line| {
        let said = serde_json::to_string(&line).map_err(std::io::Error::other);
        // At once: what is said counts, whatever becomes of this process.
        let said = said.and_then(|text| writeln!(output, "{text}")).and_then(|()| output.flush());
        wrong = wrong.take().or(said.err());
    });
    wrong.map_or(Ok(0), |why| Err(failed(why.to_string())))
}

/// Processes that find names out, one after the other.
#[derive(Debug)]
pub struct Others {
    words: Vec<OsString>,
    time_each: Duration,
    until: Instant,
}

impl Default for Others {
    fn default() -> Others {
        Others::of(vec!["/proc/self/exe".into(), COMMAND.into()], TIME_EACH, TIME_ALL)
    }
}

impl Others {
    /// Processes of this command line, with so much time for each file and for all.
    fn of(words: Vec<OsString>, time_each: Duration, time_all: Duration) -> Others {
        Others { words, time_each, until: Instant::now() + time_all }
    }

    /// Asks one.
    pub fn ask(&self, asked: &Asked) -> Answer {
        let mut answer = Answer::default();
        let now = Instant::now();
        let time = self.until.saturating_duration_since(now).min(self.time_each);
        if time.is_zero() {
            answer.note("files with more faults took all the time that there is");
            return answer;
        }
        match self.start(asked) {
            Ok(mut child) => {
                let end = listen(&mut child, asked, now + time, &mut answer);
                let status = if matches!(end, Ended::Early) { ends_by_itself(&mut child) } else { None };
                let _ = child.kill();
                let _ = child.wait();
                if let Some(why) = end.why(status, time) {
                    let missing = asked.offsets.len() - answer.names.len();
                    answer.note(&format!("{why}: {missing} of {} places have no name", asked.offsets.len()));
                }
            }
            Err(why) => answer.note(&format!("no process can be started that finds them out ({why})")),
        }
        answer
    }

    fn start(&self, asked: &Asked) -> std::io::Result<Child> {
        let Some((program, words)) = self.words.split_first() else { return Err(std::io::ErrorKind::NotFound.into()) };
        // A file in memory, and no pipe, which would end this command if nobody reads it.
        let mut question = File::from(rustix::fs::memfd_create("names", rustix::fs::MemfdFlags::CLOEXEC)?);
        question.write_all(serde_json::to_string(asked)?.as_bytes())?;
        question.seek(SeekFrom::Start(0))?;
        Command::new(program).args(words).stdin(question).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    }
}

/// How an answer ended.
enum Ended {
    Whole,
    Late,
    /// It said something else.
    Nonsense,
    /// The process ended.
    Early,
}

impl Ended {
    fn why(&self, ended: Option<ExitStatus>, time: Duration) -> Option<String> {
        Some(match (self, ended.and_then(|status| status.signal())) {
            (Ended::Whole, _) => return None,
            (Ended::Late, _) => format!("it took longer than {}", duration(time.as_nanos() as u64)),
            (Ended::Nonsense, _) => "what was found out cannot be understood".into(),
            (Ended::Early, Some(signal)) => format!("looking into it ended by signal {signal}"),
            (Ended::Early, None) => "looking into it ended early".into(),
        })
    }
}

/// How a process ended that has closed its output, if it ends within a second.
fn ends_by_itself(child: &mut Child) -> Option<ExitStatus> {
    for _ in 0..100 {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Ok(status) => return status,
            Err(_) => break,
        }
    }
    None
}

/// Takes what the process says until it has said all, or its time is over.
fn listen(child: &mut Child, asked: &Asked, until: Instant, answer: &mut Answer) -> Ended {
    let Some(output) = child.stdout.take() else { return Ended::Early };
    let (sender, lines) = channel();
    // It ends when the process does, which this command sees to.
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            let read = output.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
            if read.is_err() || line.is_empty() || sender.send(line).is_err() {
                return;
            }
        }
    });
    loop {
        let line = match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Ended::Late,
            Err(RecvTimeoutError::Disconnected) => return Ended::Early,
        };
        let Ok(line) = serde_json::from_slice(&line) else { return Ended::Nonsense };
        if !answer.hear(line, asked) {
            return Ended::Whole;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked { path: "/x".into(), size: 1, changed_ns: 2, offsets: vec![70, 80, 90] }
    }

    fn of_shell(script: &str, time_each: Duration, time_all: Duration) -> Others {
        Others::of(["sh", "-c", script].map(OsString::from).into(), time_each, time_all)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_is_heard_line_by_line() {
        let question = serde_json::to_string(&asked()).expect("it is JSON");
        let script = format!(
            r#"[ "$(cat)" = '{question}' ] || exit 1; echo '{{"names":[1,["f","a.c:3"]]}}'; echo '{{"names":[9,["g"]]}}'; echo '{{"note":"why"}}'; echo '"end"'"#
        );
        let answer = of_shell(&script, LONG, LONG).ask(&asked());
        assert_eq!(answer.names, HashMap::from([(80, vec!["f".to_owned(), "a.c:3".to_owned()])]), "{answer:?}");
        assert_eq!(answer.without, "why");
    }

    #[test]
    fn what_is_said_before_the_end_counts() {
        let names = r#"echo '{"names":[0,["f"]]}'"#;
        // The first one is given up, though it would say nothing else for ever; none of the others comes to its time.
        for (script, part, time) in [
            ("exec sleep 1000", "it took longer than 3", Duration::from_secs(3)),
            ("kill -9 $$", "looking into it ended by signal 9", LONG),
            ("exit 3", "looking into it ended early", LONG),
            ("echo nonsense; exec sleep 1000", "what was found out cannot", LONG),
            ("exec tr '\\0' x < /dev/zero", "what was found out cannot", LONG),
        ] {
            let begun = Instant::now();
            let answer = of_shell(&format!("{names}; {script}"), time, LONG).ask(&asked());
            assert!(begun.elapsed() < LONG / 2, "{script}: {:?}", begun.elapsed());
            assert_eq!(answer.names.keys().collect::<Vec<_>>(), [&70], "{script}");
            assert!(
                answer.without.starts_with(part) && answer.without.ends_with("2 of 3 places have no name"),
                "{script}: {answer:?}"
            );
        }
        let none = Others::of(vec!["/does/not/exist".into()], LONG, LONG).ask(&asked());
        assert!(none.without.contains("no process can be started"), "{none:?}");
    }

    #[test]
    fn all_files_together_have_a_time() {
        let others = of_shell("exec sleep 1000", LONG, Duration::from_millis(200));
        assert!(others.ask(&asked()).without.contains("longer than"));
        let begun = Instant::now();
        assert!(others.ask(&asked()).without.contains("all the time"));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
