"""Experiments: what `--ablate` leaves out is out, as a counter shows, and a program that checks all its data finds nothing wrong.

Each switch is set against a run with nothing left out, in which the same counter shows that the mechanism is at work: else its absence would prove nothing.
"""

import contextlib
import json
import subprocess

import harness
from command import Command
from harness import expect

# Threads, MiB, rounds, seed: it checks all that it does, and its output follows from the seed.
STORM = ("4", "64", "3", "11")
LIMIT = "16M"


def batches(found):
    """Pages of a batch, on the average."""
    return found["evictions"]["pages"] / max(1, found["evictions"]["batches"])


# The name of a switch; what a run with it has, and what one without has.
SWITCHES = (
    ("pipeline", lambda it: it["evictors"]["batches_in_flight_peak"] == 1, lambda it: it["evictors"]["batches_in_flight_peak"] > 1),
    ("caches", lambda it: it["frames"]["cached"] == 0, None),
    ("rescue", lambda it: it["faults"]["rescue"] == 0, lambda it: it["faults"]["rescue"] > 100),
    ("delegation", lambda it: it["swap"]["delegations"] == 0, None),
    # Some may still be with the disk at the end.
    ("write-runs", lambda it: 0 <= it["swap"]["writes"] - it["swap"]["pages_out"] <= 8, lambda it: it["swap"]["writes"] < it["swap"]["pages_out"] / 2),
    ("partitions", lambda it: it["evictors"]["lists"] == 1, lambda it: it["evictors"]["lists"] > 1),
    # The program asks for pages itself, too.
    ("prefetch", lambda it: it["prefetcher"] == "none" and it["prefetch"]["issued"] < 500, lambda it: it["prefetcher"] == "sequential" and it["prefetch"]["issued"] > 2000),
    # The stress program has more data than would nearly fit.
    ("headroom", lambda it: it["evictors"]["high_pages"] > 2, None),
    ("migration", lambda it: it["evictors"]["bound"] == it["evictors"]["count"], lambda it: it["evictors"]["bound"] == 0),
    ("batch=1", lambda it: it["evictions"]["batches"] == it["evictions"]["pages"], lambda it: batches(it) > 8),
    ("batch=512", lambda it: it["evictors"]["batch_pages_most"] == 512, lambda it: it["evictors"]["batch_pages_most"] <= 256),
)


