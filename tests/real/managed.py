"""`farshore manage` in tests: the command at work, a stand-in for a virtual machine monitor (tests/programs/vmm.c), and a client that says what it likes."""

import collections
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import re
import select
import signal
import socket
import struct
import subprocess
import time

import harness
from command import Command
from harness import MIB, expect

PAGE, HUGE = 4096, 2 * MIB
MAP_FIXED = 0x10
# How long anything is waited for that must come.
LONG = 120 * harness.PATIENCE

UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
# Write protection of all memory, faults of shared memory; and what must not be there.
FEATURES, WP_ASYNC, EVENT_REMOVE, SIGBUS_FEATURE = 1 | 1 << 5 | 1 << 12, 1 << 15, 1 << 3, 1 << 7

# Goes through its memory again and again until the end of its input.
MOVER = """
import select, sys
data = bytearray(int(sys.argv[1]) << 20)
said = False
while not select.select([sys.stdin], [], [], 0)[0]:
    for at in range(0, len(data), 4096):
        data[at] = 1
    if not said:
        print("ready", flush=True)
        said = True
"""

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def in_child(work):
    """Calls `work` in a process of its own, so that memory which nobody serves holds up that one alone. Its failure is the test's."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            work()
        except BaseException as why:  # pylint: disable=broad-exception-caught
            text = ("?" if isinstance(why, harness.Unavailable) else "!") + f"{type(why).__name__}: {why}"
        os.write(writer, text.encode()[:4096])
        os._exit(1 if text else 0)
    os.close(writer)
    deadline = time.monotonic() + LONG
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    text = os.read(reader, 4096).decode() if ended[0] else f"!no end after {LONG} s"
    os.close(reader)
    if text.startswith("?"):
        raise harness.Unavailable(text[1:])
    expect(ended[0] and ended[1] == 0, text[1:] or f"status {ended[1]}")



def children_of(pid):
    """The processes that the threads of a process have started."""
    lists = [harness.read_text(f"/proc/{pid}/task/{thread}/children") for thread in os.listdir(f"/proc/{pid}/task")]
    return [int(child) for text in lists for child in text.split() if child.isdigit()]


def switches_of(pid):
    """How often the threads of a process, all but the one that samples, were given a processor again."""
    texts = [harness.read_text(f"/proc/{pid}/task/{thread}/status") for thread in os.listdir(f"/proc/{pid}/task")]
    texts = [text for text in texts if not text.startswith("Name:\tsampler\n")]
    return sum(int(found[1]) for text in texts if (found := re.search(r"\nvoluntary_ctxt_switches:\s*(\d+)", text)))


def waits_of(pid):
    """Where the threads of a process wait, in a few words: of a failure's text little is shown."""
    threads = os.listdir(f"/proc/{pid}/task") if os.path.exists(f"/proc/{pid}") else []
    places = collections.Counter(harness.read_text(f"/proc/{pid}/task/{thread}/wchan").strip() or "?" for thread in threads)
    return f"{pid}: " + " ".join(f"{place}×{count}" for place, count in places.most_common(6))


