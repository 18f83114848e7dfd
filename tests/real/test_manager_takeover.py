"""`farshore manage`: a manager that is killed is replaced, and the next one takes the memory over. Guests wait meanwhile, and lose nothing."""

import contextlib
import ctypes
import json
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import time

import harness
import pytest
from harness import MIB, expect
from managed import LONG, PAGE, Client, Managed, children_of, descriptors_of, in_child

# A guest that waits longer than this after a manager was killed has lost it.
STALL = 20 * harness.PATIENCE


def own_manager(manager):
    """The process that has the memory of the one client, and the one that keeps it."""
    [keeper] = children_of(manager.pid)
    deadline = time.monotonic() + LONG
    while len(found := children_of(keeper)) != 1:
        expect(time.monotonic() < deadline, f"{len(found)} managers: {manager.said()[-2000:]}")
        time.sleep(0.001)
    return found[0], keeper


def goes_on(manager, times):
    """Waits until the memory was taken over so often, by managers that have said so."""
    manager.wait_until(lambda: re.search(rf"goes on with another manager \(manager \d+, takeover {times}\)", manager.said()), f"nobody takes over for the {times}th time")


class Longest:
    """The longest time of an access, as the guests note it."""

    def __init__(self, path):
        self.path = path
        self.forget()

    def forget(self):
        with open(self.path, "r+b" if os.path.exists(self.path) else "wb") as file:
            file.write(bytes(8))

    def seconds(self):
        with open(self.path, "rb") as file:
            return struct.unpack("Q", file.read(8))[0] / 1e9


