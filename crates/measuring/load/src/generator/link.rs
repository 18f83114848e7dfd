//! A connection that is never waited for: what is to be sent is appended to a buffer, from which the socket takes what it
//! can, and what has come is looked at where it lies.
//!
//! TCP: bytes follow one another, and answers come in the order of requests. UDP: many datagrams go and come with one call;
//! answers name their request, and may not come, come late, twice, or in parts.

use std::collections::HashMap;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, sendmmsg};

use super::flight::{Flight, Match, Sent};
use super::protocol::{Checked, Header, Id, Protocol, Request};

/// Datagrams of one call.
pub const BATCH: usize = 64;
/// Bytes of a datagram that is received: memcached's have 1400 at most.
const DATAGRAM: usize = 2048;
/// Bytes of one read.
const READ: usize = 256 << 10;
/// A server that was just started may not listen yet: for this long it is tried again.
const START: Duration = Duration::from_secs(3);
/// How long opening a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Asked for, for what comes: the kernel gives what its limit allows.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Memory for calls, one of a thread.
pub struct Space {
    /// Without addresses: all sockets are connected.
    receiving: MultiHeaders<()>,
    sending: MultiHeaders<()>,
    datagrams: Box<[[u8; DATAGRAM]; BATCH]>,
    bytes: Vec<u8>,
}

impl Default for Space {
    fn default() -> Self {
        let [receiving, sending] = [(); 2].map(|()| MultiHeaders::preallocate(BATCH, None));
        Space { receiving, sending, datagrams: Box::new([[0; DATAGRAM]; BATCH]), bytes: vec![0; READ] }
    }
}

/// What came.
#[derive(Debug)]
pub enum Came {
    /// An answer to this request, checked.
    Answer(Sent, Checked),
    /// One to a request that had been given up.
    Late,
    /// One to a request that was answered before.
    Duplicate,
    /// Something that is no answer to any request.
    Stray(String),
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Udp(UdpSocket),
}

/// An answer that has come in part.
#[derive(Default)]
struct Parts {
    missing: usize,
    parts: Vec<Option<Vec<u8>>>,
}

/// A connection.
pub struct Link {
    socket: Socket,
    /// What is under way.
    pub flight: Flight,
    /// Bytes that are not sent yet.
    out: Vec<u8>,
    /// How many of them are sent.
    gone: usize,
    /// Length of each datagram among those that are not.
    lengths: Vec<usize>,
    /// Bytes that came and were no whole answer.
    rest: Vec<u8>,
    /// Answers in part, by number of the request.
    parts: HashMap<u64, Parts>,
    /// When those were due that were appended since the socket took all, unless it held them up.
    pub fresh: Vec<u64>,
    /// Whether the socket takes no more for now.
    pub blocked: bool,
    /// Whether there is something to send.
    pub touched: bool,
}

impl Link {
    /// Connects over TCP.
    ///
    /// # Errors
    /// If the connection cannot be had.
    pub fn tcp(address: SocketAddr, most_under_way: usize) -> io::Result<Self> {
        Ok(Link::new(Socket::Tcp(tcp(address)?), most_under_way))
    }

    /// A UDP socket that knows its peer.
    ///
    /// # Errors
    /// If the socket cannot be had.
    pub fn udp(address: SocketAddr, most_under_way: usize) -> io::Result<Self> {
        Ok(Link::new(Socket::Udp(udp(address)?), most_under_way))
    }

