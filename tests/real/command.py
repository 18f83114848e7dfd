"""The command as tests use it: a copy that every user may run, runs of it under a watchdog, and what must be true of any run.

A class of tests inherits [`Command`]; its methods that begin with `test_` are the tests. They return a short text on what was seen.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

import harness
import pytest
from harness import MIB, Failed, Unavailable, expect

NOBODY = 65534


class Command:
    """The command, and a directory of the tests' own."""

    @pytest.fixture(autouse=True, scope="class")
    def made_ready(self, request, work):
        """Once for the class: where it is, and what is random. No fixed order of kills is better than another; the seed is shown, so that a failure can be looked at again."""
        ours = type(self)
        ours.options, ours.work, ours.seed = request.config.option, work, request.config.option.seed
        ours.random = random.Random(ours.seed)
        library = os.environ.get("FARSHORE_LIBRARY")
        ours.farshore = self.public_farshore()
        yield
        if library:
            os.environ["FARSHORE_LIBRARY"] = library

    def public_farshore(self):
        """A copy of the command and its library where every user can read them."""
        given = harness.find_farshore(self.options.farshore)
        folder = self.folder("bin")
        shutil.copy(given, folder)
        library = os.environ.get("FARSHORE_LIBRARY") or os.path.join(os.path.dirname(os.path.realpath(given)), "libfarshore.so")
        if os.path.exists(library):
            shutil.copy(library, folder)
            # The copy beside the command is the one to use, for every user.
            os.environ.pop("FARSHORE_LIBRARY", None)
        os.chmod(folder, 0o755)
        return os.path.join(folder, "farshore")

    @property
    def bin(self):
        """Where it is, and test programs."""
        return os.path.dirname(self.farshore)

    def public_program(self, name, flags=()):
        """A test program where every user can run it."""
        built, copy = harness.build_program(name, flags), os.path.join(self.bin, name)
        if not os.path.exists(copy):
            shutil.copy(built, copy)
            os.chmod(copy, 0o755)
        return copy

    def folder(self, name, mode=0o755):
        """A new directory of our own."""
        path = tempfile.mkdtemp(prefix=f"{name}-", dir=self.work)
        os.chmod(path, mode)
        return path

    def beside(self, *names):
        """Copies what was built of these names to the copy of the command, which looks for it there."""
        built = os.path.dirname(os.path.realpath(harness.find_farshore(self.options.farshore)))
        for name in names:
            expect(os.path.exists(os.path.join(built, name)), f"{name} is not built: it is not in {built}")
            if not os.path.exists(os.path.join(self.bin, name)):
                shutil.copy(os.path.join(built, name), self.bin)

    def call(self, *arguments, timeout=60, user=None, env=None):
        """Runs farshore with these arguments."""
        return self.call_program([self.farshore, *arguments], timeout, user, env)

    def call_program(self, argv, timeout=60, user=None, env=None):
        """Runs a command, as another user if asked; the status is as a shell says it."""
        if user is not None and os.geteuid() == 0:
            argv = [harness.need("setpriv", "util-linux"), "--reuid", str(user), "--regid", str(user), "--clear-groups", *argv]
        environment = dict(os.environ, LC_ALL="C", **(env or {}))
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, env=environment,
                                  cwd="/", check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {timeout} s: {' '.join(argv)}") from None
        done.status = done.returncode if done.returncode >= 0 else 128 - done.returncode
        done.out, done.err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return done

    def refused(self, arguments, statuses, word, user=None, env=None):
        """One bad input: the status, one line on stderr that names the value, nothing on stdout."""
        done = self.call(*arguments, user=user, env=env)
        shown = "farshore " + " ".join(arguments)
        expect(done.status in statuses, f"{shown}: status {done.status}, not {statuses}: {done.err.strip()[:200]}")
        lines = done.err.splitlines()
        expect(len(lines) == 1 and lines[0].strip(), f"{shown}: {len(lines)} lines on stderr, not one: {done.err[:300]!r}")
        expect(word in lines[0], f"{shown}: the line does not name {word!r}: {lines[0]}")
        expect(not done.out, f"{shown}: something on stdout")

    @contextlib.contextmanager
    def tmpfs(self, size, options=""):
        """A tmpfs of a size, with more options that begin with a comma, and its own mount point; root only."""
        if os.geteuid() != 0:
            raise Unavailable("mounting needs root")
        place = self.folder("tmpfs", 0o777)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777{options}", "farshore-test", place], stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise Unavailable(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", place], check=False)

    @contextlib.contextmanager
    def image(self, size):
        """A small ext4 file system in a file; root only."""
        if os.geteuid() != 0:
            raise Unavailable("mounting needs root")
        mkfs, place, file = harness.need("mkfs.ext4", "e2fsprogs"), self.folder("image", 0o777), os.path.join(self.work, "image.ext4")
        with open(file, "wb") as disk:
            disk.truncate(size)
        subprocess.run([mkfs, "-q", "-m", "0", file], check=True, stderr=subprocess.DEVNULL)
        done = subprocess.run(["mount", "-o", "loop", file, place], stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise Unavailable(f"cannot mount a file: {done.stderr.decode().strip()}")
        try:
            yield place
        finally:
            # The kernel takes down the rings of a program that has ended a little later, and their files with them.
            for _ in range(100):
                if subprocess.run(["umount", place], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                    break
                time.sleep(0.05)
            else:
                subprocess.run(["umount", "-l", place], check=False)
            os.unlink(file)

    def scan_sum(self, size):
        """What the scan program prints for this size: its first line's checksum."""
        done = self.call_program([self.public_program("scan"), str(size), "1"])
        return done.out.split()[2]

    def overfull(self, spec, place_for, limit, size):
        """Runs scan with a limit and a swap space; says how it ended after checking that this was a good way."""
        done = self.call("run", "--memory", str(limit), "--swap", spec, "--", self.public_program("scan"), str(size), "2", timeout=120)
        right = self.scan_sum(size)
        for line in done.out.splitlines():
            expect(line.split()[2] == right, f"{place_for}: wrong data: {line}, not {right}")
        notes = [line for line in done.err.splitlines() if line.strip()]
        if done.status == 0:
            expect(len(done.out.splitlines()) == 3, f"{place_for}: ended early with status 0")
            return "went on"
        expect(done.status == 128 + signal.SIGBUS, f"{place_for}: status {done.status}: {done.err[-300:]}")
        # A tmpfs cannot do direct I/O, which is said once at the start, and a disk that is full is told of once; the reason of the end is
        # one line more.
        reasons = [line for line in notes if "O_DIRECT" not in line and "buffered" not in line]
        full = [line for line in reasons if " is full: " in line]
        reasons = [line for line in reasons if line not in full]
        expect(len(full) <= 1, f"{place_for}: {len(full)} lines about a full disk: {done.err[-500:]!r}")
        expect(len(reasons) == 1 and reasons[0].startswith("farshore: page 0x"), f"{place_for}: {len(reasons)} lines on stderr: {done.err[-500:]!r}")
        return "ended with SIGBUS and a reason"

    @contextlib.contextmanager
    def running(self, arguments, program, faulty=None, timeout=120, stdin=None):
        """A program under farshore, with faults injected; its stderr can be looked at while it runs. Under a watchdog."""
        env = dict(os.environ, LC_ALL="C", **({"FARSHORE_FAULTY": faulty} if faulty else {}))
        argv = [self.farshore, "run", *arguments, "--", *program]
        process = harness.Process(argv, self.work, timeout, stdin=stdin, stdout=subprocess.PIPE, env=env)
        try:
            yield process
        finally:
            process.kill_session()
            process.finish()

    def ended(self, process):
        """Waits for the end of a run: its outcome and what it has printed. A run that hangs fails with a picture of itself."""
        out = process.popen.stdout.read().decode(errors="replace")
        outcome = process.finish()
        expect(not outcome.timed_out, f"no end: {' '.join(process.argv)}\n{outcome.stderr[-500:]}\n{outcome.picture}")
        return outcome, out

    def managed(self, process):
        """The process id of the program once it answers."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for pid in harness.session_pids(process.popen.pid):
                if pid != process.popen.pid and self.call("stat", str(pid)).status == 0:
                    return pid
            time.sleep(0.05)
        raise subprocess.SubprocessError("nobody answers farshore stat")

    def counters(self, pid):
        """What farshore stat says."""
        done = self.call("stat", str(pid), "--json")
        expect(done.status == 0, f"stat: {done.err}")
        return json.loads(done.out)

    def modes(self):
        """The deliveries that this user may have."""
        return ["upcall", "poll"]

    def check_lost_pages(self, text, consequence):
        """Every line about a page names its address, its slot and space, the reason and what comes of it."""
        lines = [line for line in text.splitlines() if "cannot be had" in line]
        form = re.compile(r"farshore: page 0x[0-9a-f]+ cannot be had: slot [0-9]+ of swap space (dir|file|dev):\S+ "
                          r"(cannot be read \(.*\)|has other bytes than were written to it); (.*)")
        for line in lines:
            found = form.fullmatch(line)
            expect(found and found[3] in consequence, f"a strange line: {line}")
        return len(lines)

    def leftovers(self, place, pid):
        """What a run left behind."""
        left = [os.path.join(place, name) for name in os.listdir(place)]
        # Not the longer number of another test's process.
        own = re.compile(rf"(?<!\d){pid}(?!\d)")
        for folder in ("/tmp", "/dev/shm", os.environ.get("XDG_RUNTIME_DIR") or "/tmp"):
            if os.path.isdir(folder):
                left += [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("farshore") and own.search(name)]
        sockets = [line.split()[-1] for line in harness.read_text("/proc/net/unix").splitlines() if "farshore" in line]
        return left + [name for name in sockets if name.rstrip("\0").endswith(f"-{pid}")]

    def kill_once(self, fault, spec, place, delay, number=signal.SIGKILL, program=None):
        """Starts a program, kills it after `delay` seconds, and looks for what is left."""
        program = program or [harness.find_load(), "random", "--size=32M", "--threads=4", "--seconds=30", "--warmup=0"]
        argv = harness.farshore_argv(self.farshore, program, 8 * MIB, fault, [spec])
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        try:
            time.sleep(delay)
            readable = []
            for name in os.listdir(place):
                # It may have no name any more.
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(os.path.join(place, name)).st_mode & 0o077:
                        readable.append(name)
            os.kill(child.pid, number)
            said = child.communicate(timeout=20)[1].decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            raise Failed(f"{fault}: alive 20 s after signal {number}\n{harness.describe_process(child.pid)}") from None
        finally:
            for pid in harness.session_pids(child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if child.poll() is None:
                child.wait()
        expect(child.returncode == -number, f"{fault}: ended with {child.returncode} before the kill after {delay:.3f} s: {said[-200:]}")
        expect(not readable, f"{fault}: others can read {readable}")
        left = self.leftovers(place, child.pid)
        expect(not left, f"{fault}: killed after {delay:.3f} s, left {left}")

    def resident(self, pid):
        """Resident bytes, the limit, and pages that a lowered limit has to get back yet, from farshore stat."""
        done = self.call("stat", str(pid), "--json")
        expect(done.status == 0, f"stat: {done.err}")
        stats = json.loads(done.out)
        return stats["resident_bytes"], stats["memory_limit_bytes"], stats["frames"]["debt"]

    def until_within(self, pid, size):
        """Waits until a limit that was set has come to be: nothing is owed of what it took, and what is there is within it; its bytes."""
        wanted, deadline = harness.parse_size(size), time.monotonic() + 60
        while True:
            resident, limit, owed = self.resident(pid)
            if limit == wanted and owed == 0 and resident <= wanted:
                return wanted
            expect(time.monotonic() < deadline, f"set memory={size}: limit {limit}, resident {resident}, {owed} pages owed after a minute")
            time.sleep(0.05)
