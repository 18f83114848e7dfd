"""`farshore manage` and clients that are unlike a virtual machine monitor at its best: what they have handed over is within the limit and right, or they are told why not."""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import struct
import subprocess
import threading
import time

import harness
import pytest
from command import NOBODY
from harness import MIB, Unavailable, expect
from managed import HUGE, PAGE, UFFDIO_REGISTER, Client, Managed, children_of, in_child, libc

DONTNEED, HUGEPAGE, COLLAPSE = 4, 14, 25
PR_SET_DUMPABLE = 4
# Pages of a client that has four times the least limit.
MANY = 16 * MIB // PAGE
LIMIT = 4 * MIB


def seconds_of(pid):
    """The processor time that a process has used."""
    fields = harness.read_text(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def taken(client, manager):
    expect(client.hand_over(manager), f"it was refused: {manager.said()[-1000:]}")


@pytest.mark.poll
class TestManagerClients(Managed):
    """The manager's clients."""

    @contextlib.contextmanager
    def ended_manager(self, name, memory="4M", **options):
        """A manager that the block ends."""
        with self.manager(name, memory, **options) as manager:
            yield manager
            manager.wait_for_end()
            # So that what looks at it next finds one.
            manager.process = subprocess.Popen(["sleep", "60"], start_new_session=True)

    @pytest.mark.parametrize("how", ["touched", "allocated"])
    def test_idle(self, how):
        """What is in memory when it is handed over shrinks to the limit, though its client does nothing: touched, or only allocated."""
        with self.manager("idle", "4M") as manager:

            def work():
                client = Client(pages=MANY)
                if how == "touched":
                    client.fill(7)
                else:
                    os.posix_fallocate(client.memfd, 0, client.size)
                expect(client.in_memory() == client.size, "it is not in memory")
                taken(client, manager)
                manager.wait_until(lambda: client.in_memory() <= LIMIT, "it stays in memory")
                expect(client.is_filled(7 if how == "touched" else 0), "wrong bytes")
                client.fill(8)
                expect(client.is_filled(8), "wrong bytes")
                expect(client.in_memory() <= LIMIT, f"{client.in_memory()} bytes in memory")

            in_child(work)

    def test_descriptor_of_both(self):
        """A client that makes reads of the userfaultfd not wait, which are the manager's too, costs it no time, and is served."""
        with self.manager("waiting", "4M") as manager:

            def work():
                client = Client(pages=MANY)
                taken(client, manager)
                fcntl.fcntl(client.uffd, fcntl.F_SETFL, fcntl.fcntl(client.uffd, fcntl.F_GETFL) | os.O_NONBLOCK)
                client.fill(7)
                expect(client.is_filled(7), "wrong bytes")
                [own] = children_of(manager.pid)
                manager.wait_until(lambda: client.in_memory() <= LIMIT, "it stays in memory")
                before = seconds_of(own)
                time.sleep(1)
                used = seconds_of(own) - before
                expect(used < 0.5, f"{used} s of processor time in a second without faults")

            in_child(work)

    def test_registered_for_more(self):
        """A client that has registered its memory for minor faults too: whoever touches a page that is in memory goes on."""
        with self.manager("minor", "4M") as manager:

            def work():
                client = Client()
                client.fill(7)
                fcntl.ioctl(client.uffd, UFFDIO_REGISTER, struct.pack("QQQQ", client.address, client.size, 1 | 2 | 4, 0))
                taken(client, manager)
                expect(libc.madvise(client.address, client.size, DONTNEED) == 0, "madvise")
                expect(client.is_filled(7), "wrong bytes")

            in_child(work)

    def test_userfaultfd_of_another(self):
        """A process that hands over its parent's userfaultfd, of memory that it has at the same place: it would find zeros where its parent's pages are out."""
        with self.manager("another", "4M") as manager:
            client = Client(pages=MANY)

            def work():
                expect(not client.hand_over(manager), "it was taken")
                manager.wait_for("is not the one of the process that has connected")

            in_child(work)
            client.fill(7)
            expect(client.is_filled(7), "the parent's memory is not ordinary memory")
            client.close()

    def test_userfaultfd_that_is_not_kept(self):
        """A client that keeps no descriptor of its userfaultfd would find zeros if its manager were killed."""
        with self.manager("closed", "4M") as manager:

            def work():
                client = Client()
                client.connect(manager)
                text = json.dumps(client.handoff()).encode()
                frame = struct.pack("<I", len(text)) + text
                client.send_bytes(frame[:-1], [client.uffd])
                os.close(client.uffd)
                client.send_bytes(frame[-1:], [])
                expect(client.answer() == b"", "it was taken")
                manager.wait_for("it has closed its userfaultfd")

            in_child(work)

    def test_no_room_at_the_end(self):
        """A manager that is ended while the tmpfs of the memory has no room waits for room, and loses no page."""
        with self.tmpfs("32m") as place, self.ended_manager("room") as manager:

            def work():
                client = Client(pages=MANY, file=os.open(f"{place}/memory", os.O_RDWR | os.O_CREAT, 0o600))
                taken(client, manager)
                client.fill(7)
                manager.wait_until(lambda: client.in_memory() <= LIMIT, "it stays in memory")
                with open(f"{place}/other", "wb") as other:
                    os.posix_fallocate(other.fileno(), 0, 20 * MIB)
                    os.kill(manager.pid, signal.SIGTERM)
                    manager.wait_for("a page of the client waits")
                os.unlink(f"{place}/other")
                manager.wait_for("goes on without a manager")
                expect("is lost" not in manager.said(), manager.said()[-1000:])
                expect(client.is_filled(7), "wrong bytes")

            in_child(work)

    def test_nothing_to_come_back_to(self):
        """A manager that is ended when its client has unmapped what it had handed over, without a word: it ends."""
        with self.ended_manager("unmapped") as manager:

            def work():
                client = Client(pages=MANY)
                taken(client, manager)
                client.fill(7)
                manager.wait_until(lambda: client.in_memory() <= LIMIT, "it stays in memory")
                expect(libc.munmap(client.address, client.size) == 0, "munmap")
                os.kill(manager.pid, signal.SIGTERM)
                manager.wait_for("goes on without a manager")

            in_child(work)

    def test_shorter(self):
        """A client that makes a file shorter has room for other memory again."""
        with self.manager("shorter", "8M") as manager:

            def work():
                first, second = (Client(pages=8 * MIB // PAGE) for _ in range(2))
                first.connect(manager)
                first.send(first.handoff(first.region(), second.region(guest_phys_addr=first.size)))
                expect(len(first.answer()) == 1, f"it was refused: {manager.said()[-1000:]}")
                first.fill(7)
                os.ftruncate(first.memfd, 0)

                def has_room():
                    second.fill(8)
                    return second.in_memory() > 4 * MIB

                manager.wait_until(has_room, "there is no room for other memory")
                expect(second.is_filled(8), "wrong bytes")

            in_child(work)

    def test_sealed_while_managed(self):
        """A client that seals its memory against writing while it is managed: a line says why no page leaves."""
        with self.manager("sealed", "4M") as manager:

            def work():
                client = Client(pages=MANY)
                client.fill(7)
                fcntl.fcntl(client.memfd, fcntl.F_ADD_SEALS, 0x10)
                expect(not client.hand_over(manager), "it was taken")
                manager.wait_for("is sealed against writing")
                client = Client(pages=MANY)
                taken(client, manager)
                fcntl.fcntl(client.memfd, fcntl.F_ADD_SEALS, 0x10)
                # It waits when the limit is reached.
                threading.Thread(target=client.fill, args=(7,), daemon=True).start()
                manager.wait_for("was its file sealed")

            in_child(work)

    def test_file_of_another_user(self):
        """Memory whose file belongs to another user than the manager, which could not mark it: it is refused, and not without a word never taken out."""
        if os.geteuid() != 0:
            raise Unavailable("needs root")
        with self.manager("owner", "4M", user=NOBODY) as manager:

            def work():
                of_root = Client()
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
                expect(not of_root.hand_over(manager), "it was taken")
                manager.wait_for("only its owner can mark it")
                own = Client(file=os.memfd_create("own"), uffd=of_root.uffd)
                taken(own, manager)
                own.fill(7)

            in_child(work)

    def test_huge_pages(self):
        """Memory that has huge pages, or may get some, is refused: of one that cannot be split zeros would stay."""
        with self.manager("huge", "4M") as manager:

            def refused(words, *advice, place=None):
                def work():
                    file = os.open(f"{place}/memory", os.O_RDWR | os.O_CREAT, 0o600) if place else None
                    client = Client(pages=HUGE // PAGE, file=file)
                    client.fill(7)
                    if not all(libc.madvise(client.address, client.size, what) == 0 for what in advice):
                        raise Unavailable(f"madvise: errno {ctypes.get_errno()}")
                    expect(not client.hand_over(manager), f"{words}: it was taken")
                    manager.wait_for(words)

                in_child(work)

            refused("it has huge pages", COLLAPSE)
            with self.tmpfs("32m", ",huge=always") as place:
                refused("its file may have huge pages", place=place)
            with self.tmpfs("32m", ",huge=advise") as place:
                refused("the kernel may give it huge pages", HUGEPAGE, place=place)

    def test_huge_page_while_managed(self):
        """A client that makes its pages a huge one behind the manager's back, which the kernel cannot split since a page of it is in a pipe: nobody finds zeros where a page was."""
        with self.manager("made", "8M") as manager:

            def work():
                client = Client(pages=MANY)
                taken(client, manager)
                ctypes.memset(client.address, 7, HUGE)
                # It fails where the page is protected, when the file has its huge page already.
                libc.madvise(client.address, HUGE, COLLAPSE)
                ends, part = os.pipe(), ctypes.create_string_buffer(struct.pack("QQ", client.address, PAGE))
                expect(libc.vmsplice(ends[1], part, 1, 0) == PAGE, "vmsplice")
                scratch, lost = os.memfd_create("scratch"), 0
                for _ in range(5):
                    ctypes.memset(client.address + HUGE, 8, client.size - HUGE)
                for page in range(HUGE // PAGE):
                    # By the kernel, for which a page that is lost is an error.
                    got = libc.pwrite(scratch, ctypes.c_void_p(client.address + page * PAGE), PAGE, 0)
                    lost += got != PAGE
                    expect(got != PAGE or os.pread(scratch, PAGE, 0) == b"\7" * PAGE, f"page {page} has other bytes")
                expect((lost > 0) == ("is lost" in manager.said()), f"{lost} pages are lost: {manager.said()[-500:]}")

            in_child(work)

    def test_untouched_memory_is_free(self):
        """A quarter of a terabyte that nobody has touched takes no memory of the manager's."""
        with self.manager("sparse", "4M") as manager:

            def work():
                client = Client(pages=1 << 26)
                taken(client, manager)
                [own] = children_of(manager.pid)
                [resident] = [int(line.split()[1]) for line in harness.read_text(f"/proc/{own}/status").splitlines() if line.startswith("VmRSS:")]
                expect(resident < 64 << 10, f"the manager has {resident} KiB in memory")

            in_child(work)
