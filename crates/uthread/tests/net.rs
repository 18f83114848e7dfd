//! Sockets of unithreads, against real ones of threads on 127.0.0.1.
#![cfg(not(loom))]

mod common;

use common::{runtime, watchdog};
use core::time::Duration;
use farshore_uthread::net::{TcpListener, UdpSocket};
use farshore_uthread::{Handle, spawn};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as Plain};

fn here() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Accepts without end, and sends back what comes.
fn echo(handle: &Handle) -> SocketAddr {
    let listener = TcpListener::bind(here(), 128).unwrap();
    let address = listener.local_addr().unwrap();
    let accepts = handle.spawn(move || {
        while let Ok((stream, peer)) = listener.accept() {
            assert_eq!(stream.peer_addr().unwrap(), peer);
            let serve = move || {
                let mut bytes = [0; 1000];
                while let Ok(got @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..got]).unwrap();
                }
            };
            drop(spawn(serve).unwrap());
        }
    });
    drop(accepts.unwrap());
    address
}

#[test]
fn bytes_come_back() {
    let runtime = runtime(2);
    let address = echo(&runtime.handle());
    let mut peer = Plain::connect(address).unwrap();
    peer.write_all(b"hello").unwrap();
    let mut bytes = [0; 5];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    runtime.shutdown().unwrap();
    assert_eq!(peer.read(&mut bytes).unwrap(), 0);
}

#[test]
fn a_datagram_comes_back() {
    let runtime = runtime(1);
    let socket = UdpSocket::bind(here()).unwrap();
    let address = socket.local_addr().unwrap();
    let echoes = runtime.spawn(move || {
        let mut bytes = [0; 100];
        loop {
            match socket.recv_from(&mut bytes) {
                Ok((got, peer)) => assert_eq!(socket.send_to(&bytes[..got], peer).unwrap(), got),
                Err(error) => return error.raw_os_error(),
            }
        }
    });
    let peer = std::net::UdpSocket::bind(here()).unwrap();
    for bytes in [0, 1, 100] {
        peer.send_to(&vec![7; bytes], address).unwrap();
        let mut back = [0; 200];
        assert_eq!(peer.recv_from(&mut back).unwrap(), (bytes, address));
    }
    runtime.shutdown().unwrap();
    assert_eq!(echoes.unwrap().join().unwrap(), Some(libc::ECANCELED));
}

#[test]
fn a_read_ends_with_its_deadline() {
    let runtime = runtime(1);
    let listener = TcpListener::bind(here(), 1).unwrap();
    let mut peer = Plain::connect(listener.local_addr().unwrap()).unwrap();
    let reads = runtime.spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 10];
        let late = stream.read_within(&mut bytes, Duration::from_millis(10)).unwrap_err();
        assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
        // Held, it waits in place, and ends as well.
        let held = farshore_uthread::hold();
        let late = stream.read_within(&mut bytes, Duration::from_millis(10)).unwrap_err();
        assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
        drop(held);
        stream.write_all(b"now").unwrap();
        let got = stream.read_within(&mut bytes, Duration::from_secs(100)).unwrap();
        bytes[..got].to_vec()
    });
    let mut now = [0; 3];
    peer.read_exact(&mut now).unwrap();
    peer.write_all(b"hello").unwrap();
    assert_eq!(reads.unwrap().join().unwrap(), b"hello");
}

#[test]
fn threads_have_no_ring() {
    watchdog();
    let listener = TcpListener::bind(here(), 1).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::Unsupported);
}
