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

# Real programs over the Cluster.
PROGRAMS = ("sort", "xz", "sqlite", "python", "python-pool", "gcc-chain")
# A node that is silent for so long is replaced, in ms.
NODE_TIMEOUT = 1500
MASTERS = 3


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
        """What a server says of itself: its name in the Cluster, and whether it is a master with hash slots."""
        (own,) = [line.split() for line in server.say("cluster", "nodes").splitlines() if "myself" in line]
        return own[0], "master" in own[2] and len(own) > 8

    def masters(self):
        """The masters that live and have hash slots."""
        return [server for server in self.living() if self.of(server)[1]]

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
    """Three masters, and a replica of each."""

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
        """`kill -9` of two masters, one after the other, each of which comes back as a replica: the program waits, and loses nothing."""
        with self.updates(cluster.spec, forks=True) as (process, pid):
            for _ in range(2):
                self.rounds(process, 15)
                victim = self.random.choice(cluster.masters())
                victim.kill()
                self.rounds(process, 15)
                cluster.living()[0].until("it is replaced", lambda: len(cluster.masters()) == MASTERS)
                victim.start()
                cluster.until_whole()
            self.rounds(process, 15)
            errors = self.counters(pid)["swap"]["errors"]
        return f"{errors} errors"

    def test_a_master_stands_still(self, cluster):
        """A master that is stopped is replaced. When it goes on, and thinks for a moment that it still is one, nothing is wrong."""
        with self.updates(cluster.spec, forks=True) as (process, _):
            self.rounds(process, 10)
            victim = self.random.choice(cluster.masters())
            victim.process.send_signal(signal.SIGSTOP)
            self.rounds(process, 15)
            victim.process.send_signal(signal.SIGCONT)
            self.rounds(process, 30)
            cluster.until_whole()

    def test_a_replica_is_killed(self, cluster):
        """Writes wait until the Cluster knows that it is gone, and go on; when it is back, it is waited for again."""
        with self.updates(cluster.spec) as (process, _):
            self.rounds(process, 10)
            masters = cluster.masters()
            victim = self.random.choice([server for server in cluster.servers if server not in masters])
            victim.kill()
            self.rounds(process, 15)
            victim.start()
            cluster.until_whole()
            self.rounds(process, 10)

    def test_hash_slots_move(self, cluster):
        """Hash slots go from one master to another while a program has its pages there: each that has a key, and many by redis-cli."""
        moved = 0
        with self.updates(cluster.spec, forks=True) as (process, _):
            self.rounds(process, 5)
            for _ in range(2):
                for one in cluster.masters():
                    other = self.random.choice([server for server in cluster.masters() if server is not one])
                    for slot in cluster.used_slots(one):
                        # In between its keys are neither here nor, for who asks without being sent, there.
                        cluster.move(slot, one, other, lambda: self.rounds(process, 1))
                        moved += 1
            self.rounds(process, 5)
            one, other = cluster.masters()[:2]
            log = os.path.join(self.folder("reshard"), "log")
            command = ["redis-cli", "--cluster", "reshard", f"127.0.0.1:{one.port}", "--cluster-from", cluster.of(one)[0], "--cluster-to", cluster.of(other)[0],
                       "--cluster-slots", "500", "--cluster-yes"]
            with open(log, "w", encoding="utf-8") as out, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as resharding:
                while resharding.poll() is None:
                    self.rounds(process, 1)
            expect(resharding.returncode == 0, f"redis-cli: {harness.read_text(log)[-500:]}")
            self.rounds(process, 15)
        asked = sum(server.number("commandstats", "cmdstat_asking") for server in cluster.servers)
        expect(moved > 10 and asked > 0, f"{moved} hash slots were moved, and {asked} times was somebody asked on the way")
        return f"{moved} hash slots with keys and 500 others, {asked} times asked on the way"

    def test_families(self, cluster):
        """Programs that a program starts each have keys of their own."""
        text = os.path.join(self.folder("family"), "text")
        with open(text, "w", encoding="utf-8") as file:
            file.writelines(f"{n * 7919 % 120011} {'x' * 60}\n" for n in range(120000))
        pipe = f"sort {text} | tac | sort -r --parallel=2 | sha256sum; sort -u {text} | wc -l"
        want = subprocess.run(["sh", "-c", pipe], capture_output=True, check=True).stdout
        outcome = self.call("run", "--memory", "16M", "--swap", cluster.spec, "--", "sh", "-c", pipe, timeout=200)
        expect((outcome.status, outcome.out.encode()) == (0, want), f"{outcome.status}: {outcome.out} {outcome.err[-300:]}")
