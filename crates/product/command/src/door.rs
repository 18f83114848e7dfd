//! Takes connections for a server of a command, and keeps those that are slow or many from starving the others.
//!
//! ```text
//!  who connects ──▶ waits at the door: one thread, a descriptor each ──▶ a whole request: the queue ──▶ a worker asks the server, and
//!                   no request in 10 s, or too many wait: the oldest       full: 503                    sends the answer within 10 s
//!                   one is closed
//! ```
//!
//! 1. Who has not sent a whole request costs a descriptor and no thread. At most [`WAITING`] wait, or an eighth of the descriptors that may be had; one more closes the one that has waited longest. So whoever sends its
//!    request is served, however many others are there and say nothing.
//! 2. At most [`WORKERS`] requests are served at a time, and [`QUEUE`] wait for that. While some wait, a client that has been taking its answer for longer than [`SLOW`]
//!    is cut off.
//! 3. An answer that was not taken within [`PATIENCE`] is not sent to its end.
//!
//! Small servers that are libraries (tiny_http) set no time for a client: one that does not read its answer would keep a thread for good.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::http::{self, Answer, Peer, Read, Request};
use crate::listen::Listener;

/// How long a client may take for its request, and then for the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take for the answer while others wait.
const SLOW: Duration = Duration::from_secs(1);
/// How often it is looked for one while others wait.
const LOOK: Duration = Duration::from_millis(100);
/// Clients that have not sent a whole request.
const WAITING: usize = 256;
/// Requests that are served at a time.
const WORKERS: usize = 16;
/// Requests that wait for a worker.
const QUEUE: usize = 64;
/// Connections that are taken before the others are looked at again.
const AT_ONCE: usize = 32;

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    /// At a port.
    Tcp(TcpStream),
    /// At a path.
    Unix(UnixStream),
}

impl Stream {
    fn peer(&self) -> Peer {
        match self {
            Stream::Tcp(_) => Peer::Anybody,
            Stream::Unix(stream) => Peer::User(rustix::net::sockopt::socket_peercred(stream).ok().map(|peer| peer.uid.as_raw())),
        }
    }

