"""`farshore manage`: memory that another process has mapped too, by libfarshore_map.so. What it locks stays, whatever becomes of it or of the manager; what it does without locks is right as well."""

import contextlib
import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import threading

import harness
import pytest
from command import NOBODY
from harness import MIB, expect
from managed import PAGE, Client, Managed
from test_manager_takeover import goes_on, own_manager

# Another process: it maps the memory of process argv[2] with the library argv[1], and does what it is told, a line each.
LOCKER = """
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1])
if len(sys.argv) > 3:
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[3]))
class Region(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("address", ctypes.c_uint64), ("offset", ctypes.c_uint64)]
lib.farshore_map_error.restype = ctypes.c_char_p
lib.farshore_map_locked.restype = ctypes.c_uint64
map, region = ctypes.c_void_p(), Region()
done = lib.farshore_map_open(int(sys.argv[2]), ctypes.byref(map))
if done:
    print(done, lib.farshore_map_error().decode(), flush=True)
    sys.exit()
assert lib.farshore_map_region(map, 0, ctypes.byref(region)) == 0 and lib.farshore_map_region(map, 99, ctypes.byref(region)) == -22
def at(page):
    return ctypes.c_void_p(region.at + page * 4096)
def direct(page, pages, path):
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    room = (ctypes.c_char * (pages * 4096)).from_address(region.at + page * 4096)
    got = os.preadv(file, [room], 0)
    os.close(file)
    return got
def forked():
    child = os.fork()
    if child == 0:
        os._exit(-lib.farshore_lock(map, at(0), 1))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def table():
    for line in open("/proc/self/maps"):
        if "farshore-locks" in line:
            return [int(end, 16) for end in line.split()[0].split("-")]
def scribble():
    start, end = table()
    ctypes.memset(start + 32768, 1, end - start - 32768)
    return 0
calls = {
    "lock": lambda page, pages: lib.farshore_lock(map, at(int(page)), ctypes.c_size_t(int(pages) * 4096)),
    "unlock": lambda page, pages: lib.farshore_unlock(map, at(int(page)), ctypes.c_size_t(int(pages) * 4096)),
    "locked": lambda: lib.farshore_map_locked(map),
    "direct": lambda page, pages, path: direct(int(page), int(pages), path),
    "write": lambda page, byte: ctypes.memset(at(int(page)), int(byte), 4096) and 0,
    "read": lambda page: ctypes.string_at(at(int(page)), 4096) == ctypes.string_at(at(int(page)), 1) * 4096 and ctypes.string_at(at(int(page)), 1)[0],
    "forked": forked,
    "scribble": scribble,
    "close": lambda: lib.farshore_map_close(map) and 0,
}
print("mapped", lib.farshore_map_regions(map), region.bytes, region.address, flush=True)
for line in sys.stdin:
    name, *words = line.split()
    print(int(calls[name](*words)), flush=True)
"""

ENOBUFS, ECONNRESET, ESHUTDOWN, EINVAL = -105, -104, 108, -22


