//! The servers that are known, and which of them has which hash slot.
//!
//! One server, or the masters of a Cluster. What the table says is a hint: the server itself says whether it has a key, and if not who does. So
//! any thread may read it at any moment, and a server that lies sends us to servers that do not have our pages.
//!
//! An entry's address never changes, and no entry goes: servers that came later have later entries, up to [`NODES_MAX`]. Whoever adds one has the
//! word `adding`, and makes no system call meanwhile.

use super::talk::Talk;
use super::wire::{At, HASH_SLOTS, Head, host_of};
use crate::sleep;
use crate::socket::{self, Place};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use farshore_sys::fd::Fd;
use rustix::io::Errno;

/// Most servers that are known in the life of a space.
pub(super) const NODES_MAX: usize = 64;
/// No server is known.
const NOBODY: u8 = u8::MAX;
/// Ranges of hash slots, replicas of a master, words about a server, and values within those, that a server may tell of.
const RANGES_MAX: usize = HASH_SLOTS;
const REPLICAS_MAX: usize = 64;
const WORDS_MAX: usize = 16;
const DEPTH_MAX: u32 = 3;
/// Bytes of the longest host and of the longest other word.
const HOST_MAX: usize = 256;
const WORD_MAX: usize = 4096;
/// Between two tries to connect to a server that cannot be reached, in ns.
const RETRY_NS: u64 = 50_000_000;
/// A master without a replica is believed to have none after so long, in ns, and if the Cluster has said so within this time.
const BARE_NS: u64 = 3_000_000_000;
const FRESH_NS: u64 = 1_000_000_000;

const IS_V6: u64 = 1 << 16;

#[derive(Debug)]
struct Node {
    /// The address: two halves; the port, its kind and the link.
    address: [AtomicU64; 3],
    /// Copies of what it has, on servers that would take its place; when that was said last, and since when it has been none (0: it has not).
    replicas: AtomicU32,
    learned_ns: AtomicU64,
    bare_ns: AtomicU64,
    /// Since when it has not answered; 0: it has.
    down_ns: AtomicU64,
    /// When it may be connected to again.
    retry_ns: AtomicU64,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Nodes {
    /// The server that the user has named: entry 0.
    seed: Place,
    all: Box<[Node]>,
    count: AtomicU32,
    adding: AtomicBool,
    owners: Box<[AtomicU8]>,
    /// A Cluster names a server by a name, which nobody looks up here.
    pub(super) has_names: AtomicBool,
}

impl Nodes {
    /// The server that the user has named has all hash slots until another one says otherwise.
    pub(super) fn new(seed: Place) -> Nodes {
        let node = |_| Node {
            address: [const { AtomicU64::new(0) }; 3],
            replicas: AtomicU32::new(0),
            learned_ns: AtomicU64::new(0),
            bare_ns: AtomicU64::new(0),
            down_ns: AtomicU64::new(0),
            retry_ns: AtomicU64::new(0),
        };
        let nodes = Nodes {
            seed,
            all: (0..NODES_MAX).map(node).collect(),
            count: AtomicU32::new(1),
            adding: AtomicBool::new(false),
            owners: (0..HASH_SLOTS).map(|_| AtomicU8::new(0)).collect(),
            has_names: AtomicBool::new(false),
        };
        if let Place::Tcp(address) = &nodes.seed {
            nodes.all[0].set(address);
        }
        nodes
    }

    /// Forgets who has which hash slot: of a Cluster, until it tells.
    pub(super) fn forget_owners(&self) {
        self.owners.iter().for_each(|owner| owner.store(NOBODY, Ordering::Relaxed));
    }

    pub(super) fn count(&self) -> u8 {
        self.count.load(Ordering::Acquire) as u8
    }

    /// Who has this hash slot.
    pub(super) fn owner(&self, hash_slot: u16) -> Option<u8> {
        Some(self.owners[usize::from(hash_slot)].load(Ordering::Acquire)).filter(|&n| n != NOBODY)
    }

    /// The servers that have hash slots, each once; `None`: somebody is missing.
    pub(super) fn masters(&self) -> Option<Vec<u8>> {
        let mut all = self.owners.iter().map(|owner| owner.load(Ordering::Acquire)).collect::<Vec<_>>();
        all.sort_unstable();
        all.dedup();
        (!all.contains(&NOBODY)).then_some(all)
    }

    pub(super) fn set_owner(&self, hash_slot: u16, n: u8) {
        self.owners[usize::from(hash_slot)].store(n, Ordering::Release);
    }

    /// Whether what this server has is somewhere else too, as far as its Cluster knows.
    pub(super) fn has_replicas(&self, n: u8) -> bool {
        self.all[usize::from(n)].replicas.load(Ordering::Relaxed) > 0
    }

