//! Redis' own server, where it is installed: a Cluster whose masters are killed.

use super::*;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

struct Real {
    port: u16,
    child: Child,
    _folder: common::Dir,
}

impl Real {
    fn start() -> Option<Real> {
        let port = loop {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            // The port of its bus is 10,000 higher.
            if port < 55_000 {
                break port;
            }
        };
        let folder = common::Dir::new();
        let options = ["--save", "", "--appendonly", "no", "--cluster-enabled", "yes", "--cluster-node-timeout", "1500"];
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"])
            .args(options)
            .arg("--dir")
            .arg(&folder.0)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        Some(Real { port, child, _folder: folder })
    }

    fn say(&self, words: &[&str]) -> String {
        let said = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(words).output().unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed().as_secs() < 60, "it never comes: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn masters_of_a_real_cluster_are_killed() {
    let all: Option<Vec<Real>> = (0..6).map(|_| Real::start()).collect();
    let Some(mut all) = all else { return eprintln!("redis-server is not installed: skipped") };
    all.iter().for_each(|one| until("it answers", || one.say(&["ping"]).contains("PONG")));
    let places = all.iter().map(|one| format!("127.0.0.1:{}", one.port)).collect::<Vec<_>>();
    let mut create = Command::new("redis-cli");
    create.args(["--cluster", "create"]).args(&places).args(["--cluster-replicas", "1", "--cluster-yes"]);
    assert!(create.stdout(Stdio::null()).status().unwrap().success());
    let is_whole = |one: &Real| {
        one.say(&["cluster", "slots"]).matches("127.0.0.1").count() >= 6
            && one.say(&["cluster", "info"]).contains("cluster_state:ok")
    };
    all.iter().for_each(|one| until("it is whole", || is_whole(one)));
    let space = open_as(&format!("redis://{},size=64M", places[0]));
    let mut queue = space.queue(8).unwrap();
    let extents: Vec<u64> = (0..32).map(|extent| extent * 512 + 40).collect();
    let fill = |queue: &mut RedisQueue, version| extents.iter().for_each(|&n| write(queue, n, &pages(n, 40, version)).unwrap());
    fill(&mut queue, 1);
    extents.iter().for_each(|&n| common::check(&space, n, &pages(n, 40, 1)));
    // The first three are the masters. One that is killed has a replica, which has all that was acknowledged.
    for version in 2..4 {
        fill(&mut queue, version);
        drop(all.remove(if version == 2 { 1 } else { 0 }));
        extents.iter().for_each(|&n| common::check(&space, n, &pages(n, 40, version)));
        fill(&mut queue, version + 10);
        extents.iter().for_each(|&n| common::check(&space, n, &pages(n, 40, version + 10)));
        until("it is replaced", || all.iter().all(|one| one.say(&["cluster", "info"]).contains("cluster_state:ok")));
    }
}