def descriptors_of(pid):
    """How many descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


class Manager:
    """`farshore manage` at work."""

    def __init__(self, tests, name, memory, pool=None, faulty=None, user=None, more=(), protocol="cloud-hypervisor"):
        self.tests = tests
        self.folder = tests.folder(name, 0o755 if user is None else 0o777)
        self.socket, self.log = os.path.join(self.folder, "socket"), os.path.join(self.folder, "log")
        self.swap = tests.folder(f"{name}-swap", 0o777)
        command = [*tests.manage(), "--listen", self.socket, "--protocol", protocol, *(["--memory", memory] if memory else []), *more,
                   *(["--swap", pool] if pool else []), *(["--swap", f"dir:{self.swap}"] if protocol == "cloud-hypervisor" else [])]
        if user is not None:
            command = [harness.need("setpriv", "util-linux"), "--reuid", str(user), "--regid", str(user), "--clear-groups", *command]
        env = dict(os.environ, LC_ALL="C", **({"FARSHORE_FAULTY": faulty} if faulty else {}))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=env, start_new_session=True)
        self.wait_for("manager listens")

    @property
    def pid(self):
        return self.process.pid

    def said(self):
        return harness.read_text(self.log)

    def wait_for(self, text, count=1):
        """Waits until it has said something so often."""
        self.wait_until(lambda: self.said().count(text) >= count, f"it does not say {text!r}")

    def wait_until(self, what, otherwise):
        deadline = time.monotonic() + LONG
        while not what():
            expect(time.monotonic() < deadline, f"{otherwise}: {self.said()[-2000:]}")
            time.sleep(0.02)

    def counters(self):
        """Of each client: faults, evicted, written and read pages, as it tells."""
        before = self.said().count(" faults, ")
        clients = len(children_of(self.pid))
        self.process.send_signal(signal.SIGUSR1)
        self.wait_for(" faults, ", before + clients)
        lines = re.findall(r"(\d+) faults, (\d+) pages evicted, (\d+) written, (\d+) read", self.said())[before:]
        return [dict(zip(("faults", "evicted", "written", "read"), map(int, line))) for line in lines]

    def wait_for_evictions(self, pages):
        """Waits until some client's pages were evicted so often, and read again."""
        self.wait_until(lambda: any(now["evicted"] >= pages and now["read"] >= pages // 4 for now in self.counters()), f"{pages} pages are not evicted")

    def told(self, client):
        """What `farshore stat` says of the memory of a client, a process."""
        found = re.search(rf"process {client} has handed over .* \(manager (\d+)\)", self.said())
        expect(found, f"process {client} has handed nothing over: {self.said()[-2000:]}")
        done = self.tests.call("stat", "--json", found[1])
        expect(done.status == 0, f"{done.err} {self.said()[-2000:]}")
        return json.loads(done.out)

    def wait_for_no_clients(self):
        self.wait_until(lambda: not children_of(self.pid), "a client's process does not end")

    def end(self, number=signal.SIGTERM):
        """Ends it, and waits for that."""
        self.process.send_signal(number)
        self.wait_for_end(number)

    def wait_for_end(self, number=signal.SIGTERM):
        """Waits until the signal that it was sent has ended it."""
        try:
            status = self.process.wait(LONG)
        except subprocess.TimeoutExpired:
            raise harness.Failed(f"no end: {self.said()[-2000:]}\n{harness.describe_process(self.pid)}") from None
        expect(status == 128 + number, f"status {status}: {self.said()[-2000:]}")
        expect(not os.path.exists(self.socket), "its socket is still there")

    def kill(self):
        """Kills it, and all that it has started."""
        for pid in harness.session_pids(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Guests:
    """The stand-in, with guests at work."""

    def __init__(self, program, manager, *arguments):
        # Without buffers: what was read beyond a line would not be waited for.
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program, manager.socket, *arguments], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
        self.manager = manager

    def line(self):
        """The next line that it prints."""
        # A slow disk is no hang: it has as long as it works, within reason.
        end, last, worked = time.monotonic() + 4 * LONG, time.monotonic(), -1
        while not select.select([self.process.stdout], [], [], 1)[0]:
            now, work = time.monotonic(), switches_of(self.process.pid)
            last, worked = (now if work != worked else last), work
            if now > min(end, last + LONG):
                managers = [pid for pid in harness.session_pids(self.manager.pid) if pid != self.manager.pid]
                waits = "; ".join(waits_of(pid) for pid in (self.process.pid, *managers))
                pictures = "\n".join(harness.describe_process(pid) for pid in (self.process.pid, *managers))
                raise harness.Failed(f"nothing comes, {now - last:.0f} s since it did anything: {waits}\n{self.manager.said()[-2000:]}\n{pictures}")
        return self.process.stdout.readline().decode().strip()

    def wait_for(self, text):
        line = self.line()
        expect(line == text, f"{line!r}, not {text!r}: {self.end_of_stderr()} {self.manager.said()[-2000:]}")

    def end_of_stderr(self):
        return self.process.stderr.read().decode()[-500:] if self.process.poll() is not None else ""

    def finish(self, limit=None):
        """Has it look at everything once more; the most memory that it had, in bytes."""
        self.process.stdin.close()
        line = self.line()
        try:
            status = self.process.wait(LONG)
        except subprocess.TimeoutExpired:
            raise harness.Failed(f"no end: {harness.describe_process(self.process.pid)}") from None
        found = re.fullmatch(r"right after (\d+) units, at most (\d+) bytes in memory", line)
        expect(status == 0 and found, f"status {status}: {line!r} {self.end_of_stderr()} {self.manager.said()[-2000:]}")
        if limit:
            expect(int(found[2]) <= limit, f"{int(found[2]) / MIB:.1f} MiB were in memory, {limit / MIB} is the limit")
        return int(found[2])

    def kill(self):
        self.process.kill()
        self.process.wait()


class Client:
    """A client in this process, which says what it likes."""

    def __init__(self, pages=256, shared=True, features=FEATURES, file=None, uffd=None):
        self.size = pages * PAGE
        self.memfd = os.memfd_create("guest", os.MFD_ALLOW_SEALING) if file is None else file
        os.ftruncate(self.memfd, self.size)
        self.address = self.map(mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
        self.uffd = self.open(features) if uffd is None else uffd
        self.socket = None

    @staticmethod
    def open(features):
        """A userfaultfd."""
        uffd = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)
        expect(uffd >= 0, f"userfaultfd: errno {ctypes.get_errno()}")
        fcntl.ioctl(uffd, UFFDIO_API, struct.pack("QQQ", 0xAA, features, 0))
        return uffd

    def map(self, how, offset=0, size=None):
        """At 2 MiB, as virtual machine monitors do it."""
        size = size or self.size
        room = libc.mmap(None, size + HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        expect(room not in (None, ctypes.c_void_p(-1).value), "mmap")
        address = -(-room // HUGE) * HUGE
        placed = libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, how | MAP_FIXED, self.memfd, offset)
        expect(placed == address, "mmap")
        return address

    def fill(self, byte):
        """Writes all of it."""
        ctypes.memset(self.address, byte, self.size)

    def is_filled(self, byte):
        """Whether all of it has these bytes."""
        return ctypes.string_at(self.address, self.size) == bytes([byte]) * self.size

    def in_memory(self):
        """How many bytes of its file are in memory."""
        return os.fstat(self.memfd).st_blocks * 512

    def region(self, **changes):
        return {"guest_phys_addr": 0, "host_virt_addr": self.address, "size": self.size, "backing_file_offset": 0, **changes}

    def handoff(self, *regions, **changes):
        return {"type": "handoff", "version": 0, "vmm_pid": os.getpid(), "mode": "MISSING|WP", "regions": list(regions or [self.region()]), **changes}

    def connect(self, manager):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(LONG)
        self.socket.connect(manager.socket)

    def send(self, request, descriptors=None):
        text = request if isinstance(request, bytes) else json.dumps(request).encode()
        frame = request if isinstance(request, bytes) else struct.pack("<I", len(text)) + text
        self.send_bytes(frame, [self.uffd] if descriptors is None else descriptors)

    def send_bytes(self, frame, descriptors):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.socket, [frame], descriptors)

    def answer(self):
        """What the manager answers; nothing if it refuses."""
        try:
            return self.socket.recv(16)
        except ConnectionResetError:
            return b""

    def hand_over(self, manager):
        """Whether it is taken."""
        self.connect(manager)
        self.send(self.handoff())
        return len(self.answer()) == 1

    def close(self):
        for descriptor in (self.memfd, self.uffd):
            os.close(descriptor)
        if self.socket:
            self.socket.close()


class Managed(Command):
    """What tests of the manager share."""

    def manage(self):
        """The words of farshore manage, with its program beside the copy of the command."""
        self.beside("farshore-manager")
        return [self.farshore, "manage"]

    @contextlib.contextmanager
    def manager(self, name, memory="24M", **options):
        manager = Manager(self, name, memory, **options)
        try:
            yield manager
            expect(manager.process.poll() is None, f"the manager has ended: {manager.said()[-2000:]}")
            expect("bug" not in manager.said() and "panicked" not in manager.said(), manager.said()[-2000:])
        finally:
            manager.kill()
        expect(not os.listdir(manager.swap), f"files are left behind: {os.listdir(manager.swap)}")

    @contextlib.contextmanager
    def guests(self, manager, *arguments):
        guests = Guests(self.public_program("vmm"), manager, *arguments)
        try:
            yield guests
        finally:
            guests.kill()
