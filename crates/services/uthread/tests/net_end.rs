//! How services end: what is under way, and what is left behind.
#![cfg(not(loom))]

mod common;

use common::in_child;
use common::net::{descriptors, frame, here, request, rest, runtime, until, watchdog};
use core::time::Duration;
use farshore_uthread::channel::{self, Receiver, Sender};
use farshore_uthread::net::{Connection, Datagram, Limits, Next, TcpListener, TcpServer, UdpServer, UdpSocket};
use farshore_uthread::{Config, Runtime, SpawnError, WaitMode};
use std::io::{self, Read, Write};
use std::net::{TcpStream as Plain, UdpSocket as PlainUdp};
use std::thread;

fn tcp<S>(runtime: &Runtime, limits: Limits, service: S) -> TcpServer
where
    S: Fn(&mut Connection<'_>) -> io::Result<()> + Send + Sync + 'static,
{
    TcpServer::start(&runtime.handle(), TcpListener::bind(here(), 1024).unwrap(), limits, service).unwrap()
}

/// A request of one byte is served when `wait` says so; all others at once.
fn serve(connection: &mut Connection<'_>, wait: &Receiver<()>) -> io::Result<()> {
    loop {
        match connection.receive(frame)? {
            Next::End => return Ok(()),
            Next::Overload => connection.send(b"busy")?,
            Next::Request => {
                if connection.request().len() == 3 && wait.recv().is_err() {
                    return Ok(());
                }
                connection.send(connection.request())?;
            }
        }
    }
}

fn connect(server: &TcpServer, bytes: &[u8]) -> Plain {
    let mut peer = Plain::connect(server.local_addr()).unwrap();
    peer.write_all(bytes).unwrap();
    peer
}

#[test]
fn a_service_that_stops_serves_what_is_under_way() {
    let runtime = runtime(2);
    let (go, wait) = channel::bounded(8);
    let server = tcp(&runtime, Limits::default(), move |connection| serve(connection, &wait));
    let mut idle = [(); 4].map(|()| connect(&server, b""));
    let mut partial = connect(&server, &[0, 100, 1, 2, 3]);
    // Another whole request has come behind the one that is under way.
    let both = [request(b"a"), request(b"behind")].concat();
    let mut busy: Vec<_> = (0..8).map(|_| connect(&server, &both)).collect();
    until(|| server.counts().received == 8 && server.counts().accepted == 13);
    server.stop();
    idle.iter_mut().for_each(|peer| assert_eq!(rest(peer), []));
    assert_eq!(rest(&mut partial), []);
    until(|| server.counts().open == 8);
    let address = server.local_addr();
    until(|| Plain::connect(address).is_err());
    let joins = thread::spawn(move || server.join());
    (0..8).for_each(|_| go.send(()).unwrap());
    busy.iter_mut().for_each(|peer| assert_eq!(rest(peer), both));
    let counts = joins.join().unwrap();
    assert_eq!((counts.accepted, counts.open, counts.received), (13, 0, 16));
    until(|| runtime.handle().live() == 0);
    runtime.shutdown().unwrap();
}

#[test]
fn a_peer_that_goes_on_talking_does_not_keep_a_service() {
    let runtime = runtime(1);
    let server = tcp(&runtime, Limits::default(), |connection| {
        while connection.receive(frame)? == Next::Request {
            connection.send(connection.request())?;
        }
        Ok(())
    });
    let address = server.local_addr();
    let talks = thread::spawn(move || {
        let mut peer = Plain::connect(address).unwrap();
        let mut reads = peer.try_clone().unwrap();
        let drains = thread::spawn(move || rest(&mut reads).len());
        // Until it is told that nobody listens.
        while peer.write_all(&request(&[7; 1000])).is_ok() {}
        drains.join().unwrap()
    });
    until(|| server.counts().received > 100);
    server.join();
    assert!(talks.join().unwrap() > 100);
}

#[test]
fn too_many_requests_at_a_time_are_told() {
    let runtime = runtime(1);
    let (go, wait) = channel::bounded(8);
    let limits = Limits { requests_in_flight: 1, ..Limits::default() };
    let server = tcp(&runtime, limits, move |connection| serve(connection, &wait));
    let mut first = connect(&server, &request(b"1"));
    until(|| server.counts().received == 1);
    let mut second = connect(&server, &request(b"2"));
    let mut busy = [0; 4];
    second.read_exact(&mut busy).unwrap();
    assert_eq!(&busy, b"busy");
    go.send(()).unwrap();
    let mut back = [0; 3];
    first.read_exact(&mut back).unwrap();
    // The first one's request is over when it waits for the next one.
    until(|| {
        second.write_all(&request(b"")).unwrap();
        let mut back = [0; 2];
        second.read_exact(&mut back).unwrap();
        back == [0, 0] || {
            second.read_exact(&mut back).unwrap();
            false
        }
    });
    assert!(server.join().dropped >= 1);
}

#[test]
fn limits_that_cannot_be_are_refused() {
    let runtime = runtime(1);
    let why = |limits: Limits| {
        UdpServer::start(&runtime.handle(), UdpSocket::bind(here()).unwrap(), limits, |_| ()).unwrap_err().to_string()
    };
    let long = why(Limits { request_bytes: 2049, ..Limits::default() });
    assert_eq!(long, "request_bytes cannot be 2049: 1 to buffer_bytes of the runtime");
    assert_eq!(why(Limits { connections: 0, ..Limits::default() }), "connections cannot be 0: at least 1");
    assert_eq!(why(Limits { requests_in_flight: 0, ..Limits::default() }), "requests_in_flight cannot be 0: at least 1");
    let handle = runtime.handle();
    runtime.shutdown().unwrap();
    let late = UdpServer::start(&handle, UdpSocket::bind(here()).unwrap(), Limits::default(), |_| ()).unwrap_err();
    assert!(late.to_string().ends_with(&SpawnError::Stopping.to_string()), "{late}");
}

/// A runtime whose two services have connections and requests in all states, and the peers.
struct Busy {
    runtime: Runtime,
    tcp: TcpServer,
    udp: UdpServer,
    peers: Vec<Plain>,
    datagrams: PlainUdp,
    go: Sender<()>,
}

fn busy() -> Busy {
    let runtime = runtime(2);
    let (go, wait) = channel::bounded(100);
    let also = wait.clone();
    let tcp = tcp(&runtime, Limits::default(), move |connection| match connection.receive(frame)? {
        Next::Request if connection.request().len() == 4 => (0..).try_for_each(|_| connection.send(&[0; 16 << 10])),
        Next::Request if wait.recv().is_ok() => connection.send(connection.request()),
        _ => Ok(()),
    });
    let service = move |datagram: Datagram<'_>| {
        if also.recv().is_ok() {
            datagram.reply(1);
        }
    };
    let udp = UdpServer::start(&runtime.handle(), UdpSocket::bind(here()).unwrap(), Limits::default(), service).unwrap();
    // They say nothing, a part, wait for an answer, do not read it.
    let states = [vec![], vec![0, 9], request(b"a"), request(b"xx")];
    let peers: Vec<_> = (0..20).map(|number| connect(&tcp, &states[number % 4])).collect();
    let datagrams = PlainUdp::bind(here()).unwrap();
    (0..10).for_each(|number| {
        datagrams.send_to(&[number], udp.local_addr().unwrap()).unwrap();
    });
    until(|| tcp.counts().accepted == 20 && tcp.counts().received == 10 && udp.under_way() == 10);
    Busy { runtime, tcp, udp, peers, datagrams, go }
}

