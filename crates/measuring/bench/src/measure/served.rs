//! One run of a server on unithreads with `farshore-load open`, which asks it from outside.
//!
//! ```text
//! server starts ─▶ "ready: …", or memcached's file of ports ─▶ (fill) ─▶ generator: warm-up ─▶ counters ─▶ measured time ─▶ counters ─▶ server is told to end
//! ```

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Counted, Noted, end_server, gave_up, take_end};
use crate::child::{Child, End, Message, Output, Silence, Watch};
use crate::journal::Journal;
use crate::result::Round;
use crate::targets::Target;
use crate::uthread::memcached::{self, Memcached};
use crate::uthread::{cores, told};

/// What the server says on stderr when it is ready: `ready: tcp ADDRESS udp ADDRESS`.
const READY: &str = "ready: ";

/// A server, and its clients.
#[derive(Clone, PartialEq, Debug)]
pub struct Served {
    /// The server's command line.
    pub server: Vec<OsString>,
    /// What there is to know if it is the real memcached, and not `farshore-serve`.
    pub memcached: Option<Memcached>,
    /// `farshore-load`.
    pub generator: PathBuf,
    /// `array` or `kv`.
    pub service: &'static str,
    /// `udp` or `tcp`.
    pub transport: &'static str,
    /// The generator's options for filling the server, if that is needed.
    pub fill: Option<Vec<String>>,
    /// Its options for the measured run.
    pub options: Vec<String>,
    /// Whether it looks for the highest rate.
    pub search: bool,
    /// How long the load lasts before it counts.
    pub warmup: Duration,
    /// Where the generator writes its result.
    pub told: PathBuf,
    /// Where the server writes what the time of requests went to, and how many seconds count: the last ones in which requests came.
    pub breakdown: Option<(PathBuf, f64)>,
    /// The generator's cores; empty: any.
    pub cores: Vec<usize>,
}

impl Served {
    /// Both command lines, without the paths of this machine.
    pub fn words(&self) -> Vec<OsString> {
        let name = self.server.first().and_then(|server| Path::new(server).file_name()).map(OsString::from);
        let server = name.into_iter().chain(self.server.iter().skip(1).cloned());
        let address = format!("{}:ADDRESS", self.transport);
        let generator = ["farshore-load", "open", self.service, &address].map(OsString::from);
        server.chain(["+".into()]).chain(generator).chain(self.options.iter().map(OsString::from)).collect()
    }

    fn start(&self, address: &str, options: &[String]) -> Result<Child, String> {
        let mut command = Command::new(&self.generator);
        command.args(["open", self.service, address]).args(options);
        cores::on(&self.cores, || Child::start(command, Output::Hash))
    }

    /// What the server recorded, into the round.
    fn take_breakdown(&self, round: &mut Round) {
        let Some((path, seconds)) = &self.breakdown else { return };
        match std::fs::read_to_string(path).map_err(|error| error.to_string()).and_then(|text| told::requests(&text, *seconds)) {
            Ok(requests) => round.requests = Some(requests),
            Err(why) if round.wrong.is_empty() => round.wrong.push(format!("what the time of requests went to: {why}")),
            Err(_) => {}
        }
        let _ = std::fs::remove_file(path);
    }

    fn serve(&self, target: &dyn Target) -> Result<Child, String> {
        let mut command = target.command(&self.server);
        if let Some(Memcached { ports, .. }) = &self.memcached {
            // An old one must not be taken for this server's.
            let _ = std::fs::remove_file(ports);
            command.env(memcached::PORTS, ports);
        }
        Child::start(command, Output::Hash)
    }

    /// Where the server listens; `None`: not yet.
    fn address(&self, server: &Child) -> Option<String> {
        match &self.memcached {
            Some(memcached) => memcached.address(self.transport),
            None => address(&server.complaints(), self.transport),
        }
    }

    fn fill(&self, address: &str, journal: &Journal, watch: Watch<'_>) -> Result<(), String> {
        let Some(options) = &self.fill else { return Ok(()) };
        let mut filling = self.start(address, options)?;
        let _noted = Noted::new(journal, &filling)?;
        let ended = filling.wait(watch, |_| {}).map_err(|silence| gave_up(silence, watch))?;
        match filling.reap(ended).wrong.first() {
            Some(why) => Err(format!("the server could not be filled: {why}")),
            None => Ok(()),
        }
    }

