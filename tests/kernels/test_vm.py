"""`farshore vm run`: an unmodified QEMU whose guest's memory is managed from outside.

What the guest (machine.py) says on its serial line must be the same natively and with less memory, and what there is of its memory in RAM must never be more than the limit.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

import harness
import kernels
import pytest
from command import NOBODY
from harness import MIB, Unavailable, expect
from machine import LARGE, TINY, Machine, without_times

# How long what ends may take to end, and a machine to boot and fill its memory.
SOON, LONG = 10 * harness.PATIENCE, 300 * harness.PATIENCE


def memory_of(pid):
    """Bytes of the guest's memory that are in RAM, if the process is a QEMU that has some."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith("/memfd:memory-backend-memfd"):
                    return os.stat(f"/proc/{pid}/fd/{number}").st_blocks * 512
    return 0


def manager_of(said):
    """The number of the manager, as it tells on stderr."""
    found = re.search(r"farshore: process (\d+) has handed over .* \(manager (\d+)\)", said)
    expect(found, f"nothing was handed over: {said[-1000:]}")
    return int(found[2])


def wait_until(what, otherwise, seconds=SOON):
    """Waits for what must come."""
    deadline = time.monotonic() + seconds
    while not what():
        expect(time.monotonic() < deadline, otherwise)
        time.sleep(0.05)


# Has memory as a QEMU has it, and gives it to another process, after another file; opens a device that is passed through.
GIVES = """
import mmap, os, socket
memory = os.memfd_create("memory-backend-memfd")
os.ftruncate(memory, 8 << 20)
mapped = mmap.mmap(memory, 8 << 20)
mapped[:4096] = bytes(4096)
mapped.madvise(mmap.MADV_HUGEPAGE)
with open("/proc/self/smaps") as file:
    lines = file.read().partition("memory-backend-memfd")[2]
flags = next(line for line in lines.splitlines() if line.startswith("VmFlags"))
assert "hg" not in flags.split() and "um" in flags.split(), flags
one, other = socket.socketpair()
said = []
for give in (lambda: socket.send_fds(one, [b"x"], [0, 1]), lambda: socket.send_fds(one, [b"x"], [0, memory]), lambda: os.open("/dev/vfio/vfio", os.O_RDWR)):
    try:
        give()
        said.append("given")
    except PermissionError:
        said.append("refused")
mapped.close()
print(", ".join(said))
"""


# Has memory as a QEMU has it, fills it, and comes at it by other ways; says which there were, and whether the memory is as it was. Its size is no multiple of a page.
TOUCHES = """
import ctypes, os
libc = ctypes.CDLL(None)
word, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
libc.mmap.restype, libc.mmap.argtypes = word, [word, size, number, number, number, ctypes.c_long]
libc.mremap.restype, libc.mremap.argtypes = word, [word, size, size, number, word]
libc.munmap.argtypes = [word, size]
bytes_, none = (16 << 20) - 100, ctypes.c_void_p(-1).value
memory = os.memfd_create("memory-backend-memfd")
os.ftruncate(memory, 16 << 20)
there = libc.mmap(None, bytes_, 3, 1, memory, 0)
pages = range(bytes_ // 4096)
for page in pages:
    ctypes.memmove(there + page * 4096, (page + 1).to_bytes(8, "little"), 8)
ways = [libc.mmap(None, bytes_, 1, 1, memory, 0), libc.mmap(None, bytes_, 3, 2, memory, 0), libc.mmap(None, bytes_, 3, 3, memory, 0), libc.mremap(there, bytes_, 32 << 20, 1, None)]
for way in ways:
    if way != none:
        sum(ctypes.string_at(way + page * 4096, 1)[0] for page in pages)
wrong = sum(ctypes.string_at(there + page * 4096, 8) != (page + 1).to_bytes(8, "little") for page in pages)
print(f"{sum(way == none for way in ways)} refused, {wrong} pages wrong, unmapped: {libc.munmap(there, bytes_)}")
"""


