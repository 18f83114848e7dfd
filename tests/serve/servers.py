"""What tests of the servers of farshore-serve share: a server, connections to it, and the watchdog.

Each test has a time after which it has failed.
"""

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
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
            told = re.fullmatch(rb"end: \d+ datagrams(; [^\n]+)*\n", errors)
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
