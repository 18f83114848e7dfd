"""Real programs that do a fixed amount of work and print what they found, which must always be the same: for the tables that hold what Farshore says of memory against measurement."""

import math
import os
import random
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")
MIB = 1 << 20
# Runs a program, and says what it had at most.
PEAK = "import resource, subprocess, sys\nstatus = subprocess.run(sys.argv[1:]).returncode\n" \
       "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\nsys.exit(status)\n"
# How often a running program is looked at, in seconds.
LOOK = 0.5
# Programs of which only lines about their data are compared: the others tell times.
WORDS = ("map, then reduce", "pagerank")

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

NUMPY = """
import sys, numpy
size, times = 1 << 23, int(sys.argv[1])
keys = numpy.random.default_rng(3).integers(0, size, size)
values, found = numpy.arange(size, dtype=numpy.float64), 0.0
for turn in range(times):
    found += float(values[keys[turn::7]].sum())
    values[: size // 8] += 1
    found += float(numpy.sort(values[turn::3])[::1000].sum())
print(found)
"""

RUBY = """
count, work = 700_000, ARGV[0].to_i
rows = {}
count.times { |key| rows[key] = [key, key.to_s * 2] }
state, total = 12_345, 0
[0.04, 0.4, 0.1].each do |part|
  few = (count * part).to_i
  work.times do
    state = (state * 1_103_515_245 + 12_345) & 0x7fffffff
    row = rows[state % few]
    row[0] += 1
    total += row[1].length
  end
end
puts total, rows.sum { |_, row| row[0] }
"""

PERL = "my ($n, $s) = (shift, 0); my %h = map { $_ => $_ x 8 } 1 .. 400000; for my $p (400000, 20000, 200000, 8000)" \
       " { for my $i (1 .. $n) { $s += length $h{1 + $i * 7919 % $p} } } print \"$s\\n\""

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


def sqlite(times):
    """Fills a table, and looks a small and a large part of it up in turn, so many times."""
    return ("sqlite", ["sqlite3", ":memory:"], SQLITE.format(repeat=SQLITE_PHASES * times))


def make_and_sort(lines, memory):
    """Makes numbers, and sorts them."""
    numbers = "import random; pick = random.Random(2); [print(pick.random()) for _ in range(%d)]" % lines
    return ("make and sort", ["sh", "-c", f"{sys.executable} -c '{numbers}' | sort -g -S {memory} --parallel=1 | md5sum"], None)


def numbers(lines):
    """Numbers to sort, one a line."""
    pick = random.Random(2)
    return "".join(f"{pick.random()}\n" for _ in range(lines))


def phased(scale):
    """Programs whose phases need different memory: name, command, standard input."""
    load = os.path.join(RELEASE, "farshore-load")
    return [
        ("map, then reduce", [load, "phase", "--size", f"{int(1024 * scale) or 64}M"], None),
        ("pagerank", [load, "pagerank", "--size", f"{int(512 * scale) or 64}M"], None),
        ("python", [sys.executable, "-c", PYTHON, str(int(8_000_000 * scale))], None),
        sqlite(max(1, round(12 * scale))),
        make_and_sort(int(3_000_000 * scale), "400M"),
        ("perl", ["perl", "-e", PERL, str(int(9_000_000 * scale))], None),
    ]


def short(scale):
    """Programs that take some seconds natively, of which a few pages are hot and many are not: name, command, standard input."""
    return [
        ("python", [sys.executable, "-c", PYTHON, str(int(1_000_000 * scale))], None),
        ("numpy", ["/usr/bin/python3", "-c", NUMPY, str(max(1, round(8 * scale)))], None),
        ("sqlite", *sqlite(max(1, round(4 * scale)))[1:]),
        ("sort", ["sort", "-g", "-S", "400M", "--parallel=1"], numbers(int(1_500_000 * scale))),
        ("perl", ["perl", "-e", PERL, str(int(1_500_000 * scale))], None),
        ("ruby", ["ruby", "-e", RUBY, str(int(2_000_000 * scale))], None),
    ]


def chosen(every, only):
    """Those of the programs whose names are in a list with commas, or all."""
    names = only.split(",") if only else [name for name, _, _ in every]
    unknown = set(names) - {name for name, _, _ in every}
    if unknown:
        sys.exit(f"there is no program {', '.join(sorted(unknown))}; there are: {', '.join(name for name, _, _ in every)}")
    return [program for program in every if program[0] in names]


def peak(command, given):
    """The most memory that the program has natively, of its processes the one that has most, in bytes."""
    done = subprocess.run([sys.executable, "-c", PEAK, *command], input=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    return int(done.stderr.split()[-1]) * 1024


class Runs:
    """Runs programs, and remembers what they have printed."""

    def __init__(self):
        self.printed = {}

    def run(self, name, command, given, most=math.inf, look=None):
        """Runs a command, and calls `look` with its process now and then; returns its seconds. One that takes longer than `most` is ended: it takes for ever."""
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        rest = given
        while True:
            try:
                out, _ = process.communicate(rest, timeout=LOOK if look or most < math.inf else None)
                break
            except subprocess.TimeoutExpired:
                rest = None
                if time.monotonic() - began > most:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
                    return math.inf
                if look:
                    look(process.pid)
        seconds = time.monotonic() - began
        if process.returncode != 0:
            sys.exit(f"{name}: exit status {process.returncode} of {' '.join(command[:6])}")
        if name in WORDS:
            out = [line for line in out.splitlines() if "check" in line]
        if self.printed.setdefault(name, out) != out:
            sys.exit(f"{name}: {' '.join(command[:6])} has printed {out!r}, before {self.printed[name]!r}")
        return seconds
