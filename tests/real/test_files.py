"""Mappings of files that are managed (`--files`): each section natively and under Farshore; who may have it; what a disk that fails does; what others write.

The program is `tests/programs/mapped.c`. What a section prints, and how it ends, must be the same natively and under Farshore. That the mappings are managed is
seen by the counters.
"""

import json
import os
import shutil
import subprocess
import time

import harness
from command import Command, NOBODY
from compare import Both, Case
from harness import MIB, Unavailable, expect

# MiB of the file, and the memory for it.
FILE, LIMIT, BESIDES = 32, 8 * MIB, 24 * MIB
# Natively their pages are in the page cache, which the kernel counts for whoever has them mapped; so are they when they were handed back.
BOUNDED = ("private", "shared", "populated", "written")


class WithFiles(Both):
    """Runs the command with `--files`."""

    def run(self, argv, env, stdin, folder):
        if argv[0] == self.farshore:
            argv = [argv[0], argv[1], "--files", *argv[2:]]
        return super().run(argv, env, stdin, folder)


BOTH = WithFiles


def cases():
    """All sections."""
    program = harness.build_program("mapped")
    listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    return [Case(section, lambda _, section=section: [program, str(FILE), section], LIMIT) for section in listed]


def test_files(case, both, mode):
    """Each section prints and ends as natively; what is not handed back stays within the limit."""
    outcome = both.same(case, mode)
    if case.name in BOUNDED:
        peak = outcome.peak_rss or 0
        expect(peak <= LIMIT + BESIDES, f"{peak / MIB:.0f} MiB were resident, with a limit of {LIMIT / MIB:.0f} MiB")


class TestWhose(Command):
    """Whose files are managed, and what others do to them."""

    def mapped(self, section, file, user=None, mode="upcall", limit=LIMIT, faulty=None, options=("--files",)):
        """Runs a section with this file. The run, and its counters."""
        program, folder = self.public_program("mapped"), self.folder("mapped", 0o777)
        stats = os.path.join(folder, "stats")
        env = {"MAPPED_FILE": file, "TMPDIR": folder, **({"FARSHORE_FAULTY": faulty} if faulty else {})}
        done = self.call("run", "--memory", str(limit), "--fault", mode, "--swap", f"dir:{folder}", *options, "--stats", stats, "--", program, str(FILE), section,
                         user=user, env=env, timeout=110)
        counters = {}
        if os.path.exists(stats):
            with open(stats, encoding="utf-8") as read:
                counters = json.load(read)
        return done, counters

    def file(self, user=None):
        """A new file as the sections expect it, of this user's."""
        path = os.path.join(self.folder("file", 0o777), "data")
        done = self.call_program([self.public_program("mapped"), str(FILE), "make"], env={"MAPPED_FILE": path}, user=user)
        expect(done.status == 0, f"the file cannot be made: {done.err}")
        return path

    def test_own(self, mode):
        """A file of the user's own is managed, and leaves without a write."""
        file = self.file(NOBODY)
        for section in ("private", "shared"):
            done, counters = self.mapped(section, file, user=NOBODY, mode=mode)
            expect(done.status == 0 and done.out == f"{section}: done\n" and not done.err, f"{section}: {done.status} {done.out} {done.err}")
            expect(counters["managed_bytes_peak"] >= FILE * MIB, f"{section}: {counters['managed_bytes_peak']} bytes were managed")
            expect(counters["resident_bytes_peak"] <= LIMIT, f"{section}: {counters['resident_bytes_peak']} bytes were resident")
            expect(counters["faults"]["fetch"] > 500, f"{section}: {counters['faults']}")

    def test_anothers(self):
        """Without the option, and where another user owns the file, or has it open for writing, its mapping is the kernel's: the program runs as natively."""
        for what, file, user, options in (("no option", self.file(), None, ()), ("another's", self.file(), NOBODY, ("--files",))):
            os.chmod(file, 0o644)
            done, counters = self.mapped("shared", file, user=user, options=options)
            expect(done.status == 0 and done.out == "shared: done\n" and not done.err, f"{what}: {done.status} {done.out} {done.err}")
            expect(counters["managed_bytes_peak"] < FILE * MIB / 2, f"{what}: {counters['managed_bytes_peak']} bytes were managed")
        file = self.file()
        with open(file, "r+b"):
            done, counters = self.mapped("private", file)
        expect(done.status == 0 and counters["managed_bytes_peak"] < FILE * MIB / 2, f"open for writing: {done.status} {counters['managed_bytes_peak']}")

    def test_written_by_others(self, mode):
        """A process that knows nothing of Farshore writes a file that is mapped: it waits for no longer than a moment, and its bytes show."""
        file, program = self.file(), self.public_program("mapped")
        env = dict(os.environ, MAPPED_FILE=file)
        run = subprocess.Popen([self.farshore, "run", "--memory", str(LIMIT), "--fault", mode, "--files", "--", program, str(FILE), "asked"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env=env)
        try:
            expect(run.stdout.readline() == b"asked: ready\n", "it is not ready")
            began = time.monotonic()
            # It waits in a system call.
            with open(file, "r+b"):
                pass
            took = time.monotonic() - began
            subprocess.run([program, str(FILE), "rewrite"], env=env, check=True, stdout=subprocess.DEVNULL)
            out, _ = run.communicate(b"go\n", timeout=60)
        finally:
            run.kill()
        expect(run.returncode == 0 and out == b"asked: as it was written\nasked: done\n", f"{run.returncode} {out}")
        # The kernel itself would take the lease away after 45 s (`lease-break-time`).
        expect(took < 30, f"the writer waited {took:.1f} s")
        return f"the writer waited {took * 1000:.0f} ms"

    def test_bad_disk(self, mode):
        """Where a file cannot be read the program gets SIGBUS and a line says so; never wrong bytes. Few errors are overcome."""
        file = self.file()
        done, _ = self.mapped("shared", file, mode=mode, faulty="read_error=0.003,short_read=0.003")
        expect(done.status == 0 and done.out == "shared: done\n", f"some errors: {done.status} {done.out} {done.err}")
        done, _ = self.mapped("shared", file, mode=mode, faulty="read_error=1")
        expect(done.status == 128 + 7 and "a mapped file cannot be read" in done.err, f"all reads fail: {done.status} {done.err}")

    def test_served(self):
        """A thread of the program serves a file that another one maps over memory of its own, and has brought in at once: it can map memory meanwhile."""
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            raise Unavailable("only root mounts a file system by /dev/fuse")
        unshare, program = harness.need("unshare", "util-linux"), self.public_program("served", ("-pthread",))
        for farshore in ([], [self.farshore, "run", "--memory", "16M", "--"]):
            # Farshore says that it does not know the device.
            done = self.call_program([unshare, "-m", "--propagation", "private", *farshore, program, self.folder("served")])
            expect(done.status == 0 and done.out == f"{64 * 4096 * 7}\n", f"{farshore}: {done.status} {done.out} {done.err}")

    def test_killed(self):
        """A program that is killed leaves no lease behind."""
        file, program = self.file(), self.public_program("mapped")
        run = subprocess.Popen([self.farshore, "run", "--memory", str(LIMIT), "--files", "--", program, str(FILE), "asked"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env=dict(os.environ, MAPPED_FILE=file))
        run.stdout.readline()
        run.kill()
        run.wait()
        began = time.monotonic()
        with open(file, "r+b"):
            expect(time.monotonic() - began < 30, "the file was leased still")
        shutil.rmtree(os.path.dirname(file))
