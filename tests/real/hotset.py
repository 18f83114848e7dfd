"""A program that touches a part of its memory at random (`tests/programs/hotset.c`), while it runs under Farshore: it is told to work on another part, and asked
for its counters.
"""

import contextlib
import json
import os
import subprocess
import time

import harness
from command import Command
from harness import MIB, expect

# How long a state may take to come on a machine that has other things to do.
WATCHDOG = 240
# A fault costs 20 us, whatever the disk does: what is lost is what the program does.
SWAP = "delay:20us"


class Program:
    """A program with a hot part that can be told to be another one."""

    def __init__(self, tests, process, pid):
        self.tests, self.process, self.pid = tests, process, pid

    def say(self, line):
        """Tells the program something."""
        self.process.popen.stdin.write(line.encode() + b"\n")
        self.process.popen.stdin.flush()

    def counters(self, pid=None):
        """What farshore stat says now."""
        done = self.tests.call("stat", str(pid or self.pid), "--json")
        expect(done.status == 0, f"stat: {done.err}")
        found = json.loads(done.out)
        expect(found["evictions"]["synchronous"] == 0, "evictions in faults")
        pilot = found["autopilot"]
        if pilot:
            expect(pilot["least_bytes"] <= found["memory_limit_bytes"] <= pilot["most_bytes"], f"outside of its bounds: {found['memory_limit_bytes']} {pilot}")
        return found

    def limit(self):
        """The limit now, in MiB."""
        return self.counters()["memory_limit_bytes"] / MIB

    def until(self, what, condition):
        """Waits until this is so of the counters, and returns them."""
        deadline = time.monotonic() + WATCHDOG
        while not condition(found := self.counters()):
            expect(time.monotonic() < deadline and not self.process.timed_out,
                   f"not within {WATCHDOG} s: {what}; limit {found['memory_limit_bytes'] / MIB:.0f} MiB, {found['autopilot']}")
            time.sleep(0.2)
        return found

    def until_limit(self, low, high):
        """Waits until the limit, in MiB, is in there."""
        return self.until(f"a limit of {low} to {high} MiB", lambda found: low <= found["memory_limit_bytes"] / MIB <= high)


class Hotset(Command):
    """Tests with such programs."""

    @contextlib.contextmanager
    def program(self, options, size, hot, user=None):
        """A program while it runs. At its end all its bytes must be right."""
        argv = [self.public_program("hotset"), size, hot]
        as_user = [harness.need("setpriv", "util-linux"), "--reuid", str(user), "--regid", str(user), "--clear-groups"] if user else []
        command = [*as_user, self.farshore, "run", *options, "--swap", SWAP, "--stats", "-", "--", *argv]
        process = harness.Process(command, self.work, 3 * WATCHDOG, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ, LC_ALL="C"))
        try:
            expect(process.popen.stdout.readline() == b"ready\n", f"it is not ready: {process.stderr_so_far()[-400:]}")
            program = Program(self, process, self.managed(process))
            yield program
            program.say("end")
            outcome, out = self.ended(process)
            expect(outcome.status == 0 and out == "right\n", f"status {outcome.status}, {out!r}: {outcome.stderr[-500:]}")
            program.last = json.loads(outcome.stderr[outcome.stderr.index("{"):])
        finally:
            process.kill_session()
            process.finish()
