//! What a manager and a process say to each other, each a message of a socket that keeps messages apart (`SOCK_SEQPACKET`). Numbers have 64 bits.
//!
//! ```text
//!  process  hello                                                                  manager
//!           ◀── hello, then of each region: address, size, offset, which file ──   descriptors: table, files
//!           ── hello, then of each region where it is mapped ──▶                   descriptor: userfaultfd
//!           ◀── hello: it is served ──
//!  at any time, in place of an answer:  ◀── a line that begins with '!': why not ──
//! ```

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// What each message begins with: the protocol, and its version.
pub const HELLO: u64 = 0x6661_726d_6170_0001;
/// The most regions.
pub const REGIONS_MAX: usize = 1024;
/// The most descriptors of a message (`SCM_MAX_FD`).
pub const DESCRIPTORS_MAX: usize = 253;
/// The longest message.
const BYTES_MAX: usize = 8 * (1 + 4 * REGIONS_MAX);

/// The name of the abstract socket at which the manager of a process' memory listens.
pub fn socket_name(user: u32, process: u32) -> String {
    format!("farshore-map-{user}-{process}")
}

/// A region, as a manager tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its address in the virtual machine's monitor.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its first byte's place in its file.
    pub offset: u64,
    /// Which of the files it is.
    pub file: u64,
}

impl Told {
    /// As numbers.
    pub fn numbers(self) -> [u64; 4] {
        [self.address, self.bytes, self.offset, self.file]
    }
}

/// What has come.
#[derive(Debug)]
pub enum Came {
    /// Numbers behind the hello, and descriptors.
    Numbers(Vec<u64>, Vec<OwnedFd>),
    /// A line: why not.
    Refused(String),
    /// The other end is closed.
    Closed,
}

/// Sends bytes with descriptors.
fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Sends a hello with numbers behind it, and descriptors.
///
/// # Errors
/// What sendmsg(2) answers.
pub fn send(socket: BorrowedFd<'_>, numbers: &[u64], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let all = core::iter::once(&HELLO).chain(numbers);
    let bytes: Vec<u8> = all.flat_map(|number| number.to_le_bytes()).collect();
    send_bytes(socket, &bytes, descriptors)
}

/// Says why not.
///
/// # Errors
/// What sendmsg(2) answers.
pub fn refuse(socket: BorrowedFd<'_>, why: &str) -> Result<(), Errno> {
    send_bytes(socket, format!("!{why}").as_bytes(), &[])
}

/// The next message.
///
/// # Errors
/// What recvmsg(2) answers; `EPROTO`: it is none.
pub fn receive(socket: BorrowedFd<'_>) -> Result<Came, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; BYTES_MAX];
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            // The second: the other end has closed, and had not read all. What it had sent before comes all the same, or its end.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(all) = message {
            descriptors.extend(all);
        }
    }
    if got.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        return Err(Errno::PROTO);
    }
    let bytes = &bytes[..got.bytes];
    match bytes {
        [] => Ok(Came::Closed),
        [b'!', why @ ..] => Ok(Came::Refused(String::from_utf8_lossy(why).into_owned())),
        _ => {
            let (numbers, rest) = bytes.as_chunks::<8>();
            let mut numbers: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
            if !rest.is_empty() || numbers.first() != Some(&HELLO) {
                return Err(Errno::PROTO);
            }
            numbers.remove(0);
            Ok(Came::Numbers(numbers, descriptors))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd as _;

    #[test]
    fn messages_come_as_they_went() {
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("it can be made");
        send(here.as_fd(), &[7, u64::MAX], &[here.as_fd(), there.as_fd()]).expect("it goes");
        match receive(there.as_fd()).expect("it comes") {
            Came::Numbers(numbers, descriptors) => assert_eq!((numbers, descriptors.len()), (vec![7, u64::MAX], 2)),
            other => panic!("{other:?}"),
        }
        refuse(here.as_fd(), "no").expect("it goes");
        assert!(matches!(receive(there.as_fd()), Ok(Came::Refused(why)) if why == "no"));
        for wrong in [&b"123456789"[..], &[0; 8], &HELLO.to_le_bytes()[..7]] {
            send_bytes(here.as_fd(), wrong, &[]).expect("it goes");
            assert_eq!(receive(there.as_fd()).err(), Some(Errno::PROTO), "{wrong:?}");
        }
        drop(here);
        assert!(matches!(receive(there.as_fd()), Ok(Came::Closed)));
    }
}
