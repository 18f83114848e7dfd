#!/usr/bin/env python3
"""What Farshore shows of itself, and whom it lets in: descriptors, a family of several users, its socket, programs that bring a runtime of their own.

    tests/real/family.py [--only NAME] [--farshore PATH]

Each test prints one line; the last one counts: N passed, N failed, N skipped.
"""

import os
import subprocess
import sys

# Before our own modules come in: the source tree stays as it is.
sys.dont_write_bytecode = True

import harness  # noqa: E402
from failures import Tests, expect, run_tests  # noqa: E402
from harness import Unavailable  # noqa: E402


def need_root(what):
    """Skips the test unless this is root."""
    if os.geteuid() != 0:
        raise Unavailable(f"{what} needs root")


class Family(Tests):
    """The tests; every method that begins with `test_` is one."""

    def jail(self):
        """A directory to be shut in."""
        jail = self.folder("jail")
        os.mkdir(os.path.join(jail, "proc"))
        # The swap space of children is opened by its name.
        os.makedirs(os.path.join(jail, "var/tmp"))
        with open(os.path.join(jail, "inside"), "w", encoding="ascii"):
            pass
        return jail

    def test_jail(self):
        """A program that changes its root directory finds no descriptor by which it could leave, and its memory and children are right there."""
        need_root("chroot")
        unshare, seen = harness.need("unshare", "util-linux"), []
        for proc in (False, True):
            jail = self.jail()
            mount = f"mount -t proc proc {jail}/proc && " if proc else ""
            for options in (["--memory", "16M"], ["--memory", "16M", "--no-follow"], None):
                program = [self.public_program("jail"), jail, "12"]
                argv = program if options is None else [self.farshore, "run", *options, "--", *program]
                done = self.call_program([unshare, "-m", "sh", "-c", f'{mount}exec "$@"', "sh", *argv])
                shown = f"{'native' if options is None else options} {'with' if proc else 'without'} /proc"
                wanted = "jail: 0 ways out, 0 descriptors to be had\njail: memory right\njail: children right\n"
                expect(done.status == 0 and done.out == wanted and not done.err, f"{shown}: status {done.status}: {done.out[-300:]} {done.err[-300:]}")
                seen.append(shown)
        return f"{len(seen)} runs"


if __name__ == "__main__":
    try:
        sys.exit(run_tests(Family, __doc__, "family"))
    except KeyboardInterrupt:
        sys.exit(130)
