"""A program natively and under Farshore: what it prints, and how it ends, must be the same.

A run that hangs is described (threads, kernel stacks, backtraces) before it is killed.
"""

import os
import tempfile

import harness
from harness import expect

SECONDS = 60
# How a program ends whose own check has failed.
CHECK_FAILED = 99


class Case:
    """A program: `prepare` gives its command line, for a directory; `limit` is its memory under Farshore, in bytes.

    `refused`, where Farshore refuses what the program may do natively: what it prints then (None: the same), and a part of the line that Farshore says.
    """

    def __init__(self, name, prepare, limit, env=None, stdin=None, refused=None):
        self.name, self.prepare, self.limit, self.env, self.stdin, self.refused = name, prepare, limit, env or {}, stdin, refused


class Both:
    """Runs cases, in a directory."""

    def __init__(self, farshore, work):
        self.farshore, self.work, self.native = farshore, work, (None, None)

    def run(self, argv, env, stdin, folder):
        """One run: (stdout, the outcome)."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FARSHORE") and key != "LD_PRELOAD"}
        environment.update(env, TMPDIR=folder, PYTHONHASHSEED="0", LC_ALL="C")
        out = tempfile.TemporaryFile(dir=folder)
        given = tempfile.TemporaryFile(dir=folder)
        given.write((stdin or "").encode())
        given.seek(0)
        with out, given:
            outcome = harness.run(argv, folder, SECONDS, stdin=given, stdout=out, env=environment, cwd=folder)
            out.seek(0)
            return out.read().decode(errors="replace"), outcome

    def natively(self, case, folder):
        """What it prints, and its status. The case before is often the same, in another mode."""
        known, came = self.native
        if known != case.name:
            printed, outcome = self.run(case.prepare(folder), case.env, case.stdin, folder)
            expect(not outcome.timed_out, f"natively: no end after {SECONDS} s\n{outcome.picture}")
            expect(outcome.status != CHECK_FAILED, f"natively: {outcome.stderr[-500:]}")
            came = printed, outcome.status
            self.native = case.name, came
        return came

    def same(self, case, mode):
        """Runs it both ways. The outcome under Farshore."""
        with tempfile.TemporaryDirectory(prefix="case-", dir=self.work) as folder:
            native, status = self.natively(case, folder)
            return self.under_farshore(case, case.prepare(folder), mode, native, status, folder)

    def under_farshore(self, case, argv, mode, native, status, folder):
        """The outcome in one mode; it must be the native one."""
        # A disk that many share stands still for ten seconds now and then, of which a line would tell.
        command = harness.farshore_argv(self.farshore, argv, case.limit, mode, swap=[f"dir:{folder}"], extra=harness.PATIENT)
        printed, outcome = self.run(command, case.env, case.stdin, folder)
        expect(not outcome.timed_out, f"no end after {SECONDS} s\n{outcome.picture}")
        wanted, said = case.refused or (None, None)
        wanted, status = (native, status) if wanted is None else (wanted, 0)
        expect((printed, outcome.status) == (wanted, status), f"status {outcome.status}, natively {status}\n--- printed\n{printed[-3000:]}\n--- instead of\n"
               f"{wanted[-3000:]}\n--- stderr\n{outcome.stderr[-3000:]}")
        ours = [line for line in outcome.stderr.splitlines() if line.startswith("farshore")]
        if said is None:
            expect(not ours, f"a line on stderr: {ours}")
        else:
            expect(any(said in line for line in ours), f"no line with {said!r} on stderr")
        return outcome
