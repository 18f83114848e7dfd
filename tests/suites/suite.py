"""What the suites share: a unit of a suite, the modes it is run in, and how a run is made and watched.

A suite is somebody else's tests of somebody else's program. It is cut into units, each one command that tells the results of its tests by name:

    unit.run(context) -> {test: result}      result: "pass", "fail", "skip", or a sum over what was printed

A unit runs natively first, which gives the results to expect and the memory that is used: the peak resident size of the largest process that is
measured (libraries and program text included, since nothing that a user can see tells them apart). Then under farshore, with a local memory of
a quarter of that, and with 16 MiB. `Context.command` is what puts farshore before a command; where a suite starts programs by itself (redis), it goes
into a stand-in that the suite starts instead (tests/programs/standin.c).

Everything runs as an ordinary user where the tests are started by root: many tests skip or fail as root.
"""

import os
import shutil
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "real"))
sys.dont_write_bytecode = True

import harness  # noqa: E402
from harness import MIB, Unavailable  # noqa: E402,F401

# The user of the tests where root starts them (nobody).
USER = 65534
FIXED_LIMIT = 16 * MIB
# The words for what became of a test, besides sums over outputs.
PASS, FAIL, SKIP = "pass", "fail", "skip"
# A test that the unit did not tell of.
ABSENT = "absent"
# What stands for the end of a unit's command: its exit status.
EXIT = "(exit status)"


class Mode:
    """How a unit is run: natively, or with a share of what it used there, or with a fixed limit."""

    def __init__(self, name, share=None, limit=None):
        self.name, self.share, self.limit = name, share, limit

    @property
    def native(self):
        """Without farshore."""
        return self.share is None and self.limit is None

    def limit_for(self, peak):
        """Bytes of local memory for a unit that used `peak` bytes natively."""
        if self.limit:
            return self.limit
        return max(harness.SMALLEST_LIMIT, int(peak * self.share) // harness.PAGE * harness.PAGE)

    def __str__(self):
        return self.name


NATIVE = Mode("native")
QUARTER = Mode("quarter", share=0.25)
SMALL = Mode("16M", limit=FIXED_LIMIT)


class Unit:
    """One command of a suite. Subclasses say how it is run and how its results are read."""

    # Seconds that a native run may take; under farshore `SLOWER` times as many.
    timeout = 300
    SLOWER = 4

    def __init__(self, suite, name, short=False):
        self.suite, self.name, self.short = suite, name, short

    def run(self, context):
        """Runs it in the context's mode; returns {test: result}."""
        raise NotImplementedError

    def __str__(self):
        return f"{self.suite} {self.name}"


class Run:
    """What came of a unit in one mode."""

    def __init__(self, context, results):
        self.mode, self.limit, self.results = context.mode, context.limit, results
        self.peak, self.seconds, self.folder = context.peak, context.seconds, context.folder
        self.timed_out = context.timed_out


class Context:
    """What a unit sees while it runs in one mode."""

    def __init__(self, place, unit, mode, folder, peak=0, number=0):
        self.place, self.unit, self.mode, self.folder, self.number = place, unit, mode, folder, number
        self.limit = None if mode.native else mode.limit_for(peak)
        self.timeout = unit.timeout * (1 if mode.native else unit.SLOWER)
        self.peak, self.seconds, self.timed_out = 0, 0.0, False
        self.home = os.path.join(folder, "home")
        for path in (folder, self.home):
            os.makedirs(path)
            self.give(path)

    def give(self, path):
        """Makes a file or directory the ordinary user's."""
        if os.geteuid() == 0:
            os.chown(path, USER, USER)

    def give_tree(self, top):
        """Makes a directory and everything in it the ordinary user's."""
        for folder, names, files in os.walk(top):
            for path in [folder, *(os.path.join(folder, name) for name in names + files)]:
                if os.geteuid() == 0:
                    os.lchown(path, USER, USER)

    def path(self, name):
        """A path in the run's own directory."""
        return os.path.join(self.folder, name)

    def farshore(self):
        """The words that go before a command: none natively."""
        if self.mode.native:
            return []
        return [*harness.farshore_argv(self.place.farshore, [], self.limit, swap=self.place.swap)]

    def environment(self, more=None):
        """The environment of a run: no setting of the caller's reaches it."""
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", "HOME": self.home, "TMPDIR": self.home,
               "USER": "nobody", "LOGNAME": "nobody", "SHELL": "/bin/sh", "TERM": "dumb"}
        env.update({key: value for key, value in os.environ.items() if key in ("FARSHORE_SWAP_DIR", "FARSHORE_FAULTY")})
        env.update(more or {})
        return env

    def run(self, argv, stdin=None, cwd=None, env=None, wrapped=True):
        """Runs a command to its end; returns (status, path of stdout, path of stderr). `wrapped`: the command itself is what is tested."""
        command = [*(self.farshore() if wrapped else []), *argv]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
        out, err = self.path("stdout"), self.path("stderr")
        with open(out, "ab") as stdout:
            outcome = self.place.watch(command, self.folder, self.timeout, stdin=stdin, stdout=stdout, env=self.environment(env), cwd=cwd or self.home)
        with open(err, "a", encoding="utf-8") as file:
            file.write(outcome.stderr)
        if outcome.timed_out:
            self.timed_out = True
            with open(self.path("hung"), "a", encoding="utf-8") as file:
                file.write(outcome.picture)
        if wrapped:
            self.peak = max(self.peak, outcome.peak_rss or 0)
        self.seconds += outcome.seconds
        return outcome.status, out, err