class Locker:
    """Another process that has the memory mapped."""

    def __init__(self, tests, *words):
        tests.beside("libfarshore_map.so")
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", LOCKER, os.path.join(tests.bin, "libfarshore_map.so"), str(os.getpid()), *words]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.first = self.line()

    def line(self):
        return self.process.stdout.readline().strip()

    def ask(self, *words):
        """What comes of a call."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        line = self.line()
        if not line:
            raise harness.Failed(f"{words}: no answer, {harness.describe_process(self.process.pid)}")
        return int(line)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Memory(Client):
    """A stand-in whose pages have bytes that say which page it is."""

    def number(self, page):
        return page % 251 + 1

    def fill_pages(self):
        for page in range(self.size // PAGE):
            ctypes.memset(self.address + page * PAGE, self.number(page), PAGE)

    def page(self, page):
        return ctypes.string_at(self.address + page * PAGE, PAGE)

    def is_there(self, page):
        """Whether its file has it in memory."""
        try:
            return os.lseek(self.memfd, page * PAGE, os.SEEK_DATA) == page * PAGE
        except OSError:
            return False

    def push(self, skip=()):
        """Goes through all of it but some pages, so that others leave."""
        for page in range(self.size // PAGE):
            if page not in skip:
                found = self.page(page)
                if found != bytes([self.number(page)]) * PAGE:
                    raise harness.Failed(f"page {page} has other bytes: {found[:8].hex()}")


@pytest.mark.poll
class TestMap(Managed):
    """Processes that map a client's memory too."""

    @contextlib.contextmanager
    def lent(self, name, memory="4M", lockers=1, pages=16 * MIB // PAGE):
        """A manager, a client whose memory is four times the limit, and processes that have it mapped."""
        with self.manager(name, memory) as manager, contextlib.ExitStack() as stack:
            client = Memory(pages)
            stack.callback(client.close)
            client.fill_pages()
            expect(client.hand_over(manager), f"no answer: {manager.said()}")
            others = []
            for _ in range(lockers):
                others.append(Locker(self))
                stack.callback(others[-1].kill)
                expect(others[-1].first == f"mapped 1 {client.size} {client.address}", f"{others[-1].first}: {manager.said()[-2000:]}")
            yield manager, client, others

    def leaves(self, manager, client, pages):
        """Waits until pages have left, as others come."""
        def look():
            client.push(set(pages))
            return not any(client.is_there(page) for page in pages)
        manager.wait_until(look, "pages that are not locked stay")

    @staticmethod
    def stays(client, pages):
        expect(all(client.is_there(page) for page in pages), f"of {pages} {[page for page in pages if not client.is_there(page)]} have left, although they are locked")

    def test_locked_pages_stay(self):
        """Pages that are locked stay while all others leave, with what direct I/O has written to them; unlocked they leave, and come back with it."""
        locked, limit = range(1000, 1016), 4 * MIB
        with self.lent("stay") as (manager, client, [locker]):
            path = os.path.join(manager.swap, "..", f"data-{os.getpid()}")
            data = random.Random(3).randbytes(len(locked) * PAGE)
            with open(path, "wb") as file:
                file.write(data)
            os.sync()
            self.leaves(manager, client, locked)
            expect(locker.ask("lock", locked[0], len(locked)) == 0 and locker.ask("locked") == len(locked), "they are not locked")
            self.stays(client, locked)
            told = manager.told(os.getpid())["maps"]
            expect(told["processes"] == 1 and told["locked_pages"] == len(locked) and told["may_lock_pages"] == 32, f"{told}")
            stop = threading.Event()

            def others():
                while not stop.is_set():
                    client.push(locked)

            pusher = threading.Thread(target=others)
            pusher.start()
            try:
                for _ in range(30):
                    expect(locker.ask("direct", locked[0], len(locked), path) == len(data), "direct I/O fails")
                    self.stays(client, locked)
            finally:
                stop.set()
                pusher.join()
            client.push(locked)
            self.stays(client, locked)
            manager.wait_until(lambda: client.in_memory() <= limit, f"{client.in_memory()} bytes are in memory")
            expect(locker.ask("unlock", locked[0], len(locked)) == 0, "they are not unlocked")
            self.leaves(manager, client, locked)
            expect(b"".join(client.page(page) for page in locked) == data, "what was read into them is not there")
            told = manager.told(os.getpid())["maps"]
            expect(told["locked_pages"] == 0 and told["faults"] >= len(locked) and told["cut_off"] == 0, f"{told}")
            os.unlink(path)
        return f"{told['faults']} faults, {told['put_back']} pages put back"

    def test_example(self):
        """The example in C reads a file into the memory, in pieces that it locks."""
        source = os.path.join(harness.ROOT, "crates", "product", "map-c")
        # Whole pieces: beyond the end of a file the kernel may write zeros.
        data = random.Random(7).randbytes(192 * PAGE)
        with self.lent("example", lockers=0) as (manager, client, _):
            self.beside("libfarshore_map.so")
            program, path = os.path.join(manager.folder, "direct"), os.path.join(manager.folder, "data")
            with open(path, "wb") as file:
                file.write(data)
            cc = [harness.need("cc", "gcc"), "-o", program, "-I", os.path.join(source, "include"), os.path.join(source, "tests", "c", "direct.c")]
            subprocess.run([*cc, "-L", self.bin, "-lfarshore_map"], check=True)
            done = self.call_program([program, str(os.getpid()), path, "500"], env=dict(os.environ, LD_LIBRARY_PATH=self.bin))
            expect(done.status == 0 and done.out == f"{len(data)} bytes\n", f"{done}")
            client.push(range(500, 692))
            expect(b"".join(client.page(page) for page in range(500, 692)) == data, "other bytes")

    def test_without_locks(self):
        """A process that locks nothing reads and writes as the client does: it finds what the client has written, and the client what it has."""
        chance = random.Random(5)
        with self.lent("unlocked") as (manager, client, [locker]):
            pages = client.size // PAGE
            mine = {}
            for turn in range(1, 5):
                for page in chance.sample(range(pages), 400):
                    was = mine.get(page, client.number(page))
                    expect(locker.ask("read", page) == was, f"page {page} is not {was} there (turn {turn})")
                    mine[page] = 1 + (page + turn) % 250
                    expect(locker.ask("write", page, mine[page]) == 0, "it cannot write")
                # Clean pages that the process wrote to would come back with their old bytes.
                client.push(mine)
                for page, byte in mine.items():
                    expect(client.page(page) == bytes([byte]) * PAGE, f"page {page} is not {byte} (turn {turn}): {client.page(page)[:4].hex()}")
            manager.wait_until(lambda: client.in_memory() <= 4 * MIB, f"{client.in_memory()} bytes are in memory")
            expect(manager.counters()[0]["evicted"] > 4 * pages // 2, f"{manager.counters()}")

    def test_several_and_their_ends(self):
        """A page that two have locked stays until both are done with it: one unlocks it, the other one is killed. A child of one has nothing."""
        page = 77
        with self.lent("several", lockers=2) as (manager, client, lockers):
            expect([locker.ask("lock", page, 1) for locker in lockers] == [0, 0], "it is not locked")
            expect(lockers[0].ask("lock", page, 1) == 0 and lockers[0].ask("unlock", page, 1) == 0, "locks are not counted")
            expect(lockers[0].ask("forked") == ESHUTDOWN, "a child can lock")
            expect(lockers[0].ask("unlock", page, 1) == 0 and lockers[0].ask("unlock", page, 1) == EINVAL, "it is unlocked twice")
            for _ in range(3):
                client.push([page])
            self.stays(client, [page])
            lockers[1].kill()
            manager.wait_until(lambda: manager.told(os.getpid())["maps"]["processes"] == 1, "one that was killed is still there")
            self.leaves(manager, client, [page])
            expect(lockers[0].ask("read", page) == client.number(page), "other bytes")
            expect(lockers[0].ask("lock", page, 1) == 0 and lockers[0].ask("close") == 0, "it cannot be closed")
            manager.wait_until(lambda: manager.told(os.getpid())["maps"]["processes"] == 0, "one that has closed its map is still there")
            self.leaves(manager, client, [page])

    def test_too_many(self):
        """Who may lock no more is told so. Who writes locks that it may not have is cut off, and nothing happens to the others."""
        with self.lent("many", lockers=2) as (manager, client, [locker, other]):
            expect(locker.ask("lock", 0, 33) == ENOBUFS and locker.ask("lock", 0, 32) == 0 and locker.ask("lock", 40, 1) == ENOBUFS, "more than it may")
            expect(locker.ask("lock", client.size // PAGE, 1) == EINVAL, "beyond the memory")
            expect(other.ask("lock", 50, 2) == 0, "the other one has its own")
            expect(other.ask("scribble") == 0, "it cannot write to its table")
            for _ in range(3):
                client.push()
            manager.wait_for("is cut off: it has locked")
            expect(other.ask("lock", 60, 1) in (ECONNRESET, ENOBUFS), "it locks on")
            client.push()
            self.stays(client, range(32))
            told = manager.told(os.getpid())["maps"]
            expect(told["cut_off"] == 1 and told["processes"] == 1 and told["locked_pages"] == 32, f"{told}")
            expect(locker.ask("unlock", 0, 32) == 0 and locker.ask("read", 9) == client.number(9), "the first one is hurt")
            self.leaves(manager, client, range(32))

    def test_who_may(self):
        """Another user does not get the memory."""
        if os.geteuid() != 0:
            raise harness.Unavailable("only root can become another user")
        with self.lent("who") as (manager, _, _lockers):
            locker = Locker(self, str(NOBODY))
            expect(locker.first.startswith("-111 ") and "only processes of user 0" in locker.first, locker.first)
            locker.process.wait()
            expect(manager.told(os.getpid())["maps"]["processes"] == 1, "it is served")

    def test_a_manager_is_killed(self):
        """Locks hold while the manager is killed and replaced, and with the next one."""
        locked = range(300, 320)
        with self.lent("killed") as (manager, client, [locker]):
            expect(locker.ask("lock", locked[0], len(locked)) == 0, "they are not locked")
            for times in (1, 2):
                client.push(locked)
                os.kill(own_manager(manager)[0], signal.SIGKILL)
                expect(locker.ask("write", locked[0], 99) == 0, "what is locked is there")
                goes_on(manager, times)
                for _ in range(3):
                    client.push(locked)
                self.stays(client, locked)
                # One that is out comes by the next manager.
                expect(locker.ask("read", 4000) == client.number(4000) and locker.ask("lock", 2000, 3) == 0 and locker.ask("unlock", 2000, 3) == 0, "it is not served")
            expect(client.page(locked[0]) == bytes([99]) * PAGE and client.page(locked[1])[0] == client.number(locked[1]), "other bytes")
            expect(locker.ask("unlock", locked[0], len(locked)) == 0, "they are not unlocked")
            self.leaves(manager, client, locked)
            expect(client.page(locked[0]) == bytes([99]) * PAGE, "other bytes")
            found = re.findall(r"(\d+) pages lost", manager.said())
            expect(found == ["0", "0"], f"{found}")

    def test_the_manager_leaves(self):
        """A manager that ends gives everything back, to the process that has it mapped as well."""
        with self.lent("leaves") as (manager, client, [locker]):
            client.push()
            expect(locker.ask("lock", 5, 2) == 0, "it is not locked")
            os.kill(own_manager(manager)[0], signal.SIGTERM)
            manager.wait_for("goes on without a manager")
            manager.wait_for_no_clients()
            expect(locker.ask("read", 4000) == client.number(4000) and locker.ask("write", 4001, 7) == 0, "it does not go on")
            expect(locker.ask("lock", 100, 2) == 0 and locker.ask("unlock", 5, 2) == 0, "it cannot lock any more")
            expect(client.page(4001) == bytes([7]) * PAGE, "other bytes")
            client.push([4001])
