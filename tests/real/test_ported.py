"""A server that was written by others and ported to unithreads: rbldnsd, from Debian's source package, with crates/services/uthread-c/examples/rbldnsd.patch.

The original, natively, says what the answers are.
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

import harness
from command import NOBODY, Command
from harness import MIB, expect

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests", "suites"))
import sources  # noqa: E402
from suite import Unavailable as NoSource  # noqa: E402

# Addresses on the list: a trie of them takes 22 MiB.
LISTED = 1_000_000
LIMIT = 6 * MIB
QUERIES, AT_A_TIME = 20_000, 64
# How long an answer may take, in seconds; the original does not answer while it reads its lists.
PATIENCE = 60


def packet(number, address, kind):
    """A question for an address: its A (1) or TXT (16)."""
    labels = [str(address >> shift & 255) for shift in (0, 8, 16, 24)] + ["bl", "test"]
    name = b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"
    return number.to_bytes(2, "big") + b"\1\0\0\1\0\0\0\0\0\0" + name + kind.to_bytes(2, "big") + b"\0\1"


def ask(port, packets):
    """The answers to these questions, of which many are under way at a time; those that are not answered are asked again."""
    answers, waiting, at = [None] * len(packets), {}, 0
    deadline = time.monotonic() + PATIENCE
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", port))
        client.settimeout(0.5)
        while at < len(packets) or waiting:
            while at < len(packets) and len(waiting) < AT_A_TIME:
                # Numbers that are under way differ.
                waiting[at & 0xFFFF] = at
                with contextlib.suppress(ConnectionRefusedError):
                    client.send((at & 0xFFFF).to_bytes(2, "big") + packets[at][2:])
                at += 1
            try:
                answer = client.recv(4096)
            except (TimeoutError, ConnectionRefusedError):
                expect(time.monotonic() < deadline, f"{len(waiting)} questions have no answer in {PATIENCE} s")
                for number, index in waiting.items():
                    with contextlib.suppress(ConnectionRefusedError):
                        client.send(number.to_bytes(2, "big") + packets[index][2:])
                time.sleep(0.05)
                continue
            index = waiting.pop(int.from_bytes(answer[:2], "big"), None)
            if index is not None:
                answers[index] = answer[2:]
                deadline = time.monotonic() + PATIENCE
    return answers


class TestPorted(Command):
    built = None

    def servers(self):
        """The original and the port."""
        if TestPorted.built is None:
            include, libraries = os.path.join(ROOT, "crates", "services", "uthread-c", "include"), os.path.dirname(harness.find_farshore(self.options.farshore))
            TestPorted.built = tuple(self.build(*way) for way in (
                ("original", None, []),
                ("port", os.path.join(os.path.dirname(include), "examples", "rbldnsd.patch"), [f"-I{include}", f"-L{libraries}", f"-Wl,-rpath={libraries}", "-lfarshore_uthread"])))
        return TestPorted.built

    def build(self, name, patch, words):
        """One of them."""
        folder = self.folder(name)
        try:
            sources.unpack("rbldnsd", folder, ["*"])
        except NoSource as why:
            raise harness.Unavailable(str(why)) from None
        commands = [["./configure", "--disable-zlib", "--disable-dso", "--disable-systemd"], ["make", "-s", "rbldnsd", f"LIBS={' '.join(words)}", f"CFLAGS=-O2 -w {' '.join(words[:1])}"]]
        if patch:
            commands.insert(0, [harness.need("patch", "patch"), "-s", "-p1", "-i", patch])
        for command in commands:
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            expect(done.returncode == 0, f"{' '.join(command)}: {done.stdout.decode(errors='replace')[-1000:]}")
        return os.path.join(folder, "rbldnsd")

    @staticmethod
    def words(server, port, place, *more):
        """Its command line."""
        user = ["-u", f"{NOBODY}:{NOBODY}"] if os.geteuid() == 0 else []
        return [server, "-n", *more, *user, "-c", "0", "-w", place, "-b", f"127.0.0.1/{port}", "bl.test:ip4trie:list"]

    @staticmethod
    def write_list(place, addresses):
        """The list of addresses, with a text for every hundredth."""
        with open(os.path.join(place, "new"), "w", encoding="ascii") as file:
            file.write(":127.0.0.2:listed\n$SOA 3600 a.test b.test 1 2 3 4 5\n")
            for index, address in enumerate(addresses):
                name = ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))
                file.write(name + (f" :127.0.0.3:number {index}\n" if index % 100 == 0 else "\n"))
        os.rename(os.path.join(place, "new"), os.path.join(place, "list"))

    @contextlib.contextmanager
    def answering(self, place, more=()):
        """The port, in a part of its memory, and where it is."""
        port, stats = harness.free_port(), os.path.join(self.folder("stats", 0o777), "stats.json")
        options = ["--memory", str(LIMIT), "--swap", f"dir:{self.folder('pages', 0o777)}", "--stats", stats]
        with self.running(options, self.words(self.servers()[1], port, place, *more), timeout=240) as process:
            yield process, self.managed(process), port, stats

    def test_it_answers_as_before(self):
        """Every answer is the original's, to the byte; it reads its list anew, and ends as it is told."""
        pick, place = random.Random(self.seed), self.folder("lists")
        addresses = sorted({pick.getrandbits(32) for _ in range(LISTED)})
        self.write_list(place, addresses)
        asked = [packet(0, pick.choice(addresses) if pick.random() < 0.5 else pick.getrandbits(32), pick.choice((1, 16))) for _ in range(QUERIES)]
        port = harness.free_port()
        original = harness.Process(self.words(self.servers()[0], port, place), self.work, 120)
        try:
            right = ask(port, asked)
        finally:
            original.kill_session()
            original.finish()
        expect(len({answer[:10] for answer in right}) > 1, "all answers are alike")
        with self.answering(place) as (process, pid, at, stats):
            got = ask(at, asked)
            wrong = [index for index, answer in enumerate(got) if answer != right[index]]
            expect(not wrong, f"{len(wrong)} answers differ; the first is {got[wrong[0]]}, not {right[wrong[0]]}" if wrong else "")
            fetches = self.counters(pid)["faults"]["fetch"]
            os.kill(pid, signal.SIGTERM)
            outcome, out = self.ended(process)
        expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-500:]}")
        said = out + outcome.stderr
        # Some were asked again before it listened.
        counted = re.search(r"zone bl\.test: tot=(\d+) ok=(\d+) nxd=(\d+) err=0 ", said)
        expect(counted and QUERIES <= int(counted[1]) == int(counted[2]) + int(counted[3]) <= QUERIES + 10 * AT_A_TIME, f"it has not counted {QUERIES} requests: {said[-500:]}")
        with open(stats, encoding="ascii") as file:
            expect(json.load(file)["resident_bytes_peak"] <= LIMIT, "above the limit")
        expect(fetches > QUERIES / 2, f"{fetches} fetches alone")
        return f"{QUERIES} answers, {fetches} fetches"

    def test_it_reads_its_list_anew(self):
        """While it is asked all the time: alone, and with a child that answers meanwhile (-f)."""
        pick, seen = random.Random(self.seed + 1), []
        addresses = sorted({pick.getrandbits(32) for _ in range(LISTED // 2)})
        old, new = addresses[::2], addresses[1::2]
        for more in ((), ("-f",)):
            place = self.folder("lists")
            self.write_list(place, old)
            with self.answering(place, more) as (process, pid, port, _):
                some_old, some_new = ([packet(0, pick.choice(which), 1) for _ in range(2000)] for which in (old, new))
                code = {answer[1] & 15 for answer in ask(port, some_old)}, {answer[1] & 15 for answer in ask(port, some_new)}
                expect(code == ({0}, {3}), f"codes {code} before")
                # The file's time must differ.
                time.sleep(1.1)
                self.write_list(place, new)
                os.kill(pid, signal.SIGHUP)
                deadline, rounds = time.monotonic() + PATIENCE, 0
                while (code := {answer[1] & 15 for answer in ask(port, some_new)}) != {0}:
                    expect(code <= {0, 3} and time.monotonic() < deadline, f"codes {code} of what is new")
                    rounds += 1
                code = {answer[1] & 15 for answer in ask(port, some_old)}
                expect(code == {3}, f"codes {code} of what is gone")
                os.kill(pid, signal.SIGTERM)
                outcome, _ = self.ended(process)
                expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-500:]}")
                seen.append(rounds)
        return f"{seen[0]} and {seen[1]} times asked meanwhile"

    def test_rocksdb_cannot_be_switched_away_from(self):
        """Why the ordered store is LMDB: RocksDB ends or hangs where a unithread is switched away from at any access. Elsewhere it is right, and one get is under way at a time."""
        folder = os.path.dirname(harness.find_farshore(self.options.farshore))
        program, header = os.path.join(self.folder("rocks"), "rocks"), os.path.join(ROOT, "crates", "services", "uthread-c", "include")
        source = os.path.join(ROOT, "tests", "programs", "rocks.cc")
        done = subprocess.run([harness.need("g++", "g++"), "-O2", "-std=c++17", "-pthread", "-I", header, "-o", program, source, f"-L{folder}", f"-Wl,-rpath={folder}", "-lfarshore_uthread", "-lrocksdb"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        expect(done.returncode == 0, f"it does not compile (librocksdb-dev): {done.stdout.decode(errors='replace')[-1000:]}")
        seen = {}
        for way in ("held", "guarded", "free"):
            with self.running(["--memory", "24M", "--swap", f"dir:{self.folder('pages')}"], [program, self.folder("db"), way], timeout=180) as process:
                outcome, out = self.ended(process)
            seen[way] = f"status {outcome.status} {(out or outcome.stderr).strip()[-120:]}"
            if way == "free":
                # It finds that its thread-local data are in use, or waits for itself.
                expect(outcome.status == 3 or outcome.status > 128, f"RocksDB has stood it: {seen[way]}: look at record 45 again")
            else:
                # What it leaves on its stack looks as if libc were being called: so nobody is switched away from in there.
                expect((outcome.status, out) == (0, "64000 gets, 1 at a time\n"), f"{way}: {seen[way]}: {outcome.stderr[-500:]}")
        return "; ".join(f"{way}: {what}" for way, what in seen.items())
