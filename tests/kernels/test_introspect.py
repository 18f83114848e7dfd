"""`farshore vm run --prefetch guest`: pages come along runs of faults in the virtual addresses of a guest's program, which the guest's own page tables tell.

The guest's program (tests/programs/shuffled.c) goes through memory in order whose pages lie in any order. What it says must be the same with and without. `--measure N` prints a table, of N runs of each kind in turn.
"""

import contextlib
import json
import os
import re
import signal
import statistics
import threading
import time

import harness
import kernels
import pytest
from harness import expect
from machine import Machine
from test_vm import LONG, manager_of, wait_until

# MiB of the guest, of its program, and of the guest's memory that may be in RAM: three quarters of the program's.
GUEST, SIZE, LIMIT = 224, 128, 96
# How often the program goes through its memory; and its sums without Farshore, once they are known.
PASSES, natively = 6, []


class TestIntrospect(Machine):
    """A guest that runs one program."""

    @pytest.fixture(autouse=True, scope="class")
    def with_manager(self, made_ready):
        """What `farshore vm` needs beside the command."""
        self.beside("farshore-manager", "farshore-view", "libfarshore_agent.so")

    def guest(self, passes):
        """The command line of the guest."""
        return [*kernels.plain_guest(self.folder("guest"), "followed", GUEST, 1, ["shuffled"], [("size", SIZE), ("passes", passes)]), "-serial", "stdio"]

    def check_sums(self, said, passes):
        """The program has read what it has written: its sums are those of the same guest without Farshore."""
        if not natively:
            natively.extend(re.findall(r"^sum .*", self.boot(self.guest(PASSES), LONG, lambda _: 0)[0], re.M))
        found = re.findall(r"^sum .*", said, re.M)
        expect(len(natively) == PASSES and found == natively[:passes], f"{found}, and natively {natively}")

    def stat(self, manager):
        """The counters."""
        return json.loads(self.call("vm", "stat", "--json", str(manager)).out)

    def run(self, passes, prefetch, meanwhile=lambda said, manager, process: None):
        """A guest from its beginning to its end: what it says, and counters when it is warmed up and when its program is done. `meanwhile` is called in between."""
        work = self.folder("run")
        console = os.path.join(work, "console")
        said = lambda: harness.read_text(console, 1 << 20).replace("\r", "")  # noqa: E731
        started = {"host": "none"}.get(prefetch, prefetch)
        argv = [self.farshore, "vm", "run", "--memory", f"{LIMIT}M", "--prefetch", started, "--swap", f"dir:{self.folder('swap', 0o777)}", "--", *self.guest(passes)]
        with open(console, "wb") as out:
            process = harness.Process(argv, work, LONG, stdout=out)
        # When the guest has said a line, by the clock out here: what a guest's own clock says of a machine that stands still is not known.
        self.seen = {}

        def watch():
            while process.alive():
                for line in re.findall(r"^(warmed|sum \d+|done)\b", said(), re.M):
                    self.seen.setdefault(line, time.monotonic())
                time.sleep(0.05)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            def has(line):
                expect(process.alive() or re.search(line, said(), re.M), f"it ends early: {said()[-2000:]}\n{process.stderr_so_far()}")
                return re.search(line, said(), re.M)
            wait_until(lambda: has("^warmed$"), "it does not get warm", LONG)
            manager = manager_of(process.stderr_so_far())
            if prefetch == "host":
                expect(self.call("vm", "set", str(manager), "prefetch=host").status == 0, "prefetch=host is refused")
            before = self.stat(manager)
            manager = meanwhile(said, manager, process) or manager
            wait_until(lambda: has("^done$"), "it has no end", LONG)
            after = self.stat(manager)
            process.popen.wait(LONG)
        finally:
            process.kill_session()
            outcome = process.finish()
            watcher.join()
        expect(outcome.status == 0 and "lost" not in outcome.stderr.replace("0 pages lost", ""), f"status {outcome.status}: {outcome.stderr}")
        return said(), before, after

    def test_guest_addresses(self):
        """Translations are those of the guest's own page map; pages come before they are touched, and the program's sums are the same as without."""
        told = {}

        def ask(said, manager, _):
            pages = [line.split()[1:] for line in said().splitlines() if line.startswith("first ")]
            expect(len(pages) == 64, f"{said()}")
            # The program has to run for its address space to be known.
            wait_until(lambda: re.search("^sum 1 ", said(), re.M), "no pass", LONG)
            for address, frame in pages:
                done = self.call("vm", "translate", "--json", str(manager), address)
                expect(done.status == 0, done.err)
                told[address] = json.loads(done.out)
                expect(all(found["host"] for found in told[address]), f"a page outside of memory: {told[address]}")
            shown = self.call("vm", "translate", str(manager), pages[0][0]).out
            expect(shown.startswith("ROOT") and f"{int(pages[0][1], 16) << 12:x}" in shown, shown)
            self.refused(["vm", "translate", str(manager), "here"], (125,), "hexadecimal")

        said, _, after = self.run(PASSES, "guest", ask)
        first, last = ({line.split()[1]: int(line.split()[2], 16) for line in said.splitlines() if line.startswith(f"{when} ")} for when in ("first", "last"))
        stayed = [address for address in first if first[address] == last[address] != 0]
        expect(len(stayed) > 48, f"the guest's kernel has moved too many pages: {said}")
        for address in stayed:
            frames = {found["physical"] >> 12 for found in told[address]}
            # Only what was out, a page table or the guest's stale one, may have no answer.
            expect(frames <= {first[address]}, f"{address} is at {first[address]:x}, and not at {frames}")
        answered = sum(bool(told[address]) for address in stayed)
        expect(answered > len(stayed) * 3 // 4, f"only {answered} of {len(stayed)} translations have an answer")
        guest = after["guest"]
        expect(after["prefetcher"] == "guest" and guest["address_spaces"] > 0 and guest["looks"] > 0, f"{guest}")
        expect(guest["found"] > guest["asked"] // 2 and guest["used"] > 1000 and guest["used"] <= guest["prefetched"], f"{guest}")
        self.check_sums(said, PASSES)
        return f"{answered} of {len(stayed)} translations; {guest['used']} of {guest['prefetched']} pages used, {guest['found']} of {guest['asked']} faults found, {guest['tables_out']} tables out"

    def test_switched(self):
        """The prefetcher changes while the guest runs, and a manager that takes over goes on with the one of the start; the guest says the same."""
        def switch(_, manager, process):
            for prefetch in ("sequential", "guest", "host", "none", "guest"):
                expect(self.call("vm", "set", str(manager), f"prefetch={prefetch}").status == 0, prefetch)
                expect(self.stat(manager)["prefetcher"] == prefetch, prefetch)
            os.kill(manager, signal.SIGKILL)
            found = lambda: re.search(r"goes on with another manager \(manager (\d+)", process.stderr_so_far())  # noqa: E731
            wait_until(found, f"nobody takes over: {process.stderr_so_far()}", LONG)
            return int(found()[1])

        said, _, after = self.run(3, "guest", switch)
        expect(after["prefetcher"] == "guest" and after["guest"]["used"] > 500, f"{after['prefetcher']}: {after['guest']}")
        self.check_sums(said, 3)
        return f"{after['guest']['used']} of {after['guest']['prefetched']} pages used"

    def test_without_monitor(self):
        """A guest that was not started so has no translations, and is told what to do."""
        with self.idle() as manager:
            told = self.stat(manager)
            expect(told["guest"] is None and told["prefetcher"] == "sequential", f"{told['guest']}, {told['prefetcher']}")
            for words, word in ((["vm", "set", str(manager), "prefetch=guest"], "--prefetch guest"), (["vm", "translate", str(manager), "1000"], "--prefetch guest")):
                self.refused(words, (1,), word)
        self.refused(["vm", "run", "--memory", "64M", "--prefetch", "oracle", "--", kernels.qemu()], (125,), "none, or guest")

    @contextlib.contextmanager
    def idle(self):
        """A machine that does nothing: the number of its manager."""
        argv = [self.farshore, "vm", "run", "--memory", "32M", "--", kernels.qemu(), "-S", "-m", "64M", "-nodefaults", "-display", "none"]
        process = harness.Process(argv, self.folder("idle"), LONG)
        try:
            wait_until(lambda: "handed over" in process.stderr_so_far() or not process.alive(), "nothing is handed over", LONG)
            yield manager_of(process.stderr_so_far())
        finally:
            process.kill_session()
            process.finish()

    @pytest.mark.measured
    def test_measure(self, request):
        """How long the passes take and what they need: without, in the order of the guest's memory, in its virtual addresses."""
        times = request.config.getoption("--measure")
        figures = {}
        for _ in range(times):
            for prefetch in ("none", "host", "guest", "sequential"):
                said, before, after = self.run(PASSES, prefetch)
                grown = lambda *path: self.grown(before, after, path)  # noqa: B023, E731
                row = {"s": round(self.seen[f"sum {PASSES}"] - self.seen["sum 1"], 2), "by the guest": float(re.search(r"^took (.*)", said, re.M)[1]),
                       "in faults": round(grown("fault_latency_ns", "total") / 1e9, 2), "clock": re.search(r"^clock (.*)", said, re.M)[1], "fetches": grown("faults", "fetch"), "waits": grown("faults", "wait"), "read": grown("swap", "pages_in"), "evicted": grown("evictions", "pages")}
                if after["guest"]:
                    row |= {key: after["guest"][key] - (before["guest"] or {}).get(key, 0) for key in ("asked", "found", "prefetched", "used", "tables_out", "looks", "unheard", "stale")}
                figures.setdefault(prefetch, []).append(row)
        for prefetch, rows in figures.items():
            print(prefetch, {key: statistics.median_low(row[key] for row in rows) for key in rows[0]}, [(row["s"], row["by the guest"], row["in faults"]) for row in rows], flush=True)

    @staticmethod
    def grown(before, after, path):
        """How much a counter has grown."""
        for key in path:
            before, after = before[key], after[key]
        return after - before
