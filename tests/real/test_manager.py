"""`farshore manage`: memory of a stand-in for a virtual machine monitor (tests/programs/vmm.c), and of clients that misbehave, are killed, or lose their manager."""

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import time

import harness
import pytest
from command import NOBODY
from harness import MIB, expect
from managed import EVENT_REMOVE, FEATURES, LONG, PAGE, SIGBUS_FEATURE, WP_ASYNC, Client, Managed, children_of, descriptors_of


@pytest.mark.poll
class TestManager(Managed):
    """The manager, and its clients."""

    @pytest.mark.parametrize("arguments", [
        ("--form", "json"),
        ("--form", "binary", "--files", "--regions", "3"),
        ("--form", "json", "--files", "--regions", "2", "--add", "32M", "--threads", "7"),
        ("--form", "binary", "--add", "48M", "--again"),
    ], ids=["json", "binary", "added", "again"])
    def test_guests(self, arguments):
        """Guests with four times the limit find their own bytes, whoever writes: they, and their kernel for them."""
        with self.manager("guests") as manager:
            before = descriptors_of(manager.pid)
            with self.guests(manager, "--size", "96M", *arguments) as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                manager.wait_for_evictions(120_000)
                now = manager.counters()[0]
                peak = guests.finish(limit=24 * MIB)
                manager.wait_for("has ended")
                manager.wait_for_no_clients()
            expect("is lost" not in manager.said() and "waits" not in manager.said(), manager.said())
            # It hears of a client's end before it has given up all of it.
            manager.wait_until(lambda: descriptors_of(manager.pid) == before, "descriptors of a client that has ended stay open")
        return f"{peak / MIB:.1f} of 24 MiB in memory, {now['faults']} faults, {now['evicted']} pages evicted, {now['read']} read"

    def test_pools(self):
        """Compressed RAM in front of a disk: the pool's pages are within the limit, too."""
        with self.manager("pools", pool="ram:lz4,size=6M") as manager, self.guests(manager, "--size", "64M") as guests:
            guests.wait_for("managed")
            guests.wait_for("filled")
            manager.wait_for_evictions(20_000)
            guests.finish(limit=24 * MIB)

    def test_handed_over_at_work(self):
        """Memory that is handed over while guests work on all of it: it shrinks to the limit, and stays there."""
        with self.manager("running") as manager:
            with self.guests(manager, "--size", "80M", "--running", "--limit", "24M") as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                manager.wait_for_evictions(60_000)
                peak = guests.finish(limit=24 * MIB)
        return f"{peak / MIB:.1f} MiB in memory, once it fitted"

    def test_several(self):
        """Several clients at a time, one of which is killed: nothing of it is left, and nothing happens to the others."""
        with self.manager("several", "8M") as manager, contextlib.ExitStack() as stack:
            before = descriptors_of(manager.pid)
            all_guests = [stack.enter_context(self.guests(manager, "--size", "24M", "--threads", "2")) for _ in range(3)]
            for guests in all_guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
            manager.wait_for_evictions(10_000)
            expect(len(children_of(manager.pid)) == 3, f"{len(children_of(manager.pid))} processes for 3 clients")
            all_guests[0].kill()
            manager.wait_until(lambda: len(children_of(manager.pid)) == 2, "the process of a client that was killed does not end")
            manager.wait_for(f"process {all_guests[0].process.pid} has ended")
            for guests in all_guests[1:]:
                guests.finish(limit=8 * MIB)
            manager.wait_for_no_clients()
            manager.wait_until(lambda: descriptors_of(manager.pid) == before, "descriptors of clients that have ended stay open")

    def test_budget(self):
        """Two clients in one budget, one of which only has memory: the other one gets what it does not use. Together they never have more."""
        name = f"test-clients-{os.getpid()}"
        with self.manager("budget", None, more=["--budget", f"{name}=64M", "--memory-min", "8M"]) as manager:
            idle = Client(40 * MIB // PAGE)
            idle.fill(7)
            expect(idle.hand_over(manager), f"no answer: {manager.said()}")
            with self.guests(manager, "--size", "96M") as guests:
                guests.wait_for("managed")

                def shares():
                    found = [manager.told(client)["budget"] for client in (os.getpid(), guests.process.pid)]
                    expect(all(one["taken_bytes"] <= one["size_bytes"] == 64 * MIB and one["programs"] <= 2 for one in found), f"{found}")
                    return [one["share_bytes"] for one in found]

                manager.wait_until(lambda: shares()[1] >= 48 * MIB, "who works does not get what it needs")
                manager.wait_until(lambda: idle.in_memory() <= 16 * MIB, "who does nothing keeps its memory")
                guests.wait_for("filled")
                guests.finish(limit=64 * MIB)
            expect(idle.is_filled(7), "other bytes")
            # Alone, it has room again.
            done = self.call("set", str(manager.told(os.getpid())["pid"]), "budget=96M", "memory=80M")
            expect(done.status == 0, done.err)
            found = manager.told(os.getpid())["budget"]
            expect(found["size_bytes"] == 96 * MIB and found["programs"] == 1, f"{found}")
            idle.close()

    def test_slowdown(self):
        """A limit that is chosen: memory that nobody uses leaves, down to the least. Another limit ends that."""
        with self.manager("slowdown", None, more=["--slowdown", "5%", "--memory-min", "8M", "--memory-max", "256M"]) as manager:
            client = Client(64 * MIB // PAGE)
            client.fill(9)
            expect(client.hand_over(manager), f"no answer: {manager.said()}")
            manager.wait_until(lambda: client.in_memory() <= 12 * MIB, "memory that nobody uses stays")
            found = manager.told(os.getpid())
            expect(found["autopilot"]["target_ppm"] == 50_000 and found["memory_limit_bytes"] >= 8 * MIB, f"{found}")
            expect(client.is_filled(9), "other bytes")
            expect(self.call("set", str(found["pid"]), "memory=32M").status == 0, "memory=32M is refused")
            found = manager.told(os.getpid())
            expect(found["autopilot"] is None and found["memory_limit_bytes"] == 32 * MIB, f"{found}")
            client.close()

    def test_misbehaving(self):
        """Clients that say what is not so, or nothing, get no answer, and a line says why. Nothing happens to the guests beside them."""
        with self.manager("misbehaving") as manager, self.guests(manager, "--size", "64M") as guests:
            guests.wait_for("managed")
            guests.wait_for("filled")
            before = descriptors_of(manager.pid)
            zero = os.open("/dev/zero", os.O_RDONLY)

            def refused(words, request=None, descriptors=None, **options):
                client = Client(**options)
                # What is said depends on the client that says it.
                request = request(client) if callable(request) else client.handoff() if request is None else request
                client.connect(manager)
                said = manager.said().count(words)
                client.send(request, descriptors)
                answer = client.answer()
                client.close()
                expect(answer == b"", f"{words}: {answer!r} was answered")
                manager.wait_for(words, said + 1)

            refused("multiples of 4096", lambda client: client.handoff(client.region(size=client.size - 1)))
            refused("its process has nothing at", lambda client: client.handoff(client.region(host_virt_addr=1 << 16)))
            refused("another part of a file", lambda client: client.handoff(client.region(backing_file_offset=PAGE)))
            refused("beyond the addresses", lambda client: client.handoff(client.region(host_virt_addr=(1 << 64) - PAGE)))
            refused("overlaps another region", lambda client: client.handoff(client.region(), client.region(size=PAGE)))
            refused("hands no region over", lambda client: client.handoff(regions=[]))
            refused("private memory", shared=False)
            refused("mapped a second time", lambda client: client.map(mmap.MAP_SHARED, PAGE, PAGE) and client.handoff())
            refused("mapped a second time", lambda client: client.map(mmap.MAP_PRIVATE, PAGE, PAGE) and client.handoff())
            refused("is no userfaultfd", descriptors=[zero])
            refused("no userfaultfd came along", descriptors=[])
            refused("WP_ASYNC", features=FEATURES | WP_ASYNC)
            refused("EVENT_REMOVE", features=FEATURES | EVENT_REMOVE)
            refused("has SIGBUS", features=FEATURES | SIGBUS_FEATURE)
            refused("with WP_ASYNC", lambda client: client.handoff(mode="MISSING|WP|WP_ASYNC"))
            refused("version 3", lambda client: client.handoff(version=3))
            refused("cannot be read", lambda client: client.handoff(regions=[{"size": "large"}]))
            refused("Firecracker", b'[{"base_host_virt_addr":4096}]')
            refused("of no protocol", b"GET / HTTP/1.1\r\n\r\n")
            refused("too long", b"\xff\xff\xff\xff{")
            refused("changes regions before", lambda client: {"type": "add_region", "region": client.region()})
            os.close(zero)

            # One that goes in the middle, and one that says nothing.
            early, silent = Client(), Client()
            silent.connect(manager)
            early.connect(manager)
            early.send(b"\x40\0\0\0{\"type\"")
            early.socket.close()
            manager.wait_for("has closed its connection after 11 bytes")
            expect(silent.answer() == b"", "one that says nothing was answered")
            manager.wait_for("no whole request came")

            # Twice on one connection, and by a second one.
            twice = Client()
            expect(twice.hand_over(manager), f"it was refused: {manager.said()[-1000:]}")
            second = Client()
            os.close(second.memfd)
            second.memfd, second.address = os.dup(twice.memfd), twice.address
            expect(not second.hand_over(manager), "memory was taken a second time")
            manager.wait_for("has a manager already")
            twice.send(twice.handoff())
            expect(twice.answer() == b"", "a second hand-over was taken")
            manager.wait_for("hands its memory over a second time")
            twice.fill(7)
            expect(twice.is_filled(7), "its memory is not managed on")
            for client in (early, silent, second):
                client.close()

            guests.finish(limit=24 * MIB)
            manager.wait_until(lambda: len(children_of(manager.pid)) == 1, "processes of clients that were refused stay")
            manager.wait_until(lambda: descriptors_of(manager.pid) <= before, "descriptors of clients that were refused stay open")

    def test_other_users(self):
        """A process of another user is refused, also where it can reach the socket."""
        if os.geteuid() != 0:
            raise harness.Unavailable("needs root")
        with self.manager("users") as manager:
            expect(os.stat(manager.socket).st_mode & 0o177 == 0, "others may connect")
            os.chmod(manager.socket, 0o666)
            script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(60); sys.exit(len(s.recv(1)))"
            done = self.call_program([sys.executable, "-c", script, manager.socket], user=NOBODY)
            expect(done.status == 0, f"status {done.status}: {done.err}")
            manager.wait_for(f"of user {NOBODY} has connected: only those of user 0")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
    def test_given_back(self, number):
        """A manager that is ended gives everything back first: guests go on without it."""
        with self.manager("given") as manager:
            with self.guests(manager, "--size", "64M") as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                manager.wait_for_evictions(20_000)
                client = manager.counters() and children_of(manager.pid)[0]
                manager.end(number)
                expect(not os.path.exists(f"/proc/{client}"), "the client's process is still there")
                expect("goes on without a manager" in manager.said(), manager.said())
                guests.finish()
            # So that what the block looks at is there.
            manager.process = subprocess.Popen(["sleep", "60"], start_new_session=True)

    def test_killed_manager(self):
        """Nobody finds zeros where a page was when a manager is killed that cannot be replaced (its pages are in a pool): whoever needs it waits, and the memory is not taken by another manager."""
        with self.manager("killed", "4M", pool="ram:lz4,size=2M") as manager:
            reader = os.fork()
            if reader == 0:
                self.lose_manager(manager)
            manager.wait_until(lambda: os.waitpid(reader, os.WNOHANG) == (0, 0) and "refused: " in manager.said(), "it is not refused")
            expect("a manager that has ended had taken pages out" in manager.said(), manager.said()[-1000:])
            expect("was ended by signal 9, and cannot be replaced" in manager.said(), manager.said()[-1000:])
            # It touches a page that is out: it would have ended by now, with a status that says what it found.
            time.sleep(1)
            expect(os.waitpid(reader, os.WNOHANG) == (0, 0), "whoever needs a page that is out does not wait")
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)

    @staticmethod
    def lose_manager(manager):
        """In a process of its own: hands memory over, fills it, kills the manager, hands it over again, and reads all of it."""
        status = 99
        with contextlib.suppress(BaseException):
            client = Client(pages=4096)
            expect(client.hand_over(manager), "refused")
            client.fill(7)
            manager.wait_until(lambda: client.in_memory() <= 4 * MIB, "it does not leave")
            [keeper] = children_of(manager.pid)
            [own] = children_of(keeper)
            os.kill(own, signal.SIGKILL)
            manager.wait_for("was ended by signal 9")
            client.socket.close()
            expect(not client.hand_over(manager), "it was taken again")
            status = 98 if client.is_filled(7) else 97
        os._exit(status)

    def test_failing_disk(self):
        """Writes and reads that fail now and then: guests go on. A page that cannot be read at all is SIGBUS for who needs it, and EFAULT where that is the kernel."""
        # Three reads that fail one after the other lose a page: of so few none does.
        with self.manager("failing", faulty="seed=5,write_error=0.02,read_error=0.004") as manager:
            with self.guests(manager, "--size", "64M") as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                manager.wait_for_evictions(20_000)
                guests.finish(limit=24 * MIB)
        with self.manager("lost", faulty="seed=5,read_error=1") as manager:
            status, tries = None, 0
            while status != -signal.SIGBUS:
                tries += 1
                with self.guests(manager, "--size", "64M") as guests:
                    guests.wait_for("managed")
                    status = guests.process.wait(LONG)
                    # A thread may have the kernel read the page, and end the guest because that failed.
                    expect(status in (-signal.SIGBUS, 99) and tries < 6, f"status {status}: {guests.end_of_stderr()} {manager.said()[-1000:]}")
                    manager.wait_for("is lost, and whoever needs it gets SIGBUS")
            manager.wait_for_no_clients()

    def test_refused_at_the_start(self):
        """Options that cannot be."""
        self.manage()
        folder = self.folder("start")
        good = ["manage", "--listen", os.path.join(folder, "socket"), "--protocol", "cloud-hypervisor"]
        self.refused([*good, "--memory", "1M"], {125}, "--memory")
        self.refused([*good, "--memory", "64M", "--swap", f"dir:{folder}/none"], {125}, "does not exist")
        self.refused([*good], {125}, "--memory")
        self.refused([*good, "--memory", "64M", "--slowdown", "5%"], {125}, "--memory-max in its place")
        self.refused([*good, "--memory", "64M", "--memory-min", "8M"], {125}, "--budget")
        self.refused(["manage", "--listen", f"{folder}/none/socket", *good[3:], "--memory", "64M"], {1}, "cannot listen")
