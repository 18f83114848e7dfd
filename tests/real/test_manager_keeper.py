"""`farshore manage`: what surrounds a manager that is killed: how its keeper was started, and requests that were under way."""

import contextlib
import ctypes
import os
import re
import signal
import struct
import time

import harness
import pytest
from harness import expect
from managed import LONG, PAGE, Client, Managed, in_child
from test_manager_takeover import goes_on, own_manager

HANDSHAKE, ADD_REGION, REMOVE_REGION = 0x0A, 0x0B, 0x0C
# How often a manager may be faster than the signal that is to stop it.
TRIES = 20


def binary(command, body, regions=0):
    """A request in the binary form."""
    return struct.pack("<HHBBHQ", command, 1, 1 | 4, 0, regions, len(body)) + body


def region(client, address=None, size=None, offset=0):
    """A region of a client in that form."""
    return struct.pack("<QQQQQQ", address or client.address, size or client.size, 0, PAGE, 0, offset)


def registered(pid, address):
    """Whether the mapping at an address is registered with a userfaultfd."""
    mapping = re.search(rf"^{address:x}-[^\n]*\n(?:\w+:[^\n]*\n)*?VmFlags:([^\n]*)", harness.read_text(f"/proc/{pid}/smaps"), re.M)
    return bool(mapping) and "um" in mapping[1].split()