    /// Whether the Cluster says now, and has said for some time, that a master has no replica. A new master has none for a moment, until the others have heard of it;
    /// and what a server has heard may be old.
    pub(super) fn is_bare(&self, n: u8, now: u64) -> bool {
        let node = &self.all[usize::from(n)];
        let bare = node.bare_ns.load(Ordering::Relaxed);
        let learned = node.learned_ns.load(Ordering::Relaxed);
        !self.has_replicas(n) && bare != 0 && now.saturating_sub(bare) >= BARE_NS && now.saturating_sub(learned) <= FRESH_NS
    }

    /// In words for the user.
    pub(super) fn name(&self, n: u8) -> String {
        match (n, &self.seed) {
            (0, Place::Unix(_)) => "the server at the socket".into(),
            _ => self.all[usize::from(n)].get().to_string(),
        }
    }

    /// A connection to a server, by `until`.
    pub(super) fn reach(&self, n: u8, until: u64) -> Result<Fd, Errno> {
        let node = &self.all[usize::from(n)];
        if sleep::now_ns() < node.retry_ns.load(Ordering::Relaxed) {
            return Err(Errno::HOSTDOWN);
        }
        let begun = sleep::now_ns();
        let made = if n == 0 { socket::reach(&self.seed, until) } else { socket::reach(&Place::Tcp(node.get()), until) };
        if made.is_err() {
            // Who takes long to find out that nobody is there waits as long before the next try: others have servers that answer.
            let now = sleep::now_ns();
            node.retry_ns.store(now + RETRY_NS.max(now - begun), Ordering::Relaxed);
        }
        made
    }

    /// The server has answered.
    pub(super) fn note_up(&self, n: u8) {
        let down = &self.all[usize::from(n)].down_ns;
        if down.load(Ordering::Relaxed) != 0 {
            down.store(0, Ordering::Relaxed);
        }
    }

    /// The server has not answered. Returns since when, in ns.
    pub(super) fn note_down(&self, n: u8) -> u64 {
        let now = sleep::now_ns();
        match self.all[usize::from(n)].down_ns.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(since) => since,
        }
    }

    pub(super) fn is_down(&self, n: u8) -> bool {
        self.all[usize::from(n)].down_ns.load(Ordering::Relaxed) != 0
    }

    /// In a forked child: what is down may be up.
    pub(super) fn forked(&self) {
        for node in &self.all {
            node.down_ns.store(0, Ordering::Relaxed);
            node.retry_ns.store(0, Ordering::Relaxed);
        }
        self.adding.store(false, Ordering::Relaxed);
    }

    /// The server that the server `asked` means. `None`: there are too many.
    pub(super) fn at(&self, at: At, asked: u8) -> Option<u8> {
        let mut address = match (asked, &self.seed) {
            (0, Place::Unix(_)) => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), at.port),
            _ => self.all[usize::from(asked)].get(),
        };
        address.set_port(at.port);
        if let Some(host) = at.host.filter(|&host| host != address.ip()) {
            address = SocketAddr::new(host, at.port);
        }
        self.find_or_add(&address)
    }

    fn find(&self, address: &SocketAddr) -> Option<u8> {
        let first = u8::from(matches!(self.seed, Place::Unix(_)));
        (first..self.count()).find(|&n| self.all[usize::from(n)].get() == *address)
    }

    fn find_or_add(&self, address: &SocketAddr) -> Option<u8> {
        if let Some(n) = self.find(address) {
            return Some(n);
        }
        while self.adding.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        let there = self.find(address).or_else(|| {
            let n = self.count();
            let node = self.all.get(usize::from(n))?;
            node.set(address);
            // Until the Cluster says otherwise.
            node.replicas.store(1, Ordering::Relaxed);
            // Release: whoever counts the entry sees its address.
            self.count.store(u32::from(n) + 1, Ordering::Release);
            Some(n)
        });
        self.adding.store(false, Ordering::Release);
        there
    }

    /// Asks the server `asked` who has which hash slots.
    pub(super) fn learn(&self, talk: &mut Talk<'_>, asked: u8) -> Result<(), Errno> {
        talk.say(b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n")?;
        let ranges = match talk.head()? {
            Head::Array(Some(ranges)) if ranges <= RANGES_MAX => ranges,
            _ => return Err(Errno::PROTO),
        };
        for _ in 0..ranges {
            self.learn_range(talk, asked)?;
        }
        // A server that knows nothing is none of the Cluster's.
        if ranges > 0 && talk.is_over() { Ok(()) } else { Err(Errno::PROTO) }
    }

    /// A range of hash slots: its ends, its master, and the replicas of that.
    fn learn_range(&self, talk: &mut Talk<'_>, asked: u8) -> Result<(), Errno> {
        let parts = array(talk, 3..=3 + REPLICAS_MAX)?;
        let mut end = || match talk.head()? {
            Head::Number(n) => u16::try_from(n).ok().filter(|&n| usize::from(n) < HASH_SLOTS).ok_or(Errno::PROTO),
            _ => Err(Errno::PROTO),
        };
        let (first, last) = (end()?, end()?);
        let master = learn_server(talk)?.map(|at| self.at(at, asked).ok_or(Errno::NFILE)).transpose()?;
        for _ in 3..parts {
            // It is asked who the master is when that one is gone. There are entries left for masters.
            let replica = learn_server(talk)?.filter(|_| usize::from(self.count()) < NODES_MAX / 2);
            let _ = replica.and_then(|at| self.at(at, asked));
        }
        let Some(n) = master else {
            self.has_names.store(true, Ordering::Relaxed);
            return Ok(());
        };
        self.all[usize::from(n)].learn_replicas(parts as u32 - 3);
        (first..=last).for_each(|hash_slot| self.set_owner(hash_slot, n));
        Ok(())
    }
}

