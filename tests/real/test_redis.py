"""Redis servers as swap space (redis://): one server, and a Cluster whose masters are killed and stopped and whose hash slots move, under programs that check their data."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import harness
import pytest
from cases import CASES
from harness import MIB, Mode, expect
from run import Way
from test_programs import Ran
from test_remote import Remote
from test_survived import TestSurvived as Survived

# Real programs over the Cluster.
PROGRAMS = ("sort", "xz", "sqlite", "python", "python-pool", "gcc")
# A node that is silent for so long is replaced, in ms.
NODE_TIMEOUT = 1500
MASTERS = 3
# Hash slots with keys that go from one master to another, one by one.
AT_ONCE = 4


class Server:
    """A redis-server with its files in a folder of its own."""

    def __init__(self, folder, port, *options):
        self.folder, self.port = folder, port
        self.command = [harness.need("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no",
                        "--unixsocket", os.path.join(folder, "socket"), "--logfile", os.path.join(folder, "log"), *options]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.until("it takes connections", lambda: self.say("ping") in ("PONG", "NOAUTH Authentication required."))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def say(self, *words):
        """What redis-cli says."""
        done = subprocess.run([harness.need("redis-cli", "redis-tools"), "-p", str(self.port), *words], capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip()

    def until(self, what, is_so):
        deadline = time.monotonic() + 60
        while not is_so():
            expect(self.process.poll() is None and time.monotonic() < deadline, f"never: {what}: {harness.read_text(os.path.join(self.folder, 'log'))[-500:]}")
            time.sleep(0.05)

    def number(self, section, name):
        """A number of what it says of itself."""
        found = re.search(rf"^{name}[:,].*?(\d+)", self.say("info", section), re.M)
        return int(found[1]) if found else 0

    @property
    def keys(self):
        return int(self.say("dbsize"))

    @property
    def spec(self):
        return f"redis://127.0.0.1:{self.port}"


class Cluster:
    """Six servers: three masters, and a replica of each."""

    def __init__(self, folder_of):
        self.servers = []
        for n in range(2 * MASTERS):
            # The port of its bus is 10,000 higher.
            while (port := harness.free_port()) >= 55000:
                pass
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT), "--repl-diskless-sync-delay", "0")
            self.servers.append(Server(folder_of(f"server-{n}"), port, *options))
        places = [f"127.0.0.1:{server.port}" for server in self.servers]
        done = subprocess.run(["redis-cli", "--cluster", "create", *places, "--cluster-replicas", "1", "--cluster-yes"], capture_output=True, text=True, timeout=120,
                              check=False)
        expect(done.returncode == 0, done.stdout[-500:] + done.stderr[-500:])
        self.until_whole()

    def living(self):
        return [server for server in self.servers if server.process.poll() is None]

    @staticmethod
    def of(server):
        """What a server says of itself: its name in the Cluster, and whether it is a master with hash slots. A replica that is just loading its master's data says neither."""
        own = [line.split() for line in server.say("cluster", "nodes").splitlines() if "myself" in line]
        return (own[0][0], "master" in own[0][2] and len(own[0]) > 8) if own else (None, False)

    def masters(self):
        """The masters that live and have hash slots."""
        return [server for server in self.living() if self.of(server)[1]]

    def replicas(self):
        """The servers that live and are no masters."""
        masters = self.masters()
        return [server for server in self.living() if server not in masters]

    def until_masters(self):
        """Until all that live know that the living masters have all hash slots."""
        def are_there():
            return len(self.masters()) == MASTERS and all("cluster_state:ok" in server.say("cluster", "info") for server in self.living())
        self.living()[0].until("each hash slot has a master", are_there)

    def until_whole(self):
        """Until each server knows of three masters that answer, each with a replica that does."""
        def is_whole():
            return (len(self.masters()) == MASTERS and all("cluster_state:ok" in server.say("cluster", "info") for server in self.living())
                    and all(server.number("replication", "connected_slaves") >= 1 for server in self.masters())
                    # As clients are told: without those that are thought dead.
                    and all(server.say("cluster", "slots").count("127.0.0.1") >= 2 * MASTERS for server in self.living()))
        self.living()[0].until("the Cluster is whole", is_whole)

    def used_slots(self, master):
        """The hash slots of a master that have keys of programs."""
        keys = [key for key in master.say("keys", "farshore:*").splitlines() if key]
        return sorted({int(master.say("cluster", "keyslot", key)) for key in keys})

    def move(self, slot, one, other, between):
        """Moves a hash slot, as redis-cli does, with something done in between."""
        here, there = self.of(one)[0], self.of(other)[0]
        slot = str(slot)
        for server, words in ((other, ("importing", here)), (one, ("migrating", there))):
            expect(server.say("cluster", "setslot", slot, *words) == "OK", f"hash slot {slot} cannot be moved")
        between()
        while keys := [key for key in one.say("cluster", "getkeysinslot", slot, "100").splitlines() if key]:
            said = one.say("migrate", "127.0.0.1", str(other.port), "", "0", "10000", "keys", *keys)
            expect(said in ("OK", "NOKEY"), f"migrate: {said}")
        between()
        for server in (other, one, *self.masters()):
            said = server.say("cluster", "setslot", slot, "node", there)
            expect(said == "OK", f"hash slot {slot} of {server.port}: {said}")

    def kill(self):
        for server in self.servers:
            server.kill()

    @property
    def spec(self):
        return self.servers[0].spec


