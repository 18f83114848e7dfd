//! The protocol as a client sees it, by a small client of its own that can say anything.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use common::{Client, Node, Reply};

const PAGE: u64 = 4096;
const SIZE: u64 = 64 << 20;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
/// Requests.
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;

fn node(arguments: &[&str]) -> Node {
    Node::start(&[&["--memory", "16M", "--export-size", "64M"], arguments].concat())
}

#[test]
fn what_is_written_is_read() {
    let node = node(&[]);
    let (mut one, mut other) = (node.client("a"), node.client("a"));
    one.write(5, b"hello").expect("there is room");
    // Several connections see the same.
    assert_eq!(other.read(3, 9), Ok(b"\0\0hello\0\0".to_vec()));
    assert_eq!(node.client("b").read(3, 9), Ok(vec![0; 9]), "another export");
    assert_eq!(other.ask(ZEROES, 6, 2), Ok(()));
    assert_eq!(one.read(3, 9), Ok(b"\0\0h\0\0lo\0\0".to_vec()));
    for (command, len) in [(TRIM, PAGE), (FLUSH, 0), (ZEROES, SIZE)] {
        assert_eq!(one.ask(command, 0, len as u32), Ok(()), "{command}");
    }
    assert_eq!(one.read(0, 9), Ok(vec![0; 9]));
    // FUA everywhere; and the flags of zeros.
    one.flags = 1;
    one.write(0, b"x").expect("there is room");
    assert_eq!(one.ask(FLUSH, 0, 0), Ok(()));
    one.flags = 1 | 2 | 16;
    assert_eq!(one.ask(ZEROES, 0, 1), Ok(()));
    one.flags = 0;
    // Large ones, at the end and across everything.
    let large: Vec<u8> = (0..12 << 20).map(|n: u32| (n / 4096) as u8 ^ n as u8).collect();
    one.write(SIZE - (12 << 20), &large).expect("there is room");
    assert!(other.read(SIZE - (12 << 20), 12 << 20) == Ok(large));
}

#[test]
fn outside_is_refused_as_the_specification_says() {
    let node = node(&[]);
    let mut client = node.client("a");
    for (offset, len) in
        [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 4095, 4096), (1 << 63, u32::MAX), (0, 64 << 20 | 1)]
    {
        assert_eq!(client.ask(READ, offset, len), Err(EINVAL), "read {offset} {len}");
        assert_eq!(client.ask(TRIM, offset, len), Err(EINVAL), "trim {offset} {len}");
        assert_eq!(client.ask(ZEROES, offset, len), Err(ENOSPC), "zeros {offset} {len}");
    }
    assert_eq!(client.write(SIZE - 1, b"ab"), Err(ENOSPC));
    assert_eq!(client.write(u64::MAX, b"ab"), Err(ENOSPC));
    assert_eq!(client.read(SIZE - 1, 1), Ok(vec![0]), "nothing of it is written");
    for command in [READ, WRITE, TRIM, ZEROES] {
        assert_eq!(client.ask(command, 0, 0), Err(EINVAL), "{command} of nothing");
    }
    // Longer than what is told to be the longest.
    assert_eq!(client.ask(READ, 0, (32 << 20) + 1), Err(EINVAL));
    assert_eq!(client.write(0, &vec![1; (32 << 20) + 1]), Err(EINVAL));
    assert_eq!(client.read(0, 1), Ok(vec![0]));
    // What is not known, or was not agreed upon.
    for (command, flags, offset, len) in
        [(5, 0, 0, 1), (7, 0, 0, 1), (999, 0, 0, 1), (READ, 4, 0, 1), (TRIM, 2, 0, 1), (FLUSH, 0, 1, 0)]
    {
        client.flags = flags;
        assert_eq!(client.ask(command, offset, len), Err(EINVAL), "{command} {flags}");
    }
    client.flags = 2;
    assert_eq!(client.write(0, b"x"), Err(EINVAL));
    client.flags = 0;
    assert_eq!(client.read(0, 1), Ok(vec![0]), "it goes on");
}

