"""What tests of the servers of farshore-serve share: a server, connections to it, load, little memory, memory nodes that are killed, and the watchdog.

Each test has a time after which it has failed.
"""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
import types

from harness import Unavailable, expect

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Seconds that a test may take, and that one answer may.
TEST_SECONDS, ANSWER_SECONDS = 120, 20
MIB = 1 << 20
# Filled in by conftest.py: the path of farshore-serve, a command that starts it, and its memory under Farshore.
OPTIONS = types.SimpleNamespace()
RUNNING = []


class Server:
    """A server, ready, until the end of the block; then it is told to end, and must do so well."""

    def __init__(self, *arguments, ends_by=signal.SIGTERM, prefix=None):
        self.ends_by, self.prefix = ends_by, OPTIONS.prefix if prefix is None else prefix
        argv = [*self.prefix, OPTIONS.serve, arguments[0], "--listen", "127.0.0.1:0", "--udp", "127.0.0.1:0", "--no-pin", *arguments[1:]]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        RUNNING.append(self.process)
        # Other lines may come first with --prefix.
        for line in self.process.stderr:
            found = re.search(rb"^ready: tcp (\S+):(\d+) udp (\S+):(\d+)$", line.strip())
            if found:
                break
        else:
            raise AssertionError("the server did not get ready")
        self.tcp, self.udp = ("127.0.0.1", int(found[2])), ("127.0.0.1", int(found[4]))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.process.send_signal(self.ends_by)
            errors = self.process.stderr.read()
            expect(self.process.wait(ANSWER_SECONDS) == 0, f"status {self.process.returncode}: {errors[-300:]}")
            told = re.fullmatch(rb"end: \d+ datagrams(; [^\n]+)*\n(breakdown: \d+ requests(; [^\n]+)?\n)?", errors)
            expect(self.prefix or told, f"it said {errors[-300:]}")
        else:
            self.process.kill()
            self.process.wait()
        RUNNING.remove(self.process)

    def connect(self):
        """A connection."""
        return socket.create_connection(self.tcp, ANSWER_SECONDS)

    def resident(self):
        """Bytes of it that are in RAM."""
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()


class Load:
    """farshore-load at work. At its end each request that was sent was answered, and rightly."""

    def __init__(self, server, service, transport, *options):
        # At a fixed rate some are not sent where it gets no processor.
        self.sends_all = any(option.startswith("--closed=") for option in options)
        self.folder = tempfile.TemporaryDirectory()
        self.told = os.path.join(self.folder.name, "told.json")
        address = f"{transport}:127.0.0.1:{(server.udp if transport == 'udp' else server.tcp)[1]}"
        argv = [beside("farshore-load"), "open", service, address, "--timeout=60s", "--spin=0s", "--warmup=0", f"--json={self.told}", *options]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def done(self, seconds):
        """Its result."""
        try:
            said = self.process.communicate(timeout=seconds + TEST_SECONDS)[0]
        finally:
            self.process.kill()
        expect(self.process.returncode == 0, said[-1000:])
        with self.folder, open(self.told, encoding="utf-8") as file:
            result = json.load(file)
        expect(result["wrong"] == [] and result["duplicates"] == 0, result["wrong"])
        for name, count in (("lost", 0), ("unsent", 0), ("misses", 0), ("answered", result["all"]["sent"])):
            expect(result["all"][name] == count or name == "unsent" and not self.sends_all, f"{name}: {result['all'][name]}")
        expect(all(operation["answered"] > 0 for operation in result["operations"]), "an operation was not asked for")
        return result


