//! Sockets of unithreads, against real ones of threads on 127.0.0.1.
#![cfg(not(loom))]

mod common;

use common::net::{Random, frame, here, request, rest, runtime, until, watchdog};
use core::time::Duration;
use farshore_uthread::net::{Connection, Limits, Next, TcpListener, TcpServer, UdpSocket};
use farshore_uthread::{Config, Handle, Runtime, hold, spawn};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as Plain, UdpSocket as PlainUdp};
use std::os::fd::AsRawFd;
use std::thread;

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
    let peer = PlainUdp::bind(here()).unwrap();
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
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        // Held, it waits in place, and ends as well.
        let held = hold();
        let late = stream.read_within(&mut bytes, Duration::from_millis(10)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
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
fn a_deadline_loses_no_bytes() {
    let runtime = runtime(1);
    let listener = TcpListener::bind(here(), 1).unwrap();
    let mut peer = Plain::connect(listener.local_addr().unwrap()).unwrap();
    let reads = runtime.spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (mut all, mut bytes) = (Vec::<u8>::new(), [0u8; 64]);
        loop {
            // So short that it often ends while bytes come.
            match stream.read_within(&mut bytes, Duration::from_micros(5)) {
                Ok(0) => return all,
                Ok(got) => all.extend(&bytes[..got]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut),
            }
        }
    });
    let mut random = Random(9);
    let sent = random.bytes(100_000);
    peer.set_nodelay(true).unwrap();
    send_in_pieces(&mut peer, &sent, &mut random);
    peer.shutdown(Shutdown::Write).unwrap();
    let all = reads.unwrap().join().unwrap();
    assert!(all == sent, "other bytes came");
}

#[test]
fn threads_have_no_ring() {
    watchdog();
    let listener = TcpListener::bind(here(), 1).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Sends each request back.
fn echo_requests(connection: &mut Connection<'_>) -> io::Result<()> {
    while connection.receive(frame)? == Next::Request {
        connection.send(connection.request())?;
    }
    Ok(())
}

fn server<S>(runtime: &Runtime, limits: Limits, service: S) -> TcpServer
where
    S: Fn(&mut Connection<'_>) -> io::Result<()> + Send + Sync + 'static,
{
    TcpServer::start(&runtime.handle(), TcpListener::bind(here(), 1024).unwrap(), limits, service).unwrap()
}

/// Sends `bytes` in pieces of random sizes.
fn send_in_pieces(peer: &mut Plain, mut bytes: &[u8], random: &mut Random) {
    while !bytes.is_empty() {
        let piece = (1 + random.below(400)).min(bytes.len());
        peer.write_all(&bytes[..piece]).unwrap();
        bytes = &bytes[piece..];
    }
}

#[test]
fn many_connections_get_their_own_bytes_back() {
    const THREADS: u64 = 6;
    const EACH: u64 = 30;
    let runtime = runtime(2);
    let server = server(&runtime, Limits::default(), echo_requests);
    let address = server.local_addr();
    let threads = (0..THREADS).map(|number| {
        thread::spawn(move || {
            let mut random = Random(number);
            let mut peers: Vec<_> = (0..EACH).map(|_| Plain::connect(address).unwrap()).collect();
            let mut requests = 0;
            for _ in 0..4 {
                // Several requests at once, that come in pieces; and all connections are open at a time.
                let sent: Vec<_> = peers
                    .iter_mut()
                    .map(|peer| {
                        let count = 1 + random.below(5);
                        requests += count as u64;
                        let all: Vec<u8> = (0..count)
                            .flat_map(|_| {
                                let length = random.below(2047);
                                request(&random.bytes(length))
                            })
                            .collect();
                        peer.set_nodelay(true).unwrap();
                        send_in_pieces(peer, &all, &mut random);
                        all
                    })
                    .collect();
                for (peer, sent) in peers.iter_mut().zip(sent) {
                    let mut back = vec![0; sent.len()];
                    peer.read_exact(&mut back).unwrap();
                    assert!(back == sent, "other bytes came back");
                }
            }
            // Half of them close for writing only, and see the end.
            for mut peer in peers.into_iter().step_by(2) {
                peer.shutdown(Shutdown::Write).unwrap();
                assert_eq!(rest(&mut peer), []);
            }
            requests
        })
    });
    let requests: u64 = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum();
    until(|| server.counts().open == 0);
    let counts = server.join();
    assert_eq!((counts.accepted, counts.received), (THREADS * EACH, requests));
    assert_eq!((counts.refused, counts.dropped, counts.send_failed, counts.timed_out), (0, 0, 0, 0));
    runtime.shutdown().unwrap();
}

#[test]
fn a_half_closed_peer_gets_its_replies() {
    let runtime = runtime(1);
    let server = server(&runtime, Limits::default(), echo_requests);
    let mut peer = Plain::connect(server.local_addr()).unwrap();
    let all = [request(b"one"), request(b""), request(&[7; 2046])].concat();
    peer.write_all(&all).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut peer), all);
    // One that closes within a request.
    let mut peer = Plain::connect(server.local_addr()).unwrap();
    peer.write_all(&all[..2]).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut peer), []);
    assert_eq!(server.join().received, 3);
}

/// Closes with a reset.
fn reset(peer: Plain) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (at, bytes) = ((&raw const linger).cast(), size_of_val(&linger) as u32);
    // SAFETY: reads `linger`.
    let set = unsafe { libc::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, bytes) };
    assert_eq!(set, 0);
}