impl Node {
    fn learn_replicas(&self, count: u32) {
        let now = sleep::now_ns();
        self.replicas.store(count, Ordering::Relaxed);
        if count > 0 {
            self.bare_ns.store(0, Ordering::Relaxed);
        } else {
            // It stays what it was, if it has none for longer.
            let _ = self.bare_ns.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.learned_ns.store(now, Ordering::Relaxed);
    }

    fn set(&self, address: &SocketAddr) {
        let (bits, kind) = match address {
            SocketAddr::V4(address) => (u128::from(u32::from(*address.ip())), 0),
            SocketAddr::V6(address) => (u128::from(*address.ip()), IS_V6 | u64::from(address.scope_id()) << 32),
        };
        let words = [(bits >> 64) as u64, bits as u64, u64::from(address.port()) | kind];
        self.address.iter().zip(words).for_each(|(half, word)| half.store(word, Ordering::Relaxed));
    }

    fn get(&self) -> SocketAddr {
        let [high, low, rest] = [0, 1, 2].map(|n| self.address[n].load(Ordering::Relaxed));
        let port = rest as u16;
        if rest & IS_V6 == 0 {
            return SocketAddr::new(IpAddr::V4(Ipv4Addr::from(low as u32)), port);
        }
        let ip = Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
        SocketAddr::V6(SocketAddrV6::new(ip, port, 0, (rest >> 32) as u32))
    }
}

/// An array of so many replies.
fn array(talk: &mut Talk<'_>, counts: core::ops::RangeInclusive<usize>) -> Result<usize, Errno> {
    match talk.head()? {
        Head::Array(Some(count)) if counts.contains(&count) => Ok(count),
        _ => Err(Errno::PROTO),
    }
}

/// A server: its host, its port, and more. `None`: its host is a name.
fn learn_server(talk: &mut Talk<'_>) -> Result<Option<At>, Errno> {
    let words = array(talk, 2..=WORDS_MAX)?;
    let mut host = [0; HOST_MAX];
    let host = match talk.head()? {
        Head::Bulk(None) => &host[..0],
        Head::Bulk(Some(len)) if len <= HOST_MAX => {
            talk.value(&mut host[..len])?;
            &host[..len]
        }
        _ => return Err(Errno::PROTO),
    };
    let host = core::str::from_utf8(host).map_err(|_| Errno::PROTO)?;
    let port = match talk.head()? {
        Head::Number(port) => u16::try_from(port).ok().filter(|&port| port != 0).ok_or(Errno::PROTO)?,
        _ => return Err(Errno::PROTO),
    };
    (2..words).try_for_each(|_| pass(talk, DEPTH_MAX))?;
    Ok(host_of(host).ok().map(|host| At { host, port }))
}

/// Passes over a reply with replies within it, as deep as `depth`.
fn pass(talk: &mut Talk<'_>, depth: u32) -> Result<(), Errno> {
    match talk.head()? {
        Head::Simple | Head::Number(_) | Head::Bulk(None) | Head::Array(None) => Ok(()),
        Head::Bulk(Some(len)) if len <= WORD_MAX => talk.pass(len),
        Head::Array(Some(count)) if count <= WORDS_MAX && depth > 0 => (0..count).try_for_each(|_| pass(talk, depth - 1)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn nodes(seed: &str) -> Nodes {
        let nodes = Nodes::new(Place::Tcp(seed.parse().unwrap()));
        nodes.forget_owners();
        nodes
    }

    /// What is learned from a server that says this.
    fn learn(nodes: &Nodes, said: &[u8]) -> Result<(), Errno> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                theirs.read_exact(&mut [0; 28]).unwrap();
                let _ = theirs.write_all(said);
            });
            nodes.learn(&mut Talk::new(ours.as_fd(), sleep::now_ns() + 10_000_000_000), 0)
        })
    }

    fn server(host: &str, port: u16, more: &str) -> String {
        format!("${}\r\n{host}\r\n:{port}\r\n$2\r\nid\r\n{more}", host.len())
    }

    #[test]
    fn a_cluster_says_who_has_what() {
        let known = nodes("10.0.0.1:7000");
        assert_eq!(known.masters(), None);
        let old = |host, port| format!("*3\r\n{}", server(host, port, ""));
        let new = |host, port| format!("*4\r\n{}", server(host, port, "*2\r\n$8\r\nhostname\r\n$1\r\na\r\n"));
        let said = format!(
            "*3\r\n*4\r\n:0\r\n:5460\r\n{}{}*3\r\n:5461\r\n:10922\r\n{}*5\r\n:10923\r\n:16383\r\n{}{}{}",
            old("", 7000),
            old("10.0.0.2", 7003),
            new("10.0.0.2", 7001),
            new("fe80::7", 7002),
            new("10.0.0.1", 7004),
            new("10.0.0.1", 7005),
        );
        assert_eq!(learn(&known, said.as_bytes()), Ok(()));
        assert_eq!((known.masters(), known.count()), (Some(vec![0, 2, 3]), 6), "replicas are no masters");
        assert_eq!([0, 5460, 5461, 16383].map(|slot| known.owner(slot)), [Some(0), Some(0), Some(2), Some(3)]);
        assert_eq!([0, 2, 3].map(|n| known.has_replicas(n)), [true, false, true]);
        assert_eq!((known.name(2), known.name(3)), ("10.0.0.2:7001".into(), "[fe80::7]:7002".into()));
        // After a failover, another one has them.
        let said = format!("*1\r\n*3\r\n:0\r\n:5460\r\n{}", old("10.0.0.2", 7003));
        let newest = known.at(At { host: host_of("10.0.0.2").unwrap(), port: 7003 }, 0).unwrap();
        assert!(known.has_replicas(newest), "a server that nobody has told of may have some");
        assert_eq!((learn(&known, said.as_bytes()), known.owner(7), known.count()), (Ok(()), Some(newest), 6));
        assert!(!known.has_replicas(newest));
    }

    #[test]
    fn a_server_that_tells_something_else_is_not_believed() {
        let one = format!("*3\r\n{}", server("10.0.0.1", 7000, ""));
        let deep = format!("*4\r\n{}", server("10.0.0.1", 7000, &"*1\r\n".repeat(9)));
        for said in [
            "*0\r\n".into(),
            "*-1\r\n".into(),
            "+OK\r\n".into(),
            "-ERR This instance has cluster support disabled\r\n".into(),
            "*16385\r\n".into(),
            "*1\r\n*2\r\n:0\r\n:1\r\n".into(),
            "*1\r\n*999\r\n".into(),
            format!("*1\r\n*3\r\n:0\r\n:16384\r\n{one}"),
            format!("*1\r\n*3\r\n:-1\r\n:1\r\n{one}"),
            format!("*1\r\n*3\r\n:0\r\n:1\r\n{deep}"),
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$9999\r\n".into(),
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:0\r\n".into(),
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\n\u{e9}\r\n:1\r\n".into(),
        ] {
            assert!(learn(&nodes("10.0.0.1:7000"), said.as_bytes()).is_err(), "{said:?}");
        }
        let named = nodes("10.0.0.1:7000");
        let said = format!("*1\r\n*3\r\n:0\r\n:1\r\n*3\r\n{}", server("node-7", 7000, ""));
        assert_eq!((learn(&named, said.as_bytes()), named.owner(0)), (Ok(()), None));
        assert!(named.has_names.load(Ordering::Relaxed));
    }

    #[test]
    fn servers_have_entries_until_there_are_too_many() {
        let known = nodes("[fe80::1%3]:7000");
        let at = |host: &str, port| At { host: host_of(host).unwrap(), port };
        assert_eq!(known.at(at("", 7000), 0), Some(0));
        assert_eq!(known.at(at("fe80::1", 7000), 0), Some(0), "on the same link");
        for port in 1..64 {
            assert_eq!(known.at(at("10.0.0.1", port), 0), Some(port as u8));
        }
        assert_eq!((known.at(at("10.0.0.1", 64), 0), known.at(at("10.0.0.1", 63), 0)), (None, Some(63)));
        let local = Nodes::new(Place::Unix(rustix::net::SocketAddrUnix::new("/run/x").unwrap()));
        assert_eq!(local.at(at("", 7), 0), Some(1), "a server at a socket has an address besides");
        assert_eq!((local.name(1), local.owner(9)), ("127.0.0.1:7".into(), Some(0)));
    }
}
