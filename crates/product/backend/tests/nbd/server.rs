//! An NBD server for tests, in threads of the test's process: it has a memory, and can be told to misbehave.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const TRIM: u16 = 4;
/// Flags of an export: has flags, trim, several connections.
pub const GOOD: u16 = 1 | 1 << 5 | 1 << 8;

/// What the server does to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// What it should.
    Right,
    /// It ends the connection. A write is made so many milliseconds later, after the client has given it up.
    Drop(u64),
    /// It answers with an error.
    Error(u32),
    /// The answer begins with other bytes.
    WrongMagic,
    /// The answer is for another request.
    WrongCookie,
    /// Half of the answer, then the end.
    Half,
    /// It answers after the next request.
    Later,
    /// It answers an earlier request of the same place, again and again, and never this one.
    Stale,
    /// It never answers, and goes on with other requests.
    Never,
    /// It answers so many milliseconds later, and other requests meanwhile.
    Late(u64),
    /// The first half of the answer. The rest, and all that follows on the connection, comes so many milliseconds later.
    Stalled(u64),
    /// It answers when the test says so ([`Server::let_go`]), and other requests meanwhile.
    Held,
    /// So many bytes of the answer. The rest, and all that follows on the connection, comes when the test says so.
    HeldAfter(usize),
    /// The answer is in order, and one of its bytes is another.
    Garbled,
    /// It answers a byte at a time, with a pause after each.
    Drip,
}

type Choose = Box<dyn Fn(u16, u64) -> Deed + Send + Sync>;

/// The end of a connection that answers go to.
struct Out {
    stream: UnixStream,
    /// What follows an answer of which a part is held back.
    after: Option<Vec<u8>>,
}

impl Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.after {
            Some(after) => {
                after.extend(bytes);
                Ok(())
            }
            None => self.stream.write_all(bytes),
        }
    }

    /// Writes the first part of an answer, and nothing more.
    fn stop(&mut self, part: &[u8]) -> std::io::Result<()> {
        self.write(part)?;
        self.after.get_or_insert_default();
        Ok(())
    }

    /// Writes the rest of it, and what has followed.
    fn go_on(&mut self, rest: &[u8]) {
        let after = self.after.take().unwrap_or_default();
        // The connection may be gone.
        let _ = self.stream.write_all(rest).and_then(|()| self.stream.write_all(&after));
    }
}

/// What a test holds back: a whole answer, or the rest of one.
struct Held {
    out: Arc<Mutex<Out>>,
    bytes: Vec<u8>,
    is_rest: bool,
}

pub struct Server {
    pub path: PathBuf,
    pub memory: Mutex<Vec<u8>>,
    pub flags: AtomicU32,
    pub block: AtomicU32,
    pub size: AtomicU64,
    pub connections: AtomicU32,
    pub trims: AtomicU32,
    /// No connection is taken.
    pub away: AtomicBool,
    /// Greets with these bytes in place of the protocol's.
    pub greeting: Mutex<Option<Vec<u8>>>,
    /// Tells about the export without end.
    pub endless: Mutex<bool>,
    held: Mutex<Vec<Held>>,
    choose: Mutex<Choose>,
    streams: Mutex<HashMap<u32, UnixStream>>,
}

