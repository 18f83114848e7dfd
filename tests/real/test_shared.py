"""`farshore run --shared-memory`: memory that processes share, which a manager beside them has (tests/programs/kindred.c); what is refused; managers that are ended and killed."""

import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import time

import harness
import pytest
from command import NOBODY, Command
from harness import MIB, expect

SECTIONS = ("alone", "in_turn", "at_once", "counted", "changed", "left_alone", "waited_for", "by_calls", "killed")

# Python's processes share an array; each counts in all of it, under a lock of theirs.
MULTIPROCESSING = """
import mmap, multiprocessing, sys
multiprocessing.set_start_method('fork')
size = 32 << 20
memory, lock = mmap.mmap(-1, size), multiprocessing.Lock()
def work(n):
    for i in range(n * 7, size, 4096 * 3):
        with lock: memory[i] = (memory[i] + n + 1) & 255
    return sum(memory[n::4096])
with multiprocessing.Pool(4) as pool: pool.map(work, range(8))
expected = bytearray(size)
for n in range(8):
    for i in range(n * 7, size, 4096 * 3): expected[i] = (expected[i] + n + 1) & 255
print('right' if memory[:] == bytes(expected) else 'wrong')
"""

# A program that fills its memory, and checks it whenever it is told to; a child does the same.
HOLDS = """
import mmap, os, signal, sys
size = 48 << 20
memory = mmap.mmap(-1, size)
for i in range(0, size, 4096): memory[i:i + 8] = i.to_bytes(8, 'little')
if os.fork() == 0: signal.pause()
print('ready', os.getpid(), flush=True)
for line in sys.stdin:
    if line == 'fork\\n':
        try:
            other = os.fork()
        except OSError as error:
            print(error.errno, flush=True)
            continue
        if other == 0:
            wrong = sum(memory[i:i + 8] != i.to_bytes(8, 'little') for i in range(0, size, 4096))
            print(wrong, 'wrong', flush=True)
            os._exit(0)
        os.waitpid(other, 0)
    else:
        wrong = sum(memory[i:i + 8] != i.to_bytes(8, 'little') for i in range(0, size, 4096))
        print(wrong, 'wrong', flush=True)
"""

# A program that does something before or after it has such memory, and says what came of it.
ODD = """
import ctypes, errno, mmap, os, socket, sys
libc, (what, place) = ctypes.CDLL(None, use_errno=True), sys.argv[1:]
def filtered():
    class Program(ctypes.Structure): _fields_ = [('count', ctypes.c_ushort), ('lines', ctypes.c_void_p)]
    # Allows all.
    lines = ctypes.create_string_buffer(bytes([6, 0, 0, 0, 0, 0, 255, 127]), 8)
    libc.prctl(38, 1, 0, 0, 0)
    program = Program(1, ctypes.addressof(lines))
    return libc.prctl(22, 2, ctypes.byref(program), 0, 0) and errno.errorcode[ctypes.get_errno()]
def direct(): return os.open(place, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600) < 0
def hidden():
    libc.prctl(4, 0, 0, 0, 0)
    os.setgroups([])
    os.setuid(65534)
    try: child = os.fork()
    except OSError as error: return errno.errorcode[error.errno]
    if child == 0: os._exit(memory[7 << 20] != 7)
    return os.waitpid(child, 0)[1]
def namespace(): return libc.unshare(0x40000000) and errno.errorcode[ctypes.get_errno()]
def nothing(): return 0
if what == 'direct': direct()
memory = mmap.mmap(-1, 24 << 20)
for i in range(0, 24 << 20, 4096): memory[i] = i >> 20
print({'direct': nothing, 'filtered': filtered, 'hidden': hidden, 'namespace': namespace}.get(what, nothing)())
print('right' if all(memory[i] == i >> 20 for i in range(0, 24 << 20, 4096)) else 'wrong')
"""