#[test]
fn a_shutdown_ends_services_in_the_midst() {
    let Busy { runtime, tcp, udp, mut peers, datagrams, go } = busy();
    let handle = runtime.handle();
    runtime.shutdown().unwrap();
    assert_eq!(handle.live(), 0);
    for peer in &mut peers {
        rest(peer);
    }
    assert_eq!(tcp.join().open, 0);
    assert_eq!(udp.join().received, 10);
    drop((datagrams, go));
}

#[test]
fn nothing_is_left_behind() {
    let ends = in_child("nothing_is_left_behind", || {
        // The watchdog's thread and all else that stays is there after the first round.
        drop(busy());
        let before = descriptors();
        for round in 0..6 {
            let Busy { runtime, tcp, udp, peers, datagrams, go } = busy();
            if round % 2 == 0 {
                // In order: those that wait for a peer which does not read end with the peer.
                drop(peers);
                (0..15).for_each(|_| go.send(()).unwrap());
                udp.join();
                assert_eq!(tcp.join().open, 0);
                runtime.shutdown().unwrap();
            } else {
                runtime.shutdown().unwrap();
                drop((tcp, udp, peers));
            }
            drop((datagrams, go));
            assert_eq!(descriptors(), before, "round {round}");
        }
        println!("went on");
    });
    let Some(ends) = ends else { return };
    assert!(String::from_utf8_lossy(&ends.stdout).contains("went on"), "{ends:?}");
}

fn address_space() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<usize>().unwrap() << 12
}

#[test]
fn buffers_of_services_are_unmapped() {
    let ends = in_child("buffers_of_services_are_unmapped", || {
        let runtime = runtime(1);
        let service = || {
            let socket = UdpSocket::bind(here()).unwrap();
            let server = UdpServer::start(&runtime.handle(), socket, Limits::default(), |datagram| datagram.reply(1)).unwrap();
            let peer = PlainUdp::bind(here()).unwrap();
            peer.send_to(&[1], server.local_addr().unwrap()).unwrap();
            peer.recv(&mut [0]).unwrap();
            server.join();
        };
        (0..5).for_each(|_| service());
        let before = address_space();
        (0..40).for_each(|_| service());
        let more = address_space().saturating_sub(before);
        println!("went on, {} MiB", more >> 20);
        assert!(more < 8 << 20, "{more} bytes more: 40 services have half a megabyte each");
    });
    let Some(ends) = ends else { return };
    assert!(ends.status.success(), "{ends:?}");
}

#[test]
fn how_fetches_wait_is_nothing_to_peers() {
    watchdog();
    // In place, a wait for a peer would hold the only worker for ever.
    for wait in [WaitMode::Block, WaitMode::Busy] {
        let runtime = Runtime::start(Config { workers: 1, wait, ..Config::default() }).unwrap();
        let (go, wait) = channel::bounded(1);
        let server = tcp(&runtime, Limits::default(), move |connection| serve(connection, &wait));
        let _silent = connect(&server, b"");
        let mut peer = connect(&server, &request(b"hello"));
        let mut back = [0; 7];
        peer.read_exact(&mut back).unwrap();
        runtime.shutdown().unwrap();
        drop(go);
    }
}

#[test]
fn a_shutdown_is_no_deadline() {
    let runtime = runtime(1);
    let listener = TcpListener::bind(here(), 1).unwrap();
    let _peer = Plain::connect(listener.local_addr().unwrap()).unwrap();
    let (tell, hear) = channel::bounded(1);
    let reads = runtime.spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        tell.send(()).unwrap();
        stream.read_within(&mut [0; 8], Duration::from_secs(1000)).unwrap_err().raw_os_error()
    });
    hear.recv().unwrap();
    runtime.shutdown().unwrap();
    assert_eq!(reads.unwrap().join().unwrap(), Some(libc::ECANCELED));
}
