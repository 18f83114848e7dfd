//! Servers that do what a test wants, right or wrong: threads of the test, on ports of the loopback that the kernel chooses.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farshore_load::array::{FOUND, SCAN, SCAN_LENGTH, array_value, scan_sum};

/// A server that ends with its test.
pub struct Server {
    /// As the option wants it.
    pub target: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn good<T>(result: std::io::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn start(target: String, work: impl FnOnce(&AtomicBool) + Send + 'static) -> Server {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    Server { target, stop, thread: Some(thread::spawn(move || work(&seen))) }
}

/// Calls `serve` with the number of each datagram, its bytes, and a function that sends an answer.
pub fn udp(mut serve: impl FnMut(u64, &[u8], &mut dyn FnMut(&[u8])) + Send + 'static) -> Server {
    let socket = good(UdpSocket::bind("127.0.0.1:0"));
    good(socket.set_read_timeout(Some(Duration::from_millis(20))));
    start(format!("udp:{}", good(socket.local_addr())), move |stop| {
        let (mut bytes, mut number) = ([0; 2048], 0);
        while !stop.load(SeqCst) {
            let Ok((count, from)) = socket.recv_from(&mut bytes) else { continue };
            serve(number, &bytes[..count], &mut |answer| drop(socket.send_to(answer, from)));
            number += 1;
        }
    })
}

/// Calls `serve` in a thread for each connection.
pub fn tcp(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Server {
    let listener = good(TcpListener::bind("127.0.0.1:0"));
    good(listener.set_nonblocking(true));
    let serve = Arc::new(serve);
    start(format!("tcp:{}", good(listener.local_addr())), move |stop| {
        while !stop.load(SeqCst) {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            good(stream.set_nonblocking(false));
            good(stream.set_read_timeout(Some(Duration::from_secs(60))));
            let serve = Arc::clone(&serve);
            // It ends when the other side closes the connection.
            thread::spawn(move || serve(stream));
        }
    })
}

/// Messages of `N` bytes each over TCP, for [`tcp`].
pub fn frames<const N: usize>(serve: impl Fn(&[u8]) -> Vec<u8>) -> impl Fn(TcpStream) {
    move |mut stream| {
        let mut request = [0; N];
        while stream.read_exact(&mut request).is_ok() {
            if stream.write_all(&serve(&request)).is_err() {
                return;
            }
        }
    }
}

fn word(bytes: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|n| bytes[8 * place + n]))
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The right answer of `array`.
pub fn array(request: &[u8]) -> Vec<u8> {
    bytes(&[word(request, 0), array_value(word(request, 1))])
}

/// The right answer of `scan` with so many items.
pub fn scan(request: &[u8], items: u64) -> Vec<u8> {
    let (id, key) = (word(request, 0), word(request, 2));
    let count = if request[8] == SCAN { SCAN_LENGTH.min(items - key) } else { 1 };
    bytes(&[id, FOUND, count, scan_sum(key, count)])
}

/// A connection to a small memcached, which changes the values that `change` wants to change. Each connection has its own data.
pub fn cache(stream: TcpStream, change: impl Fn(u64, &mut Vec<u8>)) {
    let mut writer = good(stream.try_clone());
    let mut reader = BufReader::new(stream);
    let (mut values, mut gets) = (HashMap::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["set", key, _, _, size] => {
                let mut value = vec![0; size.parse::<usize>().unwrap_or(0) + 2];
                good(reader.read_exact(&mut value));
                value.truncate(value.len() - 2);
                values.insert(key.to_owned(), value);
                b"STORED\r\n".to_vec()
            }
            ["get", key] => {
                gets += 1;
                values.get(key).map_or_else(
                    || b"END\r\n".to_vec(),
                    |value| {
                        let mut value = value.clone();
                        change(gets, &mut value);
                        let head = format!("VALUE {key} 0 {}\r\n", value.len());
                        [head.as_bytes(), &value, b"\r\nEND\r\n"].concat()
                    },
                )
            }
            _ => b"ERROR\r\n".to_vec(),
        };
        if writer.write_all(&answer).is_err() {
            return;
        }
    }
}

/// memcached, over TCP and UDP at the same port.
pub struct Memcached {
    child: Child,
    /// Address and port.
    pub address: String,
}

impl Memcached {
    /// `None` if it is not installed.
    pub fn start() -> Option<Self> {
        let installed = Command::new("memcached").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if installed.is_err() {
            eprintln!("skipped: memcached is not installed");
            return None;
        }
        // Somebody else may take the port before memcached does, or have it for datagrams: then it ends at once.
        let server = (0..10).find_map(|_| {
            let port = good(TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())).port();
            Self::at(port)
        });
        Some(server.unwrap_or_else(|| panic!("memcached ends at once")))
    }

    fn at(port: u16) -> Option<Self> {
        let port = port.to_string();
        // -u is of use to root alone, which it refuses to run as otherwise.
        let words = ["120", "memcached", "-u", "root", "-l", "127.0.0.1", "-p", &port, "-U", &port, "-m", "64", "-t", "1"];
        let mut child = good(Command::new("timeout").args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn());
        let address = format!("127.0.0.1:{port}");
        let start = Instant::now();
        while !speaks(&address) {
            if !matches!(child.try_wait(), Ok(None)) {
                return None;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "memcached does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        // It listens for connections first, and then for datagrams.
        while !speaks_by_datagrams(&address) {
            assert!(start.elapsed() < Duration::from_secs(30), "memcached does not answer datagrams");
        }
        matches!(child.try_wait(), Ok(None)).then_some(Memcached { child, address })
    }
}

/// Whether memcached answers there. To be connected is not enough: where nobody listens, a connection may be to itself.
fn speaks(address: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let mut answer = [0; 8];
    good(stream.set_read_timeout(Some(Duration::from_secs(5))));
    stream.write_all(b"version\r\n").and_then(|()| stream.read_exact(&mut answer)).is_ok() && answer == *b"VERSION "
}

/// The same by datagrams, whose frame is a number, which datagram of how many this is, and nothing.
fn speaks_by_datagrams(address: &str) -> bool {
    let (socket, mut answer) = (good(UdpSocket::bind("127.0.0.1:0")), [0; 100]);
    good(socket.connect(address));
    good(socket.set_read_timeout(Some(Duration::from_millis(100))));
    socket.send(b"\0\x07\0\0\0\x01\0\0version\r\n").and_then(|_| socket.recv(&mut answer)).is_ok()
        && answer[8..].starts_with(b"VERSION ")
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // timeout(1) passes SIGTERM on; SIGKILL would leave the server.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
