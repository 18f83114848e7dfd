//! A server that speaks Redis' protocol, for tests, in threads of the test's process: it has hashes, can be one of a Cluster, and can be told to misbehave.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What the server does to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deed {
    /// What it should.
    Right,
    /// It ends the connection. What was asked is done so many milliseconds later, after the client has given it up; 0: never.
    Drop(u64),
    /// It does nothing, and answers with these bytes.
    Say(Vec<u8>),
    /// Half of the answer, then the end.
    Half,
    /// It never answers.
    Never,
    /// It answers a few bytes at a time, with a pause after each.
    Drip,
    /// The answer, and then these bytes.
    More(&'static [u8]),
}

/// `-TEXT`.
pub fn error(text: &str) -> Deed {
    Deed::Say(format!("-{text}\r\n").into_bytes())
}

type Words = Vec<Vec<u8>>;
type Hash = HashMap<Vec<u8>, Vec<u8>>;
type Choose = Box<dyn Fn(&str, &Words) -> Deed + Send + Sync>;
/// Where a key is, by its hash slot: `MOVED` or `ASK`, or nothing where it is here. Also told whether the key is here, and whether the client was asked to come.
type Place = Box<dyn Fn(u16, bool, bool) -> Option<String> + Send + Sync>;

pub struct Server {
    pub port: u16,
    pub hashes: Mutex<HashMap<Vec<u8>, Hash>>,
    /// Seconds that each key stays, as it was told last.
    pub expires: Mutex<HashMap<Vec<u8>, u64>>,
    pub connections: AtomicU32,
    /// What `WAIT` answers.
    pub replicas: AtomicI64,
    /// No connection is taken.
    pub away: AtomicBool,
    pub password: Mutex<Option<Vec<u8>>>,
    /// The answer to `INFO`.
    pub info: Mutex<String>,
    /// The answer to `CLUSTER SLOTS`.
    pub slots: Mutex<Vec<u8>>,
    /// The requests that came, by name.
    pub counts: Mutex<HashMap<String, u32>>,
    choose: Mutex<Choose>,
    place: Mutex<Place>,
    streams: Mutex<HashMap<u32, TcpStream>>,
}

pub fn hash_slot(key: &[u8]) -> u16 {
    let from = key.iter().position(|&byte| byte == b'{').unwrap() + 1;
    let to = key.iter().position(|&byte| byte == b'}').unwrap();
    let mut sum = 0_u32;
    for &byte in &key[from..to] {
        sum ^= u32::from(byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
        }
    }
    (sum & 16383) as u16
}