    fn set_nonblocking(&self, is: bool) -> std::io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(is),
            Stream::Unix(stream) => stream.set_nonblocking(is),
        }
    }

    fn read(&self, piece: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(piece),
            Stream::Unix(stream) => (&*stream).read(piece),
        }
    }

    fn write(&self, bytes: &[u8], within: Duration) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(Some(within)).and_then(|()| (&*stream).write(bytes)),
            Stream::Unix(stream) => stream.set_write_timeout(Some(within)).and_then(|()| (&*stream).write(bytes)),
        }
    }

    fn shut(&self, how: Shutdown) {
        // It may be gone already.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(how),
            Stream::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Sends all of it, until then.
    fn send(&self, bytes: &[u8], until: Instant) -> std::io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            let within = until.saturating_duration_since(Instant::now());
            if within.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match self.write(left, within) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// What a server does.
struct Server {
    answer: Box<dyn Fn(&Request) -> Answer + Send + Sync>,
    /// What it says to who sends no request, or comes when there are too many.
    wrong: fn(u16) -> Answer,
}

/// A client that has not sent a whole request.
struct Client {
    stream: Arc<Stream>,
    peer: Peer,
    since: Instant,
    text: Vec<u8>,
}

/// A request and whom to answer.
struct Job {
    stream: Arc<Stream>,
    request: Box<Request>,
    with_body: bool,
}

/// What workers share.
#[derive(Default)]
struct Work {
    queue: VecDeque<Job>,
    workers: usize,
    /// Clients that are being answered, from when on.
    sending: Vec<(Instant, Arc<Stream>)>,
}

type Shared = Arc<Mutex<Work>>;

fn locked(shared: &Mutex<Work>) -> MutexGuard<'_, Work> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener {
    /// Where its page is, as one asks for it.
    #[must_use]
    pub fn page_at(&self) -> String {
        match self {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "a port".into(), |address| format!("http://{address}/metrics"))
            }
            Listener::Unix(_, path, _) => format!("unix:{}", path.display()),
        }
    }

    /// Answers until the process ends: with what `page` gives for `/metrics`, of this type.
    pub fn serve_metrics(&self, kind: &'static str, page: impl Fn() -> String + Send + Sync + 'static) {
        self.serve(Answer::wrong, move |request| http::metrics(request, kind, &page));
    }

    /// Answers until the process ends: with what `answer` gives, and with what `wrong` gives for a status where there is no request that could be answered.
    pub fn serve(&self, wrong: fn(u16) -> Answer, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
        let server = Arc::new(Server { answer: Box::new(answer), wrong });
        let shared = Shared::default();
        let mut waiting: VecDeque<Client> = VecDeque::new();
        let most = most(rustix::process::getrlimit(rustix::process::Resource::Nofile).current);
        // Another process may take a connection that poll has told of.
        while self.set_nonblocking().is_err() {
            std::thread::sleep(Duration::from_millis(100));
        }
        loop {
            let ready = self.ready(&waiting, relieve(&shared));
            let mut number = 0;
            waiting.retain_mut(|client| {
                number += 1;
                !ready.get(number).copied().unwrap_or(false) || stays(client, &shared, &server)
            });
            while waiting.front().is_some_and(|client| client.since.elapsed() >= PATIENCE) {
                waiting.pop_front();
            }
            if ready.first() == Some(&true) {
                self.take(&mut waiting, most);
            }
        }
    }

    /// Waits until somebody connects, says something, or has waited too long. The listener comes first, then those who wait.
    fn ready(&self, waiting: &VecDeque<Client>, is_busy: bool) -> Vec<bool> {
        let listener = PollFd::new(self, PollFlags::IN);
        let clients = waiting.iter().map(|client| PollFd::new(&*client.stream, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = std::iter::once(listener).chain(clients).collect();
        let left = waiting.front().map(|client| PATIENCE.saturating_sub(client.since.elapsed()));
        let left = if is_busy { Some(left.map_or(LOOK, |left| left.min(LOOK))) } else { left };
        // Rounded up, or the last millisecond would be spent in circles.
        let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        match poll(&mut polled, left.as_ref()) {
            Ok(_) => polled.iter().map(|one| !one.revents().is_empty()).collect(),
            Err(Errno::INTR) => Vec::new(),
            // No memory is left: perhaps there will be.
            Err(_) => {
                std::thread::sleep(LOOK);
                Vec::new()
            }
        }
    }

    /// Takes those who have connected.
    fn take(&self, waiting: &mut VecDeque<Client>, most: usize) {
        for _ in 0..AT_ONCE {
            let stream = match self.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                // No descriptor or no memory is left. Who has waited longest gives his; else perhaps there will be some.
                Err(_) => {
                    if waiting.pop_front().is_none() {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if waiting.len() >= most {
                waiting.pop_front();
            }
            let peer = stream.peer();
            waiting.push_back(Client { stream: Arc::new(stream), peer, since: Instant::now(), text: Vec::new() });
        }
    }
}

/// How many may wait where this process may have so many descriptors; none: as many as it wants. Who says nothing has an eighth of them at a door, so that there are some for
/// other doors, and for the server's own work.
fn most(descriptors: Option<u64>) -> usize {
    descriptors.and_then(|all| usize::try_from(all / 8).ok()).map_or(WAITING, |some| some.clamp(1, WAITING))
}

/// Reads what a client has sent. Whether it goes on waiting at the door; else its stream went to a worker, or is to be closed.
fn stays(client: &mut Client, shared: &Shared, server: &Arc<Server>) -> bool {
    let mut piece = [0; 4096];
    loop {
        match client.stream.read(&mut piece) {
            Ok(0) => return false,
            Ok(count) => client.text.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
        match http::read(&client.text, client.peer) {
            Read::Part => {}
            Read::Whole(request, with_body) => {
                // The worker may wait for it. It is the same descriptor, and not one more, which might not be had.
                if client.stream.set_nonblocking(false).is_ok() {
                    give(shared, server, Job { stream: client.stream.clone(), request, with_body });
                }
                return false;
            }
            Read::Wrong(status) => {
                refuse(&client.stream, &(server.wrong)(status));
                return false;
            }
        }
    }
}

/// Says no, if the line has room for it.
fn refuse(stream: &Stream, answer: &Answer) {
    let bytes = answer.to_bytes(true);
    let _ = match stream {
        Stream::Tcp(stream) => (&*stream).write(&bytes),
        Stream::Unix(stream) => (&*stream).write(&bytes),
    };
    // What has come and was not read would make the kernel break the connection, and the answer with it.
    stream.shut(Shutdown::Write);
    let mut piece = [0; 4096];
    for _ in 0..64 {
        if !stream.read(&mut piece).is_ok_and(|count| count > 0) {
            return;
        }
    }
}

/// Queues a request, and starts a worker if there may be one more.
fn give(shared: &Shared, server: &Arc<Server>, job: Job) {
    let mut work = locked(shared);
    if work.queue.len() >= QUEUE {
        let _ = job.stream.set_nonblocking(true);
        return refuse(&job.stream, &(server.wrong)(503));
    }
    work.queue.push_back(job);
    if work.workers >= WORKERS {
        return;
    }
    work.workers += 1;
    drop(work);
    let (theirs, its) = (shared.clone(), server.clone());
    // No thread or no memory is left: the requests wait for a worker that there is; if there is none, they are dropped, and the next may be served.
    if std::thread::Builder::new().spawn(move || labour(&theirs, &its)).is_err() {
        let mut work = locked(shared);
        work.workers -= 1;
        if work.workers == 0 {
            work.queue.clear();
        }
    }
}

/// Cuts clients off that do not take their answers while requests wait. Whether some wait.
fn relieve(shared: &Mutex<Work>) -> bool {
    let work = locked(shared);
    if work.queue.is_empty() {
        return false;
    }
    work.sending.iter().filter(|(since, _)| since.elapsed() > SLOW).for_each(|(_, stream)| stream.shut(Shutdown::Both));
    true
}

/// A worker: serves requests until none waits.
fn labour(shared: &Mutex<Work>, server: &Server) {
    loop {
        let mut work = locked(shared);
        let Some(job) = work.queue.pop_front() else {
            work.workers -= 1;
            return;
        };
        drop(work);
        let bytes = (server.answer)(&job.request).to_bytes(job.with_body);
        let began = Instant::now();
        locked(shared).sending.push((began, job.stream.clone()));
        // One that goes away in the middle has what it wanted.
        let _ = job.stream.send(&bytes, began + PATIENCE);
        locked(shared).sending.retain(|(_, stream)| !Arc::ptr_eq(stream, &job.stream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::Address;
    use std::path::PathBuf;

    /// A server at a path of its own, which answers `/` with this many bytes.
    fn server(name: &str, bytes: usize) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farshore-door-{}-{name}", std::process::id()));
        let listener = Listener::at(&Address::Unix(path.clone())).expect("nobody listens there");
        std::thread::spawn(move || {
            listener.serve(Answer::wrong, move |request| Answer::new(200, http::PLAIN, vec![b'x'; bytes + request.body.len()]))
        });
        path
    }

    fn asked(path: &PathBuf) -> Vec<u8> {
        let mut stream = UnixStream::connect(path).expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it reads");
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("it is one");
        stream.read_to_end(&mut answer).expect("it answers");
        answer
    }

    #[test]
    fn who_says_nothing_starves_nobody() {
        let path = server("idle", 1);
        // More than wait at the door, with the start of a request or nothing.
        let idle: Vec<UnixStream> = (0..WAITING + 44)
            .map(|number| {
                let mut stream = UnixStream::connect(&path).expect("it listens");
                // It may be closed already.
                let _ = stream.write_all(if number % 2 == 0 { b"GET / HT" } else { b"" });
                stream
            })
            .collect();
        for _ in 0..20 {
            assert!(asked(&path).ends_with(b"\r\n\r\nx"));
        }
        drop(idle);
        std::fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn who_does_not_read_starves_nobody() {
        let path = server("deaf", 4 << 20);
        let deaf: Vec<UnixStream> = (0..WORKERS + 4)
            .map(|_| {
                let mut stream = UnixStream::connect(&path).expect("it listens");
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it reads");
                stream
            })
            .collect();
        assert!(asked(&path).len() > 4 << 20);
        drop(deaf);
        std::fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn who_waits_leaves_descriptors_for_others() {
        assert_eq!([None, Some(1 << 20), Some(1024), Some(64), Some(0)].map(most), [WAITING, WAITING, 128, 8, 1]);
    }

    #[test]
    fn a_long_request_is_told() {
        let path = server("long", 1);
        let mut stream = UnixStream::connect(&path).expect("it listens");
        let _ = stream.write_all(&[b'x'; http::HEAD_LIMIT + 4096]);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer:?}");
        std::fs::remove_file(path).expect("it is there");
    }
}
