//! HTTP for the servers of the commands: what a request is, and what an answer is. [`crate::door`] takes connections.
//!
//! A connection carries one request. Its head and its body are bounded ([`HEAD_LIMIT`], [`BODY_LIMIT`]), and its body has a length
//! (`Content-Length`). httparse reads the head.

use std::fmt::Write as _;

/// What metrics are, for who asks: OpenMetrics 1.0.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Text for people.
pub const PLAIN: &str = "text/plain; charset=utf-8";
/// The longest head of a request, in bytes.
pub const HEAD_LIMIT: usize = 8192;
/// The longest body of a request, in bytes.
pub const BODY_LIMIT: usize = 64 << 10;
/// The most headers.
const HEADERS: usize = 64;

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A process of this user, as the kernel says; none: the kernel does not say.
    User(Option<u32>),
    /// Whoever reaches the port.
    Anybody,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// `GET`, `POST`, …; `HEAD` is `GET` here, and its answer loses its body on the way out.
    pub method: String,
    /// The path, without what stands behind `?`.
    pub path: String,
    /// What stands behind `?`.
    pub query: String,
    /// Names in lower case, and values that are text.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Who asks.
    pub peer: Peer,
}

impl Request {
    /// The value of a header, by its name in lower case. None, if it is not there or there twice: then nobody knows which one counts.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(one, _)| one == name);
        match (found.next(), found.next()) {
            (Some((_, value)), None) => Some(value),
            _ => None,
        }
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Such as 200.
    pub status: u16,
    /// Its type.
    pub kind: &'static str,
    /// More headers.
    pub headers: Vec<(&'static str, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Answer {
    /// An answer of this type.
    #[must_use]
    pub fn new(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, kind, headers: Vec::new(), body: body.into() }
    }

    /// What is wrong, as text.
    #[must_use]
    pub fn wrong(status: u16) -> Answer {
        let mut answer = Answer::new(status, PLAIN, format!("{}\n", reason(status)));
        if status == 405 {
            answer.headers.push(("Allow", "GET, HEAD".into()));
        }
        answer
    }

    /// The bytes to send.
    #[must_use]
    pub fn to_bytes(&self, with_body: bool) -> Vec<u8> {
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n",
            self.status,
            reason(self.status),
            self.kind,
            self.body.len()
        );
        for (name, value) in &self.headers {
            // A value that came from outside must not begin another header.
            let _ = write!(head, "{name}: {}\r\n", value.replace(['\r', '\n'], " "));
        }
        head.push_str("Connection: close\r\n\r\n");
        let mut bytes = head.into_bytes();
        if with_body {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

/// What a status is called.
#[must_use]
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Internal Server Error",
    }
}

/// What bytes that have come are.
#[derive(PartialEq, Eq, Debug)]
pub enum Read {
    /// Not all of a request.
    Part,
    /// A request; and whether its answer has a body.
    Whole(Box<Request>, bool),
    /// Nothing that is served: the status that says so.
    Wrong(u16),
}

/// Reads what has come on a connection.
#[must_use]
pub fn read(text: &[u8], peer: Peer) -> Read {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(text) {
        Ok(httparse::Status::Partial) if text.len() > HEAD_LIMIT => return Read::Wrong(431),
        Ok(httparse::Status::Partial) => return Read::Part,
        Ok(httparse::Status::Complete(head)) if head > HEAD_LIMIT => return Read::Wrong(431),
        Ok(httparse::Status::Complete(head)) => head,
        Err(_) => return Read::Wrong(400),
    };
    let headers = request.headers.iter();
    let headers: Option<Vec<_>> = headers
        .map(|header| Some((header.name.to_ascii_lowercase(), std::str::from_utf8(header.value).ok()?.trim().to_owned())))
        .collect();
    let Some(headers) = headers else { return Read::Wrong(400) };
    if headers.iter().any(|(name, _)| name == "transfer-encoding") {
        return Read::Wrong(501);
    }
    let lengths: Vec<_> = headers.iter().filter(|(name, _)| name == "content-length").collect();
    let length = match &lengths[..] {
        [] => 0,
        // `parse` alone would take a sign.
        [(_, text)] if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => match text.parse::<usize>() {
            Ok(length) if length <= BODY_LIMIT => length,
            _ => return Read::Wrong(413),
        },
        _ => return Read::Wrong(400),
    };
    let Some(body) = text.get(head..head + length) else { return Read::Part };
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_head = method == "HEAD";
    Read::Whole(
        Box::new(Request {
            method: if is_head { "GET" } else { method }.into(),
            path: path.into(),
            query: query.into(),
            headers,
            body: body.into(),
            peer,
        }),
        !is_head,
    )
}