def in_a_fifth(whole, swap=None):
    """A command that runs a server under farshore, in a fifth of its data."""
    swap = swap or f"dir:{os.environ.get('FARSHORE_SWAP_DIR', '/var/tmp')}"
    return [beside("farshore"), "run", "--memory", str(whole // 5), "--swap", swap, "--"]


def stat(server):
    """What farshore stat says."""
    done = subprocess.run([beside("farshore"), "stat", str(server.process.pid), "--json"], capture_output=True, timeout=ANSWER_SECONDS, check=False)
    expect(done.returncode == 0, done.stderr)
    return json.loads(done.stdout)


def within_a_fifth(server, whole):
    """It had five times the memory that it kept to, and moved pages."""
    told = stat(server)
    limit, most, used = (told[name] for name in ("memory_limit_bytes", "resident_bytes_peak", "used_bytes_peak"))
    expect(limit <= whole // 5 and most <= limit and used >= 4.8 * limit, f"limit {limit}, resident {most}, used {used}")
    expect(told["evictions"]["synchronous"] == 0 and told["swap"]["pages_in"] > 1000, told["swap"])


@contextlib.contextmanager
def node(path):
    """A memory node on a socket, until it is killed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    process = subprocess.Popen([beside("farshore"), "node", "--listen", f"unix:{path}", "--memory", "4G"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + ANSWER_SECONDS
        while not os.path.exists(path):
            expect(process.poll() is None and time.monotonic() < deadline, "the node does not start")
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


class Mirror:
    """Two memory nodes that have the same pages."""

    def __init__(self):
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        place = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.paths = [os.path.join(place, f"node-{n}") for n in range(2)]
        self.nodes = [self.stack.enter_context(node(path)) for path in self.paths]
        self.swap = f"mirror:({','.join(f'nbd+unix:///?socket={path}' for path in self.paths)})"
        return self

    def __exit__(self, *_):
        self.stack.close()

    def each_is_killed(self, server, seconds, under_load):
        """Both nodes are killed in turn, by SIGKILL, until the time is over: each time `under_load` kills one by calling what it is given. Then the node comes
        back empty, and gets all pages again. Tells how often.
        """
        # What the server says must not fill the pipe.
        threading.Thread(target=lambda: list(iter(server.process.stderr.readline, b"")), daemon=True).start()
        deadline, turns = time.monotonic() + seconds, 0
        while turns < 2 or time.monotonic() < deadline:
            which = turns % 2

            def kill(which=which):
                self.nodes[which].kill()
                self.nodes[which].wait()
                until(server, "it is down", lambda copies: copies[which]["state"] == "down")

            under_load(kill)
            self.nodes[which] = self.stack.enter_context(node(self.paths[which]))
            until(server, "all copies have all pages", lambda copies: all(copy["state"] == "works" and not copy["stale_pages"] for copy in copies))
            turns += 1
        return turns


def until(server, what, is_so):
    """Waits until the copies are so."""
    deadline = time.monotonic() + TEST_SECONDS
    while not is_so(now := stat(server)["spaces"][0]["copies"]):
        expect(time.monotonic() < deadline, f"it never comes: {what}; {now}")
        time.sleep(0.05)


def read_until(connection, end):
    """What comes, up to this end."""
    got = b""
    while not got.endswith(end):
        piece = connection.recv(65536)
        if not piece:
            raise AssertionError(f"closed after {got[-200:]!r}")
        got += piece
    return got


def ask(connection, command, end=b"\r\n"):
    """The answer to a command."""
    connection.sendall(command)
    return read_until(connection, end)


def number_at(index):
    """The number that array and scan have at an index."""
    mask = (1 << 64) - 1
    word = ((index ^ 0x66617273686F7265) + 0x9E3779B97F4A7C15) & mask
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    return word ^ (word >> 31)


def too_late(name):
    """The watchdog: describes what hangs, and ends everything."""
    print(f"{name} FAILED: not done after {TEST_SECONDS} s", flush=True)
    for process in RUNNING:
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{process.pid}/task/{thread}/wchan", encoding="ascii") as file:
                print(f"  thread {thread} of {process.pid} is in {file.read()}", flush=True)
        process.kill()
    os._exit(1)


def find_serve(given):
    """Path of farshore-serve."""
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    for path in [given] if given else [os.path.join(target, kind, "farshore-serve") for kind in ("release", "debug")]:
        if os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise SystemExit("no farshore-serve: build it with `cargo build --release`, or name it with --serve PATH")


def beside(name):
    """Path of another program, which is where farshore-serve is."""
    path = os.path.join(os.path.dirname(OPTIONS.serve), name)
    if not os.access(path, os.X_OK):
        raise Unavailable(f"no {name} beside farshore-serve")
    return path