#[test]
fn a_full_node_says_so_and_goes_on() {
    let node = Node::start(&["--memory", "2M", "--export-size", "64M"]);
    let (mut a, mut b) = (node.client("a"), node.client("b"));
    a.write(0, &vec![1; 1 << 20]).expect("there is room");
    b.write(0, &vec![2; 1 << 20]).expect("there is room");
    assert_eq!(a.write(1 << 20, &[3; 4096]), Err(ENOSPC));
    assert_eq!(a.write(4096, &[3; 4096]), Ok(()), "what is there can be written");
    // Zeros that are to have room.
    a.flags = 2;
    assert_eq!(a.ask(ZEROES, 1 << 20, 1), Err(ENOSPC));
    a.flags = 0;
    assert_eq!(a.ask(ZEROES, 1 << 20, 1 << 20), Ok(()), "zeros need none");
    assert_eq!(b.ask(TRIM, 0, 8192), Ok(()));
    assert_eq!(a.write(1 << 20, &[3; 8192]), Ok(()));
    assert_eq!(a.write(2 << 20, &[3]), Err(ENOSPC));
    assert_eq!(a.read(4096, 2), Ok(vec![3; 2]));
    node.wait_for("the node is full");
}

#[test]
fn structured_replies_are_one_piece() {
    let node = node(&[]);
    let mut client = node.connect();
    client.hello(3);
    assert_eq!(client.option(8, b""), [(1, Vec::new())]);
    let told = client.go("a");
    assert!(told.iter().any(|(kind, data)| *kind == 3 && data[..2] == [0, 0] && data[11] & 0x80 != 0), "DF is offered: {told:?}");
    client.structured = true;
    client.write(4096, b"abc").expect("there is room");
    assert_eq!(client.structured_read(0, 4096, 0), Reply::Hole(0, 4096));
    assert_eq!(client.structured_read(4000, 200, 4), Reply::Data(4000, [&[0; 96][..], b"abc", &[0; 101]].concat()));
    assert_eq!(client.structured_read(SIZE, 1, 0), Reply::Error(EINVAL));
    assert_eq!(client.structured_read(0, (32 << 20) + 1, 4), Reply::Error(EOVERFLOW));
    assert_eq!(client.structured_read(0, (32 << 20) + 1, 0), Reply::Error(EINVAL));
    let Reply::Data(0, bytes) = client.structured_read(0, 32 << 20, 0) else { panic!("it is data") };
    assert!(bytes.len() == 32 << 20 && bytes[4096..4099] == *b"abc");
}

#[test]
fn options_are_answered_one_by_one() {
    let node = node(&[]);
    let mut client = node.connect();
    client.hello(3);
    const UNSUPPORTED: u32 = 1 << 31 | 1;
    const INVALID: u32 = 1 << 31 | 3;
    const TOO_BIG: u32 = 1 << 31 | 9;
    let kind = |replies: &[(u32, Vec<u8>)]| replies.last().map(|(kind, _)| *kind);
    for option in [0, 4, 5, 9, 10, 11, 12345, u32::MAX] {
        assert_eq!(kind(&client.option(option, b"whatever")), Some(UNSUPPORTED), "{option}");
    }
    for (option, data) in
        [(6, &b"\0\0\0\x05ab\0\0"[..]), (7, b"\xff\xff\xff\xff\0\0"), (7, b""), (6, b"\0\0\0\0\0\x01"), (3, b"x"), (8, b"x")]
    {
        assert_eq!(kind(&client.option(option, data)), Some(INVALID), "{option} {data:?}");
    }
    assert_eq!(kind(&client.option(7, &vec![0; 100_000])), Some(TOO_BIG));
    assert_eq!(kind(&client.option(9999, &vec![0; 9 << 20])), Some(TOO_BIG), "it is passed over");
    let long = [&4097_u32.to_be_bytes()[..], &[b'x'; 4097], &[0, 0]].concat();
    assert_eq!(kind(&client.option(7, &long)), Some(TOO_BIG));
    // INFO makes no export; GO does, and tells the same.
    let mut data = [&1_u32.to_be_bytes()[..], b"a", &[0, 2, 0, 3, 0, 1]].concat();
    let told = client.option(6, &data);
    assert_eq!(client.option(3, b""), [(1, Vec::new())]);
    let export = [&[0, 0][..], &SIZE.to_be_bytes(), &[0x09, 0x6d]].concat();
    let blocks = [&[0, 3][..], &1_u32.to_be_bytes(), &4096_u32.to_be_bytes(), &(32_u32 << 20).to_be_bytes()].concat();
    assert_eq!(told, [(3, export), (3, blocks), (3, b"\0\x01a".to_vec()), (1, Vec::new())]);
    data.truncate(6);
    data[5] = 0;
    let mut other = node.connect();
    other.hello(1);
    other.go("a");
    assert_eq!(client.option(3, b""), [(2, b"\0\0\0\x01a".to_vec()), (1, Vec::new())]);
    assert_eq!(client.option(2, b""), [(1, Vec::new())]);
    assert!(client.is_over(), "it is aborted");
    // The oldest way to ask for an export.
    for flags in [1, 3] {
        let mut client = node.connect();
        client.hello(flags);
        client.send(&[b"IHAVEOPT", &1_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), b"a"].concat());
        let mut told = vec![0; if flags == 3 { 10 } else { 134 }];
        client.receive(&mut told);
        assert_eq!(told[..10], [&SIZE.to_be_bytes()[..], &[0x09, 0x6d]].concat());
        assert_eq!(client.read(0, 4), Ok(vec![0; 4]));
    }
}

