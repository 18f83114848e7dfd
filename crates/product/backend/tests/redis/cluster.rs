//! Servers of a Cluster: keys that move, masters that are replaced, replicas that are waited for.

use super::server::{Server, hash_slot, slots};
use super::*;
use std::sync::Mutex;

/// A slot in each of these many extents.
fn some(extents: u64) -> Vec<u64> {
    (0..extents).map(|extent| extent * 512 + 40).collect()
}

fn write_all(queue: &mut RedisQueue, slots: &[u64], version: u64) {
    slots.iter().for_each(|&n| write(queue, n, &pages(n, 20, version)).unwrap());
}

fn check_all(space: &RedisSpace, slots: &[u64], version: u64) {
    slots.iter().for_each(|&n| common::check(space, n, &pages(n, 20, version)));
}

#[test]
fn each_server_has_its_part() {
    let [one, two] = Server::two();
    let mut told = Vec::new();
    let uri = format!("{},size=64M", two.uri());
    let space = RedisSpace::open(&uri.parse().unwrap(), &mut |line| told.push(line.to_owned())).unwrap();
    assert!(told.len() == 1 && told[0].contains("has no replica"), "{told:?}");
    let mut queue = space.queue(8).unwrap();
    let all = some(32);
    write_all(&mut queue, &all, 1);
    check_all(&space, &all, 1);
    assert!(one.pages() > 100 && two.pages() > 100 && one.pages() + two.pages() == 640, "{} {}", one.pages(), two.pages());
    assert!(one.count("WAIT") + two.count("WAIT") >= 32, "there is nobody to wait for, as far as anybody knows");
    all.iter().for_each(|&n| space.give_back(slot(n), 20).unwrap());
    assert_eq!(one.pages() + two.pages(), 0);
}

/// All that one server has goes to the other, hash slot by hash slot, and back, while readers and a writer use it.
#[test]
fn keys_move_while_they_are_used() {
    let servers = Server::two();
    let space = open_as(&format!("{},size=64M", servers[0].uri()));
    let mut queue = space.queue(8).unwrap();
    let all = some(32);
    write_all(&mut queue, &all, 1);
    // Who has a hash slot; and the one that is just being moved, and where to.
    let owners = Arc::new(Mutex::new((0..16384).map(|n| usize::from(n >= 8192)).collect::<Vec<_>>()));
    let moving = Arc::new(Mutex::new(None::<(u16, usize)>));
    let ports = [servers[0].port, servers[1].port];
    for (n, server) in servers.iter().enumerate() {
        let (owners, moving) = (Arc::clone(&owners), Arc::clone(&moving));
        server.keeps(move |slot, is_here, asking| {
            let (owner, moving) = (owners.lock().unwrap()[usize::from(slot)], *moving.lock().unwrap());
            match moving {
                Some((moves, to)) if moves == slot && owner == n && !is_here => {
                    Some(format!("ASK {slot} 127.0.0.1:{}", ports[to]))
                }
                Some((moves, to)) if moves == slot && to == n && asking => None,
                _ if owner != n => Some(format!("MOVED {slot} 127.0.0.1:{}", ports[owner])),
                _ => None,
            }
        });
    }
    let used: Vec<u16> = servers
        .iter()
        .flat_map(|server| server.hashes.lock().unwrap().keys().map(|key| hash_slot(key)).collect::<Vec<_>>())
        .collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (space, all, over) = (&space, &all, &over);
            // These are never written again.
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    all.iter()
                        .skip(thread)
                        .step_by(4)
                        .filter(|&&n| n / 512 % 2 == 1)
                        .for_each(|&n| common::check(space, n, &pages(n, 20, 1)));
                }
            });
        }
        let (all, over, space, queue) = (&all, &over, &space, &mut queue);
        let writer = scope.spawn(move || {
            let mut version = 1;
            while !over.load(SeqCst) {
                version += 1;
                let even: Vec<u64> = all.iter().copied().filter(|n| n / 512 % 2 == 0).collect();
                write_all(queue, &even, version);
                check_all(space, &even, version);
            }
            version
        });
        for round in 0..6 {
            for &slot in &used {
                let owner = owners.lock().unwrap()[usize::from(slot)];
                let to = 1 - owner;
                *moving.lock().unwrap() = Some((slot, to));
                std::thread::sleep(Duration::from_millis(1));
                servers[owner].give(&servers[to], |one| one == slot);
                std::thread::sleep(Duration::from_millis(1));
                owners.lock().unwrap()[usize::from(slot)] = to;
                *moving.lock().unwrap() = None;
            }
            assert!(!writer.is_finished(), "in round {round}");
        }
        over.store(true, SeqCst);
        let version = writer.join().unwrap();
        assert!(version > 3, "{version}");
        all.iter().for_each(|&n| common::check(space, n, &pages(n, 20, if n / 512 % 2 == 0 { version } else { 1 })));
    });
    let asked = servers.iter().map(|server| server.count("ASKING")).sum::<u32>();
    assert!(asked > 0, "nobody was asked for a key that moves");
    assert_eq!(servers[0].pages() + servers[1].pages(), 640, "a page is in two places, or in none");
}