@pytest.mark.poll
class TestTakeover(Managed):
    """Managers that are killed."""

    def started(self, manager, longest, *arguments):
        guests = self.guests(manager, "--size", "96M", "--longest", longest.path, *arguments)
        return guests

    @pytest.mark.parametrize("arguments", [
        ("--form", "json"),
        ("--form", "binary", "--files", "--regions", "3", "--add", "32M", "--threads", "6"),
    ], ids=["json", "added"])
    def test_again_and_again(self, arguments):
        """Twenty managers are killed, each at some moment of its work. All bytes are right, and the limit holds."""
        chance = random.Random()
        stalls = []
        with self.manager("again") as manager:
            before, longest = descriptors_of(manager.pid), Longest(os.path.join(manager.folder, "longest"))
            with self.started(manager, longest, *arguments) as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                manager.wait_for_evictions(10_000)
                for times in range(1, 21):
                    time.sleep(chance.uniform(0.05, 1.5))
                    longest.forget()
                    os.kill(own_manager(manager)[0], signal.SIGKILL)
                    goes_on(manager, times)
                    # Its guests have waited for it by then, and the longest has come back.
                    before_it = manager.counters()[0]["faults"]
                    manager.wait_until(lambda: manager.counters()[0]["faults"] > before_it + 100, "guests do not go on")
                    stalls.append(longest.seconds())
                    expect(stalls[-1] < STALL, f"a guest has waited for {stalls[-1]:.1f} s: {manager.said()[-2000:]}")
                peak = guests.finish(limit=24 * MIB)
                manager.wait_for("has ended")
                manager.wait_for_no_clients()
            expect("is lost" not in manager.said() and " 0 pages lost" in manager.said(), manager.said()[-3000:])
            expect(descriptors_of(manager.pid) == before, "descriptors of a client that has ended stay open")
        took = [int(ms) for ms in re.findall(r"pages lost; (\d+) ms", manager.said())]
        return (f"stalls of {statistics.median(stalls) * 1e3:.0f} ms (the longest {max(stalls) * 1e3:.0f}), of which {statistics.median(took)} (at most {max(took)}) to take over; "
                f"{peak / MIB:.1f} of 24 MiB in memory")

    def test_killed_while_it_takes_over(self):
        """Managers that are killed while they take over, at any moment of it: the next one does it."""
        chance = random.Random()
        with self.manager("twice") as manager:
            longest = Longest(os.path.join(manager.folder, "longest"))
            with self.started(manager, longest) as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                manager.wait_for_evictions(10_000)
                for _ in range(6):
                    before = len(re.findall("takes over", manager.said()))
                    for killed in range(1, 5):
                        own, keeper = own_manager(manager)
                        os.kill(own, signal.SIGKILL)
                        manager.wait_for("takes over", before + killed)
                        manager.wait_until(lambda keeper=keeper, own=own: children_of(keeper) not in ([], [own]), "nobody begins")
                        time.sleep(chance.uniform(0, 0.08))
                    now = len(re.findall("goes on with another manager", manager.said()))
                    manager.wait_for("goes on with another manager", now + 1 if str(own_manager(manager)[0]) not in manager.said() else now)
                    time.sleep(chance.uniform(1, 1.5))
                guests.finish(limit=24 * MIB)
            expect("is lost" not in manager.said(), manager.said()[-3000:])

    def test_no_room_for_stages(self):
        """A manager that takes over where the tmpfs of the memory is full needs no room for pages in stages that are written."""
        with self.tmpfs("64m") as place, self.manager("full") as manager:

            def work():
                client = Client(pages=48 * MIB // PAGE, file=os.open(f"{place}/memory", os.O_RDWR | os.O_CREAT, 0o600))
                expect(client.hand_over(manager), f"it was refused: {manager.said()[-1000:]}")
                client.fill(7)
                manager.wait_until(lambda: client.in_memory() <= 24 * MIB, "it stays in memory")
                # Nobody needs a page, so all writes end.
                time.sleep(2)
                left = os.statvfs(place)
                with open(f"{place}/other", "wb") as other:
                    os.posix_fallocate(other.fileno(), 0, left.f_bavail * left.f_frsize)
                os.kill(own_manager(manager)[0], signal.SIGKILL)
                goes_on(manager, 1)
                expect("waits" not in manager.said(), manager.said()[-1000:])
                os.unlink(f"{place}/other")
                expect(client.is_filled(7), "wrong bytes")
                expect(" 0 pages lost" in manager.said() and "is lost" not in manager.said(), manager.said()[-1000:])

            in_child(work)

    def test_given_back_after_it(self):
        """What has taken over gives everything back as the first would have."""
        with self.manager("after") as manager:
            longest = Longest(os.path.join(manager.folder, "longest"))
            with self.started(manager, longest) as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                manager.wait_for_evictions(10_000)
                own, keeper = own_manager(manager)
                os.kill(own, signal.SIGKILL)
                goes_on(manager, 1)
                manager.end()
                expect(not os.path.exists(f"/proc/{keeper}"), "the keeper is still there")
                expect("goes on without a manager" in manager.said(), manager.said())
                guests.finish()
            # So that what the block looks at is there.
            manager.process = subprocess.Popen(["sleep", "60"], start_new_session=True)

    def test_keeper_killed(self):
        """A keeper that is killed: its manager goes on, and still obeys."""
        with self.manager("keeper") as manager:
            longest = Longest(os.path.join(manager.folder, "longest"))
            with self.started(manager, longest) as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                own, keeper = own_manager(manager)
                os.kill(keeper, signal.SIGKILL)
                manager.wait_for(f"the manager, process {own}, goes on")
                manager.wait_for_evictions(20_000)
                manager.end()
                expect("goes on without a manager" in manager.said() and not os.path.exists(f"/proc/{own}"), manager.said())
                guests.finish()
            manager.process = subprocess.Popen(["sleep", "60"], start_new_session=True)

    def test_client_killed(self):
        """A client that is killed while it has no manager: nothing of it is left behind."""
        with self.manager("client") as manager:
            before, longest = descriptors_of(manager.pid), Longest(os.path.join(manager.folder, "longest"))
            with self.started(manager, longest) as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                own, keeper = own_manager(manager)
                os.kill(keeper, signal.SIGSTOP)
                os.kill(own, signal.SIGKILL)
                guests.kill()
                os.kill(keeper, signal.SIGCONT)
                manager.wait_for_no_clients()
            manager.wait_until(lambda: descriptors_of(manager.pid) == before, "descriptors of a client that has ended stay open")
            expect("takes over" not in manager.said(), manager.said())

    def test_all_killed(self):
        """A manager and its keeper that are killed: whoever needs a page that is out waits, and finds no zeros."""
        with self.manager("all", "4M") as manager:
            reader = os.fork()
            if reader == 0:
                client = Client(pages=4096)
                status = 96
                if client.hand_over(manager):
                    client.fill(7)
                    manager.wait_until(lambda: client.in_memory() <= 4 * MIB, "it does not leave")
                    own, keeper = own_manager(manager)
                    os.kill(keeper, signal.SIGKILL)
                    os.kill(own, signal.SIGKILL)
                    status = 98 if client.is_filled(7) else 97
                os._exit(status)
            manager.wait_until(lambda: "what keeps the manager" in manager.said(), "the end of the keeper is not seen")
            time.sleep(1)
            expect(os.waitpid(reader, os.WNOHANG) == (0, 0), "whoever needs a page that is out does not wait")
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)

    def test_what_is_asked_for_stays(self):
        """A limit that a user has set, regions that come and go, and questions: of the next manager as of the first."""
        with self.manager("asked", "16M") as manager:

            def work():
                client, second = Client(pages=8192), Client(pages=2048)
                expect(client.hand_over(manager), f"it is refused: {manager.said()[-1000:]}")
                client.fill(5)

                def asked(*words):
                    done = self.call(words[0], *words[1:])
                    expect(done.status == 0, f"{done.err} {manager.said()[-1000:]}")
                    return done.out

                asked("set", str(os.getpid()), "memory=8M")
                manager.wait_until(lambda: client.in_memory() <= 8 * MIB, "it stays in memory")
                for times in range(1, 4):
                    os.kill(own_manager(manager)[0], signal.SIGKILL)
                    goes_on(manager, times)
                    expect('"memory_limit_bytes":8388608' in asked("stat", "--json", str(os.getpid())).replace(" ", ""), "another limit")
                    expect(client.is_filled(5), "other bytes")
                    manager.wait_until(lambda: client.in_memory() <= 8 * MIB, "it stays in memory")
                # The connection outlives the manager.
                expect(ctypes.memset(second.address, 3, second.size) is not None, "memset")
                client.send({"type": "add_region", "region": client.region(host_virt_addr=second.address, size=second.size, guest_phys_addr=client.size)}, [])
                # It is registered with the userfaultfd of the first, so it is taken as any other.
                expect(len(client.answer()) == 1, f"no answer: {manager.said()[-1000:]}")
                os.kill(own_manager(manager)[0], signal.SIGKILL)
                goes_on(manager, 4)
                expect(client.is_filled(5) and second.is_filled(3), "other bytes")

            in_child(work)
            manager.wait_for_no_clients()

    def test_share_stays(self):
        """A client in a budget keeps its share when its manager is killed."""
        name = f"test-takeover-{os.getpid()}"
        with self.manager("share", None, more=["--budget", f"{name}=64M", "--memory-min", "8M"]) as manager:
            client = Client(40 * MIB // 4096)
            client.fill(7)
            expect(client.hand_over(manager), f"no answer: {manager.said()}")
            os.kill(own_manager(manager)[0], signal.SIGKILL)
            goes_on(manager, 1)
            done = self.call("stat", "--json", str(os.getpid()))
            expect(done.status == 0, f"{done.err} {manager.said()[-1000:]}")
            budget = json.loads(done.out)["budget"]
            expect(budget["name"] == name and budget["size_bytes"] == 64 * MIB and budget["programs"] == 1, f"{budget}")
            expect(client.is_filled(7), "other bytes")
            client.close()

    def test_failing_disk(self):
        """Writes that fail now and then, and managers that are killed meanwhile."""
        with self.manager("disk", faulty="seed=3,write_error=0.02") as manager:
            longest = Longest(os.path.join(manager.folder, "longest"))
            with self.started(manager, longest) as guests:
                guests.wait_for("managed")
                guests.wait_for("filled")
                for times in range(1, 6):
                    time.sleep(1.1)
                    os.kill(own_manager(manager)[0], signal.SIGKILL)
                    goes_on(manager, times)
                guests.finish(limit=24 * MIB)
            expect("is lost" not in manager.said(), manager.said()[-3000:])

    def test_too_often(self):
        """A manager that ends again and again at once is not replaced for ever."""
        with self.manager("often") as manager:

            def work():
                client = Client(pages=2048)
                expect(client.hand_over(manager), "it is refused")
                client.fill(5)
                [keeper] = children_of(manager.pid)
                deadline = time.monotonic() + LONG
                while "is not replaced again" not in manager.said():
                    expect(time.monotonic() < deadline, f"it is replaced for ever: {manager.said()[-2000:]}")
                    for own in children_of(keeper):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(own, signal.SIGKILL)
                    time.sleep(0.002)

            in_child(work)
            manager.wait_for_no_clients()