impl Server {
    pub fn new(bytes: usize) -> Arc<Server> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, SeqCst);
        // Not a name of Farshore's: a test that looks for what a killed run has left behind would find that of a process with the same number.
        let path = std::env::temp_dir().join(format!("nbd-server-{}-{number}", std::process::id()));
        // Of a process that had this number before, and was killed.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let server = Arc::new(Server {
            path,
            memory: Mutex::new(vec![0; bytes]),
            flags: AtomicU32::new(u32::from(GOOD)),
            block: AtomicU32::new(1),
            size: AtomicU64::new(bytes as u64),
            connections: AtomicU32::new(0),
            trims: AtomicU32::new(0),
            away: AtomicBool::new(false),
            greeting: Mutex::new(None),
            endless: Mutex::new(false),
            held: Mutex::new(Vec::new()),
            choose: Mutex::new(Box::new(|_, _| Deed::Right)),
            streams: Mutex::new(HashMap::new()),
        });
        // It must not keep the server, which takes its socket away when nobody uses it any more.
        let this = Arc::downgrade(&server);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(this) = this.upgrade() else { break };
                if this.away.load(SeqCst) {
                    continue;
                }
                let number = this.connections.fetch_add(1, SeqCst);
                this.streams.lock().unwrap().insert(number, stream.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = this.serve(stream);
                    this.streams.lock().unwrap().remove(&number);
                });
            }
        });
        server
    }

    pub fn behave(&self, choose: impl Fn(u16, u64) -> Deed + Send + Sync + 'static) {
        *self.choose.lock().unwrap() = Box::new(choose);
    }

    /// Answers that are held back.
    pub fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Gives the answers that were held back.
    pub fn let_go(&self) {
        for held in std::mem::take(&mut *self.held.lock().unwrap()) {
            let mut out = held.out.lock().unwrap();
            if held.is_rest {
                out.go_on(&held.bytes);
            } else {
                let _ = out.write(&held.bytes);
            }
        }
    }

    pub fn cut_all(&self) {
        for stream in self.streams.lock().unwrap().values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Connections that are open.
    pub fn open(&self) -> usize {
        self.streams.lock().unwrap().len()
    }

    /// Cuts all but one.
    pub fn cut_but(&self, kept: u32) {
        for (number, stream) in self.streams.lock().unwrap().iter() {
            if *number != kept {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///x?socket={}", self.path.display())
    }

    fn serve(self: &Arc<Server>, mut stream: UnixStream) -> std::io::Result<()> {
        let take = |stream: &mut UnixStream, count: usize| -> std::io::Result<Vec<u8>> {
            let mut bytes = vec![0; count];
            stream.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        let other = self.greeting.lock().unwrap().clone();
        stream.write_all(&other.unwrap_or_else(|| b"NBDMAGICIHAVEOPT\x00\x03".to_vec()))?;
        take(&mut stream, 4)?;
        let option = take(&mut stream, 16)?;
        let data = take(&mut stream, number(&option[12..]) as usize)?;
        let reply = |kind: u32, data: &[u8]| {
            let mut bytes = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
            bytes.extend(&option[8..12]);
            bytes.extend(kind.to_be_bytes());
            bytes.extend((data.len() as u32).to_be_bytes());
            bytes.extend(data);
            bytes
        };
        if data[4..5] != *b"x" {
            return stream.write_all(&reply(1 << 31 | 6, b"no such export"));
        }
        if *self.endless.lock().unwrap() {
            let much = reply(3, &[0, 1]).repeat(4096);
            while stream.write_all(&much).is_ok() {}
        }
        let mut info = vec![0, 0];
        info.extend(self.size.load(SeqCst).to_be_bytes());
        info.extend((self.flags.load(SeqCst) as u16).to_be_bytes());
        stream.write_all(&reply(3, &info))?;
        let mut info = vec![0, 3];
        [self.block.load(SeqCst), 4096, 32 << 20].iter().for_each(|n| info.extend(n.to_be_bytes()));
        stream.write_all(&reply(3, &info))?;
        stream.write_all(&reply(1, b""))?;
        let out = Arc::new(Mutex::new(Out { stream: stream.try_clone()?, after: None }));
        let hold = |bytes: &[u8], is_rest| {
            self.held.lock().unwrap().push(Held { out: Arc::clone(&out), bytes: bytes.to_vec(), is_rest });
        };
        let mut later: Vec<u8> = Vec::new();
        loop {
            let head = take(&mut stream, 28)?;
            let (command, offset, len) = (number(&head[6..8]) as u16, number(&head[16..24]), number(&head[24..]) as usize);
            let data = take(&mut stream, if command == WRITE { len } else { 0 })?;
            if command == 2 {
                return Ok(());
            }
            let deed = self.choose.lock().unwrap()(command, offset);
            let write = |data: &[u8]| self.memory.lock().unwrap()[offset as usize..][..len].copy_from_slice(data);
            let mut answer = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];
            answer.extend(&head[8..16]);
            match deed {
                Deed::Drop(ms) => {
                    stream.shutdown(std::net::Shutdown::Both)?;
                    if command == WRITE && ms > 0 {
                        thread::sleep(Duration::from_millis(ms));
                        write(&data);
                    }
                    return Ok(());
                }
                Deed::Error(code) => {
                    answer[4..8].copy_from_slice(&code.to_be_bytes());
                    out.lock().unwrap().write(&answer)?;
                    continue;
                }
                Deed::WrongMagic => answer[0] ^= 1,
                Deed::WrongCookie => answer[14] ^= 0x80,
                // How many times the place was used.
                Deed::Stale => answer[8] ^= 0x40,
                _ => {}
            }
            match command {
                WRITE => write(&data),
                TRIM => {
                    self.trims.fetch_add(1, SeqCst);
                    write(&vec![0; len]);
                }
                _ => answer.extend(&self.memory.lock().unwrap()[offset as usize..][..len]),
            }
            if deed == Deed::Garbled {
                answer[16] ^= 1;
            }
            match deed {
                Deed::Later => later.extend(answer),
                Deed::Never => {}
                Deed::Late(ms) => {
                    let out = Arc::clone(&out);
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(ms));
                        out.lock().unwrap().write(&answer)
                    });
                }
                Deed::Stalled(ms) => {
                    let (part, rest) = answer.split_at(answer.len() / 2);
                    let (other, rest) = (Arc::clone(&out), rest.to_vec());
                    let mut out = out.lock().unwrap();
                    if out.after.is_some() {
                        out.write(&answer)?;
                        continue;
                    }
                    out.stop(part)?;
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(ms));
                        other.lock().unwrap().go_on(&rest);
                    });
                }
                Deed::Held => hold(&answer, false),
                Deed::HeldAfter(part) => {
                    out.lock().unwrap().stop(&answer[..part])?;
                    hold(&answer[part..], true);
                }
                Deed::Stale | Deed::Drip => {
                    let part = if deed == Deed::Drip { 1 } else { answer.len() };
                    for piece in answer.chunks(part).cycle() {
                        stream.write_all(piece)?;
                        thread::sleep(Duration::from_millis(10));
                    }
                }
                Deed::Half => {
                    stream.write_all(&answer[..answer.len() / 2])?;
                    return stream.shutdown(std::net::Shutdown::Both);
                }
                _ => {
                    answer.extend(std::mem::take(&mut later));
                    out.lock().unwrap().write(&answer)?;
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
