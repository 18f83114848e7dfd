"""Policies beside a program: what they hear and what comes of what they ask for; that a wrong, late, dead or malicious one does the program no harm; and hints that the
program gives itself.

Programs check their own data, and policies are written with the Python package (policies/python). Counters and states of pages are looked at, never times.
"""

import array
import collections
import contextlib
import importlib.util
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import harness
from command import NOBODY, Command
from harness import MIB, PAGE, Unavailable, expect

POLICIES = os.path.join(harness.ROOT, "policies")
# Requests that a policy at random makes.
REQUESTS = 1_000_000
# memstorm: threads, MiB, rounds, seed. It checks all that it does, and its output follows from the seed.
STORM = ("4", "48", "10", "7")
# Storms that a test may take until it has come to its work.
TRIES = 20


class NotAttached(harness.Failed):
    """A policy has not come to a program, which may be over."""


def module(folder, name):
    """A module of the policies' folder."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(POLICIES, folder, f"{name}.py"))
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


farshore_policy = module("python", "farshore_policy")
hot = module("examples", "hot")


class Program:
    """A program that runs, and waits for a byte now and then."""

    def __init__(self, tests, process):
        self.tests, self.process = tests, process
        tests.until("the program runs", lambda: self.pids() or not process.alive())
        self.pid = self.pids()[0]

    def pids(self):
        """The processes of the program that have the library, the first first."""
        mine = [pid for pid in harness.session_pids(self.process.popen.pid) if pid != self.process.popen.pid]
        return sorted(pid for pid in mine if "libfarshore.so" in harness.read_text(f"/proc/{pid}/maps", 1 << 22))

    def line(self):
        """What it says next."""
        said = self.process.popen.stdout.readline().decode(errors="replace").split()
        expect(said, f"it ended: {self.process.stderr_so_far()[-400:]}")
        return said

    def go_on(self):
        """It need not wait any more."""
        self.process.popen.stdin.write(b"\n")
        self.process.popen.stdin.flush()

    def threads(self, name, pid=None):
        """How many threads have this name."""
        tasks = f"/proc/{pid or self.pid}/task"
        return sum(harness.read_text(f"{tasks}/{tid}/comm").strip() == name for tid in os.listdir(tasks))

    def mappings(self, pid=None):
        """Mappings of files that are shared with policies."""
        return harness.read_text(f"/proc/{pid or self.pid}/maps", 1 << 22).count("memfd:farshore-policy")


class Beside(Command):
    """Programs with something beside them."""

    def until(self, what, condition, seconds=60):
        """Waits until this is so."""
        deadline = time.monotonic() + seconds * harness.PATIENCE
        while not (found := condition()):
            expect(time.monotonic() < deadline, f"not within {seconds} s: {what}")
            time.sleep(0.02)
        return found

    @contextlib.contextmanager
    def program(self, limit, argv, *options, faulty=None):
        """A program while it runs, with faults injected. It must end well, within its limit."""
        stats = os.path.join(self.folder("stats"), "stats")
        swap = f"dir:{self.folder('swap')}"
        with self.running(["--memory", str(limit), "--swap", swap, "--stats", stats, *options], argv, faulty, timeout=240, stdin=subprocess.PIPE) as process:
            program = Program(self, process)
            yield program
            with contextlib.suppress(BrokenPipeError):
                process.popen.stdin.close()
            outcome, program.out = self.ended(process)
            expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-500:]}")
            program.stats = harness.load_stats(stats)
            wrong = harness.check_stats(program.stats, program.stats["memory_limit_bytes"])
            expect(not wrong, f"{wrong}")

    def memory_of(self, program):
        """The mapping of a program that has one large one: its first address, and its pages."""
        first, end = max(hot.mappings(program.pid), key=lambda edges: edges[1] - edges[0])
        return first * PAGE, end - first

    def scan(self, size, passes):
        """A program that writes memory and reads it again and again, with a line and a wait before each pass."""
        return [self.public_program("scan"), size, str(passes)]

    @contextlib.contextmanager
    def storm(self, *options):
        """A program under threads, memory calls and a small limit, which checks every byte; what it prints is as natively."""
        argv = [self.public_program("memstorm"), *STORM]
        native = self.call_program(argv, timeout=120)
        expect(native.status == 0, f"natively: {native.err}")
        with self.program(12 * MIB, argv, *options) as program:
            yield program
        expect(program.out == native.out, f"printed other than natively: {program.out[-300:]}")

    @contextlib.contextmanager
    def policy(self, pid, code):
        """A policy of its own process, attached, that runs this code with `program`."""
        text = f"import sys, os, random, time\nsys.path.insert(0, {os.path.join(POLICIES, 'python')!r})\nimport farshore_policy\n" \
               f"program = farshore_policy.attach({pid})\nprint('attached', flush=True)\n{code}"
        with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                if process.stdout.readline() != b"attached\n":
                    raise NotAttached(f"it did not attach: {process.stderr.read()[-400:]}")
                yield process
            finally:
                process.kill()


class TestPolicy(Beside):
    LINEAR = "for event in program.events('fault'):\n    program.prefetch(event.address + farshore_policy.PAGE, 8)\n"

    # ------------------------------------------------------------------------------------------- what it is for

    def check_linear(self, argv, environment=None):
        """A linear prefetcher as a program of its own: pages come before they are needed."""
        with self.program(16 * MIB, self.scan("48M", 2), "--prefetch", "none") as program:
            program.line()
            more = {"PYTHONPATH": os.path.join(POLICIES, "python")} if environment is None else environment
            with subprocess.Popen([*argv, str(program.pid)], stderr=subprocess.PIPE, env=dict(os.environ, **more)) as policy:
                try:
                    self.until("it listens", lambda: program.threads("farshore-policy") and self.ahead(program.pid))
                    done = self.call("set", str(program.pid), "ahead=16")
                    expect(done.status == 0, done.err)
                    for _ in range(2):
                        program.go_on()
                        program.line()
                finally:
                    policy.kill()
        came = program.stats["prefetch"]["issued"]
        expect(came > 500, f"{came} pages came unasked of {48 * MIB // PAGE}")
        return f"{came} pages came ahead"

    def ahead(self, pid):
        """The parameter of the policy that is attached, as farshore stat shows it."""
        done = self.call("stat", str(pid), "--json")
        policies = harness.json.loads(done.out)["policies"]
        return any("ahead" in policy["parameters"] for policy in policies)

    def test_linear_python(self):
        """The linear prefetcher of the guide in Python."""
        return self.check_linear([sys.executable, os.path.join(POLICIES, "examples", "linear.py")])

    def test_guide(self):
        """The guide shows the examples as they are."""
        with open(os.path.join(harness.ROOT, "docs", "src", "guide", "policies.md"), encoding="utf-8") as file:
            guide = file.read()
        for name in ("linear.py", "linear.c", "linear.rs"):
            with open(os.path.join(POLICIES, "examples", name), encoding="utf-8") as file:
                expect(file.read() in guide, f"{name} is another one")

    def test_python_package(self):
        """pip makes a wheel of the Python package, and a new environment has it; the linear prefetcher runs there."""
        place = self.folder("package")
        source = shutil.copytree(os.path.join(POLICIES, "python"), os.path.join(place, "python"), ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        new = os.path.join(place, "new")
        done = subprocess.run([sys.executable, "-m", "venv", new], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise Unavailable("python3 -m venv does not work here (apt-get install python3-venv)")
        python = os.path.join(new, "bin", "python3")
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "wheel", "--no-deps", "-w", place, source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if "No matching distribution" in done.stdout or "ConnectionError" in done.stdout:
            raise Unavailable("no package index is reached from here: pip cannot fetch setuptools")
        expect(done.returncode == 0, f"pip wheel: {done.stdout[-800:]}")
        wheels = [name for name in os.listdir(place) if name.endswith(".whl")]
        expect(wheels == ["farshore_policy-0.1.0-py3-none-any.whl"], f"{wheels}")
        done = subprocess.run([*pip, "install", "--no-index", os.path.join(place, wheels[0])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        expect(done.returncode == 0, f"pip install: {done.stdout[-800:]}")
        return self.check_linear([python, os.path.join(POLICIES, "examples", "linear.py")], {})

    def test_linear_c(self):
        """The same in C."""
        compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
        if compiler is None:
            raise Unavailable("no C compiler (apt-get install gcc libc6-dev)")
        out = os.path.join(self.folder("c"), "linear")
        source = os.path.join(POLICIES, "examples", "linear.c")
        flags = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", os.path.join(POLICIES, "c")]
        done = subprocess.run([compiler, *flags, "-o", out, source], stderr=subprocess.PIPE, check=False)
        expect(done.returncode == 0, done.stderr.decode())
        return self.check_linear([out])

    def test_linear_rust(self):
        """The same in Rust, with the crate."""
        build = ["cargo", "build", "--quiet", "--release", "-p", "farshore-beside", "--example", "linear"]
        done = subprocess.run(build, cwd=harness.ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=600, check=False)
        expect(done.returncode == 0, f"cargo build: {done.stderr.decode()[-400:]}")
        there = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(harness.ROOT, "target")), "release", "examples", "linear")
        return self.check_linear([there])

    def test_requests(self):
        """Pages leave, come and stay as a policy asks, and it hears of it; what does not fit is not brought."""
        size, limit = 24 * MIB, 16 * MIB
        with self.program(limit, self.scan("24M", 2), "--prefetch", "none") as program:
            program.line()
            with farshore_policy.attach(program.pid) as policy:
                state = policy.state
                expect(state.limit_bytes == limit and 0 < state.resident_bytes <= limit and state.faults > 0, f"{state}")
                policy.want("fault", "fetched", "evicted", "rescued")
                program.go_on()
                program.line()
                heard = collections.defaultdict(list)
                for event in policy.events(timeout=1):
                    heard[event.kind].append(event)
                expect(all(heard[kind] for kind in ("fault", "fetched", "evicted")), f"{ {kind: len(all_of) for kind, all_of in heard.items()} }")
                fault = heard["fault"][0]
                expect(fault.thread == program.pid and fault.instruction and not fault.write, f"{fault}")
                first = min(event.address for event in heard["fault"]) & -PAGE
                states = lambda pages: collections.Counter(policy.page_states(first, pages))  # noqa: E731
                pages = size // PAGE - 512

                def ask(what, address, count):
                    expect(what(address, count), "no room to ask")

                ask(policy.reclaim, first, pages)
                away = self.until("all have left", lambda: (now := states(pages)) and not now["dirty"] and not now["clean"] and now)
                ask(policy.prefetch, first, 1000)
                # From swap space or from RAM.
                come = self.until("they come", lambda: (now := states(1000))["out"] + now["leaving"] == 0 and now)
                # Far more than fits: the limit holds.
                ask(policy.prefetch, first, pages)
                self.until("all was looked at", lambda: policy.state.resident_bytes > limit // 2)
                expect(policy.state.resident_bytes <= limit, f"{policy.state}")
                # Pinned pages stay while the program goes through more than fits.
                # A page on its way at that moment comes all the same, so it may take a second time.
                self.until("all have left", lambda: policy.reclaim(first, pages) and (now := states(pages)) and not now["dirty"] and not now["clean"])
                ask(policy.prefetch, first, 1024)
                self.until("they come", lambda: states(1024)["out"] == 0)
                ask(policy.pin, first, 1024)
                pinned = states(1024)["clean"]
                expect(pinned > 256, f"only {pinned} pages to pin")
                program.go_on()
                program.line()
                stayed = states(1024)
                expect(stayed["clean"] + stayed["dirty"] >= pinned, f"pinned pages left: {pinned} before, {stayed}")
                lost = policy.state
        return f"away {dict(away)}, come {dict(come)}, pinned {dict(stayed)}, {lost}"

    def limit_is(self, program, size):
        """Changes the limit, and waits until the program is within it."""
        done = self.call("set", str(program.pid), f"memory={size}")
        expect(done.status == 0, done.err)
        self.until("it is within the limit", lambda: self.counters(program.pid)["resident_bytes"] <= harness.parse_size(size))

    def test_back_from_ram(self):
        """A page that is wished to come while it still lies in RAM is not read."""
        with self.program(64 * MIB, self.scan("16M", 1)) as program:
            program.line()
            first, _ = self.memory_of(program)
            with farshore_policy.attach(program.pid) as policy:
                policy.want("fetched", "rescued")
                states = lambda: collections.Counter(policy.page_states(first, 64))  # noqa: E731
                before = self.counters(program.pid)
                expect(policy.reclaim(first, 64), "no room to ask")
                self.until("they lie in RAM", lambda: states()["leaving"] == 64)
                expect(policy.prefetch(first, 64), "no room to ask")
                heard = []
                self.until("they come", lambda: heard.extend(policy.events(timeout=0.1)) or sum(event.pages for event in heard) >= 64)
                come = states()
                expect(come["dirty"] + come["clean"] == 64, f"{come}")
                expect(all(event.kind == "fetched" and event.detail == 1 for event in heard), f"{heard[:3]}")
                after = self.counters(program.pid)
                expect(after["swap"]["pages_in"] == before["swap"]["pages_in"], "they were read")
                expect(after["prefetch"]["issued"] - before["prefetch"]["issued"] == 64, f"{after['prefetch']}")
            program.go_on()
            program.line()
            program.go_on()
        return f"{dict(come)}"

    def alternate(self, policy, first, pages, when):
        """Says of every second run of 16 pages when it is used next."""
        blocks = [first + n * PAGE for n in range(0, pages - 16, 32)]
        expect(policy.ask_all(lambda address: policy.expect(when, address, 16), blocks) == len(blocks), "no room to say it")

    def here(self, policy, first, pages):
        """Pages in memory: in those runs, and in the others. What was asked for before has been taken by then."""
        states = policy.page_states(first, pages)
        counts = [0, 0]
        for n, state in enumerate(states[:pages - 16]):
            counts[n // 16 % 2] += state in ("dirty", "clean")
        return counts

    def settled(self, policy, first, pages):
        """The same, when evictors have done what the last limit asked of them."""
        seen = [self.here(policy, first, pages)]

        def stays():
            time.sleep(0.2)
            seen.append(self.here(policy, first, pages))
            return seen[-1] == seen[-2]

        self.until("nothing leaves any more", stays)
        return seen[-1]

    def test_expect(self):
        """What a policy expects late leaves first when memory is short, and not before; what it expects next is passed over. When it leaves, that is forgotten."""
        with self.program(16 * MIB, self.scan("24M", 3), "--prefetch", "none") as program:
            program.line()
            first, pages = self.memory_of(program)
            seen = {}
            for when in ("late", "next", "forgotten", "unknown"):
                with farshore_policy.attach(program.pid) as policy:
                    before = self.settled(policy, first, pages)
                    said = {"forgotten": "late", "unknown": "late"}.get(when, when)
                    self.alternate(policy, first, pages, said)
                    if when == "unknown":
                        expect(policy.expect(when, first, pages), "no room to say it")
                    time.sleep(0.1)
                    now = self.here(policy, first, pages)
                    expect(sum(now) >= sum(before) - 16, f"{before}, and {now} for an estimate")
                    if when == "forgotten":
                        policy.close()
                        self.until("it is gone", lambda: not program.mappings())
                        policy = farshore_policy.attach(program.pid)
                    self.limit_is(program, "11M")
                    after = self.here(policy, first, pages)
                    policy.close()
                gone = seen[when] = [then - now for then, now in zip(before, after)]
                expect(sum(gone) > 400, f"{when}: {before}, {after}")
                self.limit_is(program, "16M")
                if when != "unknown":
                    program.go_on()
                    program.line()
            # An evictor that finds late ones in the other's hands goes on with any.
            expect(seen["late"][0] > 4 * seen["late"][1], f"late ones leave first: {seen}")
            # They are passed over twice. Evictors come a third time where many of the others have chances, since the program has just used them.
            expect(seen["next"][1] > 2 * seen["next"][0], f"next ones stay: {seen}")
            for when in ("forgotten", "unknown"):
                expect(min(seen[when]) > max(seen[when]) / 10, f"{when}: {seen}")
            program.go_on()
        return f"{seen}"

    def test_expect_everything(self):
        """A policy says of all memory, again and again, that it is used next: pages leave all the same, and the limit holds."""
        with self.program(12 * MIB, self.scan("24M", 3)) as program:
            program.line()
            first, pages = self.memory_of(program)
            code = f"while program.is_there:\n    program.expect('next', {first}, {pages})\n    program.expect('next', 4096, 1 << 22)\n    time.sleep(0.0005)\n"
            with self.policy(program.pid, code):
                for _ in range(2):
                    program.go_on()
                    program.line()
                self.limit_is(program, "8M")
            with farshore_policy.attach(program.pid) as policy:
                for wrong in ("never", 1):
                    with contextlib.suppress(ValueError):
                        policy.expect(wrong, first)
                        raise harness.Failed(f"expect({wrong!r}) was asked")
                bad = policy.state.requests_bad
                policy._ask(8, first, 1, 4)
                self.until("it is no request", lambda: policy.state.requests_bad == bad + 1)
            self.limit_is(program, "12M")
            program.go_on()
            program.line()
            program.go_on()
        return f"{program.stats['evictions']['pages']} pages left"

    def test_limits_and_mappings(self):
        """A policy hears that the limit changes, and which memory comes and goes."""
        code = "import mmap, sys\nfor n in range(3):\n    sys.stdin.readline()\n    m = mmap.mmap(-1, 32 << 20)\n    m.write(b'x' * (32 << 20))\n" \
               "    m.close()\n    print('done', flush=True)\nsys.stdin.readline()\n"
        with self.program(16 * MIB, [sys.executable, "-c", code]) as program:
            program.go_on()
            program.line()
            with farshore_policy.attach(program.pid) as policy:
                policy.want("limit", "mapped", "unmapped")
                self.until("it is heard", lambda: policy.state.requests >= 0)
                time.sleep(0.1)
                done = self.call("set", str(program.pid), "memory=20M")
                expect(done.status == 0, done.err)
                program.go_on()
                program.line()
                heard = list(policy.events(timeout=1))
                limits = [event.pages * PAGE for event in heard if event.kind == "limit"]
                expect(20 * MIB in limits, f"{limits}")
                for kind in ("mapped", "unmapped"):
                    expect(any(event.kind == kind and event.pages * PAGE >= 32 * MIB for event in heard), f"{kind}: {heard}")
            program.go_on()
        return f"{len(heard)} events"

    def test_hints(self):
        """madvise and posix_madvise: pages leave and come as the program says, and no byte changes."""
        with self.program(64 * MIB, [self.public_program("hints"), "32M"]) as program:
            first, pages = int(program.line()[1], 16), 32 * MIB // PAGE
            with farshore_policy.attach(program.pid) as policy:
                here = lambda part: (now := collections.Counter(policy.page_states(first, part)))["dirty"] + now["clean"]  # noqa: E731
                before = here(pages)
                expect(before == pages, f"{before} of {pages} are here at first")
                program.go_on()
                program.line()
                self.until("all have left", lambda: here(pages) == 0)
                program.go_on()
                program.line()
                # What still lies in RAM is not read.
                came = self.until("they come", lambda: (now := here(pages // 2)) > pages // 4 and now)
                program.go_on()
                program.line()
                program.go_on()
        expect("right" in program.out, program.out)
        return f"{came} of {pages // 2} came"

    def test_scan(self):
        """A scan tells which pages are used and which are not, and costs no more than its share: what is asked for beyond is refused."""
        with self.program(256 * MIB, [self.public_program("hotset"), "96M", "24M"]) as program:
            program.line()
            with farshore_policy.attach(program.pid) as policy:
                # The memory whose first quarter is hot is the largest mapping.
                first, end = max(hot.mappings(program.pid), key=lambda edges: edges[1] - edges[0])
                true = set(range(first // hot.GRANULE, (first + 24 * MIB // PAGE - 1) // hot.GRANULE + 1))
                found, looked = {}, {}

                def all_found():
                    for part, (looks, used) in hot.watch(policy, 2).items():
                        looked[part] = looked.get(part, 0) + looks
                        found[part] = found.get(part, 0) + used
                    return all(looked.get(part, 0) >= 8 for part in range(first // hot.GRANULE + 1, (end - 1) // hot.GRANULE))

                self.until("each part was looked at", all_found, 120)
                here = {part for part in found if found[part] and first // hot.GRANULE <= part <= (end - 1) // hot.GRANULE}
                expect(len(true & here) >= 0.95 * len(true), f"{len(true & here)} of {len(true)} hot parts found")
                expect(len(here - true) <= 0.1 * len(true), f"{here - true} are not hot")
                # Each page was looked at in the way that doctor says: where the kernel does not watch pages, or not for us, by taking them away, but for those that have samples.
                told = self.call("doctor").out
                watches, samples = "idle page tracking, and" in told, "for pages that have some" in told
                scans = self.counters(program.pid)["scans"]
                expect((samples or (scans["watched_pages"] > 0) == watches) and (watches or scans["taken_pages"] > 0), f"{watches} {samples}: {scans}")
                # Of a part that is not hot none counts as used, whether pages have left for that or not.
                policy.want("scanned")
                cold = (end - 4 * hot.GRANULE) * PAGE
                refused, seen = 0, []

                def both():
                    nonlocal refused
                    policy.ask_all(lambda page: policy.scan(page, 64, 0.05, tag=9), [cold] * (100 if watches else 20))
                    # What was asked before may be told only now.
                    for event in (event for event in policy.events(timeout=0.5) if event.address == cold):
                        refused += event.detail
                        seen.extend([] if event.detail else [event])
                    return refused and any(event.looked for event in seen)

                self.until("some are answered, and some are refused", both)
                expect(seen and all(event.pages == 64 for event in seen), f"{seen[:3]}")
                used = sum(event.accessed.bit_count() for event in seen)
                expect(used == 0, f"{used} cold pages are said to be used")
                for wrong in ((cold, 513, 0.05), (cold, 0, 0.05), (cold, 1, 5000), (cold, 1, 0.05, 1 << 32)):
                    with contextlib.suppress(ValueError):
                        policy.scan(*wrong)
                        raise harness.Failed(f"scan{wrong} was asked")
                bad = policy.state.requests_bad
                policy._ask(7, cold, 513, 0)
                self.until("it is no request", lambda: policy.state.requests_bad == bad + 1)
            program.process.popen.stdin.write(b"end\n")
            program.process.popen.stdin.flush()
        return f"{len(true & here)} of {len(true)} hot parts, {len(here - true)} others; {refused} refused; {scans}"

    def test_orders(self):
        """MADV_SEQUENTIAL and MADV_RANDOM: what comes unasked is as the program says; bytes and errors are as natively."""
        size = 32 * MIB
        program = self.public_program("orders")
        native = self.call_program(["sh", "-c", f"yes | {program} 32M normal"], timeout=240)
        expect(native.status == 0, native.err)
        counted = {}
        for advice in ("normal", "sequential", "random", "posix-sequential", "posix-random"):
            # More memory than it takes: nothing leaves for want of room.
            with self.program(64 * MIB, [program, "32M", advice]) as running:
                running.line()

                def counters(pid=running.pid):
                    done = self.call("stat", str(pid), "--json")
                    expect(done.status == 0, done.err)
                    return harness.json.loads(done.out)

                # Whoever asks for its counters wakes it: a dormant program's hints are the kernel's.
                counters()
                running.go_on()
                running.line()
                self.until("all has left", lambda: counters()["evictions"]["pages"] > size // PAGE - 256)
                before = counters()
                running.go_on()
                running.line()
                after = counters()
                running.go_on()
            said = running.out.split("right", 1)[1].split()
            expect(said == native.out.split("right", 1)[1].split(), f"{advice}: {said}, natively {native.out}")
            counted[advice] = {"issued": after["prefetch"]["issued"] - before["prefetch"]["issued"],
                               "evicted": after["evictions"]["pages"] - before["evictions"]["pages"]}
        for advice, now in counted.items():
            expect(now["issued"] == 0 if "random" in advice else now["issued"] > 0, f"{advice}: {counted}")
            expect(now["evicted"] < 512, f"{advice}: {counted}, and all fits")
        return f"{counted}"

    # ------------------------------------------------------------------------------------------- what it cannot do

    def test_killed(self):
        """Policies are killed in the middle of everything, and others attach: nothing of them stays."""
        count = storms = 0
        # On a busy machine a storm may be over before many have begun.
        while count < 3:
            storms += 1
            expect(storms <= TRIES, f"only {count} policies while {TRIES} programs ran")
            with self.storm() as program:
                while program.process.alive() and count < 12:
                    with contextlib.suppress(NotAttached), self.policy(program.pid, self.LINEAR) as policy:
                        time.sleep(0.15)
                        policy.send_signal(signal.SIGKILL)
                        policy.wait()
                        count += 1
                if program.process.alive():
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        self.until("nothing of them is left", lambda: not program.process.alive() or not program.threads("farshore-policy") + program.mappings())  # noqa: B023
        return f"{count} policies killed in {storms} storms"

    def test_stopped(self):
        """A policy is stopped while it listens to everything: its events are lost and counted, and the program goes on to its end."""
        lost = storms = 0
        listens = "program.want(*farshore_policy.KINDS)\ntime.sleep(0.2)\nprint('listens', flush=True)\ntime.sleep(600)\n"
        # The same: it may be over before anybody has asked how many are lost.
        while lost == 0:
            storms += 1
            expect(storms <= TRIES, f"it lost no event of {TRIES} programs")
            with self.storm() as program, contextlib.suppress(NotAttached), self.policy(program.pid, listens) as policy:
                policy.stdout.readline()
                policy.send_signal(signal.SIGSTOP)
                while program.process.alive():
                    done = self.call("stat", str(program.pid), "--json")
                    if done.status == 0:
                        lost = max([lost, *(one["events_lost"] for one in harness.json.loads(done.out)["policies"])])
                    time.sleep(0.1)
        return f"{lost} events lost in {storms} storms"

    def at_random(self, program, policy, rng, count):
        """Writes requests into the ring: each is one, about memory that the program has, mostly."""
        words, laps = policy._words, 0
        ranges = [tuple(int(part, 16) for part in line.split()[0].split("-"))
                  for line in harness.read_text(f"/proc/{program.pid}/maps", 1 << 22).splitlines() if " rw-p " in line and line.split()[4] == "0"]
        asked, requests = words[farshore_policy.REQUESTS_ASKED], policy._requests
        while asked < count and policy.is_there:
            room = requests - (asked - words[farshore_policy.REQUESTS_TAKEN])
            if room < requests // 2:
                policy._ring()
                time.sleep(0.0005)
                continue
            for _ in range(room):
                first, end = rng.choice(ranges)
                pages = rng.choice((1, 1, 4, 40, 500))
                at = policy._requests_at + asked % requests * 4
                kind = rng.randrange(1, 9)
                # A scan has its time above the tag, and of estimates there are four.
                extra = rng.randrange(1 << 16) << 32 if kind == 7 else rng.randrange(4 if kind == 8 else 1 << 20)
                words[at], words[at + 1], words[at + 2], words[at + 3] = kind, rng.randrange(first, end) & -PAGE, pages, extra
                asked += 1
            words[farshore_policy.REQUESTS_ASKED] = asked
            policy._ring()
            laps += 1
        return asked

    def test_random_requests(self):
        """A million requests at random while the program works: right bytes, and the limit holds."""
        rng, asked, state = random.Random(self.seed), 0, None
        with self.program(16 * MIB, self.scan("40M", 6)) as program:
            program.line()
            with farshore_policy.attach(program.pid) as policy:
                policy.want(*farshore_policy.KINDS)
                for _ in range(6):
                    program.go_on()
                    asked = self.at_random(program, policy, rng, asked + REQUESTS // 6)
                    program.line()
                self.until("all are taken", lambda: policy.state.requests >= asked)
                state = policy.state
                expect(state.requests_bad == 0 and state.resident_bytes <= 16 * MIB, f"{state}")
        return f"{asked} requests, {state}"

    def test_random_requests_in_a_storm(self):
        """The same while threads map, unmap and move memory."""
        rng, asked = random.Random(self.seed), 0
        with self.storm() as program:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), farshore_policy.attach(program.pid) as policy:
                while policy.is_there and program.process.alive():
                    asked = self.at_random(program, policy, rng, asked + 20000)
        expect(asked > 0, "the program was over before")
        return f"{asked} requests"

    def test_garbage(self):
        """A policy writes garbage into all of the memory that it shares, again and again, and rings: the program does not notice. The same connection then works."""
        rng, laps = random.Random(self.seed), 0
        with self.storm() as program:
            with farshore_policy.attach(program.pid) as policy:
                bytes_of_it = len(policy._words) * 8
                while policy.is_there and program.process.alive():
                    garbage = array.array("Q", rng.randbytes(bytes_of_it))
                    if laps % 3 == 1:
                        # Near to what is right: positions a little off.
                        for word in (farshore_policy.EVENTS_TAKEN, farshore_policy.REQUESTS_ASKED, farshore_policy.REQUESTS_TAKEN):
                            garbage[word] = rng.randrange(2048)
                        garbage[farshore_policy.WANTED] = 0x7FE
                    policy._words[:] = memoryview(garbage)
                    policy._ring()
                    laps += 1
        expect(laps > 3, f"{laps} times")
        return f"{laps} times {bytes_of_it} bytes"

    def test_file_is_sealed(self):
        """A policy cannot make the file smaller under the program, nor larger."""
        with self.program(16 * MIB, self.scan("24M", 1)) as program:
            program.line()
            connection = farshore_policy._connect(program.pid)
            connection.sendall(b'{"op":"attach","version":1}\n')
            said, (descriptor,), _, _ = farshore_policy.socket.recv_fds(connection, 4096, 1)
            for size in (0, 4096, 1 << 30):
                try:
                    os.ftruncate(descriptor, size)
                    raise harness.Failed(f"it has {size} bytes now")
                except PermissionError:
                    pass
            # What it can do is to throw the pages away.
            memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
            done = subprocess.run([harness.need("fallocate", "util-linux"), "-p", "-l", str(len(memory)), f"/proc/self/fd/{descriptor}"],
                                  pass_fds=[descriptor], check=False)
            expect(done.returncode == 0, "fallocate")
            program.go_on()
            program.line()
            memory.close()
            os.close(descriptor)
            connection.close()
        return said.decode().strip()

    # ------------------------------------------------------------------------------------------- who may, and what stays

    def test_who_may_attach(self):
        """Another user is refused, and so are another version of the protocol and one too many."""
        if os.geteuid() != 0:
            raise Unavailable("several users need root")
        public = self.folder("policy")
        shutil.copy(os.path.join(POLICIES, "python", "farshore_policy.py"), public)
        code = f"import sys; sys.path.insert(0, {public!r}); import farshore_policy\ntry:\n    farshore_policy.attach(int(sys.argv[1]))\n    print('attached')\n" \
               "except farshore_policy.Refused as why:\n    print(why)\n"
        with self.program(16 * MIB, self.scan("24M", 1)) as program:
            program.line()
            done = self.call_program([sys.executable, "-c", code, str(program.pid)], user=NOBODY)
            said = done.out
            expect(f"belongs to user 0, you are user {NOBODY}" in said, said + done.err)
            expect(not program.mappings(), "something is shared")
            connection = farshore_policy._connect(program.pid)
            connection.sendall(b'{"op":"attach","version":2}\n')
            answer = connection.recv(4096).decode()
            expect("error" in answer and "version 1" in answer, answer)
            connection.close()
            with contextlib.ExitStack() as stack:
                for _ in range(4):
                    stack.enter_context(farshore_policy.attach(program.pid))
                expect(program.threads("farshore-policy") == 4, "not a thread each")
                try:
                    farshore_policy.attach(program.pid)
                    raise harness.Failed("a fifth has attached")
                except farshore_policy.Refused as why:
                    expect("4 policies are attached already" in str(why), f"{why}")
            program.go_on()
        return said.strip()

    def test_it_gives_everything_back(self):
        """A policy that leaves takes its thread, its descriptor and its memory along, however often."""
        with self.program(16 * MIB, self.scan("24M", 1)) as program:
            program.line()
            place = f"/proc/{program.pid}"
            counted = lambda: (sorted(os.listdir(f"{place}/fd")), program.threads("farshore-policy"), program.mappings())  # noqa: E731
            with farshore_policy.attach(program.pid) as policy:
                policy.want("fault")
                self.until("a thread serves it", lambda: program.threads("farshore-policy") == 1)
            # The connection goes last, when nothing else is there any more.
            before = self.until("it is gone", lambda: (now := counted())[1:] == (0, 0) and (time.sleep(0.2), counted())[1] == now and now)
            lines = harness.read_text(f"{place}/maps", 1 << 22).count("\n")
            for _ in range(40):
                with farshore_policy.attach(program.pid) as policy:
                    expect(program.mappings() == 1, "nothing is shared")
                self.until("it is gone", lambda: counted() == before)
            after = harness.read_text(f"{place}/maps", 1 << 22).count("\n")
            expect(after <= lines + 2, f"{lines} mappings before, {after} after")
            program.go_on()
        return f"{lines} and {after} mappings"

    def test_family(self):
        """A forked child is not attached; it has attachments of its own, which hear of it alone."""
        code = "import os, sys\nmemory = bytearray(b'x') * (24 << 20)\nready, other = os.pipe()\nchild = os.fork()\nif child == 0:\n" \
               "    for n in range(2):\n        memory[::4096] = bytes([n]) * len(memory[::4096])\n    os.write(other, b'.')\n    import time\n" \
               "    end = os.path.join(sys.argv[1], 'end')\n    while not os.path.exists(end):\n        memory[::4096] = b'c' * len(memory[::4096])\n        time.sleep(0.01)\n" \
               "    os._exit(0 if set(memory[::4096]) == set(b'c') else 1)\nos.read(ready, 1)\nprint(child, flush=True)\n" \
               "sys.stdin.readline()\nopen(os.path.join(sys.argv[1], 'end'), 'w').close()\nstatus = os.waitpid(child, 0)[1]\nsys.exit(status or memory[-1] != ord('x'))\n"
        forking = "sys.stdin.readline()\n"
        code = code.replace("ready, other", f"print('filled', flush=True)\n{forking}ready, other")
        with self.program(24 * MIB, [sys.executable, "-c", code, self.folder("end")]) as program:
            program.line()
            with farshore_policy.attach(program.pid) as policy:
                policy.want("fault")
                program.go_on()
                child = int(program.line()[0])
                expect(program.mappings() == 1 and program.threads("farshore-policy") == 1, "it has left")
                expect(not program.mappings(child) and not program.threads("farshore-policy", child), "the child is attached")
                # The child goes on with its own memory.
                for _ in policy.events(timeout=0.5):
                    pass
                with farshore_policy.attach(child) as other:
                    own = next(iter(other.events("fault", timeout=30)), None)
                    expect(own is not None and own.thread == child, f"{own}")
                    expect(program.mappings(child) == 1, "nothing is shared")
                    strangers = [event for event in policy.events(timeout=0.5) if event.thread == child]
                    expect(not strangers, f"{strangers[:3]}")
            program.go_on()
        return "each has its own"

    def test_redis(self):
        """redis-server under load with a prefetcher beside it, which is replaced, and one that asks at random."""
        server, benchmark = harness.need("redis-server", "redis-server"), harness.need("redis-benchmark", "redis-tools")
        place = self.folder("redis")
        path = os.path.join(place, "socket")
        load = [benchmark, "-s", path, "-q", "-n", "30000", "-r", "60000", "-d", "400", "-c", "8", "-P", "8", "-t", "set,get"]
        rng, asked = random.Random(self.seed), 0
        with self.program(16 * MIB, [server, "--port", "0", "--unixsocket", path, "--save", "", "--dir", place]) as program:
            self.until("it listens", lambda: os.path.exists(path))
            expect(self.call_program(load, timeout=120).status == 0, "redis-benchmark")
            with self.policy(program.pid, self.LINEAR), farshore_policy.attach(program.pid) as policy:
                with subprocess.Popen(load, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
                    while running.poll() is None:
                        asked = self.at_random(program, policy, rng, asked + 5000)
                    expect(running.returncode == 0, f"redis-benchmark: {running.stdout.read().decode()}")
            os.kill(program.pid, signal.SIGTERM)
        return f"{asked} requests"
