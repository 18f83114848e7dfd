"""A machine that QEMU emulates (TCG), which fills its memory by processes and by files (`emulated`), and says on its serial line what was there."""

import os
import re
import time

import harness
import kernels
from command import Command
from harness import expect

# Machines that fill their memory within seconds, in half a minute, and in minutes.
TINY, SMALL, LARGE = (192, 45, 2_000_000), (256, 70, 6_000_000), (512, 150, 12_000_000)
# What machines have said natively, by their sizes: of one process's tests each boots natively once.
natively = {}


def anonymous_of(pid):
    """Anonymous memory of a process that is in RAM; none of one that ends."""
    try:
        return harness.anonymous_bytes(pid)
    except OSError:
        return 0


def without_times(said):
    """What a machine says, without the lines of its kernel, which have a time."""
    return "".join(line for line in said.splitlines(True) if not re.match(r"\[ *\d", line))


class Machine(Command):
    """Tests that boot one. `size`: MiB of its memory, of each of the two processes that fill it, and lines of the files that do."""

    def machine(self, mib, each, lines):
        """The command line of a machine of this size."""
        return [*kernels.plain_guest(self.folder("machine"), "emulated", mib, 2, ["scan"], [("size", each), ("lines", lines)]), "-serial", "stdio"]

    def boot(self, argv, timeout, size_of, pause=0.2):
        """Runs it; what it says, what of a process of it was in RAM at most (`size_of` its number), and the end of it all."""
        work = self.folder("boot")
        with open(os.path.join(work, "console"), "w+b") as console:
            process = harness.Process(argv, work, timeout, stdout=console)
            most = 0
            try:
                while process.alive():
                    most = max([most, *map(size_of, harness.session_pids(process.popen.pid))])
                    time.sleep(pause)
                outcome = process.finish()
            finally:
                process.kill_session()
            console.seek(0)
            said = console.read().decode(errors="replace").replace("\r", "")
        expect(not outcome.timed_out, f"no end: {said[-2000:]}\n{outcome.picture}")
        expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-1000:]}\n{said[-2000:]}")
        return without_times(said), most, outcome

    def native(self, size):
        """What such a machine does natively, as `boot` tells it, with its anonymous memory."""
        if size not in natively:
            natively[size] = self.boot(self.machine(*size), 600, anonymous_of)
            said = natively[size][0]
            expect(said.count("the same") == 2 and len(re.findall(r"^[0-9a-f]{32}  ", said, re.M)) == 2, f"natively: {said}")
        return natively[size]