#[test]
fn what_is_no_nbd_ends_the_connection_and_hurts_nobody() {
    let node = node(&[]);
    let mut witness = node.client("a");
    witness.write(0, b"still here").expect("there is room");
    let option = |magic: &[u8], number: u32, len: u32| [magic, &number.to_be_bytes(), &len.to_be_bytes()].concat();
    for (flags, bytes) in [
        (None, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        (None, vec![0xff; 4]),
        (None, vec![0; 4]),
        (Some(3), b"IHAVEOPX\0\0\0\x07\0\0\0\0".to_vec()),
        (Some(3), vec![0; 100]),
        (Some(3), option(b"IHAVEOPT", 1, 5000)),
        (Some(3), option(b"IHAVEOPT", 1, u32::MAX)),
        (Some(3), [option(b"IHAVEOPT", 1, 5000), vec![b'x'; 5000]].concat()),
    ] {
        let mut client = node.connect();
        if let Some(flags) = flags {
            client.hello(flags);
        }
        let _ = client.try_send(&bytes);
        assert!(client.is_over(), "{flags:?} {:?}", &bytes[..bytes.len().min(30)]);
    }
    // A bad request after good ones: the good ones are answered.
    let mut client = node.client("a");
    client.send(&[client.request(READ, 7, 0, 5), vec![0xab; 28]].concat());
    let mut reply = [0; 21];
    client.receive(&mut reply);
    assert_eq!(reply[16..], *b"still");
    assert!(client.is_over());
    // And one that says good-bye behind them.
    let mut client = node.client("a");
    client.send(&[client.request(READ, 7, 0, 5), client.request(2, 0, 0, 0)].concat());
    client.receive(&mut reply);
    assert!(client.is_over());
    assert_eq!(witness.read(0, 10), Ok(b"still here".to_vec()));
}

#[test]
fn a_client_that_goes_in_the_middle_hurts_nobody() {
    let node = node(&["--keep", "1000"]);
    let mut witness = node.client("a");
    witness.write(0, &[7; 8192]).expect("there is room");
    for len in [0, 1, 27, 28, 29, 28 + 4096, 28 + 5000] {
        let mut client = node.client("a");
        let request = [client.request(WRITE, 0, 0, 8192), vec![9; 8192]].concat();
        client.send(&request[..len]);
        drop(client);
    }
    // Answers that nobody takes: the connection has no more of them than fit.
    let mut client = node.client("b");
    client.set_patience(Duration::from_millis(300));
    let read = client.request(READ, 0, 0, 32 << 20);
    while client.try_send(&read).is_ok() {}
    drop(client);
    for len in 0..20 {
        let mut client = node.connect();
        let mut all = 3_u32.to_be_bytes().to_vec();
        all.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
        client.send(&all[..len]);
    }
    // What had come before it went was written, and no more.
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while witness.read(4999, 1) != Ok(vec![9]) {
        assert!(std::time::Instant::now() < until, "the last half write is not there");
    }
    assert_eq!(witness.read(4998, 4), Ok(vec![9, 9, 7, 7]));
}

#[test]
fn a_request_may_come_in_any_pieces() {
    let node = node(&[]);
    let mut client = node.connect();
    let mut all = 3_u32.to_be_bytes().to_vec();
    all.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x01a");
    all.extend(client.request(WRITE, 1, 4094, 4));
    all.extend(b"abcd");
    all.extend(client.request(READ, 2, 4093, 6));
    for byte in all {
        client.send(&[byte]);
    }
    let mut told = [0; 18 + 10 + 16 + 16 + 6];
    client.receive(&mut told);
    assert_eq!(told[60..], *b"\0abcd\0");
    // And many at once, with answers that are larger than all buffers.
    let mut client = node.client("a");
    let many: Vec<u8> = (0..40).flat_map(|n| client.request(READ, n, 4094, 1 << 20)).collect();
    client.send(&many);
    for n in 0..40 {
        let mut reply = vec![0; 16 + (1 << 20)];
        client.receive(&mut reply);
        assert_eq!((reply[15], &reply[16..20]), (n, &b"abcd"[..]));
    }
}

#[test]
fn a_thousand_connects() {
    let node = node(&[]);
    let mut witness = node.client("a");
    for n in 0..1000 {
        let mut client = node.connect();
        if n % 3 != 0 {
            client.hello(3);
        }
        if n % 3 == 2 {
            client.go("a");
            assert_eq!(client.read(0, 1), Ok(vec![0]));
        }
    }
    assert_eq!(witness.read(0, 1), Ok(vec![0]));
}

#[test]
fn one_connection_too_many_is_closed_at_once() {
    let node = node(&["--connections", "30"]);
    let mut witness = node.client("a");
    let many: Vec<Client> = (0..40).map(|_| node.connect()).collect();
    let open: Vec<Client> =
        many.into_iter().filter_map(|mut client| client.try_receive(&mut [0; 18]).is_ok().then_some(client)).collect();
    assert_eq!((open.len(), witness.read(0, 1)), (29, Ok(vec![0])));
    // When others go, there is room again.
    drop(open);
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while node.connect().try_receive(&mut [0; 18]).is_err() {
        assert!(std::time::Instant::now() < until, "it takes nobody any more");
    }
}

/// One that says nothing is ended; one that has an export is not.
#[test]
fn nobody_waits_for_a_silent_client() {
    let node = node(&[]);
    let mut silent = node.connect();
    let mut slow = node.connect();
    slow.hello(3);
    let mut idle = node.client("a");
    silent.receive(&mut [0; 18]);
    assert!(silent.is_over() && slow.is_over());
    assert_eq!(idle.read(0, 1), Ok(vec![0]));
}

#[test]
fn a_token_is_the_beginning_of_a_name() {
    const ONE: &str = "0123456789abcdef";
    const TWO: &str = "abcdefghijklmnop-_.~";
    let file = common::file(&format!("# tokens\n{ONE}\n{TWO}\n"), 0o600);
    let node = node(&["--token-file", &file.to_string_lossy()]);
    let policy = |name: &str, option: u32| {
        let mut client = node.connect();
        client.hello(3);
        let data = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0, 0]].concat();
        client.option(option, &data).last().map(|(kind, _)| *kind)
    };
    for name in ["", "a", "0123456789abcdee/a", "0123456789abcdef0", "x/0123456789abcdef"] {
        assert_eq!((policy(name, 6), policy(name, 7)), (Some(1 << 31 | 2), Some(1 << 31 | 2)), "{name}");
        let mut client = node.connect();
        client.hello(3);
        client.send(&[b"IHAVEOPT\0\0\0\x01", &(name.len() as u32).to_be_bytes()[..], name.as_bytes()].concat());
        assert!(client.is_over(), "{name}");
    }
    let mut one = node.client(&format!("{ONE}/a"));
    one.write(0, b"secret").expect("there is room");
    assert_eq!(node.client(&format!("{TWO}/a")).read(0, 6), Ok(vec![0; 6]));
    assert_eq!(node.client(ONE).read(0, 6), Ok(vec![0; 6]));
    assert_eq!(node.client(&format!("{ONE}/a")).read(0, 6), Ok(b"secret".to_vec()));
    let mut client = node.connect();
    client.hello(3);
    assert_eq!(client.option(3, b"").last().map(|(kind, _)| *kind), Some(1 << 31 | 2), "names are not listed");
}

