//! A node in a process of its own, and a small client that can say anything.
#![allow(dead_code, missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes here: only what hangs reaches it.
const LONG: Duration = Duration::from_secs(60);

/// A new folder of this test.
pub fn folder() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("node-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).expect("the folder for tests is there");
    path
}

/// A new file with this text and these rights.
pub fn file(text: &str, mode: u32) -> PathBuf {
    let path = folder().join("file");
    std::fs::write(&path, text).expect("it is ours");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    path
}

pub struct Node {
    child: Mutex<Child>,
    address: String,
    log: Arc<Mutex<String>>,
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farshore-node"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Node {
    /// One that listens at a port of this machine.
    pub fn start(arguments: &[&str]) -> Node {
        Node::at(&[&["--listen", "127.0.0.1:0"], arguments].concat())
    }

    pub fn at(arguments: &[&str]) -> Node {
        let mut child = command(arguments).spawn().expect("it starts");
        let log = Arc::new(Mutex::new(String::new()));
        let (reader, lines) = (BufReader::new(child.stderr.take().expect("it is a pipe")), log.clone());
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                let mut log = lines.lock().expect("no thread panics with it");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut node = Node { child: Mutex::new(child), address: String::new(), log };
        node.wait_for("node listens at ");
        let log = node.log();
        let at = log.split("node listens at ").nth(1).and_then(|rest| rest.split(": ").next());
        node.address = at.expect("it says where").replace("0.0.0.0", "127.0.0.1");
        node
    }

    /// One that does not start: its status, and what it says.
    pub fn refused(arguments: &[&str]) -> (Option<i32>, String) {
        let mut child = command(arguments).spawn().expect("it starts");
        let until = Instant::now() + LONG;
        while child.try_wait().expect("it is ours").is_none() {
            if Instant::now() > until {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().expect("it is ours");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("no thread panics with it").clone()
    }

    pub fn said(&self, text: &str) -> bool {
        self.log().contains(text)
    }

    pub fn wait_for(&self, text: &str) {
        let until = Instant::now() + LONG;
        while !self.said(text) {
            assert!(Instant::now() < until, "it does not say {text:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.lock().expect("no thread panics with it").id();
        let pid = Pid::from_raw(pid.cast_signed()).expect("it is no zero");
        kill_process(pid, signal).expect("it is ours");
    }

    /// Ends it by a signal; its status.
    pub fn end(&self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        let until = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.lock().expect("no thread panics with it").try_wait().expect("it is ours") {
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_nodelay(true).expect("it is open");
        let mut client = Client { stream, flags: 0, structured: false, cookie: 0 };
        client.set_patience(LONG);
        client
    }

    /// A client that has an export.
    pub fn client(&self, export: &str) -> Client {
        let mut client = self.connect();
        client.hello(3);
        client.go(export);
        client
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// What a structured read was answered with.
#[derive(PartialEq, Eq, Debug)]
pub enum Reply {
    Data(u64, Vec<u8>),
    Hole(u64, u32),
    Error(u32),
}

pub struct Client {
    stream: TcpStream,
    /// Of the next requests.
    pub flags: u16,
    pub structured: bool,
    cookie: u64,
}

impl Client {
    pub fn set_patience(&mut self, time: Duration) {
        self.stream.set_read_timeout(Some(time)).expect("it is open");
        self.stream.set_write_timeout(Some(time)).expect("it is open");
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("it reads");
    }

    pub fn try_receive(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        self.stream.read_exact(bytes)
    }

    pub fn receive(&mut self, bytes: &mut [u8]) {
        self.try_receive(bytes).expect("it answers");
    }

    fn number(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.receive(&mut bytes);
        u32::from_be_bytes(bytes)
    }

    fn long(&mut self) -> u64 {
        u64::from(self.number()) << 32 | u64::from(self.number())
    }

    /// Whether the node ends the connection; what it says before is passed over.
    pub fn is_over(&mut self) -> bool {
        let mut some = [0; 4096];
        loop {
            match self.stream.read(&mut some) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// Takes the greeting and answers it.
    pub fn hello(&mut self, flags: u32) {
        let mut greeting = [0; 18];
        self.receive(&mut greeting);
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&flags.to_be_bytes());
    }

    /// An option, and the answers to it.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&[b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat());
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.long(), 0x0003_e889_0455_65a9);
            assert_eq!(self.number(), option);
            let kind = self.number();
            let mut data = vec![0; self.number() as usize];
            self.receive(&mut data);
            let is_last = kind == 1 || kind >> 31 == 1;
            // A text for people.
            replies.push((kind, if kind >> 31 == 1 { Vec::new() } else { data }));
            if is_last {
                return replies;
            }
        }
    }

    /// Takes an export.
    pub fn go(&mut self, name: &str) -> Vec<(u32, Vec<u8>)> {
        let told = self.option(7, &[&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0, 0]].concat());
        assert_eq!(told.last(), Some(&(1, Vec::new())), "{name}");
        told
    }

    pub fn request(&self, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
        let (flags, command) = (self.flags.to_be_bytes(), command.to_be_bytes());
        [&0x2560_9513_u32.to_be_bytes()[..], &flags, &command, &cookie.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()]
            .concat()
    }

    fn begin(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) {
        self.cookie += 0x0101;
        let request = [&self.request(command, self.cookie, offset, len)[..], data].concat();
        self.send(&request);
    }

    /// The head of a simple reply.
    fn simple(&mut self) -> Result<(), u32> {
        assert_eq!(self.number(), 0x6744_6698);
        let error = self.number();
        assert_eq!(self.long(), self.cookie);
        if error == 0 { Ok(()) } else { Err(error) }
    }

    /// A request without data. (A `READ` that should not fail has some: use `read`.)
    pub fn ask(&mut self, command: u16, offset: u64, len: u32) -> Result<(), u32> {
        self.begin(command, offset, len, &[]);
        self.simple()
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.begin(1, offset, data.len() as u32, data);
        self.simple()
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.begin(0, offset, len, &[]);
        self.simple()?;
        let mut data = vec![0; len as usize];
        self.receive(&mut data);
        Ok(data)
    }

    pub fn structured_read(&mut self, offset: u64, len: u32, flags: u16) -> Reply {
        self.flags = flags;
        self.begin(0, offset, len, &[]);
        self.flags = 0;
        assert_eq!(self.number(), 0x668e_33ef);
        let kind = self.number();
        assert_eq!(self.long(), self.cookie);
        let len = self.number();
        match kind {
            0x1_0001 => {
                let offset = self.long();
                let mut data = vec![0; len as usize - 8];
                self.receive(&mut data);
                Reply::Data(offset, data)
            }
            0x1_0002 if len == 12 => Reply::Hole(self.long(), self.number()),
            0x1_8001 if len == 6 => {
                let error = self.number();
                self.receive(&mut [0; 2]);
                Reply::Error(error)
            }
            _ => panic!("a chunk of kind {kind:x} with {len} bytes"),
        }
    }
}