    /// Connects to `HOST:PORT` over TCP, or to the path of a socket. A server that was just started is waited for.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn stream(address: &str, most_under_way: usize) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            match stream(address) {
                Ok(socket) => return Ok(Link::new(socket, most_under_way)),
                Err(error) if may_come(&error) && start.elapsed() < START => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(error),
            }
        }
    }

    fn new(socket: Socket, most_under_way: usize) -> Self {
        Link {
            socket,
            flight: Flight::new(most_under_way),
            out: Vec::new(),
            gone: 0,
            lengths: Vec::new(),
            rest: Vec::new(),
            parts: HashMap::new(),
            fresh: Vec::new(),
            blocked: false,
            touched: false,
        }
    }

    /// Bytes that the socket has not taken.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.out.len() - self.gone
    }

    /// The port of a UDP socket.
    #[must_use]
    pub fn udp_port(&self) -> Option<u16> {
        match &self.socket {
            Socket::Udp(socket) => socket.local_addr().ok().map(|address| address.port()),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }

    /// Appends a request, if there is room for it.
    pub fn send(&mut self, protocol: &dyn Protocol, request: Request, due: u64, now: u64) -> bool {
        let Some(number) = self.flight.room() else { return false };
        let before = self.out.len();
        protocol.write(number, &request, &mut self.out);
        if matches!(self.socket, Socket::Udp(_)) {
            self.lengths.push(self.out.len() - before);
        }
        if !self.blocked {
            self.fresh.push(due);
        }
        self.flight.add(due, now, request);
        true
    }

    /// Lets the socket take what it can; `blocked` says whether that was all.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn flush(&mut self, space: &mut Space) -> io::Result<()> {
        self.blocked = false;
        while self.gone < self.out.len() && !self.blocked {
            let taken = match &self.socket {
                Socket::Tcp(stream) => (&mut &*stream).write(&self.out[self.gone..]),
                Socket::Unix(stream) => (&mut &*stream).write(&self.out[self.gone..]),
                Socket::Udp(socket) => send_datagrams(socket, &self.out[self.gone..], &mut self.lengths, space),
            };
            match taken {
                Ok(bytes) => self.gone += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // What is left is moved only when it is less than what is not.
        if self.gone * 2 > self.out.len() {
            self.out.drain(..self.gone);
            self.gone = 0;
        }
        Ok(())
    }

    /// Reads what has come, and gives each answer to `each`. Reads once: what it leaves, the next wait tells.
    ///
    /// # Errors
    /// If the connection is broken, or what comes over it cannot be understood.
    pub fn receive(&mut self, protocol: &dyn Protocol, space: &mut Space, each: impl FnMut(Came)) -> io::Result<()> {
        let read = match &self.socket {
            Socket::Tcp(stream) => (&mut &*stream).read(&mut space.bytes),
            Socket::Unix(stream) => (&mut &*stream).read(&mut space.bytes),
            Socket::Udp(socket) => {
                let (count, lengths) = receive_datagrams(socket, space)?;
                self.datagrams(protocol, &space.datagrams[..], &lengths[..count], each);
                return Ok(());
            }
        };
        match read {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(count) => self.came(protocol, &space.bytes[..count], each),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives up the request that was sent first, if it was before then.
    pub fn expire(&mut self, before: u64) -> Option<Sent> {
        let sent = self.flight.expire(before)?;
        self.parts.remove(&sent.number);
        Some(sent)
    }

    fn came(&mut self, protocol: &dyn Protocol, came: &[u8], mut each: impl FnMut(Came)) -> io::Result<()> {
        let mut rest = std::mem::take(&mut self.rest);
        let bytes = if rest.is_empty() {
            came
        } else {
            rest.extend_from_slice(came);
            &rest[..]
        };
        let mut at = 0;
        while at < bytes.len() {
            let Some(sent) = self.flight.front() else {
                each(Came::Duplicate);
                return Err(io::Error::other("an answer came to which there was no request"));
            };
            let checked = protocol.check(sent.number, &sent.request, &bytes[at..]).map_err(io::Error::other)?;
            let Some((used, checked)) = checked else { break };
            at += used;
            self.flight.answered(sent.number);
            each(Came::Answer(sent, checked));
        }
        if rest.is_empty() {
            rest.extend_from_slice(&came[at..]);
        } else {
            rest.drain(..at);
        }
        self.rest = rest;
        Ok(())
    }

    fn datagrams(
        &mut self,
        protocol: &dyn Protocol,
        datagrams: &[[u8; DATAGRAM]],
        lengths: &[usize],
        mut each: impl FnMut(Came),
    ) {
        for (datagram, length) in datagrams.iter().zip(lengths) {
            let datagram = &datagram[..*length];
            let Some(header) = protocol.header(datagram) else {
                each(Came::Stray(format!("a datagram of {length} bytes is no answer of this service")));
                continue;
            };
            let number = match header.id {
                Id::Whole(number) => number,
                Id::Low(low) => self.flight.of_low_bits(low),
            };
            if let Some(came) = self.datagram(protocol, number, header, &datagram[header.bytes..]) {
                each(came);
            }
        }
    }

    fn datagram(&mut self, protocol: &dyn Protocol, number: u64, header: Header, body: &[u8]) -> Option<Came> {
        let whole;
        let body = if header.parts > 1 && self.flight.is_waiting(number) {
            let parts = self.parts.entry(number).or_default();
            match parts.add(header, body) {
                None => return Some(Came::Duplicate),
                Some(false) => return None,
                Some(true) => {
                    whole = self.parts.remove(&number).unwrap_or_default().whole();
                    &whole[..]
                }
            }
        } else if header.part > 0 && header.parts > 1 {
            // Of an answer that comes late or twice, the first part alone counts.
            return None;
        } else {
            body
        };
        Some(match self.flight.answered(number) {
            Match::Waiting(sent) => Came::Answer(sent, checked(protocol, &sent, body)),
            Match::Late => Came::Late,
            Match::Duplicate => Came::Duplicate,
            Match::Unknown => Came::Stray(format!("an answer to request {number}, which was not sent")),
        })
    }
}

impl Parts {
    /// One more. `None` if it was there already; else whether all are.
    fn add(&mut self, header: Header, body: &[u8]) -> Option<bool> {
        if self.parts.is_empty() {
            self.missing = usize::from(header.parts);
            self.parts.resize(self.missing, None);
        }
        let part = self.parts.get_mut(usize::from(header.part)).filter(|part| part.is_none())?;
        *part = Some(body.to_vec());
        self.missing -= 1;
        Some(self.missing == 0)
    }

    fn whole(self) -> Vec<u8> {
        self.parts.into_iter().flatten().flatten().collect()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
        }
    }
}

/// Checks the body of a datagram, which has to be one whole answer.
fn checked(protocol: &dyn Protocol, sent: &Sent, body: &[u8]) -> Checked {
    match protocol.check(sent.number, &sent.request, body) {
        Ok(Some((used, checked))) if used == body.len() => checked,
        Ok(Some((used, _))) => Checked::Wrong("answers too long", format!("{} bytes, not {used}", body.len())),
        Ok(None) => Checked::Wrong("answers too short", format!("{} bytes", body.len())),
        Err(error) => Checked::Wrong("no answers", error),
    }
}

fn stream(address: &str) -> io::Result<Socket> {
    if address.contains('/') || !address.contains(':') {
        let stream = UnixStream::connect(address)?;
        stream.set_nonblocking(true)?;
        return Ok(Socket::Unix(stream));
    }
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Socket::Tcp(stream))
}

/// Whether somebody may listen there soon.
fn may_come(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}

fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let any = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    // Less than asked for is no error; what does not fit is counted (`drops`).
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, RECEIVE_BUFFER);
    Ok(socket)
}