class TestAblate(Command):
    def storm(self, fault, ablate, *more):
        """The counters of a run of the stress program, which has found nothing wrong."""
        argv = [self.public_program("memstorm"), *STORM]
        options = ["--memory", LIMIT, "--swap", f"dir:{self.folder('ablate')}", "--fault", fault, "--evictors", "1" if ablate == "batch=512" else "2", *more]
        done = self.call("run", *options, *(["--ablate", ablate] if ablate else []), "--stats", "-", "--", *argv, timeout=300)
        native = self.call_program(argv, timeout=300)
        expect((done.status, done.out) == (0, native.out), f"{fault} {ablate}: status {done.status}, {done.out!r} not {native.out!r}: {done.err[-300:]}")
        found = json.loads(done.err[done.err.index("{"):])
        expect(found["ablated"] == ablate, f"{found['ablated']!r} was left out, not {ablate!r}")
        expect(found["evictions"]["synchronous"] == 0 and found["swap"]["errors"] == 0, f"{fault} {ablate}: {found['evictions']} {found['swap']}")
        expect(found["evictions"]["pages"] > 10000, f"{fault} {ablate}: {found['evictions']}")
        expect(found["resident_bytes_peak"] <= harness.parse_size(LIMIT), f"{fault} {ablate}: {found['resident_bytes_peak']} bytes")
        return found

    def test_each_switch(self):
        """Each mechanism is at work, and is not where it is left out; the data are right in both."""
        seen = []
        for fault in self.modes():
            whole = self.storm(fault, "")
            for name, holds, at_work in SWITCHES:
                found = self.storm(fault, name)
                expect(holds(found), f"{fault}, {name} is not left out: {found['faults']} {found['evictions']} {found['evictors']} {found['swap']} {found['frames']}")
                expect(at_work is None or at_work(whole), f"{fault}, {name} does nothing: {whole['faults']} {whole['evictions']} {whole['evictors']} {whole['swap']}")
                seen.append(f"{fault} {name}: {found['evictions']['pages']} pages, {batches(found):.0f} a batch")
        return "; ".join(seen)

    def test_all_at_once(self):
        """All of it at once, with forks."""
        everything = ",".join(name for name, _, _ in SWITCHES if not name.startswith("batch")) + ",batch=3"
        seen = []
        for fault in self.modes():
            found = self.storm(fault, everything)
            expect(all(holds(found) for name, holds, _ in SWITCHES if not name.startswith("batch")), f"{found}")
            argv = [self.public_program("forks")]
            done = self.call("run", "--memory", "8M", "--swap", f"dir:{self.folder('ablate')}", "--fault", fault, "--ablate", everything, "--", *argv, timeout=300)
            native = self.call_program(argv, timeout=300)
            expect((done.status, done.out) == (native.status, native.out), f"{fault}: {done.status} {done.out[-300:]!r} {done.err[-300:]}")
            seen.append(f"{fault}: {found['evictions']['pages']} pages")
        return ", ".join(seen)

    def test_claims(self):
        """Counters of what is claimed: calls that flush, bytes copied, and the parts of a fetch agree with what else is counted."""
        text = ("data = bytearray(48 << 20)\n"
                "for turn in range(1, 5):\n"
                "    for at in range(0, len(data), 4096): data[at] = (data[at] + turn + at % 199) & 255\n"
                "assert all(data[at] == (10 + 4 * (at % 199)) & 255 for at in range(0, len(data), 4096))\n")
        seen = []
        for fault in self.modes():
            done = self.call("run", "--memory", LIMIT, "--swap", f"dir:{self.folder('ablate')}", "--fault", fault, "--ablate", "prefetch", "--stats", "-", "--",
                             "/usr/bin/python3", "-c", text, timeout=120)
            expect(done.status == 0, f"{fault}: status {done.status}: {done.err[-300:]}")
            found = json.loads(done.err[done.err.index("{"):])
            evictions, flushes, copies, parts, swap = (found[name] for name in ("evictions", "flushes", "copies", "fetch_parts", "swap"))
            expect(found["prefetch"]["issued"] == 0, f"{fault}: {found['prefetch']}")
            pages, dirty = evictions["pages"], evictions["pages"] - evictions["clean_pages"]
            expect(flushes["unmap_calls"] in (evictions["batches"], flushes["unmap_ranges"]), f"{fault}: one call a batch, or one a range: {flushes} {evictions}")
            expect(evictions["batches"] <= flushes["unmap_ranges"] <= pages, f"{fault}: {flushes} {evictions}")
            expect(0 < flushes["protect_calls"] < dirty, f"{fault}: {flushes}, {dirty} dirty pages")
            expect(pages * 4096 <= copies["out_bytes"] < pages * 4200, f"{fault}: {copies}, {pages} pages left")
            came = swap["pages_in"] + found["faults"]["rescue"]
            expect(copies["in_bytes"] == came * 4096, f"{fault}: {copies}, {came} pages came")
            fetches, named = found["faults"]["fetch"], ("claim_ns", "read_ns", "check_ns", "map_ns", "rest_ns")
            expect(fetches > 10000 and fetches / 64 < parts["measured"] < fetches / 4, f"{fault}: {parts} of {fetches} fetches")
            whole = sum(parts[name] for name in named)
            expect(all(parts[name] > 0 for name in named) and parts["read_ns"] == max(parts[name] for name in named), f"{fault}: {parts}")
            expect(whole <= found["fault_latency_ns"]["total"], f"{fault}: {parts} {found['fault_latency_ns']}")
            seen.append(f"{fault}: {pages / (flushes['protect_calls'] + flushes['unmap_calls']):.0f} pages a call, "
                        + ", ".join(f"{name[:-3]} {parts[name] / parts['measured'] / 1000:.1f} us" for name in named))
        return "; ".join(seen)

    def test_told(self):
        """farshore stat says it, a child has it too, and what was left out is not set while the program runs."""
        text = ("import os\n"
                "data = bytearray(24 << 20)\n"
                "for at in range(0, len(data), 4096): data[at] = 1 + at % 251\n"
                "print(os.getpid(), flush=True)\n"
                "input()\n"
                "assert all(data[at] == 1 + at % 251 for at in range(0, len(data), 4096))\n")
        options = ["--memory", "8M", "--swap", f"dir:{self.folder('ablate')}", "--ablate", "prefetch,rescue,batch=2"]
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(self.running(options, ["/usr/bin/python3", "-c", text], None, timeout=120, stdin=subprocess.PIPE))
            pid = process.popen.stdout.readline().decode().strip()
            shown = self.call("stat", pid).out
            expect("an experiment, --ablate rescue,prefetch,batch=2:" in shown, shown)
            for bad in ("batch=64", "batch=auto", "prefetch=stride"):
                self.refused(["set", pid, bad], (1, 125), "--ablate")
            done = self.call("set", pid, "prefetch=none", "writes=1")
            expect(done.status == 0, done.err)
            process.popen.stdin.write(b"\n")
            process.popen.stdin.close()
            outcome, _ = self.ended(process)
            expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-500:]}")
        return "told, and kept"

    def test_refused(self):
        """What cannot be left out, with what can."""
        for bad, word in (("rescues", "pipeline, caches, rescue"), ("", "pipeline"), ("batch=0", "1 to 512"), ("batch=513", "1 to 512"), ("rescue,rescue", "twice"),
                          ("batch", "batch=N"), ("rescue caches", "write-runs")):
            self.refused(["run", "--memory", "64M", "--ablate", bad, "--", "true"], (2, 125), word)
        for more, word in ((["--batch", "64", "--ablate", "batch=8"], "--batch"), (["--prefetch", "stride", "--ablate", "prefetch"], "--prefetch stride"),
                           (["--memory", "8M", "--ablate", "batch=512"], "at most 292")):
            options = more if "--memory" in more else ["--memory", "64M", *more]
            self.refused(["run", *options, "--", "true"], (2, 125), word)
        return "with the list of what can be left out"
