"""QEMU as a program under Farshore: it emulates a machine (TCG) that has more memory than Farshore lets it have.

The machine boots a kernel of Debian's and fills its memory by processes and by files (`emulated`). What it says on its serial line must be the same natively
and under Farshore, and what it takes of RAM must stay within the limit. Each processor of the machine has a thread, and QEMU has handlers of SIGSEGV and SIGBUS
of its own.
"""

import os
import re
import time

import harness
import kernels
from command import Command
from harness import MIB, expect

# MiB of the machine's memory, of each of the two processes that fill it, the lines of the files that do, and the memory for all of QEMU.
GUEST, EACH, LINES, LIMIT = 256, 70, 6_000_000, 128 * MIB
# What Farshore itself may take beside it: the pages of its library's data and of its tables.
BESIDES = 24 * MIB


class TestEmulator(Command):
    """A machine, natively and with half of its memory."""

    def boot(self, before, timeout):
        """Runs it; what it says, what was resident of its anonymous memory at most, and the end of it all."""
        work = self.folder("machine")
        files = {}
        for name, text in (("size", EACH), ("lines", LINES)):
            files[name] = os.path.join(work, name)
            with open(files[name], "w", encoding="ascii") as file:
                file.write(f"{text}\n")
        scan = harness.build_program("scan", ("-static",), out_name="scan_static")
        image = os.path.join(work, "initramfs")
        kernels.initramfs(image, os.path.join(kernels.HERE, "emulated"), [("bin/scan", scan), *files.items()])
        argv = [kernels.qemu(), *kernels.processors(2, "multi"), "-m", f"{GUEST}M", "-nodefaults", "-display", "none", "-no-reboot",
                "-kernel", f"{kernels.kernel('debian12')}/vmlinuz", "-initrd", image, "-append", "console=ttyS0 panic=-1 quiet mitigations=off", "-serial", "stdio"]
        with open(os.path.join(work, "console"), "w+b") as console:
            process = harness.Process([*before, *argv], work, timeout, stdout=console)
            most = 0
            try:
                while process.alive():
                    most = max([most, *map(self.anonymous, harness.session_pids(process.popen.pid))])
                    time.sleep(0.2)
                outcome = process.finish()
            finally:
                process.kill_session()
            console.seek(0)
            said = console.read().decode(errors="replace").replace("\r", "")
        expect(not outcome.timed_out, f"no end: {said[-2000:]}\n{outcome.picture}")
        expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-1000:]}\n{said[-2000:]}")
        # Lines of the kernel have a time.
        return "".join(line for line in said.splitlines(True) if not re.match(r"\[ *\d", line)), most, outcome

    def anonymous(self, pid):
        """Anonymous memory of a process that is in RAM; none of one that ends."""
        try:
            return harness.anonymous_bytes(pid)
        except OSError:
            return 0

    def test_half(self, mode):
        """With half of the memory of the machine it says the same, and the memory is saved."""
        kept = type(self)
        if not hasattr(kept, "native"):
            kept.native = self.boot([], 300)
        said, used, native = kept.native
        expect(said.count("the same") == 2 and len(re.findall(r"^[0-9a-f]{32}  ", said, re.M)) == 2, f"natively: {said}")
        expect(used > LIMIT * 3 // 2, f"natively it has used {used / MIB:.0f} MiB")
        work = self.folder("run")
        stats = os.path.join(work, "stats")
        there, most, outcome = self.boot(harness.farshore_argv(self.farshore, [], LIMIT, mode, [f"dir:{work}"], stats), 600)
        expect(there == said, f"it says:\n{there}\ninstead of:\n{said}")
        expect(not outcome.stderr, f"on stderr: {outcome.stderr[-1000:]}")
        wrong = harness.check_stats(harness.load_stats(stats), LIMIT)
        expect(not wrong, "\n".join(wrong))
        expect(most <= LIMIT + BESIDES, f"{most / MIB:.0f} MiB were resident, with a limit of {LIMIT / MIB:.0f} MiB")
        saved = (used - most) / (used - LIMIT)
        expect(saved >= 0.9, f"natively {used / MIB:.0f} MiB, now {most / MIB:.0f} MiB: of what could be saved, {saved:.0%}")
        return f"{used / MIB:.0f} MiB natively, {most / MIB:.0f} MiB now, {saved:.0%} of what could be saved; {native.seconds:.0f} s, {outcome.seconds:.0f} s"
