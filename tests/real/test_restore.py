"""`farshore manage --protocol firecracker`: guests of a stand-in (tests/programs/restored.c) whose memory comes from a snapshot as it is touched; working sets; clients that misbehave."""

import contextlib
import fcntl
import json
import mmap
import os
import re
import select
import signal
import struct
import subprocess
import time

import harness
import pytest
from harness import MIB, expect
from managed import LONG, Client, Managed, children_of, descriptors_of, libc

# Missing pages, and what is thrown away.
REMOVE = 1 << 3


class Restored:
    """The stand-in, with guests at work."""

    def __init__(self, program, manager, *arguments):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program, manager.socket, *arguments], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
        self.manager = manager

    def wait_for(self, text):
        ready = select.select([self.process.stdout], [], [], LONG)[0]
        expect(ready, f"nothing comes: {self.manager.said()[-2000:]}\n{harness.describe_process(self.process.pid)}")
        line = self.process.stdout.readline().decode().strip()
        expect(line.startswith(text), f"{line!r}, not {text!r}: {self.end_of_stderr()} {self.manager.said()[-2000:]}")
        return line

    def end_of_stderr(self):
        return self.process.stderr.read().decode()[-500:] if self.process.poll() is not None else ""

    def finish(self):
        """Has it look at everything once more; how often it has looked."""
        self.process.stdin.close()
        line = self.wait_for("right after")
        expect(self.process.wait(LONG) == 0, f"{line}: {self.end_of_stderr()}")
        return int(re.search(r"\d+", line)[0])

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.mark.poll
class TestRestore(Managed):
    """Guests that are restored."""

    def snapshot(self, name, size):
        path = os.path.join(self.folder(name, 0o755), "memory")
        subprocess.run([self.public_program("restored"), "--make", path, "--size", size], check=True)
        return path

    @contextlib.contextmanager
    def restorer(self, name, snapshot, *more):
        with self.manager(name, memory=None, protocol="firecracker", more=("--snapshot", snapshot, *more)) as manager:
            yield manager

    @contextlib.contextmanager
    def restored(self, manager, *arguments):
        guest = Restored(self.public_program("restored"), manager, *arguments)
        try:
            guest.wait_for("handed")
            yield guest
        finally:
            guest.kill()

    @pytest.mark.parametrize("arguments", [("--regions", "1"), ("--regions", "4", "--threads", "7"), ("--removals", "0")], ids=["one", "regions", "silent"])
    def test_guests(self, arguments):
        """Guests find what the snapshot has, what they have written, and zeros where they have thrown pages away."""
        snapshot = self.snapshot("guests-snapshot", "64M")
        with self.restorer("guests", snapshot) as manager:
            before = descriptors_of(manager.pid)
            with self.restored(manager, "--size", "64M", *arguments) as guest:
                guest.wait_for("touched")
                time.sleep(3)
                looks = guest.finish()
                manager.wait_for("has ended")
                manager.wait_for_no_clients()
            said = manager.said()
            expect("is lost" not in said, said[-1000:])
            manager.wait_until(lambda: descriptors_of(manager.pid) == before, "descriptors of a client that has ended stay open")
            expect(("0 bytes were thrown away" in said) == ("--removals" in arguments), said[-500:])
        return f"{looks} looks; {said.splitlines()[-1]}"

    def test_zeros_take_no_memory(self):
        """Pages of zeros in the snapshot are the kernel's page of zeros."""
        path = os.path.join(self.folder("zeros-snapshot", 0o755), "memory")
        with open(path, "wb") as file:
            file.truncate(64 * MIB)
        with self.restorer("zeros", path) as manager:
            client = Client(pages=16384, shared=False, features=REMOVE)
            try:
                self.register(client)
                client.connect(manager)
                self.send(client, [self.region(client)])
                manager.wait_for("restores")
                before = self.resident()
                expect(client.is_filled(0), "they are no zeros")
                expect(self.resident() - before < 8 * MIB, "zeros take memory")
            finally:
                client.close()

    @staticmethod
    def resident():
        return int(re.search(r"RssAnon:\s+(\d+)", harness.read_text("/proc/self/status"))[1]) << 10

    def test_working_set(self):
        """What the first guest touches at its beginning, the second one has before it asks."""
        snapshot = self.snapshot("set-snapshot", "64M")
        path = os.path.join(self.folder("set", 0o755), "set")
        with self.restorer("first", snapshot, "--working-set", path) as manager:
            with self.restored(manager, "--size", "64M", "--set", "2560", "--threads", "0") as guest:
                guest.wait_for("touched")
                guest.kill()
                manager.wait_for("its working set is in")
        lines = harness.read_text(path).splitlines()
        expect(lines[0] == f"farshore-working-set 1 {64 * MIB}" and sum(int(line.split()[1]) for line in lines[1:]) == 2560 * 4096, f"{len(lines)} lines, {lines[:3]}")
        # In this order.
        expect([int(line.split()[0]) // 4096 for line in lines[1:4]] == [0, 37, 74], str(lines[:5]))
        with self.restorer("second", snapshot, "--working-set", path) as manager:
            with self.restored(manager, "--size", "64M", "--threads", "0") as guest:
                guest.wait_for("touched")
                manager.wait_until(lambda: self.line(manager)[1] == 2560 * 4096, "it is not read ahead")
                faults = self.line(manager)[0]
                guest.finish()
            expect(faults == 0, f"{faults} faults")
        expect(os.listdir(os.path.dirname(path)) == ["set"], str(os.listdir(os.path.dirname(path))))

    @staticmethod
    def line(manager):
        """Faults, and bytes that were read ahead, as the manager of the only guest tells when it is asked."""
        before = manager.said().count(" faults)")
        manager.process.send_signal(signal.SIGUSR1)
        manager.wait_for(" faults)", before + 1)
        found = re.findall(r"\((\d+) faults\), ([0-9.]+) (bytes|KiB|MiB) were read ahead", manager.said())[-1]
        return int(found[0]), round(float(found[1]) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20}[found[2]] / 4096) * 4096

    def test_many_at_once(self):
        """Several guests from one snapshot, and one that is killed among them."""
        snapshot = self.snapshot("many-snapshot", "32M")
        path = os.path.join(self.folder("many-set", 0o755), "set")
        with self.restorer("many", snapshot, "--working-set", path) as manager, contextlib.ExitStack() as stack:
            guests = [stack.enter_context(self.restored(manager, "--size", "32M", "--set", "500")) for _ in range(4)]
            for guest in guests:
                guest.wait_for("touched")
            guests[2].kill()
            time.sleep(1)
            for guest in (guests[0], guests[1], guests[3]):
                guest.finish()
            manager.wait_for_no_clients()
        expect(harness.read_text(path).startswith("farshore-working-set 1"), "no working set is written")

    def test_a_manager_that_leaves(self):
        """Ended by a signal, it brings all that is missing first; the guest goes on."""
        snapshot = self.snapshot("leaves-snapshot", "64M")
        with self.restorer("leaves", snapshot) as manager, self.restored(manager, "--size", "64M", "--set", "100") as guest:
            guest.wait_for("touched")
            for child in children_of(manager.pid):
                os.kill(child, signal.SIGTERM)
            manager.wait_for("goes on without a manager")
            manager.wait_for_no_clients()
            time.sleep(0.5)
            guest.finish()

    def test_a_manager_that_leaves_while_memory_is_thrown_away(self):
        """Nobody who is throwing memory away at that moment waits for ever."""
        snapshot = self.snapshot("thrown-snapshot", "1M")

        def work(manager, ended):
            client = Client(pages=256, shared=False, features=REMOVE)
            self.register(client)
            client.connect(manager)
            self.send(client, [self.region(client)])
            client.is_filled(0)
            while True:
                libc.madvise(client.address, 4096, mmap.MADV_DONTNEED)
                os.write(ended, b".")

        with self.restorer("thrown", snapshot) as manager:
            for turn in range(1, 11):
                reader, writer = os.pipe()
                child = os.fork()
                if child == 0:
                    work(manager, writer)
                os.close(writer)
                try:
                    for _ in range(200):
                        os.read(reader, 1)
                    for number in children_of(manager.pid):
                        os.kill(number, signal.SIGTERM)
                    manager.wait_until(lambda: (os.read(reader, 1 << 16), manager.said().count("goes on without a manager") >= turn)[1], "it does not leave")  # noqa: B023
                    # What was written before it left.
                    for _ in range(4):
                        expect(select.select([reader], [], [], 10)[0], f"turn {turn}: it waits for ever: {harness.describe_process(child)}")
                        os.read(reader, 1 << 16)
                finally:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    os.close(reader)
                manager.wait_for_no_clients()

    def test_huge_pages(self):
        """A guest whose memory is in pages of 2 MiB."""
        pool = "/proc/sys/vm/nr_hugepages"
        if os.geteuid() != 0 or not os.path.exists(pool):
            raise harness.Unavailable("huge pages are set aside by root")
        before = harness.read_text(pool).strip()
        try:
            with open(pool, "w", encoding="ascii") as file:
                file.write(str(int(before) + 8))
            if int(harness.read_text(pool)) < int(before) + 8:
                raise harness.Unavailable("the machine has no room for 8 huge pages")
            snapshot = self.snapshot("huge-snapshot", "16M")
            with self.restorer("huge", snapshot) as manager, self.restored(manager, "--size", "16M", "--page", "2M", "--regions", "2") as guest:
                guest.wait_for("touched")
                time.sleep(1)
                guest.finish()
        finally:
            with open(pool, "w", encoding="ascii") as file:
                file.write(before)

    # ---------------------------------------------------------------------------------------------------- clients that misbehave

    @staticmethod
    def register(client):
        """For missing pages alone."""
        fcntl.ioctl(client.uffd, 0xC020AA00, struct.pack("QQQQ", client.address, client.size, 1, 0))

    @staticmethod
    def region(client, **changes):
        return {"base_host_virt_addr": client.address, "size": client.size, "offset": 0, "page_size": 4096, "page_size_kib": 4096, **changes}

    @staticmethod
    def send(client, request, descriptors=None):
        text = request if isinstance(request, bytes) else json.dumps(request).encode()
        client.send_bytes(text, [client.uffd] if descriptors is None else descriptors)

    def test_refused(self):
        """What is wrong is refused in a line; a guest beside it hears nothing of it."""
        snapshot = self.snapshot("refused-snapshot", "8M")
        with self.restorer("refused", snapshot) as manager, self.restored(manager, "--size", "8M") as guest:
            guest.wait_for("touched")
            for name, change, said in (
                ("short", {"size": 16 * MIB}, "the snapshot has only"),
                ("offset", {"offset": 8 * MIB}, "the snapshot has only"),
                ("page", {"page_size": 8192}, "pages of 8192 bytes"),
                ("huge", {"page_size": 2 * MIB, "size": 4096 * 3}, "multiples of its pages"),
                ("address", {"base_host_virt_addr": 4096 * 3 + 1}, "multiples of 4096"),
                ("elsewhere", {"base_host_virt_addr": 1 << 46}, "only 0 bytes of it are registered"),
            ):
                client = Client(shared=False, features=REMOVE)
                self.register(client)
                client.connect(manager)
                self.send(client, [self.region(client, **change)])
                manager.wait_for(said)
                expect(client.answer() == b"", name)
                client.close()
            for request, descriptors, said in (
                (b"[]     ", None, "hands no region over"),
                (b"[{\"size\":1}]", None, "cannot be read"),
                (b"[[[[[[", None, "cannot be read"),
                (None, [], "no userfaultfd came along"),
            ):
                client = Client(shared=False, features=REMOVE)
                self.register(client)
                client.connect(manager)
                count = manager.said().count(said)
                self.send(client, [self.region(client)] if request is None else request, descriptors)
                manager.wait_for(said, count + 1)
                client.close()
            # A userfaultfd with events that nobody serves.
            client = Client(shared=False, features=REMOVE | 1 << 2)
            self.register(client)
            client.connect(manager)
            self.send(client, [self.region(client)])
            manager.wait_for("EVENT_REMAP")
            client.close()
            # Memory that is not registered.
            client = Client(shared=False, features=REMOVE)
            client.connect(manager)
            self.send(client, [self.region(client)])
            manager.wait_for("only 0 bytes of it are registered", 2)
            client.close()
            guest.finish()

    def test_reads_that_wait(self):
        """A client that has its userfaultfd wait, of which it has the same description, does not keep its manager from its end."""
        snapshot = self.snapshot("wait-snapshot", "8M")
        with self.restorer("wait", snapshot) as manager:
            client = Client(shared=False, features=REMOVE)
            self.register(client)
            client.connect(manager)
            self.send(client, [self.region(client)])
            manager.wait_for("restores")
            fcntl.fcntl(client.uffd, fcntl.F_SETFL, 0)
            time.sleep(0.5)
            client.is_filled(0)
            for child in children_of(manager.pid):
                os.kill(child, signal.SIGTERM)
            manager.wait_for("goes on without a manager")
            manager.wait_for_no_clients()
            client.close()

    def test_options(self):
        """Options that do not go together are refused before anybody connects."""
        snapshot = self.snapshot("options-snapshot", "1M")
        folder = self.folder("options", 0o755)
        base = ["manage", "--listen", os.path.join(folder, "s"), "--protocol", "firecracker"]
        self.beside("farshore-manager")
        bad = os.path.join(folder, "bad")
        with open(bad, "w", encoding="ascii") as file:
            file.write("farshore-working-set 1 77\n")
        # Nobody writes it: whoever opened it as a file would wait.
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        for more, word in (((), "no snapshot given"), (("--snapshot", "/no/such"), "/no/such"), (("--snapshot", pipe), "it is no file"), (("--snapshot", snapshot, "--working-set", pipe), "it is no file"), (("--snapshot", snapshot, "--memory", "64M"), "--memory does not go"),
                           (("--snapshot", snapshot, "--swap", "ram"), "--swap does not go"), (("--snapshot", snapshot, "--working-set", bad), "of a snapshot of 77 bytes")):
            self.refused([*base, *more], {125}, word)
        self.refused(["manage", "--listen", os.path.join(folder, "s"), "--protocol", "cloud-hypervisor", "--memory", "64M", "--snapshot", snapshot], {125}, "--snapshot goes with")
