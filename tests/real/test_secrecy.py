"""What --encrypt promises: the swap file reads as noise, and the key is in no core dump.

The program fills its memory with a marker. Its swap files are read through /proc/PID/fd while it waits, its key's page through
/proc/PID/mem, its core is gdb's. Each look is also made where it must find something (without --encrypt; with the page of the key
dumped on purpose), so that a test which sees nothing is known to see. Needs the right to trace its own children. Each test prints one line;
the last one counts: N passed, N failed, N skipped.
"""

import collections
import contextlib
import json
import os
import re
import signal
import subprocess
import zlib

import harness
from command import Command, NOBODY
from harness import MIB, Unavailable, expect

PARENT, CHILD = b"PARENTS-SECRET!!", b"CHILDREN-SECRET!"
LIMIT, SIZE = "8M", 24 * MIB
PAGE, BLOCK = 4096, 16


class Secret:
    """The program with its memory full of markers, which waits."""

    def __init__(self, tests, options, fork=False, timeout=120):
        self.place = tests.folder("secret", 0o777)
        argv = [tests.farshore, "run", "--memory", LIMIT, "--swap", f"dir:{self.place}", *options, "--", tests.public_program("secret"), str(SIZE)]
        self.process = harness.Process(argv + (["fork"] if fork else []), tests.work, timeout, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.says("filled")
        self.pid = min(pid for pid in harness.session_pids(self.process.popen.pid) if pid != self.process.popen.pid)

    def says(self, word):
        """The next line, which must begin with this word: the words behind it."""
        line = self.process.popen.stdout.readline().decode().split()
        expect(line[:1] == [word], f"{word!r} expected, not {line}: {self.process.stderr_so_far()[-300:]}")
        return line[1:]

    def go_on(self):
        """Lets the program go on."""
        self.process.popen.stdin.write(b"\n")
        self.process.popen.stdin.flush()

    def ends_right(self):
        """The program finds its memory as it was."""
        self.says("right")
        outcome = self.process.finish()
        expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-300:]}")

    def stored(self, pid=None):
        """The pages that the swap files of a process hold; pages of zeros are holes, and no page of this program."""
        pages = []
        for name in os.listdir(f"/proc/{pid or self.pid}/fd"):
            path = f"/proc/{pid or self.pid}/fd/{name}"
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(path).startswith(self.place + "/"):
                    with open(path, "rb") as file:
                        pages += iter(lambda file=file: file.read(PAGE), b"")
        return b"".join(page for page in pages if page.strip(b"\0"))


@contextlib.contextmanager
def secret(tests, *options, fork=False):
    """A Secret, ended at the end."""
    running = Secret(tests, options, fork)
    try:
        yield running
    finally:
        running.process.kill_session()
        running.process.finish()


def chi_square(data):
    """How far the counts of byte values are from even ones: for noise about 255, with a standard deviation of 23."""
    counts = collections.Counter(data[: 4 * MIB])
    even = counts.total() / 256
    return sum((counts[value] - even) ** 2 / even for value in range(256))