/// Sends the datagrams that `bytes` begin with; gives the bytes of those that were taken, whose lengths go.
fn send_datagrams(socket: &UdpSocket, bytes: &[u8], lengths: &mut Vec<usize>, space: &mut Space) -> io::Result<usize> {
    let (count, mut at) = (lengths.len().min(BATCH), 0);
    let slices: [[IoSlice<'_>; 1]; BATCH] = std::array::from_fn(|n| {
        let start = at;
        at += lengths.get(n).copied().unwrap_or(0);
        [IoSlice::new(&bytes[start..at])]
    });
    let addresses = [None::<()>; BATCH];
    let sent = sendmmsg(socket.as_raw_fd(), &mut space.sending, &slices[..count], addresses, [], MsgFlags::empty())?.count();
    Ok(lengths.drain(..sent).sum())
}

/// Receives datagrams into the space; gives how many, and their lengths.
fn receive_datagrams(socket: &UdpSocket, space: &mut Space) -> io::Result<(usize, [usize; BATCH])> {
    let mut slices = space.datagrams.each_mut().map(|datagram| [IoSliceMut::new(datagram)]);
    let (mut count, mut lengths) = (0, [0; BATCH]);
    match recvmmsg(socket.as_raw_fd(), &mut space.receiving, &mut slices, MsgFlags::MSG_DONTWAIT, None) {
        Ok(messages) => {
            for message in messages {
                lengths[count] = message.bytes;
                count += 1;
            }
        }
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok((count, lengths))
}

/// How many datagrams the kernel dropped at UDP sockets with these local ports, because they were full.
pub fn drops(ports: &[u16]) -> u64 {
    let of =
        |file| std::fs::read_to_string(file).unwrap_or_default().lines().filter_map(|line| drops_of(line, ports)).sum::<u64>();
    of("/proc/self/net/udp") + of("/proc/self/net/udp6")
}

/// What a line of `/proc/net/udp` says: the second word is the local address, the last one the drops.
fn drops_of(line: &str, ports: &[u16]) -> Option<u64> {
    let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok().filter(|port| ports.contains(port))?;
    debug_assert!(port > 0);
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_by_port() {
        let line = "  511: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 20000 2 0000000000000000 42";
        assert_eq!(drops_of(line, &[7, 8080]), Some(42));
        assert_eq!(drops_of(line, &[50_000]), None, "that is the port of the other side");
        let head =
            "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops";
        assert_eq!(drops_of(head, &[8080]), None);
    }

    #[test]
    fn parts_make_a_whole_in_any_order() {
        let header = |part| Header { id: Id::Low(0), part, parts: 3, bytes: 8 };
        let mut parts = Parts::default();
        assert_eq!(parts.add(header(2), b"c"), Some(false));
        assert_eq!(parts.add(header(2), b"c"), None);
        assert_eq!(parts.add(header(0), b"a"), Some(false));
        assert_eq!(parts.add(header(1), b"b"), Some(true));
        assert_eq!(parts.whole(), b"abc");
    }
}
