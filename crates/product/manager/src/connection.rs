//! A client's connection: bytes and descriptors come in, answers go out.
//!
//! A client that is slow holds up nobody: its manager is a process of its own. One that says nothing is given up ([`PATIENCE`]); what it may send is bounded.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, Shutdown, recvmsg, send, shutdown,
};

use crate::regions::REGIONS_MAX;
use crate::wire::{self, Form, Read, Request};

/// How long the first request may take. (Cloud Hypervisor gives each of its own steps 2 s.)
const PATIENCE: Duration = Duration::from_secs(5);
/// The most descriptors that one message can bring (`SCM_MAX_FD`).
const AT_ONCE: usize = 253;
/// The most descriptors that wait for the request that they belong to.
const WAITING_MAX: usize = REGIONS_MAX + 1;
/// Bytes of one read.
const PIECE: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    /// Descriptors that have come along, in order.
    passed: Vec<OwnedFd>,
}

/// A request that is all there.
#[derive(Debug)]
pub struct Came {
    /// What is asked for.
    pub request: Request,
    /// The descriptors that have come with it, in order.
    pub descriptors: Vec<OwnedFd>,
    /// How it is to be answered, if it is.
    pub answer: Option<Form>,
}

/// What a look at a connection has brought.
#[derive(Debug)]
pub enum Next {
    /// A request.
    Came(Came),
    /// Nothing that is whole.
    Nothing,
    /// The client has closed it.
    Closed,
}

impl Connection {
    /// Takes a socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Connection {
        Connection { socket, input: Vec::new(), passed: Vec::new() }
    }

    /// The first request.
    ///
    /// # Errors
    /// One line: it does not come, or is none.
    pub fn first(&mut self) -> Result<Came, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut wanted = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut wanted, Some(&time)) {
                Ok(0) => {
                    let came = self.input.len();
                    return Err(format!("no whole request came within {} s ({came} bytes did)", PATIENCE.as_secs()));
                }
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(format!("its connection cannot be waited for ({errno})")),
            }
            match self.look()? {
                Next::Came(came) => return Ok(came),
                Next::Nothing => {}
                Next::Closed => {
                    return Err(format!(
                        "it has closed its connection after {} bytes, before its request was whole",
                        self.input.len()
                    ));
                }
            }
        }
    }

    /// Reads what has come, without waiting, and gives the next request if it is whole.
    ///
    /// # Errors
    /// One line: what came is no request.
    pub fn look(&mut self) -> Result<Next, String> {
        // What has come behind the last request.
        if let Some(came) = self.take()? {
            return Ok(Next::Came(came));
        }
        match self.receive() {
            Ok(0) => return Ok(Next::Closed),
            Ok(_) => {}
            Err(Errno::INTR | Errno::AGAIN) => return Ok(Next::Nothing),
            Err(Errno::CONNRESET) => return Ok(Next::Closed),
            Err(Errno::TOOBIG) => {
                return Err(format!("too many descriptors have come: at most {AT_ONCE} in a message, and {WAITING_MAX} in all"));
            }
            Err(errno) => return Err(format!("its connection cannot be read ({errno})")),
        }
        Ok(self.take()?.map_or(Next::Nothing, Next::Came))
    }

    /// Whether there may be a request in what has been read.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.input.is_empty()
    }

    fn take(&mut self) -> Result<Option<Came>, String> {
        match wire::read(&self.input)? {
            Read::More => Ok(None),
            Read::All(request, form, taken, wanted) => {
                self.input.drain(..taken);
                let descriptors = std::mem::take(&mut self.passed);
                Ok(Some(Came { request, descriptors, answer: wanted.then_some(form) }))
            }
        }
    }

    /// One message, or a part of one; how many bytes. `TOOBIG`: more descriptors came than there was room for.
    fn receive(&mut self) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let start = self.input.len();
        self.input.resize(start + PIECE, 0);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut self.input[start..])], &mut control, flags);
        self.input.truncate(start + got.as_ref().map_or(0, |got| got.bytes));
        let got = got?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.passed.extend(descriptors);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) || self.passed.len() > WAITING_MAX {
            return Err(Errno::TOOBIG);
        }
        Ok(got.bytes)
    }

    /// Sends an answer. A client that does not read it has gone, which is noticed elsewhere.
    pub fn answer(&self, form: Form) {
        let _ = send(&self.socket, &form.done(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

impl Drop for Connection {
    /// For the client it ends now, whoever else has a descriptor of it.
    fn drop(&mut self) {
        _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    use std::io::{IoSlice, Write as _};
    use std::os::unix::net::UnixStream;

    const ADD: &[u8] = br#"{"type":"add_region","region":{"host_virt_addr":4096,"size":4096,"backing_file_offset":0}}"#;

    fn frame() -> Vec<u8> {
        [&(ADD.len() as u32).to_le_bytes()[..], ADD].concat()
    }

    fn pair() -> (Connection, UnixStream) {
        let (here, there) = UnixStream::pair().expect("it can be made");
        (Connection::new(here.into()), there)
    }

    fn send_with(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("it is sent");
    }

    #[test]
    fn descriptors_belong_to_the_request_that_they_came_with() {
        let (mut connection, mut there) = pair();
        let zero = std::fs::File::open("/dev/zero").expect("it is there");
        send_with(&there, &frame()[..10], &[zero.as_fd(), zero.as_fd()]);
        assert!(matches!(connection.look(), Ok(Next::Nothing)));
        there.write_all(&frame()[10..]).expect("it is sent");
        let Ok(Next::Came(came)) = connection.look() else { panic!("it is whole") };
        assert_eq!((came.descriptors.len(), came.answer), (2, Some(Form::Json)));
        // Two at once.
        there.write_all(&[frame(), frame()].concat()).expect("it is sent");
        for left in [true, false] {
            assert!(matches!(connection.look(), Ok(Next::Came(Came { descriptors, .. })) if descriptors.is_empty()));
            assert_eq!(connection.has_more(), left);
        }
        connection.answer(Form::Json);
        let mut byte = [0; 2];
        assert_eq!(std::io::Read::read(&mut there, &mut byte).expect("it comes"), 1);
        drop(there);
        assert!(matches!(connection.look(), Ok(Next::Closed)));
        connection.answer(Form::Json);
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let open = || std::fs::read_dir("/proc/self/fd").expect("it is there").count();
        let (mut connection, there) = pair();
        let zero = std::fs::File::open("/dev/zero").expect("it is there");
        let before = open();
        let all = [zero.as_fd(); AT_ONCE];
        let refused = (0..=WAITING_MAX / AT_ONCE).find_map(|_| {
            send_with(&there, b"\xff\xff\0\0{", &all);
            connection.look().err()
        });
        assert!(refused.is_some_and(|why| why.contains("too many descriptors")));
        drop(connection);
        assert_eq!(open(), before - 1);
    }

    #[test]
    fn one_that_closes_early_is_told_so() {
        let (mut connection, mut there) = pair();
        there.write_all(&frame()[..7]).expect("it is sent");
        drop(there);
        let why = connection.first().expect_err("it is not whole");
        assert!(why.contains("after 7 bytes"), "{why}");
    }
}