@pytest.mark.poll
class TestKeeper(Managed):
    """How it was started, and what was under way."""

    before = ()

    def manage(self):
        return [*self.before, *super().manage()]

    @contextlib.contextmanager
    def started_by(self, script, name, memory="8M", **options):
        """A manager that a shell becomes, after this script."""
        self.before = ("sh", "-c", f'{script}\nexec "$@"', "sh")
        try:
            with self.manager(name, memory, **options) as manager:
                yield manager
        finally:
            self.before = ()

    @staticmethod
    def replaced(manager, client, said=True):
        """Kills the manager of a client that is filled with 5, and looks whether another one serves it."""
        own, keeper = own_manager(manager)
        os.kill(own, signal.SIGKILL)
        if said:
            goes_on(manager, 1)
        expect(client.is_filled(5), "other bytes")
        expect(own_manager(manager)[1] == keeper, "another keeper")

    def test_ends_of_children_are_ignored(self):
        """Whoever starts it ignores the ends of its children, which is inherited: a keeper hears of its manager's end all the same."""
        self.before = ("/usr/bin/env", "python3", "-c", "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])")
        with self.manager("ignored", "8M") as manager:

            def work():
                client = Client(pages=8192)
                expect(client.hand_over(manager), manager.said()[-1000:])
                client.fill(5)
                self.replaced(manager, client)

            in_child(work)
            manager.wait_for_no_clients()

    @contextlib.contextmanager
    def through_a_pipe(self, name):
        """A manager whose standard error is a pipe, the process that reads it, and the pipe."""
        folder = self.folder(f"{name}-pipe", 0o755)
        pipe, number = os.path.join(folder, "pipe"), os.path.join(folder, "reader")
        os.mkfifo(pipe)
        with self.started_by(f"(sh -c 'echo $$ >{number}; exec cat {pipe} >&2' &)\nexec 2>{pipe}", name) as manager:
            yield manager, int(harness.read_text(number)), pipe

    def test_nobody_reads_what_it_says(self):
        """Its standard error is a pipe that nobody reads any more: a keeper must not end by its own line."""
        with self.through_a_pipe("unread") as (manager, reader, _):

            def work():
                client = Client(pages=8192)
                expect(client.hand_over(manager), manager.said()[-1000:])
                client.fill(5)
                os.kill(reader, signal.SIGKILL)
                self.replaced(manager, client, said=False)

            in_child(work)
            manager.wait_for_no_clients()

    def test_files_are_limited(self):
        """Under a limit of the sizes of files, memory is managed as it was before tables outlived a manager. If it is a soft one, they do."""
        for script, lasts in [("ulimit -S -f 1000000", True), ("ulimit -f 1000000", False)]:
            with self.started_by(script, f"limited-{lasts}") as manager:

                def work(manager=manager, lasts=lasts):
                    client = Client(pages=8192)
                    expect(client.hand_over(manager), f"it is refused: {manager.said()[-1000:]}")
                    client.fill(5)
                    expect(lasts != ("this manager cannot be replaced" in manager.said()), manager.said()[-1000:])
                    if lasts:
                        self.replaced(manager, client)
                    expect(client.is_filled(5), "other bytes")

                in_child(work)
                manager.wait_for_no_clients()

    def test_a_region_goes_and_comes_back(self):
        """A file that the client takes away can be handed over anew at once, however late its keeper hears of it."""
        with self.manager("back", "16M") as manager:

            def work():
                client, second = Client(pages=2048), Client(pages=2048)
                client.connect(manager)
                client.send_bytes(binary(HANDSHAKE, region(client) + region(second), 2), [client.uffd])
                expect(len(client.answer()) == 16, manager.said()[-1000:])
                _, keeper = own_manager(manager)
                os.kill(keeper, signal.SIGSTOP)
                try:
                    client.send_bytes(binary(REMOVE_REGION, struct.pack("<QQ", second.address, second.size)), [])
                    expect(len(client.answer()) == 16, f"it does not go: {manager.said()[-1000:]}")
                    client.send_bytes(binary(ADD_REGION, region(second)), [])
                    expect(len(client.answer()) == 16, f"it does not come back: {manager.said()[-1000:]}")
                finally:
                    os.kill(keeper, signal.SIGCONT)
                second.fill(5)
                self.replaced(manager, second)

            in_child(work)
            manager.wait_for_no_clients()

    @staticmethod
    def killed_while_a_region_comes(manager):
        """It is unavailable if the manager has answered before it could be stopped: beside others it may have the processor for as long as it takes."""
        client, second = Client(pages=2048), Client(pages=1 << 16)
        expect(client.hand_over(manager), manager.said()[-1000:])
        client.fill(5)
        # Every other page: it takes a while to find out which are there.
        for page in range(0, 1 << 15, 2):
            ctypes.memset(second.address + page * PAGE, 3, 1)
        own, _ = own_manager(manager)
        client.send({"type": "add_region", "region": client.region(host_virt_addr=second.address, size=second.size, guest_phys_addr=client.size)}, [])
        deadline = time.monotonic() + LONG
        while True:
            os.kill(own, signal.SIGSTOP)
            if registered(os.getpid(), second.address):
                break
            os.kill(own, signal.SIGCONT)
            expect(time.monotonic() < deadline, "it is not registered")
            time.sleep(0.0002)
        os.kill(own, signal.SIGKILL)
        goes_on(manager, 1)
        if client.answer():
            raise harness.Unavailable("the manager was faster")
        expect(not registered(os.getpid(), second.address), "it stays registered, and nobody serves it")
        expect(ctypes.string_at(second.address + PAGE, 1) == b"\0" and ctypes.string_at(second.address, 1) == b"\3", "other bytes")
        expect(client.is_filled(5), "other bytes")

    def test_killed_while_a_region_comes(self):
        """A manager that is killed between the registration of a region and its answer: the region is the client's as it was, and nobody waits there for ever."""
        for attempt in range(TRIES):
            try:
                with self.manager(f"coming-{attempt}", "16M") as manager:
                    in_child(lambda manager=manager: self.killed_while_a_region_comes(manager))
                    manager.wait_for_no_clients()
                    return
            except harness.Unavailable as why:
                late = why
        raise late

    def test_killed_while_it_leaves(self):
        """A manager that has given everything back, and is killed before it has ended: the next one ends what it has begun, and takes nothing again."""
        with self.through_a_pipe("leaving") as (manager, reader, pipe):

            def work():
                client = Client(pages=8192)
                expect(client.hand_over(manager), manager.said()[-1000:])
                client.fill(5)
                own, keeper = own_manager(manager)
                # Its last line has no room.
                os.kill(reader, signal.SIGSTOP)
                manager.wait_until(lambda: "State:\tT" in harness.read_text(f"/proc/{reader}/status"), "it reads on")
                full = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                with contextlib.suppress(BlockingIOError):
                    while os.write(full, b"\n" * PAGE):
                        pass
                with contextlib.suppress(BlockingIOError):
                    while os.write(full, b"\n"):
                        pass
                os.kill(own, signal.SIGTERM)
                manager.wait_until(lambda: not registered(os.getpid(), client.address), "it does not leave")
                time.sleep(0.1)
                os.kill(own, signal.SIGKILL)
                os.close(full)
                os.kill(reader, signal.SIGCONT)
                manager.wait_until(lambda: not os.path.exists(f"/proc/{keeper}"), "it is replaced, and stays")
                expect(client.is_filled(5) and client.in_memory() == client.size, "other bytes")
                expect(os.fstat(client.memfd).st_mode & 0o1000 == 0, "the mark stays")
                expect(not registered(os.getpid(), client.address), "it is registered again")

            in_child(work)
            manager.wait_for_no_clients()