#[test]
fn memory_is_back_after_the_last_connection() {
    let metrics = common::folder().join("metrics");
    let node = node(&["--keep", "1", "--metrics", &format!("unix:{}", metrics.display())]);
    let page = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&metrics).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    };
    let value = |name: &str| {
        let text = page();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("farshore_node_{name} "))).map(str::to_owned);
        line.unwrap_or_else(|| panic!("there is no {name}: {text}")).parse::<u64>().expect("a number")
    };
    let (mut kept, mut gone) = (node.client("kept"), node.client("gone"));
    kept.write(0, &[1; 8192]).expect("there is room");
    gone.write(0, &[1; 4 << 20]).expect("there is room");
    assert_eq!((value("taken_bytes"), value("exports"), value("exports_used")), ((4 << 20) + 8192, 2, 2));
    drop(gone);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while value("taken_bytes") != 8192 {
        assert!(std::time::Instant::now() < until, "the memory is not given back");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((value("exports"), value("memory_bytes"), value("writes_total")), (1, 16 << 20, 2));
    assert_eq!(node.client("gone").read(0, 1), Ok(vec![0]), "made anew");
    assert_eq!(kept.read(0, 1), Ok(vec![1]));
    node.signal(rustix::process::Signal::USR1);
    node.wait_for("8 KiB of 16 MiB taken; ");
    assert_eq!(node.end(rustix::process::Signal::TERM), Some(143));
    assert!(!metrics.exists(), "its sockets are gone");
}

