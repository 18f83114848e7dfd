//! QEMU's monitor, over a connection that `farshore vm run` has made and handed on: a socket pair, so nobody else can reach it and no name stays behind.
//!
//! Its protocol is QMP: JSON, an object a line. What is asked are two commands for people (`info registers -a`, `info mtree -f`), because QMP has none of its own that tells CR3. Neither stops a guest under TCG; under KVM each asks every processor, so one that waits for a page holds up the monitor. QEMU answers
//! from its main loop, so an answer may be late: one that came too late is passed over by its number.

use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest line that is kept.
const LINE_MAX: usize = 4 << 20;

/// See the head of the module.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    /// What has come and is no whole line yet.
    input: Vec<u8>,
    asked: u64,
    /// The number of a question that has no answer yet. Of a QEMU that is stopped no second thing is asked, which would wait there with all that comes after it.
    open: Option<String>,
}

impl Monitor {
    /// Begins to speak over a connection to QEMU's monitor, which somebody else may have used before.
    ///
    /// # Errors
    /// The socket is none, or QEMU has closed it.
    pub fn new(connection: OwnedFd) -> Result<Monitor, Error> {
        let stream = UnixStream::from(connection);
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut monitor = Monitor { stream, input: Vec::new(), asked: 0, open: None };
        // A manager that was killed may have left half a request: this byte, which is none of JSON's, ends it.
        monitor.stream.write_all(b"\xff\n")?;
        // Once for each connection: the second time it is refused, and does not matter.
        monitor.send(&json!({ "execute": "qmp_capabilities" }))?;
        Ok(monitor)
    }

    fn send(&mut self, request: &Value) -> Result<(), Error> {
        self.stream.write_all(format!("{request}\n").as_bytes())
    }

    /// What the monitor says to a command for people. `None`: nothing yet.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn ask(&mut self, command: &str) -> Result<Option<String>, Error> {
        if let Some(before) = self.open.take()
            && self.answer(before)?.is_none()
        {
            return Ok(None);
        }
        self.asked += 1;
        let id = format!("{}-{}", std::process::id(), self.asked);
        let request = json!({ "execute": "human-monitor-command", "arguments": { "command-line": command }, "id": id });
        self.send(&request)?;
        self.answer(id)
    }

    /// Waits for the answer to the question of a number.
    fn answer(&mut self, id: String) -> Result<Option<String>, Error> {
        let until = Instant::now() + PATIENCE;
        while let Some(line) = self.line(until)? {
            let Ok(answer) = serde_json::from_slice::<Value>(&line) else { continue };
            if answer["id"].as_str() == Some(&id) {
                return Ok(Some(answer["return"].as_str().unwrap_or_default().to_owned()));
            }
        }
        self.open = Some(id);
        Ok(None)
    }

    /// Takes what has come unasked (QEMU tells of events), and waits for that long.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn rest(&mut self, time: Duration) -> Result<(), Error> {
        let until = Instant::now() + time;
        while self.line(until)?.is_some() {}
        Ok(())
    }

    /// The next line; `None`: the time is over.
    fn line(&mut self, until: Instant) -> Result<Option<Vec<u8>>, Error> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.input[looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.input.split_off(looked + end + 1);
                return Ok(Some(std::mem::replace(&mut self.input, rest)));
            }
            looked = self.input.len();
            if looked > LINE_MAX {
                return Err(Error::from(ErrorKind::FileTooLarge));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut piece = [0; 16 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(Error::from(ErrorKind::UnexpectedEof)),
                Ok(count) => self.input.extend_from_slice(&piece[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};

    /// A QEMU that answers by `says`, a line at a time.
    fn with(says: impl Fn(&Value) -> Vec<u8> + Send + 'static) -> Monitor {
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        std::thread::spawn(move || {
            let mut out = theirs.try_clone().expect("there are descriptors");
            for line in BufReader::new(theirs).split(b'\n').map_while(Result::ok) {
                if let Ok(request) = serde_json::from_slice(&line)
                    && out.write_all(&says(&request)).is_err()
                {
                    return;
                }
            }
        });
        Monitor::new(ours.into()).expect("it is connected")
    }

    #[test]
    fn the_answer_is_the_one_to_the_question() {
        let mut monitor = with(|request| match request["arguments"]["command-line"].as_str() {
            None => b"{\"QMP\":{}}\r\n{\"return\":{}}\r\n{\"event\":\"STOP\"}\r\n".to_vec(),
            Some(command) => {
                let late = "{\"return\":\"late\",\"id\":\"1-1\"}\r\nno json\n{\"event\":\"RESUME\"}\r\n";
                format!("{late}{}\r\n", json!({ "return": format!("{command}!"), "id": request["id"] })).into_bytes()
            }
        });
        for command in ["info registers -a", "info mtree -f"] {
            assert_eq!(monitor.ask(command).expect("it is there").as_deref(), Some(&*format!("{command}!")));
            monitor.rest(Duration::from_millis(20)).expect("it is there");
        }
    }

    #[test]
    fn an_error_is_an_empty_answer_and_an_end_is_an_error() {
        let mut monitor = with(|request| format!("{}\n", json!({ "error": {}, "id": request["id"] })).into_bytes());
        assert_eq!(monitor.ask("info").expect("it is there").as_deref(), Some(""));
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        let mut monitor = Monitor::new(ours.into()).expect("it is connected");
        drop(theirs);
        assert!(monitor.ask("info").is_err() && monitor.rest(Duration::from_secs(100)).is_err());
    }
}
