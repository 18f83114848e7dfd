//! A server of `array` over UDP, as fast as one thread of plain system calls can be: what `farshore-load open` itself can do is
//! measured against it.
//!
//! ```text
//! cargo run --release -p farshore-load --example array-server -- 127.0.0.1:7000
//! ```
#![forbid(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use farshore_load::array::{ARRAY_BYTES, array_value};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

const BATCH: usize = 64;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".into());
    let socket = UdpSocket::bind(&address)?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20)?;
    println!("listening on {}", socket.local_addr()?);
    // Not the same for both: sending would leave its addresses where receiving writes them.
    let [mut receiving, mut sending] = [(); 2].map(|()| MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None));
    let mut messages = [[0; ARRAY_BYTES]; BATCH];
    loop {
        let mut from = [None; BATCH];
        let mut slices = messages.each_mut().map(|message| [IoSliceMut::new(message)]);
        let came = recvmmsg(socket.as_raw_fd(), &mut receiving, &mut slices, MsgFlags::MSG_WAITFORONE, None)?;
        let mut count = 0;
        for message in came {
            from[count] = message.address;
            count += 1;
        }
        for message in &mut messages[..count] {
            let index = u64::from_le_bytes(std::array::from_fn(|n| message[8 + n]));
            message[8..].copy_from_slice(&array_value(index).to_le_bytes());
        }
        let slices: [[IoSlice<'_>; 1]; BATCH] = std::array::from_fn(|n| [IoSlice::new(&messages[n])]);
        // What cannot be sent is lost, as datagrams are.
        let _ = sendmmsg(socket.as_raw_fd(), &mut sending, &slices[..count], from, [], MsgFlags::empty());
    }
}