    /// The measured run: how the generator ended.
    fn ask(&self, address: &str, counted: &mut Counted<'_>, journal: &Journal, watch: Watch<'_>) -> Result<End, String> {
        let _ = std::fs::remove_file(&self.told);
        let mut asking = self.start(address, &self.options)?;
        let _noted = Noted::new(journal, &asking)?;
        let warm = Watch { deadline: watch.deadline.min(Instant::now() + self.warmup), ..watch };
        let ended = match asking.wait(warm, |_| {}) {
            Ok(ended) => ended,
            Err(Silence::TimedOut) => {
                counted.begin();
                let ended = asking.wait(watch, |_| {}).map_err(|silence| gave_up(silence, watch))?;
                counted.end();
                ended
            }
            Err(silence) => return Err(gave_up(silence, watch)),
        };
        Ok(asking.reap(ended))
    }

    /// What the generator wrote, into the round.
    fn take(&self, asked: End, round: &mut Round) {
        let read = if self.search { told::searched } else { told::outcome };
        match std::fs::read_to_string(&self.told).map_err(|error| error.to_string()).and_then(|text| read(&text)) {
            Ok(outcome) => {
                // Its status tells the same; and it is a failure to it, not here, that no rate met the target.
                let told = !outcome.wrong.is_empty() || outcome.rate_limit == told::NONE;
                let wrong = if told { outcome.wrong.clone() } else { asked.wrong };
                round.wrong.extend(wrong);
                round.outcome = Some(outcome);
            }
            Err(why) if asked.wrong.is_empty() => round.wrong.push(format!("the generator: {why}")),
            Err(_) => round.wrong.extend(asked.wrong.into_iter().map(|why| format!("the generator: {why}"))),
        }
        let _ = std::fs::remove_file(&self.told);
    }
}

pub(super) fn run(
    target: &dyn Target,
    served: &Served,
    journal: &Journal,
    watch: Watch<'_>,
    round: &mut Round,
) -> Result<(), String> {
    let mut server = served.serve(target)?;
    let _noted = Noted::new(journal, &server)?;
    let address = match wait_for_address(&mut server, served, watch)? {
        Ready::At(address) => address,
        Ready::Ended(ended) => {
            return Err(format!("the server ended before it was ready: {}", server.reap(ended).wrong.join("; ")));
        }
    };
    if let Some(memcached) = &served.memcached {
        memcached.bind(server.pid())?;
    }
    served.fill(&address, journal, watch)?;
    let mut counted = Counted::new(target, server.pid());
    let asked = served.ask(&address, &mut counted, journal, watch)?;
    let (end, ended_before) = end_server(server, watch)?;
    take_end(round, &end);
    if ended_before {
        round.wrong.push("the server ended before it was asked to".into());
    }
    served.take(asked, round);
    served.take_breakdown(round);
    counted.tell(round);
    Ok(())
}

enum Ready {
    At(String),
    Ended(Instant),
}

/// Waits until the server says where it listens. It has all the time of the run: it may have to fill its memory first.
fn wait_for_address(server: &mut Child, served: &Served, watch: Watch<'_>) -> Result<Ready, String> {
    loop {
        if let Some(address) = served.address(server) {
            return Ok(Ready::At(address));
        }
        match server.next(Watch { deadline: Instant::now(), ..watch }) {
            Ok(Message::Ended(moment)) => return Ok(Ready::Ended(moment)),
            Err(Silence::TimedOut) if Instant::now() < watch.deadline => {}
            Err(silence) => return Err(format!("the server was not ready: {}", gave_up(silence, watch))),
            Ok(_) => {}
        }
    }
}

/// `udp:127.0.0.1:7000`, from the line that says so.
fn address(said: &str, transport: &str) -> Option<String> {
    // A line that has not come to its end may be half an address.
    let whole = &said[..=said.rfind('\n')?];
    let line = whole.lines().find_map(|line| line.strip_prefix(READY))?;
    let address = line.split_whitespace().skip_while(|word| *word != transport).nth(1)?;
    Some(format!("{transport}:{address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_it_listens() {
        let said = "farshore: a note\nready: tcp 127.0.0.1:43 udp 127.0.0.1:47\n";
        assert_eq!(address(said, "udp").as_deref(), Some("udp:127.0.0.1:47"));
        assert_eq!(address(said, "tcp").as_deref(), Some("tcp:127.0.0.1:43"));
        assert_eq!(address("ready: tcp 127.0.0.1:43\n", "udp"), None);
        for half in ["", "a note\n", "ready: tcp 127.0.0.1:4", "already: tcp 1:2\n"] {
            assert_eq!(address(half, "tcp"), None, "{half:?}");
        }
    }
}