class Place:
    """Where everything happens: farshore (a copy that the ordinary user may read), the work directory, the swap spaces."""

    def __init__(self, work, farshore, library, swap=()):
        self.work, self.swap = work, swap
        self.running, self.ended, self.lock = set(), False, threading.Lock()
        os.chmod(work, 0o755)
        folder = os.path.join(work, "farshore")
        os.makedirs(folder)
        self.farshore = shutil.copy(farshore, folder)
        shutil.copy(library, os.path.join(folder, "libfarshore.so"))

    def watch(self, *what, **options):
        """Runs a command under the watchdog; `end_all` ends it too."""
        with self.lock:
            if self.ended:
                raise KeyboardInterrupt
            process = harness.Process(*what, **options)
            self.running.add(process)
        try:
            return process.finish()
        finally:
            # A server that the suite has left behind.
            process.kill_session()
            with self.lock:
                self.running.discard(process)

    def end_all(self):
        """Ends every command that runs, and starts no more."""
        with self.lock:
            self.ended = True
            for process in self.running:
                process.kill_session()

    def shared(self, name, make):
        """A directory that several units read; `make(path)` fills it once."""
        path = os.path.join(self.work, name)
        if not os.path.isdir(path):
            os.makedirs(path + ".new")
            make(path + ".new")
            os.rename(path + ".new", path)
        return path


def keep_worst(results, name, result):
    """Notes the result of a test that may have run more than once: the worst counts.

    >>> results = {}
    >>> for result in (PASS, FAIL, SKIP): keep_worst(results, "a", result)
    >>> results
    {'a': 'fail'}
    """
    results[name] = max(result, results.get(name, PASS), key=(PASS, SKIP, FAIL).index)


def find_library(farshore):
    """libfarshore.so of the command that is tested."""
    for path in (os.environ.get("FARSHORE_LIBRARY"), os.path.join(os.path.dirname(farshore), "libfarshore.so")):
        if path and os.path.isfile(path):
            return path
    raise SystemExit(f"no libfarshore.so beside {farshore}: build it with `cargo build --release`")


def differences(expected, found):
    """Tests that ended otherwise than natively, as {test: (natively, now)}."""
    tests = set(expected) | set(found)
    return {test: (expected.get(test, ABSENT), found.get(test, ABSENT)) for test in tests
            if expected.get(test, ABSENT) != found.get(test, ABSENT)}
