"""Policies that mean harm, or that meet with a program that has little left; and programs that mean harm to a policy.

Counters, states of pages and what was taken of a ring are looked at, never times.
"""

import contextlib
import fcntl
import mmap
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

import harness
from harness import MIB, PAGE, Unavailable, expect

from test_policy import POLICIES, Beside, farshore_policy

GIB = 1 << 30
GRANULE = 512
# A program with addresses that it does not use.
RESERVES = "import mmap, os, resource, sys\n\ndef reserve(size):\n    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\n\n"
F_ADD_SEALS = 1033


class TestHarm(Beside):
    def python(self, code):
        """A program in Python."""
        return [sys.executable, "-c", RESERVES + code]

    def all_taken(self, policy, count):
        """All requests of a policy have been taken."""
        self.until("all are taken", lambda: policy.state.requests >= count)

    # ------------------------------------------------------------------------------------------- who waits

    def test_nobody_waits_for_requests(self):
        """A program that wants to have one thread does not wait until all that a policy has asked for is done."""
        requests, taken = 200, []
        code = "memory = reserve(4 << 30)\nprint('reserved', flush=True)\nfor _ in sys.stdin:\n    os.stat('/proc/self/task')\n    print('looked', flush=True)\n"
        with self.program(16 * MIB, self.python(code)) as program:
            program.line()
            first, pages = self.memory_of(program)
            expect(pages * PAGE >= 4 * GIB, f"{pages} pages")
            # Where this process stands still for long enough, all is done before the program looks.
            for _ in range(5):
                with farshore_policy.attach(program.pid) as policy:
                    asked = policy.ask_all(lambda address: policy.unpin(address, 1 << 20), [first] * requests)
                    expect(asked == requests, f"{asked} were asked")
                    self.until("some are taken", lambda: policy._words[farshore_policy.REQUESTS_TAKEN] > 0)
                    program.go_on()
                    program.line()
                    taken.append(policy._words[farshore_policy.REQUESTS_TAKEN])
        expect(min(taken) < requests, f"of {requests} requests {taken} were taken before the program went on")
        return f"{taken} of {requests}"

    def test_a_fork_waits_for_one_read(self):
        """A fork does not wait for all pages that a policy wishes to come."""
        code = "memory = bytearray(b'x') * (32 << 20)\nprint('filled', flush=True)\nfor _ in sys.stdin:\n    child = os.fork()\n    if child == 0:\n" \
               "        os._exit(0)\n    print('forked', flush=True)\n    os.waitpid(child, 0)\n    print('waited', flush=True)\n"
        with self.program(96 * MIB, self.python(code), "--prefetch", "none", faulty="seed=1,delay=1,delay_time=100ms") as program:
            program.line()
            first, pages = self.memory_of(program)
            begins = [(first // PAGE // GRANULE + n) * GRANULE for n in range(1, 6)]
            with farshore_policy.attach(program.pid) as policy:
                def alone(begin):
                    """Every second page of a granule, of those that are in swap space alone: each is a read of its own, its neighbour does not come."""
                    states = policy.page_states(begin * PAGE, GRANULE)
                    return [begin + n for n in range(0, GRANULE, 2) if states[n] == "out"]

                policy.reclaim(first, pages)
                # Which evictor takes what is not known, and what it takes last lingers in its stages: some pages of any granule.
                self.until("most of a granule are in swap space alone", lambda: max(len(alone(begin)) for begin in begins) >= GRANULE // 2 - 32)
                begin = max(begins, key=lambda begin: len(alone(begin)))
                wished = alone(begin)
                asked = policy.ask_all(policy.prefetch, [page * PAGE for page in wished])
                expect(asked == len(wished), f"{asked} were asked of {len(wished)}")

                def come():
                    states = policy.page_states(begin * PAGE, GRANULE)
                    return sum(states[page - begin] == "clean" for page in wished)

                self.until("some come", lambda: come() >= 20)
                program.go_on()
                program.line()
                come_by_then = come()
                program.line()
        expect(come_by_then < len(wished), f"of {len(wished)} pages {come_by_then} had come when the fork was over")
        return f"{come_by_then} of {len(wished)}"

    # A program one thread of which installs a filter that stops memfd_create(2), and which makes threads then. They say their numbers.
    FILTERED = "import ctypes, struct, threading, time\nlibc = ctypes.CDLL(None, use_errno=True)\n" \
               "def restrict():\n" \
               "    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 319), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)]\n" \
               "    filter = ctypes.create_string_buffer(b''.join(struct.pack('=HBBI', *step) for step in steps))\n" \
               "    program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(steps), ctypes.addressof(filter)))\n" \
               "    done = libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program))\n" \
               "    print('restricted', done, flush=True)\n    time.sleep(1000)\n" \
               "memory = bytearray(b'x') * (24 << 20)\nprint('filled', flush=True)\nsys.stdin.readline()\n" \
               "threading.Thread(target=restrict, daemon=True).start()\n" \
               "for _ in sys.stdin:\n    thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)\n    thread.start()\n" \
               "    print(thread.native_id, flush=True)\nos._exit(set(memory[::4096]) != set(b'x'))\n"
    # The kernel gives the next thread the next number.
    LAST_NUMBER = "/proc/sys/kernel/ns_last_pid"

    def test_a_filter_of_one_thread(self):
        """A filter of one thread that stops what attachments need ends them before the call is over. Whatever thread of the program gets the number of one of ours
        then, the program answers when the policy leaves."""
        with self.program(16 * MIB, self.python(self.FILTERED)) as program:
            program.line()
            tasks = f"/proc/{program.pid}/task"

            def ours():
                return [int(tid) for tid in os.listdir(tasks) if harness.read_text(f"{tasks}/{tid}/comm").strip() == "farshore-policy"]

            with farshore_policy.attach(program.pid) as policy:
                policy.want("fault")
                tid, = self.until("a thread serves it", ours)
                program.go_on()
                said = program.line()
                expect(said == ["restricted", "0"], f"{said}")
                expect(not ours(), "a thread serves a policy that was to be gone")
                number = 0
                for _ in range(200 if os.access(self.LAST_NUMBER, os.W_OK) else 0):
                    with open(self.LAST_NUMBER, "w", encoding="ascii") as file:
                        file.write(str(tid - 1))
                    program.go_on()
                    if (number := int(program.line()[0])) == tid:
                        break
            self.until("it is gone", lambda: not program.mappings())
            self.counters(program.pid)
            with contextlib.suppress(farshore_policy.Refused):
                farshore_policy.attach(program.pid)
                raise harness.Failed("one has attached")
        return f"ended; {tid} is {'a' if number == tid else 'no'} thread of the program"

    # ------------------------------------------------------------------------------------------- memory of Farshore's own

    def test_estimates_of_what_nobody_uses(self):
        """A policy that says of all addresses when they are used takes no memory for those that nobody has touched."""
        code = "memory = reserve(256 << 30)\nprint('reserved', flush=True)\nsys.stdin.readline()\nmemory[5 << 30] = 1\nprint('touched', flush=True)\nsys.stdin.readline()\n"
        with self.program(16 * MIB, self.python(code)) as program:
            program.line()
            first, pages = self.memory_of(program)
            with farshore_policy.attach(program.pid) as policy:
                before = self.counters(program.pid)["overhead_bytes"]
                requests = -(-pages // farshore_policy.REQUEST_PAGES_MAX)
                for n, when in enumerate(("late", "next"), 1):
                    expect(policy.expect(when, first, pages), "no room to say it")
                    self.all_taken(policy, n * requests)
                untouched = self.counters(program.pid)["overhead_bytes"] - before
                expect(untouched < MIB, f"{untouched} bytes for estimates of {pages * PAGE >> 30} GiB that nobody has touched")
                program.go_on()
                program.line()
                expect(policy.expect("next", first, pages), "no room to say it")
                self.all_taken(policy, 3 * requests)
                touched = self.counters(program.pid)["overhead_bytes"] - before
                expect(touched < MIB, f"{touched} bytes for estimates of one page")
            program.go_on()
        return f"{untouched} and {touched} bytes"

    def test_limit_of_addresses(self):
        """Where the program has no addresses left, wishes and estimates are dropped and counted, and the program goes on."""
        code = "memory = reserve(64 << 30)\nfor n in range(64):\n    memory[n << 30] = n\nprint('touched', flush=True)\nsys.stdin.readline()\n" \
               "size = int(open('/proc/self/statm').read().split()[0]) * 4096\nresource.setrlimit(resource.RLIMIT_AS, (size, -1))\nprint('limited', flush=True)\n" \
               "sys.stdin.readline()\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nsys.exit(not all(memory[n << 30] == n for n in range(64)))\n"
        with self.program(16 * MIB, self.python(code)) as program:
            program.line()
            first, pages = self.memory_of(program)
            with farshore_policy.attach(program.pid) as policy:
                program.go_on()
                program.line()
                requests = 0
                for ask in (policy.reclaim, policy.pin, policy.prefetch, lambda address, pages: policy.expect("late", address, pages)):
                    expect(ask(first, pages), "no room to ask")
                    requests += -(-pages // farshore_policy.REQUEST_PAGES_MAX)
                    self.all_taken(policy, requests)
                state = policy.state
                expect(state.pages_dropped > 0, f"{state}")
                program.go_on()
        return f"{state}"

    def test_a_child_has_no_seat(self):
        """A forked child has nothing of a seat: neither while a policy is there, nor when one was."""
        code = "print('there', flush=True)\nready, other = os.pipe()\nfor _ in range(2):\n    sys.stdin.readline()\n    child = os.fork()\n    if child == 0:\n" \
               "        os.close(other)\n        os.read(ready, 1)\n        os._exit(0)\n    print(child, flush=True)\nsys.stdin.readline()\nos.close(other)\nsys.exit(os.wait()[1] or os.wait()[1])\n"

        def is_mapped(pid, address):
            edges = [[int(edge, 16) for edge in line.split()[0].split("-")] for line in harness.read_text(f"/proc/{pid}/maps", 1 << 22).splitlines()]
            return any(first <= address < end for first, end in edges)

        with self.program(16 * MIB, self.python(code)) as program:
            program.line()
            with farshore_policy.attach(program.pid):
                maps = harness.read_text(f"/proc/{program.pid}/maps", 1 << 22).splitlines()
                seat = next(int(line.split("-")[0], 16) for line in maps if "memfd:farshore-policy" in line)
                program.go_on()
                during = int(program.line()[0])
            self.until("it is gone", lambda: not program.mappings() and not program.threads("farshore-policy"))
            expect(is_mapped(program.pid, seat), "the seat is gone, which proves nothing")
            program.go_on()
            after = int(program.line()[0])
            expect(not is_mapped(during, seat) and not is_mapped(after, seat), f"{is_mapped(during, seat)}, {is_mapped(after, seat)}")
            program.go_on()
        return f"{seat:#x}"

    def test_attached_again_and_again(self):
        """Policies come and go, with wishes and without a word: threads, descriptors, mappings and memory of Farshore's own are as before."""
        rounds = 300
        with self.program(16 * MIB, self.scan("24M", 1)) as program:
            program.line()
            place = f"/proc/{program.pid}"
            first, pages = self.memory_of(program)

            def lap():
                with farshore_policy.attach(program.pid) as policy:
                    policy.want("fault")
                    policy.expect("late", first, pages)
                    policy.pin(first, 64)
                    policy.scan(first, 64, 60)

            def held():
                files = lambda: len(os.listdir(f"{place}/fd"))  # noqa: E731
                # The connection goes last, when nothing else is there any more.
                gone = lambda: not program.mappings() and not program.threads("farshore-policy")  # noqa: E731
                self.until("it is gone", lambda: gone() and files() == (time.sleep(0.2), files())[1])
                addresses = int(harness.read_text(f"{place}/statm").split()[0]) * PAGE
                # The kernel has threads of its own for rings (iou-wrk), and ends those that have had nothing to do for some seconds.
                names = [harness.read_text(f"{place}/task/{tid}/comm") for tid in os.listdir(f"{place}/task")]
                return files(), sum(not name.startswith("iou-") for name in names), harness.read_text(f"{place}/maps", 1 << 22).count("\n"), addresses

            for _ in range(8):
                lap()
            before, memory = held(), self.counters(program.pid)["overhead_bytes"]
            done = 0
            while done < rounds:
                # One that has left is heard of a moment later, and has its seat until then.
                with contextlib.suppress(farshore_policy.Refused):
                    lap()
                    done += 1
            after, more = held(), self.counters(program.pid)["overhead_bytes"] - memory
            same = after[:2] == before[:2] and after[2] <= before[2] + 4 and after[3] <= before[3] + 4 * MIB
            expect(same and more < MIB, f"{before}, {after}, {more} bytes more")
            program.go_on()
        return f"{before}, {after}, {more} bytes more after {rounds} rounds"

    # ------------------------------------------------------------------------------------------- what is told

    def test_answers_have_their_time(self):
        """Answers are told with the time, as all events."""
        with self.program(16 * MIB, self.scan("24M", 1)) as program:
            program.line()
            first, _ = self.memory_of(program)
            with farshore_policy.attach(program.pid) as policy:
                policy.register("ahead", 1)
                began, seen = time.monotonic_ns(), {}
                expect(policy._ask(6, first, 64, 7) and policy.scan(first, 8, 0.01, tag=8), "no room to ask")
                expect(self.call("set", str(program.pid), "ahead=3").status == 0, "it cannot be set")

                def all_come():
                    while (event := policy.take()) is not None:
                        seen[event.kind] = event.time
                    return {"pages", "scanned", "parameter"} <= set(seen)

                self.until("all answers come", all_come)
                now = time.monotonic_ns()
                expect(all(began <= when <= now for when in seen.values()), f"{began}, {seen}, {now}")
            program.go_on()
        return f"{ {kind: when - began for kind, when in seen.items()} } ns"

    def test_a_parameter_is_no_setting(self):
        """A value that a setting refuses is refused, whatever a policy has called its parameters."""
        with self.program(16 * MIB, self.scan("24M", 1)) as program:
            program.line()
            with farshore_policy.attach(program.pid) as policy:
                policy.register("evictors", 1)
                policy.register("ahead", 1)
                self.until("it is shown", lambda: "ahead" in str(self.counters(program.pid)["policies"]))
                self.refused(["set", str(program.pid), "evictors=100000"], {1, 125}, "evictors=100000")
                expect(self.call("set", str(program.pid), "ahead=100000").status == 0, "it cannot be set")
                expect((policy["evictors"], policy["ahead"]) == (1, 100000), f"{policy['evictors']}, {policy['ahead']}")
            program.go_on()
        return "refused"

    # ------------------------------------------------------------------------------------------- programs that lie

    @contextlib.contextmanager
    def liar(self, seals, size=farshore_policy.BYTES, words=()):
        """This process poses as a program under Farshore, which shares a file that is not what it should be; its memory."""
        file = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        memory = mmap.mmap(file, size)
        view = memoryview(memory).cast("B").cast("Q")
        for place, value in [(0, farshore_policy.MAGIC), (1, 1), *words]:
            view[place] = value
        fcntl.fcntl(file, F_ADD_SEALS, seals)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"\0farshore-{os.geteuid()}-{os.getpid()}")
            listener.listen()

            def answer():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(4096)
                        socket.send_fds(connection, [b'{"ok":true,"version":1,"bytes":%d}\n' % size], [file])
                        # Whoever believes it has its time.
                        connection.settimeout(2)
                        connection.recv(1)

            thread = threading.Thread(target=answer)
            thread.start()
            try:
                yield view
            finally:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                thread.join()
                view.release()
                memory.close()
                os.close(file)

    # The first word of the ring of events, and where the memory says that rings are and how many entries they have.
    RINGS = [(3, 1 << 60), (4, 0), (5, 1 << 60), (6, 0)]
    FAULT = [(farshore_policy.EVENTS_AT, 1), (farshore_policy.EVENTS_AT + 1, 1), (farshore_policy.EVENTS_AT + 3, 7 * PAGE), (farshore_policy.EVENTS_AT + 4, (1 << 64) - 1)]
    BAD_FILES = [(0, farshore_policy.BYTES), (farshore_policy.F_SEAL_SHRINK, PAGE)]

    def test_python_believes_no_program(self):
        """The package for Python refuses a file that may shrink or is short, and believes no numbers in it."""
        for seals, size in self.BAD_FILES:
            with self.liar(seals, size):
                try:
                    farshore_policy.attach(os.getpid()).close()
                    raise harness.Failed(f"seals {seals}, {size} bytes: it was attached to")
                except farshore_policy.Refused as why:
                    expect("not version 1" in str(why), f"{why}")
        with self.liar(farshore_policy.F_SEAL_SHRINK, words=self.RINGS + self.FAULT) as words, farshore_policy.attach(os.getpid()) as policy:
            event = policy.take()
            expect(event is not None and event.kind == "fault" and event.pages == 512, f"{event}")
            expect(policy.prefetch(event.address, 8) and words[farshore_policy.REQUESTS_AT] == 2, "it is not asked where requests are")
        return "refused"

    def test_c_believes_no_program(self):
        """The same of the header for C."""
        compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
        if compiler is None:
            raise Unavailable("no C compiler (apt-get install gcc libc6-dev)")
        linear = os.path.join(self.folder("c"), "linear")
        subprocess.run([compiler, "-O2", "-I", os.path.join(POLICIES, "c"), "-o", linear, os.path.join(POLICIES, "examples", "linear.c")], check=True)
        for seals, size in self.BAD_FILES:
            with self.liar(seals, size):
                done = self.call_program([linear, str(os.getpid())])
                expect(done.status == 1 and "not version 1" in done.err, f"seals {seals}, {size} bytes: status {done.status}: {done.err}")
        with self.liar(farshore_policy.F_SEAL_SHRINK, words=self.RINGS + self.FAULT) as words:
            done = self.call_program([linear, str(os.getpid())])
            expect(done.status == 0, f"status {done.status}: {done.err}")
            expect(words[farshore_policy.REQUESTS_AT] == 2, "it is not asked where requests are")
        return "refused"
