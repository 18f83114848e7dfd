"""A program whose swap spaces come and go while it runs, and what tests of that share."""

import contextlib
import json
import os
import subprocess
import time

import harness
from command import Command
from harness import Failed, expect

PAGE = harness.PAGE


def swaps(specs):
    """Options that name these swap spaces."""
    return [word for spec in specs for word in ("--swap", spec)]


class Program:
    """A program under farshore that is told things and changed while it runs."""

    def __init__(self, tests, process):
        self.tests, self.process, self.pid = tests, process, None
        deadline = time.monotonic() + 60
        while self.pid is None:
            pids = [pid for pid in harness.session_pids(process.popen.pid) if pid != process.popen.pid]
            self.pid = next((pid for pid in pids if tests.call("stat", str(pid)).status == 0), None)
            if not process.alive():
                outcome = process.finish()
                raise Failed(f"it has ended, status {outcome.status}, before it answered farshore stat: {outcome.stderr[-300:]}")
            expect(time.monotonic() < deadline, f"nobody answers farshore stat: {process.stderr_so_far()[-300:]}")

    def set(self, *settings, pid=None):
        """`farshore set`, which waits for its end: what it came to."""
        return self.tests.call("set", str(pid or self.pid), *settings, timeout=100)

    def change(self, *settings):
        """The same, which must go well, without a word."""
        done = self.set(*settings)
        expect(done.status == 0 and not done.err and not done.out, f"set {settings}: status {done.status}: {done.out}{done.err}")

    def fails(self, setting, *words):
        """The same, which must fail with one line that has these words."""
        done = self.set(setting)
        expect(done.status == 1 and len(done.err.splitlines()) == 1 and not done.out, f"set {setting}: status {done.status}: {done.err!r}")
        for word in words:
            expect(word in done.err, f"set {setting}: the line does not say {word!r}: {done.err}")
        return done.err

    def begin(self, setting, before=()):
        """`farshore set` that is not waited for, behind these words."""
        argv = [*before, self.tests.farshore, "set", str(self.pid), setting]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, LC_ALL="C"))

    def stat(self, pid=None):
        """What farshore stat says."""
        done = self.tests.call("stat", str(pid or self.pid), "--json")
        expect(done.status == 0, f"stat: {done.err}")
        return json.loads(done.out)

    def spaces(self, pid=None):
        """Name and state of each space."""
        return {space["name"]: space["state"] for space in self.stat(pid)["spaces"]}

    def until_state(self, spec, state):
        """Waits until a space is in a state."""
        deadline = time.monotonic() + 60
        while (now := self.spaces().get(spec)) != state:
            expect(time.monotonic() < deadline and self.process.alive(), f"{spec} is {now}, not {state}: {self.process.stderr_so_far()[-300:]}")
            time.sleep(0.02)

    def has_open(self, folder, pid=None):
        """Whether it has a file of a directory open, in its table of descriptors or in a ring's."""
        place = f"/proc/{pid or self.pid}"
        for number in os.listdir(f"{place}/fd"):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(f"{place}/fd/{number}")
                if target.startswith(folder + "/") or ("io_uring" in target and folder in harness.read_text(f"{place}/fdinfo/{number}")):
                    return True
        return False

    def closed(self, folder):
        """Checks that it has no file there any more. (The kernel gives a ring's file back a little later.)"""
        deadline = time.monotonic() + 60
        while self.has_open(folder):
            expect(time.monotonic() < deadline, f"a file in {folder} is still open")
            time.sleep(0.02)

    def tell(self, line):
        """Tells the program `lost` something, and returns its answer."""
        self.process.popen.stdin.write(line.encode() + b"\n")
        self.process.popen.stdin.flush()
        return self.answer()

    def answer(self):
        """A line of the program's."""
        line = self.process.popen.stdout.readline().decode().split()
        if not line:
            told = self.process.stderr_so_far()
            raise Failed(f"it ended with status {self.process.finish().status}: {told[-500:]}")
        return line


class Spaces(Command):
    """Programs with swap spaces."""


    def folders(self, *names):
        """A directory for each name; the specs of spaces there."""
        place = self.folder("spaces", 0o777)
        for name in names:
            os.mkdir(os.path.join(place, name))
            os.chmod(os.path.join(place, name), 0o777)
        return [f"dir:{place}/{name}" for name in names]

    @contextlib.contextmanager
    def program(self, limit, swap, argv, options=(), faulty=None, status=0, timeout=150):
        """A program while it runs. It must end as said."""
        with self.running(["--memory", limit, *options, *swaps(swap)], argv, faulty, timeout=timeout, stdin=subprocess.PIPE) as process:
            program = Program(self, process)
            yield program
            with contextlib.suppress(BrokenPipeError):
                process.popen.stdin.close()
            outcome, program.out = self.ended(process)
            program.err = outcome.stderr
            expect(outcome.status == status, f"status {outcome.status}: {outcome.stderr[-500:]}")

    @contextlib.contextmanager
    def lost(self, limit, swap, pages, **more):
        """The program `lost`, filled."""
        with self.program(limit, swap, [self.public_program("lost"), str(pages)], **more) as program:
            program.area = int(program.answer()[1], 16)
            yield program

    def load(self, size):
        """Three threads that update memory until the input ends, and verify it; `filled` is said when they begin."""
        return [self.public_program("updates"), size, "3"]
