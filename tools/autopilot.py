#!/usr/bin/env python3
"""What the autopilot reaches, against the smallest memory that a search finds: six programs whose phases need different memory.

    tools/autopilot.py [--slowdown PERCENT] [--rounds N] [--steps N] [--scale X] [--only NAME,…] [--swap SPEC] [--farshore COMMAND]

Each program does a fixed amount of work and prints what it found, which must always be the same. In turn, ROUNDS times each, it runs natively, and under
`farshore run --slowdown`. Between the two a search halves, STEPS times, the range of fixed limits (`--memory`), for the smallest at which it takes no longer than
the slowdown allows. Times are medians. The memory of a fixed limit is the limit; that of the autopilot is the mean of what it has resident, by time.

It takes about an hour on an idle machine (`--scale 0.2 --rounds 1 --steps 3`: some minutes, to see that it works). On a busy one the times say nothing.
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")
MIB = 1 << 20
# Runs a program, and says what it had at most.
PEAK = "import resource, subprocess, sys\nstatus = subprocess.run(sys.argv[1:]).returncode\n" \
       "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\nsys.exit(status)\n"
# How often the autopilot's memory is looked at.
LOOK = 0.5

PYTHON = """
import random, sys
count, work = 600_000, int(sys.argv[1])
rows = {key: [key, str(key)] for key in range(count)}
pick, total = random.Random(1), 0
for part in (0.05, 0.5, 0.02, 0.3):
    few = int(count * part)
    for _ in range(work):
        row = rows[pick.randrange(few)]
        row[0] += 1
        total += len(row[1])
print(total, sum(row[0] for row in rows.values()))
"""

SQLITE = """
CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER, text TEXT);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999999) INSERT INTO t SELECT i, i * 7919 % 1000003, hex(zeroblob(60)) FROM n;
{repeat}
SELECT count(*), sum(k) FROM t;
"""
SQLITE_PHASES = """
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000) SELECT sum(k) FROM n, t WHERE t.id = i * 7919 % 20000;
SELECT sum(length(text)) FROM t;
"""


def programs(scale):
    """Name, command, standard input."""
    load = os.path.join(RELEASE, "farshore-load")
    times = max(1, round(12 * scale))
    numbers = "import random; pick = random.Random(2); [print(pick.random()) for _ in range(%d)]" % int(3_000_000 * scale)
    return [
        ("map, then reduce", [load, "phase", "--size", f"{int(1024 * scale) or 64}M"], None),
        ("pagerank", [load, "pagerank", "--size", f"{int(512 * scale) or 64}M"], None),
        ("python", [sys.executable, "-c", PYTHON, str(int(8_000_000 * scale))], None),
        ("sqlite", ["sqlite3", ":memory:"], SQLITE.format(repeat=SQLITE_PHASES * times)),
        ("make and sort", ["sh", "-c", f"{sys.executable} -c '{numbers}' | sort -g -S 400M --parallel=1 | md5sum"], None),
        ("perl", ["perl", "-e", "my ($n, $s) = (shift, 0); my %h = map { $_ => $_ x 8 } 1 .. 400000; for my $p (400000, 20000, 200000, 8000)"
                  " { for my $i (1 .. $n) { $s += length $h{1 + $i * 7919 % $p} } } print \"$s\\n\"", str(int(9_000_000 * scale))], None),
    ]


class Bench:
    """Runs programs, and remembers what they have printed."""

    def __init__(self, options):
        self.options, self.printed = options, {}

    def run(self, name, command, given, under=None, most=math.inf):
        """Runs a program; returns its seconds, and its mean memory, in bytes, if it is under Farshore. One that takes longer than `most` is ended: it takes for ever."""
        argv = [self.options.farshore, "run", *under, "--swap", self.options.swap, "--", *command] if under else command
        began = time.monotonic()
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        seen = []
        rest = given
        while True:
            try:
                out, _ = process.communicate(rest, timeout=LOOK if under else None)
                break
            except subprocess.TimeoutExpired:
                rest = None
                if time.monotonic() - began > most:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
                    return math.inf, 0
                seen.append(self.memory(process.pid))
        seconds = time.monotonic() - began
        if process.returncode != 0:
            sys.exit(f"{name}: exit status {process.returncode} of {' '.join(argv[:6])}")
        if name in WORDS:
            out = [line for line in out.splitlines() if "check" in line]
        if self.printed.setdefault(name, out) != out:
            sys.exit(f"{name}: it has printed {out!r} {'under Farshore' if under else ''}, before {self.printed[name]!r}")
        seen = [memory for memory in seen if memory]
        return seconds, statistics.mean(seen) if seen else 0

    @staticmethod
    def peak(command, given):
        """The most memory that the program has natively, of its processes the one that has most, in bytes."""
        done = subprocess.run([sys.executable, "-c", PEAK, *command], input=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        return int(done.stderr.split()[-1]) * 1024

    def memory(self, pid):
        """What the family of a process has local now, in bytes; None: it does not say."""
        done = subprocess.run([self.options.farshore, "stat", str(pid), "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if done.returncode:
            return None
        found = json.loads(done.stdout)
        return found["family"]["memory_bytes"] if found["family"]["processes"] > 1 else found["resident_bytes"]

    def row(self, name, command, given):
        """One row of the table."""
        target, rounds = self.options.slowdown / 100, self.options.rounds
        pilot = ["--slowdown", f"{self.options.slowdown}%"]
        native, chosen = [], []
        for _ in range(rounds):
            native.append(self.run(name, command, given)[0])
            chosen.append(self.run(name, command, given, pilot))
        alone = statistics.median(native)
        # One and a half times what it has natively: Farshore's staging memory is in the limit too.
        low, high = 8 * MIB, 1.5 * self.peak(command, given)
        for _ in range(self.options.steps):
            middle = (low * high) ** 0.5
            limit = ["--memory", str(int(middle))]
            took = statistics.median(self.run(name, command, given, limit, 2 * alone + 1)[0] for _ in range(rounds))
            low, high = (low, middle) if took <= alone * (1 + target) else (middle, high)
        took, mean = statistics.median(it[0] for it in chosen), statistics.median(it[1] for it in chosen)
        return alone, took / alone - 1, mean, high


# Programs of which only lines about their data are compared: the others tell times.
WORDS = ("map, then reduce", "pagerank")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slowdown", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--swap", default="dir:/var/tmp")
    parser.add_argument("--farshore", default=os.path.join(RELEASE, "farshore"))
    options = parser.parse_args()
    all_programs = programs(options.scale)
    chosen = options.only.split(",") if options.only else [name for name, _, _ in all_programs]
    unknown = set(chosen) - {name for name, _, _ in all_programs}
    if unknown:
        sys.exit(f"there is no program {', '.join(sorted(unknown))}; there are: {', '.join(name for name, _, _ in all_programs)}")
    bench = Bench(options)
    print("| program | natively, s | slowdown | memory, MiB | smallest for it, MiB |\n|---|---|---|---|---|", flush=True)
    for name, command, given in all_programs:
        if name in chosen:
            alone, slowdown, mean, least = bench.row(name, command, given)
            print(f"| {name} | {alone:.1f} | {slowdown * 100:.1f} % | {mean / MIB:.0f} | {least / MIB:.0f} |", flush=True)


if __name__ == "__main__":
    main()
