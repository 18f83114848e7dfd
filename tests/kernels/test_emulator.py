"""QEMU as a program under Farshore: it emulates a machine (TCG) that has more memory than Farshore lets it have.

What the machine (machine.py) says on its serial line must be the same natively and under Farshore, and what it takes of RAM must stay within the limit. Each processor of the machine has a thread, and QEMU has handlers of SIGSEGV and SIGBUS
of its own.
"""

import os

import harness
import pytest
from harness import MIB, expect
from machine import SMALL, Machine, anonymous_of

# The machine, and the memory for all of QEMU.
SIZE, LIMIT = SMALL, 128 * MIB
# What Farshore itself may take beside it: the pages of its library's data and of its tables.
BESIDES = 24 * MIB


class TestEmulator(Machine):
    """A machine, natively and with half of its memory."""

    @pytest.mark.large
    def test_half(self, mode):
        """With half of the memory of the machine it says the same, and the memory is saved."""
        said, used, native = self.native(SIZE)
        expect(used > LIMIT * 3 // 2, f"natively it has used {used / MIB:.0f} MiB")
        work = self.folder("run")
        stats = os.path.join(work, "stats")
        there, most, outcome = self.boot([*harness.farshore_argv(self.farshore, [], LIMIT, mode, [f"dir:{work}"], stats), *self.machine(*SIZE)], 600, anonymous_of)
        expect(there == said, f"it says:\n{there}\ninstead of:\n{said}")
        expect(not outcome.stderr, f"on stderr: {outcome.stderr[-1000:]}")
        wrong = harness.check_stats(harness.load_stats(stats), LIMIT)
        expect(not wrong, "\n".join(wrong))
        expect(most <= LIMIT + BESIDES, f"{most / MIB:.0f} MiB were resident, with a limit of {LIMIT / MIB:.0f} MiB")
        saved = (used - most) / (used - LIMIT)
        expect(saved >= 0.9, f"natively {used / MIB:.0f} MiB, now {most / MIB:.0f} MiB: of what could be saved, {saved:.0%}")
        return f"{used / MIB:.0f} MiB natively, {most / MIB:.0f} MiB now, {saved:.0%} of what could be saved; {native.seconds:.0f} s, {outcome.seconds:.0f} s"