def expect_noise(data, what):
    """Nothing of the program, and nothing that tells one block from another."""
    expect(len(data) > SIZE // 4, f"{what}: only {len(data)} bytes were stored")
    for marker in (PARENT, CHILD, PARENT[:8], CHILD[:8]):
        expect(marker not in data, f"{what}: {marker} is on the disk")
    # Ten standard deviations: noise never gets there.
    chi = chi_square(data)
    expect(25 < chi < 485, f"{what}: byte values are uneven: {chi:.0f}")
    expect(len(zlib.compress(data, 6)) >= len(data), f"{what}: can be compressed")
    blocks = {data[start : start + BLOCK] for start in range(0, len(data), BLOCK)}
    expect(len(blocks) == len(data) // BLOCK, f"{what}: {len(data) // BLOCK - len(blocks)} blocks occur twice")


def key_page(pid):
    """Address of the page that is locked and not dumped, of which there must be one; it must not be writable."""
    found, address, rights = [], 0, ""
    for line in harness.read_text(f"/proc/{pid}/smaps", 1 << 24).splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            (start, end), rights = (int(part, 16) for part in line.split()[0].split("-")), line.split()[1]
            address = (start, end)
        elif line.startswith("VmFlags:") and {"dd", "lo"} <= set(line.split()):
            found.append((*address, rights))
    expect(len(found) == 1, f"{len(found)} mappings of {pid} are locked and not dumped: {found}")
    (start, end, rights), = found
    expect((end - start, rights) == (PAGE, "r--p"), f"the page of the key: {end - start} bytes, {rights}")
    return start


def key_words(pid, address):
    """What must not be found: the words of the key's page that nobody has by chance."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        page = memory.read(PAGE)
    words = {page[start : start + BLOCK] for start in range(0, PAGE, BLOCK)}
    words = {word for word in words if len(set(word)) > 6}
    expect(len(words) > 30, f"only {len(words)} words in the page of the key")
    return words


class TestSecrecy(Command):
    def test_swap_file(self):
        """A pattern that is in the file without --encrypt and not with it."""
        with secret(self) as running:
            plain = running.stored()
            expect(plain.count(PARENT) > SIZE // 4 // 32, f"without --encrypt the marker is there {plain.count(PARENT)} times in {len(plain)} bytes")
            expect(chi_square(plain) > 485 and len(zlib.compress(plain, 6)) < len(plain) // 2, "without --encrypt it is noise too")
            running.go_on()
            running.ends_right()
        with secret(self, "--encrypt") as running:
            data = running.stored()
            expect_noise(data, "swap file")
            running.go_on()
            running.ends_right()
        return f"{len(plain) // MIB} MiB plain, {len(data) // MIB} MiB of noise"

    def test_poll(self):
        """The same with handler threads."""
        if not harness.poll_allowed():
            raise Unavailable("no right to poll")
        with secret(self, "--encrypt", "--fault", "poll") as running:
            expect_noise(running.stored(), "swap file")
            running.go_on()
            running.ends_right()
        return "noise"

    def test_config(self):
        """encrypt = true in a file; the counters and stat say so."""
        path = os.path.join(self.folder("config"), "far.toml")
        with open(path, "w", encoding="ascii") as file:
            file.write("encrypt = true\n")
        stats = os.path.join(self.folder("stats"), "stats.json")
        with secret(self, "--config", path, "--stats", stats) as running:
            expect_noise(running.stored(), "swap file")
            done = self.call("stat", str(running.pid), "--json")
            expect(done.status == 0 and json.loads(done.out)["spaces"][0]["encrypted"] is True, f"stat --json: {done.out} {done.err}")
            expect("encrypted" in self.call("stat", str(running.pid)).out, "stat does not say that the space is encrypted")
            running.go_on()
            running.ends_right()
        counters = harness.load_stats(stats)
        expect(counters["spaces"][0]["encrypted"] is True, f"--stats: {counters['spaces']}")
        with secret(self) as running:
            done = self.call("stat", str(running.pid), "--json")
            expect(json.loads(done.out)["spaces"][0]["encrypted"] is False, f"without --encrypt: {done.out}")
        return "file, stat, --stats"

    def test_fork(self):
        """A child reads its parent's pages, and what it writes is noise as well, under a key of its own."""
        with secret(self, fork=True) as running:
            running.go_on()
            child = int(running.says("child")[0])
            expect(CHILD in running.stored(child), "without --encrypt the child's marker is not on the disk")
            running.go_on()
            running.ends_right()
        with secret(self, "--encrypt", fork=True) as running:
            before = key_page(running.pid)
            parents = key_words(running.pid, before)
            running.go_on()
            child = int(running.says("child")[0])
            expect_noise(running.stored(child), "the child's swap files")
            locked = self.locked_pages(child)
            expect(len(locked) == 2 and before in locked, f"the child has {len(locked)} locked pages that are not dumped, not its parent's and one of its own")
            own = key_words(child, next(address for address in locked if address != before))
            expect(not parents & own, "the child writes with its parent's key")
            running.go_on()
            running.ends_right()
        return "two keys, both locked"

    def locked_pages(self, pid):
        """Addresses of mappings that are locked and not dumped."""
        text = harness.read_text(f"/proc/{pid}/smaps", 1 << 24)
        entries = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", text)
        flags = [(entry.split("-")[0], re.search(r"VmFlags:(.*)", entry)) for entry in entries]
        return [int(address, 16) for address, found in flags if found and {"dd", "lo"} <= set(found.group(1).split())]

    def test_core(self):
        """A core dump holds the program's memory and not the key."""
        gdb, folder = harness.need("gdb", "gdb"), self.folder("core")

        def dump(pid, name, setting):
            path = os.path.join(folder, name)
            done = self.call_program([gdb, "-p", str(pid), "-batch", "-nx", "-ex", "set use-coredump-filter on", "-ex", f"set dump-excluded-mappings {setting}",
                                      "-ex", f"generate-core-file {path}"], timeout=90)
            if not os.path.exists(path):
                raise Unavailable(f"gdb writes no core: {(done.err or done.out).strip()[-200:]}")
            with open(path, "rb") as file:
                return file.read()

        with secret(self, "--encrypt") as running:
            words = key_words(running.pid, key_page(running.pid))
            core = dump(running.pid, "core", "off")
            # Of a mapping that is absent in part gdb dumps nothing, but the last record is on the stack too.
            expect(PARENT in core, f"nothing of the program is in the core of {len(core)} bytes")
            seen = sum(word in core for word in words)
            expect(seen == 0, f"{seen} of {len(words)} words of the key's page are in the core")
            whole = dump(running.pid, "whole", "on")
            expect(all(word in whole for word in words), "the test does not see the key where it is")
            running.go_on()
            running.ends_right()
        return f"{len(words)} words, none in {len(core) // MIB} MiB"

    def test_kernel_core(self):
        """The same with the kernel's own core dump, which has the registers of all threads as they were."""
        pattern = harness.read_text("/proc/sys/kernel/core_pattern").strip()
        if pattern.startswith("|") or "%" in pattern.replace("%p", ""):
            raise Unavailable(f"/proc/sys/kernel/core_pattern is {pattern!r}; here it must be a file's name, such as core.%p")
        with secret(self, "--encrypt") as running:
            words = key_words(running.pid, key_page(running.pid))
            folder = os.path.realpath(f"/proc/{running.pid}/cwd")
            path = os.path.join(folder, pattern.replace("%p", str(running.pid)))
            if not os.access(os.path.dirname(path), os.W_OK):
                raise Unavailable(f"{path!r} cannot be written")
            self.call_program([harness.need("prlimit", "util-linux"), "--core=unlimited", "--pid", str(running.pid)])
            os.kill(running.pid, signal.SIGABRT)
            running.process.popen.wait(60)
            found = [name for name in (path, f"{path}.{running.pid}") if os.path.exists(name)]
            expect(found, f"no core dump at {path}")
            try:
                with open(found[0], "rb") as file:
                    core = file.read()
            finally:
                os.unlink(found[0])
        expect(core.count(PARENT) > 1000, f"the marker is in the core only {core.count(PARENT)} times")
        seen = sum(word in core for word in words)
        expect(seen == 0, f"{seen} of {len(words)} words of the key's page are in the core")
        return f"{len(words)} words, none in {len(core) // MIB} MiB"

    def test_lock_refused(self):
        """Where memory cannot be locked, the program does not start."""
        prlimit, place = harness.need("prlimit", "util-linux"), self.folder("refused", 0o777)
        run = [prlimit, "--memlock=0:0", self.farshore, "run", "--memory", "16M", "--swap", f"dir:{place}"]
        done = self.call_program([*run, "--encrypt", "--", "true"], user=NOBODY)
        expect(done.status == 125, f"status {done.status}: {done.err}")
        lines = done.err.splitlines()
        expect(len(lines) == 1 and "--encrypt" in lines[0] and "ulimit -l" in lines[0], f"not one line with what to do: {done.err}")
        done = self.call_program([*run, "--", "true"], user=NOBODY)
        expect(done.status == 0, f"without --encrypt: status {done.status}: {done.err}")
        return "one line, status 125"
