//! A small server of one page: it answers GET, once a connection, and waits for nobody for long.
//!
//! Small servers that are libraries (tiny_http) set no time for a client: one that does not read its answer would keep a thread for good. So this
//! one has its own loop, and a library for what comes in (httparse).

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::listen::Listener;

/// What metrics are, for who asks: OpenMetrics 1.0.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The longest head of a request, in bytes.
const HEAD_LIMIT: usize = 8192;
/// How long a client may take for its request, and then for each part of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients at a time. One more is closed at once.
const CLIENTS: usize = 16;

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
    pub fn serve(&self, kind: &'static str, page: impl Fn() -> String + Send + Sync + 'static) {
        let page = Arc::new(page);
        let clients = Arc::new(AtomicUsize::new(0));
        loop {
            let Ok(stream) = self.accept() else {
                // No descriptor or no memory is left: perhaps there will be.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS {
                clients.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (page, its) = (page.clone(), clients.clone());
            let thread = std::thread::Builder::new().spawn(move || {
                // One that goes away in the middle has what it wanted.
                let _ = answer(stream, kind, &*page);
                its.fetch_sub(1, Ordering::Relaxed);
            });
            // No thread or no memory is left: this client is closed as one too many is, and the next may be served.
            if thread.is_err() {
                clients.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn accept(&self) -> std::io::Result<Box<dyn Stream>> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Box::new(stream) as Box<dyn Stream>),
            Listener::Unix(listener, ..) => listener.accept().map(|(stream, _)| Box::new(stream) as Box<dyn Stream>),
        }
    }
}

/// A connection.
trait Stream: Read + Write + Send {
    /// Reads and writes end after this time.
    fn limit(&self, time: Duration) -> std::io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// What is asked for.
#[derive(PartialEq, Eq, Debug)]
enum Asked {
    Metrics,
    /// The page that says where they are.
    Root,
    /// A status, and what it is called.
    Wrong(u16, &'static str),
}

fn answer(mut stream: Box<dyn Stream>, kind: &str, page: &dyn Fn() -> String) -> std::io::Result<()> {
    let Some((asked, with_body)) = read(&mut *stream)? else { return Ok(()) };
    let (status, kind, body) = match asked {
        Asked::Metrics => ("200 OK".into(), kind, page()),
        Asked::Root => ("200 OK".into(), "text/plain; charset=utf-8", "Farshore's metrics are at /metrics\n".into()),
        Asked::Wrong(status, name) => (format!("{status} {name}"), "text/plain; charset=utf-8", format!("{name}\n")),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n");
    stream.limit(PATIENCE)?;
    stream.write_all(head.as_bytes())?;
    if with_body {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// Reads the head of a request, until its end or until it took too long; and whether the answer has a body.
fn read(stream: &mut dyn Stream) -> std::io::Result<Option<(Asked, bool)>> {
    let until = Instant::now() + PATIENCE;
    let (mut text, mut piece) = (Vec::new(), [0; 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        stream.limit(left)?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(count) => text.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        match asked(&text) {
            None if text.len() > HEAD_LIMIT => return Ok(Some((Asked::Wrong(431, "Request Header Fields Too Large"), true))),
            None => {}
            some => return Ok(some),
        }
    }
}

/// What a request asks for, and whether the answer has a body; none: it is not all there.
fn asked(text: &[u8]) -> Option<(Asked, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(text) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some((Asked::Wrong(400, "Bad Request"), true)),
    }
    let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let asked = match (method, path.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/metrics") => Asked::Metrics,
        ("GET" | "HEAD", "/") => Asked::Root,
        ("GET" | "HEAD", _) => Asked::Wrong(404, "Not Found"),
        _ => Asked::Wrong(405, "Method Not Allowed"),
    };
    Some((asked, method != "HEAD"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let of = |text: &str| asked(text.as_bytes());
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some((Asked::Metrics, true)));
        assert_eq!(of("HEAD /metrics?a=b HTTP/1.0\r\n\r\n"), Some((Asked::Metrics, false)));
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n"), Some((Asked::Root, true)));
        for (text, status) in
            [("GET /x HTTP/1.1\r\n\r\n", 404), ("POST /metrics HTTP/1.1\r\n\r\n", 405), ("\x01\x02\r\n\r\n", 400)]
        {
            assert!(matches!(of(text), Some((Asked::Wrong(found, _), true)) if found == status), "{text:?}");
        }
        let many = (0..65).map(|number| format!("A{number}: b\r\n")).collect::<String>();
        assert!(matches!(of(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Some((Asked::Wrong(400, _), _))));
    }
}