class Redis(Remote):
    """Servers, and programs at work."""

    @contextlib.contextmanager
    def redis(self, name, *options):
        server = Server(self.folder(name), harness.free_port(), *options)
        try:
            yield server
        finally:
            server.kill()

    def lost(self, process, part):
        """It ends by SIGBUS, with the reason."""
        process.popen.stdin.close()
        outcome, _ = self.ended(process)
        expect(outcome.status in (128 + signal.SIGBUS, -signal.SIGBUS), f"status {outcome.status}: {outcome.stderr[-500:]}")
        expect(part in outcome.stderr and "wrong" not in outcome.stderr.split("assert")[0], outcome.stderr[-500:])


class TestOne(Redis):
    """One server."""

    def test_a_server(self, mode):
        """By TCP, and by a socket, with a password."""
        secret = os.path.join(self.folder("secret"), "password")
        with open(secret, "w", encoding="utf-8") as file:
            file.write("open sesame\n")
        with self.redis("plain") as plain, self.redis("guarded", "--requirepass", "open sesame") as guarded:
            specs = {"tcp": f"redis://localhost:{plain.port}", "socket": f"redis+unix://{plain.folder}/socket", "password": f"{guarded.spec},password-file={secret}"}
            for name, spec in specs.items():
                with self.updates(spec, ("--fault", mode), forks=True) as (process, pid):
                    self.rounds(process, 60)
                    now = self.counters(pid)
                expect(now["resident_bytes_peak"] <= 20 * MIB and now["evictions"]["synchronous"] == 0, f"{name}: {now}")
                expect(now["spaces"][0]["encrypted"] and now["swap"]["pages_in"] > 1000, f"{name}: {now['spaces']} {now['swap']}")
            ends = [int(plain.say("ttl", plain.say("randomkey"))) for _ in range(50)]
            expect(all(0 < end <= 3600 for end in ends), f"a key without an end: {ends}")

    def test_keys_end(self):
        """Keys of a program that was killed end; those of one that sleeps for longer do not."""
        with self.redis("ends") as server:
            with self.filled(f"{server.spec},expire=10s") as (process, _):
                one = server.keys
                with self.filled(f"{server.spec},expire=10s") as (_, pid):
                    both = server.keys
                    os.kill(pid, signal.SIGKILL)
                expect(one > 10 and both > 1.7 * one, f"{one} keys of one, {both} of two")
                since = time.monotonic()
                server.until("the keys of the killed one end", lambda: server.keys <= one + 2)
                time.sleep(max(0, 15 - (time.monotonic() - since)))
                expect(one // 2 <= server.keys <= one + 2, f"{server.keys} keys of {one} are left")
                self.right(process)

    def test_a_daemon(self, mode):
        """A daemon: keys of a process that evicts nothing, and whose parent is gone, do not end."""
        with self.redis("daemon") as server:
            self.outlives(f"{server.spec},expire=10s", mode, 15)

    def test_rights(self):
        """Users who may not do what Farshore does are refused, with the command that they may not use."""
        secret = os.path.join(self.folder("rights"), "password")
        with open(secret, "w", encoding="utf-8") as file:
            file.write("far\npass\n")
        with self.redis("rights") as server:
            spec = f"{server.spec},password-file={secret}"
            for rights, word in (("~* +@all -hset", "HSET"), ("~* +@all -expire", "EXPIRE"), ("~* +@all -hmget", "HMGET"), ("~* +@all -hdel", "HDEL"), ("~other:* +@all", "EXPIRE")):
                expect(server.say("acl", "setuser", "far", "reset", "on", ">pass", *rights.split()) == "OK", "the rights are not set")
                self.refused(["run", "--memory", "16M", "--swap", spec, "--", "true"], {125}, f"may not use {word}")
            server.say("acl", "setuser", "far", "reset", "on", ">pass", "~farshore:*", "+@all")
            done = self.call("run", "--memory", "16M", "--swap", spec, "--", "true")
            expect((done.status, server.keys) == (0, 0), f"status {done.status}: {done.err[-300:]}; {server.keys} keys are left")

    def test_lost(self):
        """A server that has forgotten, and one that does not come back: SIGBUS for a page that was there, with the reason."""
        with self.redis("forgets") as server:
            with self.filled(server.spec) as (process, _):
                server.say("flushall")
                self.lost(process, "redis://127.0.0.1")
            with self.filled(server.spec, "--io-timeout", "100ms") as (process, _):
                server.kill()
                self.lost(process, "redis://127.0.0.1")

    def test_full(self):
        """A server without room: pages stay in memory, and the program ends with a reason if it needs more."""
        with self.redis("full", "--maxmemory", "24mb") as server:
            seen = self.overfull(server.spec, "redis", "16M", "64M")
            expect(server.number("errorstats", "errorstat_OOM") > 0, "the server was not full")
        return seen

    def test_refused(self):
        """What cannot be used is refused before the program starts."""
        run = ["run", "--memory", "16M", "--swap"]
        for spec, word in (("redis://127.0.0.1:1", "no server can be reached"), ("redis://no.such.host.invalid", "is not known"), ("redis:x", "// is missing"),
                           ("redis://:secret@127.0.0.1", "password-file"), ("redis://127.0.0.1,password-file=/no/such", "password"), ("rediss://x", "not built yet"),
                           ("mirror:(redis://127.0.0.1,dir:/tmp)", "cannot be one of the copies")):
            self.refused([*run, spec, "--", "true"], {125, 2}, word)
        with self.redis("evicts", "--maxmemory-policy", "allkeys-lru") as server:
            self.refused([*run, server.spec, "--", "true"], {125}, "allkeys-lru")
        with self.redis("guarded", "--requirepass", "x") as server:
            self.refused([*run, server.spec, "--", "true"], {125}, "password-file")
        with self.redis("master") as master, self.redis("replica", "--replicaof", "127.0.0.1", str(master.port)) as replica:
            self.refused([*run, replica.spec, "--", "true"], {125}, "name its master")
        port = str(harness.free_port())
        with self.server("nbd", "nbdkit", "-f", "-i", "127.0.0.1", "-p", port, "--run", "touch SOCKET; sleep 600", "memory", "64M"):
            self.refused([*run, f"redis://127.0.0.1:{port}", "--", "true"], {125}, "no Redis")


class TestCluster(Redis):
    """Three masters, and a replica of each. Each fault comes `--faults` times, at random moments."""

    works, survive, seeded = Survived.works, Survived.survive, Survived.seeded

    @pytest.fixture(scope="class")
    def six(self, made_ready, work):
        def folder_of(name):
            path = os.path.join(work, f"redis-{name}")
            os.makedirs(path)
            return path
        cluster = Cluster(folder_of)
        yield cluster
        cluster.kill()

    @pytest.fixture
    def cluster(self, six):
        """The servers, whole, and without keys of programs that have ended."""
        six.until_whole()
        for master in six.masters():
            master.say("flushall")
        return six

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_programs(self, cluster, name, farshore, work):
        """Real programs in a quarter of their memory: the same bytes."""
        folder = os.path.join(work, f"input-{name}")
        os.makedirs(folder)
        (case,) = [case for case in CASES if case.name == name]
        one = case("small", folder)
        one.prepare()
        ran = Ran(one, Way(farshore, [cluster.spec]), work)
        expect(not ran.native.problems, "natively: " + "\n".join(ran.native.problems[:12]))
        outcome = ran.run(Mode("upcall", 0.25), ran.peaks())
        expect(not outcome.problems, "\n".join(outcome.problems[:12]))
        expect(outcome.total("swap", "pages_in") > 0, "nothing came back")
        return f"{outcome.total('swap', 'pages_in')} pages in, {outcome.total('swap', 'pages_out')} out"

    def test_a_master_is_killed(self, cluster):
        """`kill -9` of a master, which comes back as a replica when it is replaced: the program waits, and loses nothing."""
        return self.survived(cluster, "a master is killed", self.killed(cluster.masters))

    def test_a_replica_is_killed(self, cluster):
        """Writes wait until the Cluster knows that it is gone, and go on; when it is back, it is waited for again."""
        return self.survived(cluster, "a replica is killed", self.killed(cluster.replicas))

    def test_a_master_stands_still(self, cluster):
        """A master that is stopped, for less or for longer than its Cluster waits. When it goes on, and thinks for a moment that it still is one although it was replaced, nothing is wrong."""
        hit = []

        def begin(_):
            hit[:] = [self.pick.choice(cluster.masters())]
            hit[0].process.send_signal(signal.SIGSTOP)
            return self.pick.uniform(0.01, 3 * NODE_TIMEOUT / 1000)

        return self.survived(cluster, "a master stands still", (begin, lambda _: hit[0].process.send_signal(signal.SIGCONT)))

    def killed(self, which):
        """Kills one of these, and starts it again when three masters have all hash slots. (Before that, it would be a master without data, and its replica would forget all that it has.)"""
        hit = []

        def begin(_):
            hit[:] = [self.pick.choice(which())]
            hit[0].kill()
            return self.pick.uniform(0.01, 3)

        def end(_):
            self.six.until_masters()
            hit[0].start()

        return begin, end

    def survived(self, cluster, kind, fault):
        """The program is at work while these faults come. Returns the table's line."""
        self.six = cluster
        with self.works(cluster.spec) as (progress, pid):
            return self.survive(progress, pid, kind, self.times, *fault)

    def whole(self, _progress, _pid):
        """The next fault comes when there are three masters again, each with a replica."""
        self.six.until_whole()

    def test_hash_slots_move(self, cluster):
        """Hash slots go from one master to another while a program has its pages there: some that have keys, one by one, and many by redis-cli."""
        moved = 0
        with self.works(cluster.spec) as (progress, _):
            progress.goes_on(5, "at first")
            since = time.monotonic()
            for _ in range(self.times):
                for one in cluster.masters():
                    other = self.pick.choice([server for server in cluster.masters() if server is not one])
                    used = cluster.used_slots(one)
                    for slot in self.pick.sample(used, min(len(used), AT_ONCE)):
                        # In between its keys are neither here nor, for who asks without being sent, there.
                        cluster.move(slot, one, other, lambda slot=slot: progress.goes_on(2, f"hash slot {slot} moves"))
                        moved += 1
            one, other = cluster.masters()[:2]
            log = os.path.join(self.folder("reshard"), "log")
            command = ["redis-cli", "--cluster", "reshard", f"127.0.0.1:{one.port}", "--cluster-from", cluster.of(one)[0], "--cluster-to", cluster.of(other)[0],
                       "--cluster-slots", "500", "--cluster-yes"]
            with open(log, "w", encoding="utf-8") as out, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as resharding:
                while resharding.poll() is None:
                    progress.goes_on(1, "hash slots move")
            expect(resharding.returncode == 0, f"redis-cli: {harness.read_text(log)[-500:]}")
            progress.goes_on(5, "at last")
            gap = progress.longest(since)
        asked = sum(server.number("commandstats", "cmdstat_asking") for server in cluster.servers)
        expect(moved > 10 and asked > 0, f"{moved} hash slots were moved, and {asked} times was somebody asked on the way")
        return f"{moved} hash slots with keys and 500 others, {asked} times asked on the way, longest {gap:.2f} s without progress"

    def test_families(self, cluster):
        """Programs that a program starts each have keys of their own."""
        text = os.path.join(self.folder("family"), "text")
        with open(text, "w", encoding="utf-8") as file:
            file.writelines(f"{n * 7919 % 120011} {'x' * 60}\n" for n in range(120000))
        pipe = f"sort {text} | tac | sort -r --parallel=2 | sha256sum; sort -u {text} | wc -l"
        want = subprocess.run(["sh", "-c", pipe], capture_output=True, check=True).stdout
        outcome = self.call("run", "--memory", "16M", "--swap", cluster.spec, "--", "sh", "-c", pipe, timeout=200)
        expect((outcome.status, outcome.out.encode()) == (0, want), f"{outcome.status}: {outcome.out} {outcome.err[-300:]}")
