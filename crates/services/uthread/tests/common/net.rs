//! What the tests of sockets share.

use core::time::Duration;
use farshore_uthread::net::Frame;
use farshore_uthread::{Config, Runtime};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::thread;

/// Ends this test program if it hangs.
pub fn watchdog() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        thread::spawn(|| {
            thread::sleep(Duration::from_secs(100));
            eprintln!("hung for 100 s");
            std::process::abort();
        });
    });
}

pub fn runtime(workers: usize) -> Runtime {
    watchdog();
    Runtime::start(Config { workers, ..Config::default() }).unwrap()
}

/// Any free port here.
pub fn here() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Waits until something is so; the watchdog ends it if it never is.
pub fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Numbers that look random, the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// A request is two bytes of length and so many bytes; a length of 0xffff is malformed.
pub fn frame(bytes: &[u8]) -> Frame {
    let Some(&length) = bytes.first_chunk() else { return Frame::More };
    match usize::from(u16::from_be_bytes(length)) {
        0xffff => Frame::Malformed,
        length if length + 2 <= bytes.len() => Frame::Whole(length + 2),
        _ => Frame::More,
    }
}

pub fn request(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u16).to_be_bytes(), body].concat()
}

/// What comes until the peer ends; a reset is an end.
pub fn rest(peer: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = peer.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    bytes
}