#[test]
fn huge_pages_or_the_reason_why_not() {
    let node = node(&["--pages", "2M"]);
    assert!(node.said("huge"), "{}", node.log());
    let mut client = node.client("a");
    client.write(2 << 20, b"x").expect("there is room");
    // Eight chunks of 2 MiB are all there are.
    for chunk in 2..9 {
        client.write(chunk << 21, b"x").expect("there is room");
    }
    assert_eq!(client.write(9 << 21, b"x"), Err(ENOSPC));
    assert_eq!(client.ask(TRIM, 2 << 20, 4096), Ok(()));
    assert_eq!(client.write(9 << 21, b"x"), Ok(()));
}

#[test]
fn bad_arguments_are_refused_with_what_to_do() {
    let refused = |arguments: &[&str], status: i32, parts: &[&str]| {
        let (found, text) = Node::refused(arguments);
        assert_eq!(found, Some(status), "{arguments:?}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)) && text.lines().count() == 1, "{arguments:?}: {text}");
    };
    let far = ["--listen", "0.0.0.0:0", "--memory", "16M"];
    refused(&far, 125, &["0.0.0.0:0", "--token-file", "--open"]);
    refused(&["--listen", "[::]:0", "--memory", "16M"], 125, &["[::]:0", "--open"]);
    let near = ["--listen", "127.0.0.1:0", "--memory", "16M"];
    let file = common::file("0123456789abcdef\n", 0o644);
    refused(&[&near[..], &["--token-file", &file.to_string_lossy()]].concat(), 125, &["chmod 600"]);
    refused(&[&near[..], &["--token-file", "/no/such"]].concat(), 125, &["/no/such", "check its path"]);
    let file = common::file("short\n", 0o600);
    refused(&[&near[..], &["--token-file", &file.to_string_lossy()]].concat(), 125, &["line 1 has 5 characters"]);
    refused(&["--listen", "unix:/no/such/folder/s", "--memory", "16M"], 1, &["/no/such/folder/s"]);
    refused(&["--listen", "no.such.host.invalid:1", "--open", "--memory", "16M"], 1, &["no.such.host.invalid:1"]);
    refused(&["--listen", "127.0.0.1:0"], 125, &["--memory SIZE"]);
    // A far address with --open, or with tokens.
    let file = common::file("0123456789abcdef\n", 0o600);
    for more in [&["--open"][..], &["--token-file", &file.to_string_lossy()]] {
        drop(Node::at(&[&far[..], more].concat()));
    }
}

/// The client's own ways to see a lost connection.
#[test]
fn a_node_that_ends_ends_its_connections() {
    let node = node(&[]);
    let mut client = node.client("a");
    assert_eq!(node.end(rustix::process::Signal::INT), Some(130));
    let lost = client.try_receive(&mut [0; 1]).expect_err("nobody is there");
    assert!(matches!(lost.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{lost}");
}