/// The answer of a server that has one page, at `/metrics`.
#[must_use]
pub fn metrics(request: &Request, kind: &'static str, page: &dyn Fn() -> String) -> Answer {
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/metrics") => Answer::new(200, kind, page()),
        ("GET", "/") => Answer::new(200, PLAIN, "Farshore's metrics are at /metrics\n"),
        ("GET", _) => Answer::wrong(404),
        _ => Answer::wrong(405),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Read {
        read(text.as_bytes(), Peer::Anybody)
    }

    fn whole(text: &str) -> (Request, bool) {
        match of(text) {
            Read::Whole(request, with_body) => (*request, with_body),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn requests_are_read() {
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n"), Read::Part);
        let (request, with_body) = whole("GET /metrics?a=b HTTP/1.1\r\nHoSt:  x \r\n\r\n");
        assert_eq!((request.path.as_str(), request.query.as_str(), with_body), ("/metrics", "a=b", true));
        assert_eq!((request.header("host"), request.header("other")), (Some("x"), None));
        let (request, with_body) = whole("HEAD / HTTP/1.0\r\n\r\n");
        assert_eq!((request.method.as_str(), with_body), ("GET", false));
        let post = "POST /x HTTP/1.1\r\nContent-Length: 4\r\n\r\n";
        assert_eq!(of(&format!("{post}abc")), Read::Part);
        assert_eq!(whole(&format!("{post}abcd")).0.body, b"abcd");
        // What comes behind is another request, which is not read.
        assert_eq!(whole(&format!("{post}abcdGET /")).0.body, b"abcd");
        let (request, _) = whole("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
        assert_eq!(request.header("host"), None, "of two nobody knows which one counts");
    }

    #[test]
    fn what_is_no_request_has_a_status() {
        let many = (0..65).map(|number| format!("A{number}: b\r\n")).collect::<String>();
        for (text, status) in [
            ("\x01\x02\r\n\r\n".to_owned(), 400),
            (format!("GET / HTTP/1.1\r\n{many}\r\n"), 400),
            (format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_LIMIT)), 431),
            (format!("GET /{}", "x".repeat(HEAD_LIMIT)), 431),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 501),
            ("POST / HTTP/1.1\r\nContent-Length: 65537\r\n\r\n".into(), 413),
            ("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n".into(), 413),
            ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\na".into(), 400),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na".into(), 400),
        ] {
            assert_eq!(of(&text), Read::Wrong(status), "{:?}", &text[..60.min(text.len())]);
        }
    }

    #[test]
    fn answers_are_whole() {
        let answer = Answer { headers: vec![("A", "b\r\nC: d".into())], ..Answer::new(200, PLAIN, "x\n") };
        let text = |with_body| String::from_utf8(answer.to_bytes(with_body)).expect("it is text");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\nA: b  C: d\r\nConnection: close\r\n\r\n";
        assert_eq!((text(false), text(true)), (head.to_owned(), format!("{head}x\n")));
        let asked = |method: &str, path: &str| {
            let (mut request, _) = whole("GET / HTTP/1.1\r\n\r\n");
            (request.method, request.path) = (method.into(), path.into());
            metrics(&request, OPEN_METRICS, &|| "1".into()).status
        };
        assert_eq!([asked("GET", "/metrics"), asked("GET", "/"), asked("GET", "/x"), asked("POST", "/")], [200, 200, 404, 405]);
    }
}