/// Two servers that send a client to each other for ever.
#[test]
fn who_is_sent_to_and_fro_gives_up() {
    let [one, two] = Server::two();
    let space = open_as(&format!("{},size=64M", one.uri()));
    let mut queue = space.queue(4).unwrap();
    write_all(&mut queue, &some(1), 1);
    let ports = [two.port, one.port];
    for kind in ["MOVED", "ASK"] {
        for (server, other) in [&one, &two].into_iter().zip(ports) {
            server.keeps(move |slot, _, _| Some(format!("{kind} {slot} 127.0.0.1:{other}")));
        }
        set_patience(50_000_000);
        let came = one.count("HMGET");
        assert_eq!(read_error(&space, 41), ETIMEDOUT);
        assert_eq!(write(&mut queue, 41, &pages(41, 1, 2)), Err(ETIMEDOUT));
        assert!(one.count("HMGET") - came < 200, "it is asked without a pause");
    }
}

/// The replica has what was acknowledged, and takes its master's place.
#[test]
fn a_master_is_replaced() {
    let [master, replica] = [Server::new(), Server::new()];
    for server in [&master, &replica] {
        server.join(slots(&[(0, 16383, &[master.port, replica.port])]));
    }
    let port = master.port;
    replica.keeps(move |slot, _, _| Some(format!("MOVED {slot} 127.0.0.1:{port}")));
    master.replicas.store(1, SeqCst);
    let space = open_as(&format!("{},size=64M", master.uri()));
    let mut queue = space.queue(8).unwrap();
    let all = some(8);
    write_all(&mut queue, &all, 1);
    assert!(master.count("WAIT") >= 8, "{}", master.count("WAIT"));
    // No replica has the next one.
    master.replicas.store(0, SeqCst);
    let batch = pages(40, 20, 2);
    // SAFETY: the completion is waited for below.
    unsafe { queue.start_write(slot(40), batch.as_ptr(), 20, 5) }.unwrap();
    queue.reap_within(500_000_000, &mut |_, result| panic!("acknowledged, and the master alone has it: {result:?}"));
    // The master dies. A moment later the replica has its place.
    *replica.hashes.lock().unwrap() = master.hashes.lock().unwrap().clone();
    master.away.store(true, SeqCst);
    master.cut_all();
    std::thread::scope(|scope| {
        let readers: Vec<_> = all[1..]
            .iter()
            .map(|&n| {
                scope.spawn({
                    let space = &space;
                    move || common::check(space, n, &pages(n, 20, 1))
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        replica.keeps(|_, _, _| None);
        replica.join(slots(&[(0, 16383, &[replica.port])]));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    let mut ended = false;
    while !ended {
        queue.reap(true, &mut |tag, result| ended = (tag, result) == (5, Ok(())));
    }
    common::check(&space, 40, &batch);
    check_all(&space, &all[1..], 1);
    write_all(&mut queue, &all, 3);
    check_all(&space, &all, 3);
    // The pages that were under way have other names now.
    assert!(replica.pages() == 180 && replica.count("HSET") >= 8, "{}", replica.pages());
}

/// A write waits for a replica until the Cluster has said for some time that there is none; and again as soon as there is one.
#[test]
fn a_replica_that_is_gone_is_not_waited_for() {
    let [master, replica] = [Server::new(), Server::new()];
    let both = slots(&[(0, 16383, &[master.port, replica.port])]);
    let alone = slots(&[(0, 16383, &[master.port])]);
    let says = |told: &Vec<u8>| [&master, &replica].iter().for_each(|server| server.join(told.clone()));
    says(&both);
    let space = open_as(&format!("{},size=64M", master.uri()));
    let mut queue = space.queue(8).unwrap();
    let batch = pages(40, 20, 2);
    // The second time nobody but the writes themselves can have heard that there is a replica again.
    for time in 0..2 {
        // SAFETY: the completion is waited for below.
        unsafe { queue.start_write(slot(40), batch.as_ptr(), 20, 5) }.unwrap();
        queue.reap_within(500_000_000, &mut |_, result| panic!("acknowledged, time {time}: {result:?}"));
        says(&alone);
        // For a moment a new master has none.
        queue.reap_within(2_000_000_000, &mut |_, result| panic!("believed at once, time {time}: {result:?}"));
        let mut ended = false;
        while !ended {
            queue.reap(true, &mut |tag, result| ended = (tag, result) == (5, Ok(())));
        }
        common::check(&space, 40, &batch);
        // Nobody is waited for any more.
        let since = Instant::now();
        (0..20).for_each(|n| write(&mut queue, 100, &pages(100, 20, n)).unwrap());
        assert!(since.elapsed() < Duration::from_secs(3), "{:?} for 20 writes", since.elapsed());
        says(&both);
        std::thread::sleep(Duration::from_millis(150));
    }
}

/// Keys of a server that answers are renewed although another one does not.
#[test]
fn a_server_that_is_silent_keeps_no_other_keys_from_being_renewed() {
    let [one, two] = Server::two();
    let space = open_as(&format!("{},size=64M,expire=10s", one.uri()));
    let mut queue = space.queue(8).unwrap();
    let all = some(32);
    write_all(&mut queue, &all, 1);
    std::thread::sleep(Duration::from_millis(2600));
    let before = two.count("EXPIRE");
    one.behave(|_, _| Deed::Say(Vec::new()));
    let since = Instant::now();
    assert_eq!(space.keep(&NoneFree), Some(1_000_000_000));
    assert!(since.elapsed() < Duration::from_secs(9), "{:?}", since.elapsed());
    let keys = two.hashes.lock().unwrap().len() as u32;
    assert_eq!((two.count("EXPIRE") - before, keys > 8), (keys, true));
    one.behave(|_, _| Deed::Right);
    space.keep(&NoneFree);
    assert!(space.keep(&NoneFree).is_some_and(|ns| ns > 1_000_000_000));
}

#[test]
fn a_cluster_that_cannot_be_used_is_refused() {
    let [one, two] = Server::two();
    let whole = one.slots.lock().unwrap().clone();
    for (said, part) in [
        (slots(&[(0, 8191, &[one.port]), (8193, 16383, &[two.port])]), "have no server"),
        (slots(&[]), "is it in a Cluster"),
        (
            String::from_utf8(whole.clone()).unwrap().replace("127.0.0.1", "localhost").into_bytes(),
            "cluster-preferred-endpoint-type",
        ),
    ] {
        *one.slots.lock().unwrap() = said;
        assert!(refusal(&one.uri()).contains(part), "{}", refusal(&one.uri()));
    }
    *one.slots.lock().unwrap() = whole;
    *two.info.lock().unwrap() = "role:master\r\nmaxmemory_policy:allkeys-lru\r\ncluster_enabled:1\r\n".into();
    let why = refusal(&one.uri());
    assert!(why.contains("allkeys-lru") && why.contains(&format!("127.0.0.1:{}", two.port)), "{why}");
}