@pytest.mark.poll
class TestShared(Command):
    """Memory that processes share."""

    @pytest.fixture(autouse=True, scope="class")
    def with_manager(self, made_ready):
        """The manager lies beside the command."""
        type(self).beside(self, "farshore-manager")

    def argv(self, program, limit="16M", memory="64M", place=None):
        """The command line of a program whose shared memory is managed."""
        return [self.farshore, "run", "--memory", memory, "--shared-memory", limit, "--swap", f"dir:{place or self.work}", "--", *program]

    def managers(self):
        """Processes that manage shared memory."""
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                words = harness.read_text(f"/proc/{int(name)}/cmdline").split("\0")
                if "--kin" in words and words[0] and os.path.realpath(f"/proc/{name}/exe").startswith(self.bin):
                    found.append(int(name))
        return found

    def until(self, condition, what):
        """Waits for something that comes to be."""
        deadline = time.monotonic() + 60
        while not condition():
            expect(time.monotonic() < deadline, what)
            time.sleep(0.02)

    def evicted(self):
        """What the manager of the only family says of its pages."""
        (manager,) = self.managers()
        return self.counters(manager)["evictions"]

    @pytest.mark.parametrize("section", SECTIONS)
    def test_each_sees_what_others_write(self, section):
        """Four times the limit, or eight: nobody finds another byte than natively."""
        program = self.public_program("kindred")
        for size, limit, seed in ((64, "16M", 1), (32, "4M", 2)):
            done = self.call_program(self.argv([program, str(size), str(seed), section], limit), timeout=200)
            expect(done.status == 0 and done.out == f"{section}: right\n", f"{section} of {size} MiB in {limit}: {done.status}: {done.out[-200:]} {done.err[-800:]}")
            # Who maps memory anew where a process that is about to end still has some does without a limit for it.
            said = [line for line in done.err.splitlines() if section != "left_alone" or "overlaps another region" not in line]
            expect(not said, f"{section}: {said}")
        self.until(lambda: not self.managers(), "the manager stays")

    def test_limit_holds(self):
        """The limit holds for all of them together, and pages leave."""
        with self.running(["--memory", "64M", "--shared-memory", "16M", "--swap", f"dir:{self.work}"], [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE) as process:
            popen = process.popen
            expect(popen.stdout.readline().startswith(b"ready"), "it does not begin")
            (manager,) = self.managers()
            for _ in range(3):
                popen.stdin.write(b"check\n")
                popen.stdin.flush()
                expect(popen.stdout.readline() == b"0 wrong\n", "wrong bytes")
                now = self.counters(manager)
                expect(now["resident_bytes_peak"] <= 16 * MIB, f"{now['resident_bytes_peak']} bytes are resident")
                expect(now["managed_bytes"] == 48 * MIB, f"{now['managed_bytes']} bytes are managed")
            popen.stdin.close()
        return f"{now['evictions']}"

    def test_refusals(self):
        """What such memory cannot have."""
        done = self.call_program(self.argv([self.public_program("kindred"), "64", "3", "refused"]), timeout=100)
        expect(done.status == 0, f"{done.status}: {done.out} {done.err}")
        said = dict(line.rsplit(": ", 1) for line in done.out.splitlines())
        expected = {
            "mremap to grow": "ENOMEM", "mremap of nothing": "ENOMEM", "mremap to shrink": "0", "remap_file_pages": "EINVAL", "MADV_REMOVE": "EOPNOTSUPP",
            "MADV_GUARD_INSTALL": "EINVAL", "MADV_HUGEPAGE": "0", "MADV_DONTNEED": "0", "mlock": "ENOMEM", "O_DIRECT": "EINVAL", "io_uring_setup": "ENOSYS",
            "process_vm_writev": "EPERM", "clone with its word there": "EINVAL", "refused": "right",
        }
        expect(said == expected, f"{said}")

    def test_odd_programs(self):
        """Filters, other users and namespaces are refused, or it is seen before that the memory cannot be managed."""
        place = self.folder("odd", 0o777)
        run = lambda what, **more: self.call_program(self.argv([sys.executable, "-c", ODD, what, os.path.join(place, "file")], place=place), **more)
        for what, out, err in (("nothing", "0", ""), ("direct", "0", "O_DIRECT"), ("filtered", "EINVAL", "a filter is refused")):
            done = run(what)
            expect(done.status == 0 and done.out == f"{out}\nright\n", f"{what}: {done.status}: {done.out} {done.err}")
            expect(err in done.err and (err or not done.err) and len(done.err.splitlines()) == bool(err), f"{what}: {done.err}")
        if os.geteuid() == 0:
            for what, out, err in (("namespace", "EPERM", ""), ("hidden", "EAGAIN", "fork:")):
                done = run(what)
                expect(done.status == 0 and done.out == f"{out}\nright\n", f"{what}: {done.status}: {done.out} {done.err}")
                expect(err in done.err, f"{what}: {done.err}")
            if harness.read_text("/proc/sys/vm/unprivileged_userfaultfd").strip() != "1":
                done = run("nothing", user=NOBODY)
                expect(done.status == 0 and done.out == "0\nright\n", f"as nobody: {done.status}: {done.out} {done.err}")
                expect("stays in RAM" in done.err and len(done.err.splitlines()) == 1, done.err)
        self.until(lambda: not self.managers(), "a manager stays")

    def test_multiprocessing(self):
        """Python's worker processes."""
        done = self.call_program(self.argv([sys.executable, "-c", MULTIPROCESSING], "8M"), timeout=200)
        expect(done.status == 0 and done.out == "right\n", f"{done.status}: {done.out} {done.err[-500:]}")

    def test_postgresql(self):
        """A server whose buffers are such memory: what it has of accounts adds up, natively too."""
        folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if not folders or not os.path.exists(os.path.join(folders[-1], "pgbench")):
            raise harness.Unavailable("PostgreSQL is not installed (apt-get install postgresql)")
        if os.geteuid() != 0:
            raise harness.Unavailable("PostgreSQL's server needs a user who may serve the kernel's faults: run this test as root")
        place = self.folder("postgresql")
        os.chown(place, NOBODY, NOBODY)
        rights = ["--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"]
        as_nobody = [harness.need("setpriv", "util-linux"), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        data, run = os.path.join(place, "data"), lambda name, *words: self.call_program([*as_nobody, os.path.join(folders[-1], name), *words], timeout=200)
        done = run("initdb", "-D", data, "-A", "trust", "-U", "test")
        expect(done.status == 0, done.err[-500:])
        with open(os.path.join(data, "postgresql.conf"), "a", encoding="ascii") as file:
            file.write(f"shared_buffers = 64MB\nhuge_pages = off\nlisten_addresses = ''\nunix_socket_directories = '{place}'\nfsync = off\n")
        ask = lambda words: run("psql", "-h", place, "-U", "test", "-At", "-c", words, "postgres").out.strip()
        sums = "select " + ", ".join(f"(select sum({column}) from pgbench_{table})" for column, table in
                                     (("abalance", "accounts"), ("tbalance", "tellers"), ("bbalance", "branches"), ("delta", "history")))
        rows = "select md5(string_agg(aid || ':' || abalance, ',' order by aid)) from pgbench_accounts"
        server = self.argv([os.path.join(folders[-1], "postgres"), "-D", data], "16M", "256M", place)
        with subprocess.Popen([*as_nobody, *rights, *server], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/") as process:
            try:
                self.until(lambda: ask("select 1") == "1", "the server does not answer")
                for words in (("-i", "-s", "4"), ("-c", "6", "-j", "2", "-T", "8")):
                    done = run("pgbench", "-h", place, "-U", "test", *words, "postgres")
                    expect(done.status == 0, done.err[-800:])
                told, there = ask(sums).split("|"), ask(rows)
                expect(len(set(told)) == 1, f"the sums differ: {told}")
                (manager,) = self.managers()
                now = self.counters(manager)
                expect(now["evictions"]["pages"] > 5000, f"{now['evictions']}")
                expect(now["resident_bytes_peak"] <= 16 * MIB, f"{now['resident_bytes_peak']} bytes are resident")
            finally:
                process.send_signal(signal.SIGINT)
                said = process.communicate(timeout=60)[1].decode(errors="replace")
        expect("farshore: " not in said, said[-800:])
        self.until(lambda: not self.managers(), "the manager stays")
        done = run("pg_ctl", "-D", data, "-w", "-l", os.path.join(place, "log"), "start")
        expect(done.status == 0, done.err[-500:])
        try:
            expect(ask(rows) == there, "the accounts are others natively")
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "fast", "stop")
        return f"{now['evictions']['pages']} pages evicted"

    def test_manager_is_ended(self):
        """Its pages come back, and the processes go on without a limit; so do children that come later."""
        with self.running(["--memory", "64M", "--shared-memory", "16M", "--swap", f"dir:{self.work}"], [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE) as process:
            popen = process.popen
            expect(popen.stdout.readline().startswith(b"ready"), "it does not begin")
            os.kill(self.managers()[0], signal.SIGTERM)
            self.until(lambda: not self.managers(), "the manager stays")
            for _ in range(2):
                for line in (b"check\n", b"fork\n"):
                    popen.stdin.write(line)
                    popen.stdin.flush()
                    expect(popen.stdout.readline() == b"0 wrong\n", "wrong bytes")
            expect("have no limit" in process.stderr_so_far() or "no limit any more" in process.stderr_so_far(), process.stderr_so_far())

    def test_manager_is_killed(self):
        """Whoever needs a page that is out waits, and never finds zeros. There is no fork any more."""
        with self.running(["--memory", "64M", "--shared-memory", "16M", "--swap", f"dir:{self.work}"], [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE) as process:
            popen = process.popen
            expect(popen.stdout.readline().startswith(b"ready"), "it does not begin")
            os.kill(self.managers()[0], signal.SIGKILL)
            self.until(lambda: not self.managers(), "the manager stays")
            popen.stdin.write(b"fork\ncheck\n")
            popen.stdin.flush()
            expect(popen.stdout.readline() == b"11\n", "it can fork")
            time.sleep(1)
            expect(popen.poll() is None, "it has ended")
            os.set_blocking(popen.stdout.fileno(), False)
            said = popen.stdout.read() or b""
            expect(not said, f"it has found something: {said}")

    def test_who_is_not_of_the_family(self):
        """A stranger who knows the name of the socket is not served."""
        with self.running(["--memory", "64M", "--shared-memory", "16M", "--swap", f"dir:{self.work}"], [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE) as process:
            popen = process.popen
            expect(popen.stdout.readline().startswith(b"ready"), "it does not begin")
            told = harness.read_text(f"/proc/{self.managers()[0]}/cmdline").split("\0")
            name = re.search(rf"@(farshore-shared-{told[-2]}-\d+)", harness.read_text("/proc/net/unix"))[1]
            words = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + {name!r}); s.send((2).to_bytes(8, 'little') + bytes(40)); print(s.recv(8))"
            done = self.call_program([sys.executable, "-c", words], user=NOBODY)
            expect(done.out == "b''\n", f"{done.out} {done.err}")
            popen.stdin.write(b"check\n")
            popen.stdin.flush()
            expect(popen.stdout.readline() == b"0 wrong\n", "wrong bytes")
            expect('"token":[0,0]' in told[-3], "the number of the family is in the command line")

    def test_bad_options(self):
        """One line each."""
        common = ["run", "--memory", "64M"]
        self.refused([*common, "--shared-memory", "1M", "--", "true"], (125,), "1M")
        self.refused([*common, "--shared-memory", "16M", "--swap", "nbd:127.0.0.1:10809", "--", "true"], (125,), "nbd:")
