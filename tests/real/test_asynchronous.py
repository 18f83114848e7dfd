"""Asynchronous I/O of programs, by io_uring and Linux AIO: natively, and under Farshore with less memory than they use.

The programs are `tests/programs/asynchronous` and fio. What a section prints, and how it ends, must be the same; fio checks each block that it reads.
"""

import ctypes
import errno
import os
import subprocess

import harness
from command import NOBODY, Command
from compare import Case
from harness import MIB, Unavailable, expect

# Memory of the sections, and MiB of ballast that pushes all else out.
ROOMY, BALLAST = 24 * MIB, "60"
# Sections with more in flight than a limit like this lets them pin, and that limit.
TIGHT = {"deep": 12 * MIB, "contextdeep": 12 * MIB, "threads": 8 * MIB, "late": 5 * MIB, "churned": 8 * MIB, "files": 8 * MIB}
# What of fio is checked: its options, and the memory under Farshore (a quarter of what it takes natively).
FIO = {
    "rings": (["--ioengine=io_uring", "--bs=64k", "--iodepth=32", "--direct=1", "--thread"], 8 * MIB),
    "rings-cached": (["--ioengine=io_uring", "--bs=16k", "--iodepth=128", "--thread", "--numjobs=2"], 8 * MIB),
    "rings-large": (["--ioengine=io_uring", "--bs=512k", "--iodepth=64", "--direct=1", "--thread"], 12 * MIB),
    "rings-forked": (["--ioengine=io_uring", "--bs=4k-128k", "--iodepth=16", "--numjobs=2"], 8 * MIB),
    "rings-fixed": (["--ioengine=io_uring", "--fixedbufs", "--registerfiles", "--bs=32k", "--iodepth=16", "--direct=1", "--thread"], 8 * MIB),
    "rings-vectors": (["--ioengine=io_uring", "--nonvectored=0", "--bs=64k", "--iodepth=32", "--thread"], 8 * MIB),
    "contexts": (["--ioengine=libaio", "--bs=64k", "--iodepth=32", "--direct=1", "--thread"], 8 * MIB),
    "contexts-large": (["--ioengine=libaio", "--bs=512k", "--iodepth=64", "--direct=1", "--thread"], 12 * MIB),
    "contexts-reaped": (["--ioengine=libaio", "--userspace_reap", "--bs=16k", "--iodepth=64", "--direct=1"], 8 * MIB),
}


def have_rings():
    """Unavailable where the kernel gives no rings (an old one, a sysctl, a container's filter)."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Without memory for its parameters the call fails, if it is there.
    if libc.syscall(425, 1, None) == -1 and ctypes.get_errno() != errno.EFAULT:
        raise Unavailable("there is no io_uring here")


def sections(name, argv):
    """The command line of a section, if it can run here."""
    if not name.startswith("context"):
        have_rings()
    return argv


def fio(folder, options):
    """A command line that writes and reads files of a folder and checks what it has read."""
    if "--ioengine=io_uring" in options:
        have_rings()
    return [harness.need("fio", "fio"), "--name=blocks", f"--directory={folder}", "--rw=randrw", "--size=24m", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64",
            "--do_verify=1", "--randseed=7", "--output=/dev/null", *options]


def cases():
    """All of them."""
    program = harness.build_program("asynchronous")
    names = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    found = [Case(name, lambda _, name=name: sections(name, [program, BALLAST, name]), ROOMY) for name in names]
    found += [Case(f"{name}:tight", lambda _, name=name: sections(name, [program, BALLAST, name]), limit) for name, limit in TIGHT.items()]
    # What fits at first: the process is dormant when it makes its first ring.
    found += [Case(f"{name}:fits", lambda _, name=name: sections(name, [program, "1", name]), 64 * MIB) for name in ("files", "late", "forked", "contexts", "errors", "closed", "contexterrors")]
    found += [Case(f"fio:{name}", lambda folder, options=options: fio(folder, options), limit) for name, (options, limit) in FIO.items()]
    return found


def test_asynchronous(case, both, mode):
    """Each section prints and ends as natively."""
    both.same(case, mode)


class TestOrdinaryUser(Command):
    """Without any privilege."""

    def test_sections(self):
        """Some sections, as an ordinary user."""
        program = self.public_program("asynchronous")
        place = self.folder("user", 0o777)
        env = {"TMPDIR": place, "HOME": "/"}
        for section in ("files", "late", "registered", "forked", "contexts"):
            native = self.call_program([program, BALLAST, section], user=NOBODY, env=env)
            done = self.call("run", "--memory", "24M", "--swap", f"dir:{place}", "--", program, BALLAST, section, user=NOBODY, env=env)
            expect((done.status, done.out) == (native.status, native.out), f"{section}: status {done.status}: {done.out[-200:]} {done.err[-300:]}")
        return "an ordinary user" if os.geteuid() == 0 else "this is an ordinary user already"