class TestVm(Machine):
    """Machines of QEMU's with less memory than their guests have."""

    @pytest.fixture(autouse=True, scope="class")
    def with_manager(self, made_ready):
        """What `farshore vm` needs beside the command."""
        self.beside("farshore-manager", "farshore-view", "libfarshore_agent.so")

    def vm(self, mib, *more):
        """The words before QEMU's; `mib` may be words in place of --memory."""
        memory = ["--memory", f"{mib}M"] if isinstance(mib, int) else mib
        return [self.farshore, "vm", "run", *memory, "--swap", f"dir:{self.folder('swap', 0o777)}", *more, "--"]

    @contextlib.contextmanager
    def running(self, argv):
        """A machine at work: its process, what its guest has said so far, and the number of its manager. It is there when a part of its memory has left."""
        console = os.path.join(self.folder("running"), "console")
        with open(console, "wb") as out:
            process = harness.Process(argv, self.work, LONG, stdout=out)
        try:
            wait_until(lambda: "handed over" in process.stderr_so_far() or not process.alive(), "nothing is handed over", LONG)
            manager = manager_of(process.stderr_so_far())
            yield process, lambda: harness.read_text(console).replace("\r", ""), manager
        finally:
            process.kill_session()
            process.finish()

    def qemu(self, process):
        """The number of QEMU's process, as soon as its guest has touched some of its memory."""
        with_memory = lambda: [pid for pid in harness.session_pids(process.popen.pid) if memory_of(pid)]  # noqa: E731
        wait_until(with_memory, f"no guest begins: {process.stderr_so_far()}", LONG)
        return with_memory()[0]

    def wait_for_evictions(self, process, manager, pages=5000):
        """Waits until so many pages have left."""
        def evicted():
            os.kill(manager, signal.SIGUSR1)
            time.sleep(0.2)
            found = re.findall(r"(\d+) pages evicted", process.stderr_so_far())
            return bool(found) and int(found[-1]) >= pages
        wait_until(evicted, "no pages leave", LONG)

    @pytest.mark.parametrize("size, limit", [(TINY, 96), pytest.param(LARGE, 256, marks=pytest.mark.large), pytest.param(LARGE, 128, marks=pytest.mark.large)])
    def test_fill(self, size, limit):
        """A guest that fills and checks its memory says the same, and at most so much of it is in RAM."""
        said = self.native(size)[0]
        there, most, outcome = self.boot([*self.vm(limit), *self.machine(*size)], 1200, memory_of, 0.02)
        expect(there == said, f"it says:\n{there}\ninstead of:\n{said}")
        expect(limit * MIB * 9 // 10 < most <= limit * MIB, f"{most / MIB:.1f} MiB of the guest were in RAM, with a limit of {limit}")
        manager = manager_of(outcome.stderr)
        wait_until(lambda: not os.path.exists(f"/proc/{manager}"), "the manager does not end with QEMU")
        lines = outcome.stderr.splitlines()
        expect(len(lines) == 2 and "has ended" in lines[1], f"on stderr: {outcome.stderr}")
        return lines[1].partition("has ended: ")[2]

    def test_busy_devices(self):
        """A guest copies a disk and reads from the network (virtio, both) while it fills its memory: it says the same as natively."""
        work = self.folder("busy")
        disks = [os.path.join(work, name) for name in ("from", "to")]
        for path in (*disks, os.path.join(work, "net")):
            with open(path, "wb") as file:
                file.write(random.Random(path[-4:]).randbytes(24 * MIB) if path != disks[1] else bytes(24 * MIB))
        drives = [word for number, path in enumerate(disks)
                  for word in ("-drive", f"file={path},format=raw,if=none,id=disk{number}", "-device", f"virtio-blk-pci,drive=disk{number}")]
        net = ["-netdev", f"user,id=net,restrict=on,guestfwd=tcp:10.0.2.100:7-cmd:cat {work}/net", "-device", "virtio-net-pci,netdev=net"]
        argv = [*kernels.plain_guest(work, "busy", 192, 2, ["scan"], [("size", 60)], modules=True), "-serial", "stdio", *drives, *net]
        said = self.boot(argv, 600, lambda _: 0)[0]
        sums = [hashlib.md5(pathlib.Path(path).read_bytes()).hexdigest() for path in (os.path.join(work, "net"), disks[0])]
        expect(re.findall(r"^([0-9a-f]{32})  ", said, re.M) == [sums[0]] * 3 + [sums[1]] * 2, f"natively: {said}")
        limit = 64
        there, most, outcome = self.boot([*self.vm(limit), *argv], 1200, memory_of, 0.02)
        expect(there == said, f"it says:\n{there}\ninstead of:\n{said}")
        expect(most <= limit * MIB, f"{most / MIB:.1f} MiB of the guest were in RAM, with a limit of {limit}")
        return outcome.stderr.splitlines()[-1].partition("has ended: ")[2]

    def test_snapshot(self):
        """A snapshot is written while most of the guest is out, and loaded: the guest goes on from there and says the same."""
        said = self.native(TINY)[0]
        work = self.folder("snapshot")
        monitor, disk = os.path.join(work, "monitor"), os.path.join(work, "disk")
        done = subprocess.run([harness.need("qemu-img", "qemu-utils"), "create", "-q", "-f", "qcow2", disk, "1G"], check=False)
        expect(done.returncode == 0, "qemu-img fails")
        argv = [*self.vm(64), *self.machine(*TINY), "-monitor", f"unix:{monitor},server=on,wait=off", "-drive", f"file={disk},if=none,id=disk"]
        with self.running(argv) as (process, console, manager):
            self.wait_for_evictions(process, manager)
            self.tell(monitor, "stop", "savevm one", "loadvm one", "cont")
            process.popen.wait(LONG)
            there = without_times(console())
            expect(there == said, f"it says:\n{there}\ninstead of:\n{said}")

    def test_killed_managers(self):
        """Managers that are killed while the guest works: each time another one takes over, and the guest says the same."""
        said = self.native(TINY)[0]
        with self.running([*self.vm(64), *self.machine(*TINY)]) as (process, console, manager):
            self.wait_for_evictions(process, manager)
            for times in range(1, 4):
                os.kill(manager, signal.SIGKILL)
                found = lambda: re.search(rf"goes on with another manager \(manager (\d+), takeover {times}\)", process.stderr_so_far())  # noqa: E731
                wait_until(found, f"nobody takes over: {process.stderr_so_far()}", LONG)
                manager = int(found()[1])
                expect(json.loads(self.call("stat", "--json", str(manager)).out)["memory_limit_bytes"] == 64 * MIB, "another limit")
                time.sleep(0.5)
            process.popen.wait(LONG)
            there = without_times(console())
            expect(there == said, f"it says:\n{there}\ninstead of:\n{said}")
            wait_until(lambda: not os.path.exists(f"/proc/{manager}"), "the manager does not end with QEMU")
            expect(" 0 pages lost" in process.stderr_so_far() and "is lost" not in process.stderr_so_far(), process.stderr_so_far())

    def test_more_memory(self):
        """Memory that is plugged in while QEMU runs is managed too, and what is taken out is no more."""
        monitor = os.path.join(self.folder("more"), "monitor")
        argv = [*self.vm(32), kernels.qemu(), "-S", "-m", "64M", "-nodefaults", "-display", "none", "-monitor", f"unix:{monitor},server=on,wait=off"]
        with self.running(argv) as (process, _, _):
            for text, words in (("added 96 MiB", "object_add memory-backend-memfd,id=more,size=96M,share=on"), ("taken away 96 MiB", "object_del more"),
                                ("added 48 MiB", "object_add memory-backend-memfd,id=more,size=48M,share=on")):
                self.tell(monitor, words)
                wait_until(lambda: text in process.stderr_so_far(), f"{words}: {process.stderr_so_far()}")
            self.tell(monitor, "object_add memory-backend-ram,id=other,size=48M")
            expect("48 MiB" not in process.stderr_so_far().partition("added 48 MiB")[2], f"private memory is told of: {process.stderr_so_far()}")

    def test_asked(self):
        """`farshore stat`, `set` and `top` reach the manager; another limit holds while the guest works."""
        with self.running([*self.vm(64), *self.machine(*TINY)]) as (process, _, manager):
            self.wait_for_evictions(process, manager)
            told = json.loads(self.call("stat", "--json", str(manager)).out)
            expect(told["program"].startswith("qemu-system") and told["pid"] == manager and told["memory_limit_bytes"] == 64 * MIB, f"{told}")
            expect(told["managed_bytes"] == TINY[0] * MIB and told["evictions"]["pages"] >= 5000 and told["faults"]["zero"] > 0, f"{told}")
            expect(0 < told["processor_ns"] and told["spaces"][0]["used_bytes"] > 0 and 0 < told["overhead_bytes"] < 64 * MIB, f"{told}")
            by_qemu = json.loads(self.call("stat", "--json", str(self.qemu(process))).out)
            expect(by_qemu["pid"] == manager, f"QEMU's number does not lead to its manager: {by_qemu['pid']}")
            done = self.call("set", str(manager), "memory=32M", "prefetch=none", "policy=fifo", "evictors=1")
            expect(done.status == 0, done.err)
            wait_until(lambda: memory_of(self.qemu(process)) <= 32 * MIB, "the guest's memory does not shrink", LONG)
            told = json.loads(self.call("stat", "--json", str(manager)).out)
            expect((told["memory_limit_bytes"], told["prefetcher"], told["policy"]) == (32 * MIB, "none", "fifo"), f"{told}")
            listed = self.call("top", "--once").out
            expect(re.search(rf"\b{manager}\b", listed), f"farshore top does not have {manager}: {listed}")
            for words, word in (("memory=1M", "at least"), ("swap+=ram:lz4", "swap"), ("slowdown=500%", "slowdown"), ("budget=1G", "in no budget"), ("policy=best", "best"), ("evictors=99", "99")):
                self.refused(["set", str(manager), words], (1, 125), word)

    @pytest.mark.parametrize("size, budget", [(TINY, 160), pytest.param(LARGE, 480, marks=pytest.mark.large)])
    def test_budget(self, size, budget):
        """Three guests in one budget, of which one fills its memory and two do next to nothing: it says the same, and together they never have more of it in RAM."""
        said = self.native(size)[0]
        name = f"test-guests-{os.getpid()}"
        idle = [kernels.qemu(), "-m", f"{size[0]}M", "-nodefaults", "-display", "none"]
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(self.running([*self.vm(["--budget", f"{name}={budget}M"]), *idle]))
            others = [first, stack.enter_context(self.running([*self.vm(["--budget", name, "--memory-min", "8M"]), *idle]))]
            greedy, console, manager = stack.enter_context(self.running([*self.vm(["--budget", name]), *self.machine(*size)]))
            most, share = 0, 0
            qemus = [self.qemu(process) for process, _, _ in [*others, (greedy, console, manager)]]
            while greedy.alive():
                # Twice, as memory goes from one to another meanwhile.
                seen = [[memory_of(pid) for pid in qemus] for _ in range(2)]
                most = max(most, sum(map(min, *seen)))
                told = self.call("stat", "--json", str(manager))
                if told.status == 0:
                    found = json.loads(told.out)["budget"]
                    expect(found["name"] == name and found["programs"] == 3 and found["taken_bytes"] <= found["size_bytes"] == budget * MIB, f"{found}")
                    share = max(share, found["share_bytes"])
                time.sleep(0.1)
            greedy.popen.wait(LONG)
            there = without_times(console())
            expect(there == said, f"it says:\n{there}\ninstead of:\n{said}")
            expect(budget * MIB // 2 < share and most <= budget * MIB, f"{share / MIB:.1f} MiB were its share, {most / MIB:.1f} of {budget} in RAM")
        return f"{share / MIB:.0f} of {budget} MiB for the one that works, {most / MIB:.0f} in RAM"

    def test_other_ways(self):
        """Memory that is mapped a second time, or moved, is refused, and has its bytes; what is no multiple of a page is unmapped."""
        script = os.path.join(self.folder("touches"), "qemu")
        with open(script, "w", encoding="ascii") as file:
            file.write(f"#!{sys.executable}\n{TOUCHES}")
        os.chmod(script, 0o755)
        done = self.call_program([*self.vm(8), script])
        expect(done.status == 0 and done.out == "4 refused, 0 pages wrong, unmapped: 0\n", f"status {done.status}: {done.out}{done.err}")

    def test_other_backends(self):
        """A DIMM on the command line is managed, and the machine's own memory too."""
        argv = [*self.vm(32), kernels.qemu(), "-S", "-m", "64M,slots=2,maxmem=1G", "-nodefaults", "-display", "none",
                "-object", "memory-backend-memfd,id=more,size=48M", "-device", "pc-dimm,memdev=more"]
        with self.running(argv) as (process, _, _):
            for text in ("handed over 64 MiB", "added 48 MiB"):
                wait_until(lambda: text in process.stderr_so_far(), f"not '{text}': {process.stderr_so_far()}")

    def test_elsewhere(self):
        """Memory that is plugged in where QEMU has no /proc (-chroot) is managed. It can be taken out when the manager has left, and what comes then is refused."""
        if os.geteuid() != 0:
            raise Unavailable("changing the root needs root")
        monitor = os.path.join(self.folder("elsewhere"), "monitor")
        argv = [*self.vm(32), kernels.qemu(), "-S", "-m", "64M", "-nodefaults", "-display", "none", "-chroot", self.folder("empty"),
                "-monitor", f"unix:{monitor},server=on,wait=off"]
        with self.running(argv) as (process, _, manager):
            self.tell(monitor, "object_add memory-backend-memfd,id=more,size=96M")
            wait_until(lambda: "added 96 MiB" in process.stderr_so_far(), f"it is not managed: {process.stderr_so_far()}")
            qemu = next(pid for pid in harness.session_pids(process.popen.pid) if "memory-backend-memfd" in harness.read_text(f"/proc/{pid}/maps"))
            os.kill(manager, signal.SIGTERM)
            wait_until(lambda: not os.path.exists(f"/proc/{manager}"), "the manager does not end")
            mapped = lambda: harness.read_text(f"/proc/{qemu}/maps").count("memory-backend-memfd")
            expect(mapped() == 2, "it has not both")
            self.tell(monitor, "object_del more")
            wait_until(lambda: mapped() == 1, f"it stays mapped: {process.stderr_so_far()}")
            self.tell(monitor, "object_add memory-backend-memfd,id=other,size=48M", well=False)
            expect(mapped() == 1 and "has no manager any more" in process.stderr_so_far(), process.stderr_so_far())

    def test_nobody_reads(self):
        """A refusal that nobody can be told of does not end QEMU in another way than a refusal does."""
        with open("/dev/full", "w", encoding="ascii") as full:
            argv = [*self.vm(32), kernels.qemu(), "-display", "none", "-m", "64M", "-drive", f"file={self.farshore},format=raw,cache=none"]
            status = subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=full, timeout=LONG, check=False).returncode
        expect(status == 1, f"status {status}")

    def test_ignored_children(self):
        """Whoever ignores SIGCHLD has a QEMU."""
        argv = [*self.vm(32), kernels.qemu(), "--version"]
        done = subprocess.run(["sh", "-c", 'trap "" CHLD; exec "$@"', "sh", *argv], capture_output=True, text=True, timeout=LONG, check=False)
        expect(done.returncode == 0 and not done.stderr, f"status {done.returncode}: {done.stderr}")

    def test_daemon_of_a_pipe(self):
        """Whoever reads what a daemon says until it is one comes to the end."""
        number = os.path.join(self.folder("daemon"), "number")
        argv = [*self.vm(32), kernels.qemu(), "-S", "-m", "64M", "-nodefaults", "-display", "none", "-daemonize", "-pidfile", number]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said = process.communicate(timeout=LONG)[0]
            expect(process.returncode == 0 and "handed over" in said, said)
            expect(os.path.exists(f"/proc/{manager_of(said)}"), "its manager has ended")
        finally:
            os.kill(int(harness.read_text(number)), signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{manager_of(said)}"), "the manager does not end")

    def test_daemon(self):
        """A QEMU that makes itself a daemon, in QEMU's own sandbox: its manager is that of the daemon."""
        number = os.path.join(self.folder("daemon"), "number")
        argv = [*self.vm(32), kernels.qemu(), "-S", "-m", "64M", "-nodefaults", "-display", "none", "-daemonize", "-pidfile", number,
                "-sandbox", "on,obsolete=deny,resourcecontrol=deny"]
        log = os.path.join(self.folder("log"), "log")
        with open(log, "wb") as file:
            status = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=LONG, check=False).returncode
        said = harness.read_text(log)
        expect(status == 0, f"status {status}: {said}")
        daemon, manager = int(harness.read_text(number)), manager_of(said)
        try:
            expect(f"process {daemon} has handed over" in said, said)
            expect(os.path.exists(f"/proc/{manager}"), "its manager has ended")
        finally:
            os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{manager}"), "the manager does not end")

    def tell(self, monitor, *commands, well=True):
        """Has QEMU's monitor do something, which goes well, or does not; what it says last."""
        def until_ready(words):
            answer = b""
            while not answer.endswith(b"(qemu) "):
                part = line.recv(65536)
                expect(part, f"the monitor ends at {words!r}")
                answer += part
            answer = answer.decode(errors="replace")
            expect(not well or "rror" not in answer and "ould not" not in answer, f"{words}: {answer}")
            return answer

        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(LONG)
            line.connect(monitor)
            until_ready("")
            for words in commands:
                line.sendall(f"{words}\n".encode())
                answer = until_ready(words)
            return answer

    def test_killed(self):
        """QEMU is killed: its manager ends, and nothing is left."""
        with self.running([*self.vm(32), *self.machine(*TINY)]) as (process, _, manager):
            self.wait_for_evictions(process, manager)
            os.kill(self.qemu(process), signal.SIGKILL)
            wait_until(lambda: not os.path.exists(f"/proc/{manager}"), "the manager does not end")
        left = [name for name in os.listdir(self.work) if name.startswith("swap-") and os.listdir(os.path.join(self.work, name))]
        expect(not left, f"files are left behind: {left}")

    def test_manager_leaves(self):
        """The manager is told to end: the guest goes on without one, and says the same."""
        said = self.native(TINY)[0]
        with self.running([*self.vm(64), *self.machine(*TINY)]) as (process, console, manager):
            self.wait_for_evictions(process, manager)
            os.kill(manager, signal.SIGTERM)
            wait_until(lambda: not os.path.exists(f"/proc/{manager}"), "the manager does not end", LONG)
            expect("goes on without a manager" in process.stderr_so_far(), process.stderr_so_far())
            process.popen.wait(LONG)
            there = without_times(console())
            expect(there == said, f"it says:\n{there}\ninstead of:\n{said}")

    def test_stays_what_it_is(self):
        """What QEMU says and how it ends is QEMU's, and a program that maps no guest's memory has no manager for long."""
        qemu = kernels.qemu()
        native = self.call_program([qemu, "--version"])
        there = self.call_program([*self.vm(64), qemu, "--version"])
        expect((there.status, there.out, there.err) == (0, native.out, ""), f"{there.status}, {there.err}, {there.out}")
        script = os.path.join(self.folder("scripts"), "qemu")
        for text, status in (("exit 7", 7), ("kill -9 $$", 137), (None, 127), ("", 126)):
            if text is not None:
                with open(script, "w", encoding="ascii") as file:
                    file.write(f"#!/bin/sh\n{text}\n")
                os.chmod(script, 0o755 if text else 0o644)
            done = self.call_program([*self.vm(64), script if text is not None else "/nonexistent"])
            expect(done.status == status, f"{text}: status {done.status}, not {status}: {done.err}")

    def test_bad_input(self):
        """What cannot be managed is refused, in a line that says what to do."""
        qemu = kernels.qemu()
        refused = 0
        config = os.path.join(self.folder("config"), "config")
        with open(config, "w", encoding="ascii") as file:
            file.write('[object "ram"]\n  qom-type = "memory-backend-ram"\n  size = "64M"\n[machine]\n  memory-backend = "ram"\n')
        for words, word in ((["--memory", "64M", "--", qemu, "-object", "memory-backend-ram,id=ram,size=1G"], "memory-backend-ram"),
                            (["--memory", "64M", "--", qemu, "-object", "memory-backend-memfd,id=ram,size=1G,share=off"], "not shared"),
                            (["--memory", "64M", "--", qemu, "-mem-path", "/dev/shm"], "-mem-path"),
                            (["--memory", "64M", "--", qemu, "-readconfig", config], "-readconfig"),
                            (["--memory", "64M", "--", qemu, "-machine", "memory-backend=ram"], "no -object"),
                            (["--memory", "1M", "--", qemu], "--memory"), (["--memory", "lots", "--", qemu], "lots"), (["--", qemu], "--memory"),
                            (["--memory", "64M"], "QEMU"), (["--memory", "64M", "--swap", "tape:/x", "--", qemu], "tape"),
                            (["--memory", "64M", "--swap", "dir:/nonexistent", "--", qemu], "/nonexistent")):
            self.refused(["vm", "run", *words], (125,), word)
            refused += 1
        self.refused(["vm", "stop"], (125,), "stop")
        self.refused(["vm"], (125,), "vm")
        return f"{refused + 2} refused"

    def test_past_the_page_tables(self):
        """Disks with direct I/O, devices that are passed through, and memory for other processes are refused when they come, however they come."""
        work = self.folder("past")
        for device in ("/dev/vhost-vdpa-0", "/dev/udmabuf", "/dev/sev", "/dev/infiniband/uverbs0", "/dev/iommu"):
            done = self.call_program([*self.vm(32), kernels.qemu(), "-pidfile", device, "-S", "-m", "64M", "-nodefaults", "-display", "none"])
            expect(done.status == 1 and f"'{device}' is not opened" in done.err, f"status {done.status}: {done.err}")
        disk, monitor, script = (os.path.join(work, name) for name in ("disk", "monitor", "qemu"))
        with open(disk, "wb") as file:
            file.truncate(1 << 20)
        small = [kernels.qemu(), "-S", "-m", "64M", "-nodefaults", "-display", "none"]
        for cache in ("none", "directsync"):
            done = self.call_program([*self.vm(32), *small, "-drive", f"file={disk},format=raw,if=none,id=one,cache={cache}"])
            expect(done.status == 1 and "cache=writeback" in done.err and disk in done.err, f"status {done.status}: {done.err}")
        direct = os.open(disk, os.O_RDWR | os.O_DIRECT)
        try:
            argv = [*self.vm(32), *small, "-add-fd", f"fd={direct},set=2"]
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, pass_fds=[direct], timeout=LONG, check=False)
            expect(done.returncode == 1 and "cache=writeback" in done.stderr, f"status {done.returncode}: {done.stderr}")
        finally:
            os.close(direct)
        with self.running([*self.vm(32), *small, "-monitor", f"unix:{monitor},server=on,wait=off"]) as (process, _, _):
            self.tell(monitor, f"drive_add 0 file={disk},format=raw,if=none,id=two,cache=writeback")
            expect("direct I/O" not in process.stderr_so_far(), process.stderr_so_far())
            answer = self.tell(monitor, f"drive_add 0 file={disk},format=raw,if=none,id=three,cache=none", well=False)
            expect("Could not open" in answer and "direct I/O" in process.stderr_so_far(), f"{answer}; {process.stderr_so_far()}")
        # What a vhost-user device would be given.
        with open(script, "w", encoding="ascii") as file:
            file.write(f"#!{sys.executable}\n{GIVES}")
        os.chmod(script, 0o755)
        done = self.call_program([*self.vm(32), script])
        expect(done.status == 0 and done.out == "given, refused, refused\n", f"status {done.status}: {done.out}{done.err}")
        expect("vhost-user" in done.err and "/dev/vfio/vfio" in done.err and "taken away 8 MiB" in done.err, done.err)

    def test_without_the_right(self):
        """A user who may not have the kernel's accesses served: QEMU ends with a line, and runs no guest without a limit."""
        if os.geteuid() != 0:
            raise Unavailable("changing the user needs root")
        if harness.read_text("/proc/sys/vm/unprivileged_userfaultfd").strip() != "0":
            raise Unavailable("every user has the right here")
        if os.path.exists("/dev/userfaultfd") and os.stat("/dev/userfaultfd").st_mode & 0o006:
            raise Unavailable("every user may open /dev/userfaultfd here")
        done = self.call_program([*self.vm(64), kernels.qemu(), "-display", "none", "-m", "128M"], user=NOBODY)
        expect(done.status == 1 and "vm.unprivileged_userfaultfd=1" in done.err, f"status {done.status}: {done.err}")