/// What `CLUSTER SLOTS` answers: ranges, and the ports of those who have them, the master first.
pub fn slots(ranges: &[(u16, u16, &[u16])]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", ranges.len());
    for (first, last, ports) in ranges {
        text += &format!("*{}\r\n:{first}\r\n:{last}\r\n", 2 + ports.len());
        ports.iter().for_each(|port| text += &format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n"));
    }
    text.into_bytes()
}

impl Server {
    pub fn new() -> Arc<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Arc::new(Server {
            port: listener.local_addr().unwrap().port(),
            hashes: Mutex::default(),
            expires: Mutex::default(),
            connections: AtomicU32::new(0),
            replicas: AtomicI64::new(0),
            away: AtomicBool::new(false),
            password: Mutex::new(None),
            info: Mutex::new("role:master\r\nmaxmemory_policy:noeviction\r\nloading:0\r\ncluster_enabled:0\r\n".into()),
            slots: Mutex::default(),
            counts: Mutex::default(),
            choose: Mutex::new(Box::new(|_, _| Deed::Right)),
            place: Mutex::new(Box::new(|_, _, _| None)),
            streams: Mutex::default(),
        });
        let this = Arc::downgrade(&server);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(this) = this.upgrade() else { break };
                if this.away.load(SeqCst) {
                    continue;
                }
                let number = this.connections.fetch_add(1, SeqCst);
                stream.set_nodelay(true).unwrap();
                this.streams.lock().unwrap().insert(number, stream.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = this.serve(&stream);
                    let _ = stream.shutdown(Shutdown::Both);
                    this.streams.lock().unwrap().remove(&number);
                });
            }
        });
        server
    }

    /// Two servers of a Cluster, each with half of the hash slots and no replica.
    pub fn two() -> [Arc<Server>; 2] {
        let both = [Server::new(), Server::new()];
        let told = slots(&[(0, 8191, &[both[0].port]), (8192, 16383, &[both[1].port])]);
        for (n, server) in both.iter().enumerate() {
            server.join(told.clone());
            let other = both[1 - n].port;
            server.keeps(move |slot, _, _| (usize::from(slot >= 8192) != n).then(|| format!("MOVED {slot} 127.0.0.1:{other}")));
        }
        both
    }

    /// It is one of a Cluster, which it describes so.
    pub fn join(&self, told: Vec<u8>) {
        let mut info = self.info.lock().unwrap();
        *info = info.replace("cluster_enabled:0", "cluster_enabled:1");
        *self.slots.lock().unwrap() = told;
    }

    pub fn uri(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn behave(&self, choose: impl Fn(&str, &Words) -> Deed + Send + Sync + 'static) {
        *self.choose.lock().unwrap() = Box::new(choose);
    }

    pub fn keeps(&self, place: impl Fn(u16, bool, bool) -> Option<String> + Send + Sync + 'static) {
        *self.place.lock().unwrap() = Box::new(place);
    }

    pub fn count(&self, command: &str) -> u32 {
        self.counts.lock().unwrap().get(command).copied().unwrap_or(0)
    }

    pub fn cut_all(&self) {
        for stream in self.streams.lock().unwrap().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Moves the keys that `is_one` says to another server.
    pub fn give(&self, to: &Server, is_one: impl Fn(u16) -> bool) {
        let mut here = self.hashes.lock().unwrap();
        let keys: HashSet<Vec<u8>> = here.keys().filter(|key| is_one(hash_slot(key))).cloned().collect();
        let mut there = to.hashes.lock().unwrap();
        keys.into_iter().for_each(|key| drop(there.insert(key.clone(), here.remove(&key).unwrap())));
    }

    /// Pages that it has.
    pub fn pages(&self) -> usize {
        self.hashes.lock().unwrap().values().map(HashMap::len).sum()
    }

    fn serve(self: &Arc<Server>, stream: &TcpStream) -> std::io::Result<()> {
        let (mut input, mut output) = (BufReader::new(stream.try_clone()?), stream.try_clone()?);
        let (mut asking, mut known) = (false, self.password.lock().unwrap().is_none());
        loop {
            let words = take(&mut input)?;
            let command = String::from_utf8_lossy(&words[0]).into_owned();
            *self.counts.lock().unwrap().entry(command.clone()).or_default() += 1;
            let deed = self.choose.lock().unwrap()(&command, &words);
            if command == "AUTH" {
                known = self.password.lock().unwrap().as_ref() == words.last();
            }
            let answer = |words: &Words| match command.as_str() {
                "AUTH" if known => b"+OK\r\n".to_vec(),
                "AUTH" => b"-WRONGPASS invalid username-password pair\r\n".to_vec(),
                _ if !known => b"-NOAUTH Authentication required.\r\n".to_vec(),
                _ => self.answer(&command, words, asking),
            };
            let is_asking = command == "ASKING";
            match deed {
                Deed::Drop(0) => return Ok(()),
                Deed::Drop(ms) => {
                    stream.shutdown(Shutdown::Both)?;
                    thread::sleep(Duration::from_millis(ms));
                    drop(answer(&words));
                    return Ok(());
                }
                Deed::Say(bytes) => output.write_all(&bytes)?,
                Deed::Never => {}
                Deed::Half => {
                    let answer = answer(&words);
                    return output.write_all(&answer[..answer.len() / 2]);
                }
                Deed::Drip => {
                    for piece in answer(&words).chunks(500) {
                        output.write_all(piece)?;
                        thread::sleep(Duration::from_millis(2));
                    }
                }
                Deed::More(more) => output.write_all(&[answer(&words).as_slice(), more].concat())?,
                Deed::Right => output.write_all(&answer(&words))?,
            }
            asking = is_asking;
        }
    }

    fn answer(&self, command: &str, words: &Words, asking: bool) -> Vec<u8> {
        let number = |n: usize| format!(":{n}\r\n").into_bytes();
        let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        match command {
            "INFO" => return bulk(self.info.lock().unwrap().as_bytes()),
            "CLUSTER" => return self.slots.lock().unwrap().clone(),
            "ASKING" => return b"+OK\r\n".to_vec(),
            "WAIT" => return number(self.replicas.load(SeqCst) as usize),
            _ => {}
        }
        let key = &words[1];
        let mut hashes = self.hashes.lock().unwrap();
        if let Some(elsewhere) = self.place.lock().unwrap()(hash_slot(key), hashes.contains_key(key), asking) {
            return format!("-{elsewhere}\r\n").into_bytes();
        }
        match command {
            "HSET" => {
                let hash = hashes.entry(key.clone()).or_default();
                number(words[2..].chunks(2).filter(|pair| hash.insert(pair[0].clone(), pair[1].clone()).is_none()).count())
            }
            "HMGET" => {
                let hash = hashes.get(key);
                let value =
                    |field: &Vec<u8>| hash.and_then(|hash| hash.get(field)).map_or(b"$-1\r\n".to_vec(), |value| bulk(value));
                let values: Vec<Vec<u8>> = words[2..].iter().map(value).collect();
                [format!("*{}\r\n", values.len()).into_bytes(), values.concat()].concat()
            }
            "HDEL" => {
                let Some(hash) = hashes.get_mut(key) else { return number(0) };
                let gone = words[2..].iter().filter(|field| hash.remove(*field).is_some()).count();
                if hash.is_empty() {
                    hashes.remove(key);
                    self.expires.lock().unwrap().remove(key);
                }
                number(gone)
            }
            "EXPIRE" if hashes.contains_key(key) => {
                let seconds = String::from_utf8_lossy(&words[2]).parse().unwrap();
                self.expires.lock().unwrap().insert(key.clone(), seconds);
                number(1)
            }
            "EXPIRE" => number(0),
            _ => format!("-ERR unknown command '{command}'\r\n").into_bytes(),
        }
    }
}

/// A request.
fn take(input: &mut BufReader<TcpStream>) -> std::io::Result<Words> {
    let line = |kind: char, input: &mut BufReader<TcpStream>| -> std::io::Result<usize> {
        let mut text = String::new();
        input.read_line(&mut text)?;
        let wrong = || std::io::Error::other(format!("no request: {text:?}"));
        text.strip_prefix(kind).and_then(|rest| rest.strip_suffix("\r\n")).and_then(|rest| rest.parse().ok()).ok_or_else(wrong)
    };
    let count = line('*', input)?;
    (0..count)
        .map(|_| {
            let mut word = vec![0; line('$', input)? + 2];
            input.read_exact(&mut word)?;
            word.truncate(word.len() - 2);
            Ok(word)
        })
        .collect()
}