#[test]
fn peers_that_reset_their_connection_hurt_nobody() {
    let runtime = runtime(1);
    let server = server(&runtime, Limits::default(), echo_requests);
    let address = server.local_addr();
    let mut stays = Plain::connect(address).unwrap();
    for round in 0..100 {
        let mut peer = Plain::connect(address).unwrap();
        // Nothing, a part, a whole request, many whose replies are not read.
        match round % 4 {
            0 => {}
            1 => peer.write_all(&[0]).unwrap(),
            2 => peer.write_all(&request(b"hello")).unwrap(),
            _ => peer.write_all(&request(&[1; 2000]).repeat(10)).unwrap(),
        }
        reset(peer);
    }
    stays.write_all(&request(b"still there")).unwrap();
    let mut back = [0; 13];
    stays.read_exact(&mut back).unwrap();
    until(|| server.counts().open == 1);
    drop(stays);
    let counts = server.join();
    assert_eq!((counts.accepted + counts.refused + counts.accept_failed, counts.open), (101, 0));
    assert_eq!(runtime.handle().panics(), 0);
}

#[test]
fn a_peer_that_never_reads_holds_nobody() {
    let runtime = runtime(1);
    // Long enough for the others, also where this process gets no processor for a while.
    let limits = Limits { idle: Duration::from_secs(2), ..Limits::default() };
    let server = server(&runtime, limits, |connection| {
        while connection.receive(frame)? == Next::Request {
            match connection.request() {
                [0, 1, b'!'] => (0..4096).try_for_each(|_| connection.send(&[0; 16 << 10]))?,
                small => connection.send(small)?,
            }
        }
        Ok(())
    });
    let mut deaf = Plain::connect(server.local_addr()).unwrap();
    deaf.write_all(&request(b"!")).unwrap();
    // The one worker serves others meanwhile, and the deaf one's time ends.
    while server.counts().timed_out == 0 {
        let mut other = Plain::connect(server.local_addr()).unwrap();
        other.write_all(&request(b"x")).unwrap();
        let mut back = [0; 3];
        other.read_exact(&mut back).unwrap();
    }
    until(|| server.counts().open == 0);
    let counts = server.join();
    assert_eq!((counts.timed_out, counts.send_failed), (1, 1));
    drop(deaf);
}

#[test]
fn a_peer_that_says_nothing_is_closed() {
    let runtime = runtime(1);
    let limits = Limits { idle: Duration::from_millis(20), ..Limits::default() };
    let server = server(&runtime, limits, echo_requests);
    let mut silent = Plain::connect(server.local_addr()).unwrap();
    assert_eq!(rest(&mut silent), []);
    // One that brings a byte now and then never brings a request.
    let mut slow = Plain::connect(server.local_addr()).unwrap();
    while slow.write_all(&[0, 200]).is_ok() && server.counts().timed_out < 2 {
        thread::sleep(Duration::from_millis(1));
    }
    until(|| server.counts().open == 0);
    assert_eq!(server.join().timed_out, 2);
}

#[test]
fn connections_beyond_the_limit_are_closed_at_once() {
    const LIMIT: u32 = 4;
    let runtime = runtime(2);
    let server = server(&runtime, Limits { connections: LIMIT, ..Limits::default() }, echo_requests);
    let connect = || {
        let mut peer = Plain::connect(server.local_addr()).unwrap();
        // It may be closed already.
        let _ = peer.write_all(&request(b"x"));
        let mut back = [0; 3];
        peer.read_exact(&mut back).is_ok().then_some(peer)
    };
    let served: Vec<_> = (0..10).filter_map(|_| connect()).collect();
    assert_eq!(served.len(), LIMIT as usize);
    assert_eq!(server.counts().open, u64::from(LIMIT));
    until(|| server.counts().refused == 6);
    drop(served);
    until(|| server.counts().open == 0);
    assert!(connect().is_some(), "there is room again");
    let counts = server.join();
    assert_eq!((counts.accepted, counts.refused), (5, 6));
}

#[test]
fn connections_without_a_unithread_are_refused() {
    watchdog();
    let runtime = Runtime::start(Config { workers: 1, unithreads: 3, ..Config::default() }).unwrap();
    let server = server(&runtime, Limits::default(), echo_requests);
    let served = [(); 2].map(|()| Plain::connect(server.local_addr()).unwrap());
    until(|| server.counts().accepted == 2);
    let mut third = Plain::connect(server.local_addr()).unwrap();
    assert_eq!(rest(&mut third), []);
    drop(served);
    assert_eq!(server.join().refused, 1);
}

#[test]
fn bad_requests_are_counted_and_end_their_connection() {
    let runtime = runtime(1);
    let server = server(&runtime, Limits { request_bytes: 100, ..Limits::default() }, |connection| {
        while connection.receive(frame).inspect_err(|_| connection_error(connection))? == Next::Request {
            connection.send(connection.request())?;
        }
        Ok(())
    });
    for (bad, reply) in [(request(&[0; 99]), "error"), (vec![0xff, 0xff], "error"), (request(&[0; 98]), "")] {
        let mut peer = Plain::connect(server.local_addr()).unwrap();
        peer.write_all(&bad).unwrap();
        // It may be closed already.
        let _ = peer.shutdown(Shutdown::Write);
        let back = rest(&mut peer);
        // What is left unread may reset the connection before the reply is read.
        let good = if reply.is_empty() { back == bad } else { back == reply.as_bytes() || back.is_empty() };
        assert!(good, "{back:?}");
    }
    let counts = server.join();
    assert_eq!((counts.too_long, counts.malformed, counts.received), (1, 1, 1));
}

fn connection_error(connection: &Connection<'_>) {
    let _ = connection.send(b"error");
}
