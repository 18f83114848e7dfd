#!/usr/bin/env python3
"""All tests of Farshore, part by part, and one line that counts them.

    tools/test.py                 every part, as `make test` does
    tools/test.py --long          with the long form of suites, soak and kernels, as `make test-long` does (hours)
    tools/test.py unit sim        these parts alone
    tools/test.py --seed 4711     the simulation's random seeds from here on, to see a failure again

    tools/test.py --plan          in which order parts would start, by the times that are written here; nothing runs

    tools/test.py --skips tests/skips.txt     what is skipped and not on this list has failed, as in continuous integration
    tools/test.py --minutes 50                nothing begins after that time: the last line but one says what was left out

A part that fails does not stop the later ones. Two parts run at a time (tools/lanes.py has the rules). What a part prints goes to a log
in the target directory; the screen shows how it goes on, and the end of the log if it fails. The tests of the crates are run by
cargo-nextest, and those under tests/ by pytest: what their JUnit reports say is counted, so a test that says "skipped: why" counts as skipped
and not as passed, and a part in which nothing ran has failed. Each part has a time after which it counts as hung: its processes are described (threads, kernel stacks) and
ended.

The last line is `N passed, N failed, N skipped`; the exit status is 1 if anything failed.
"""

import argparse
import contextlib
import fnmatch
import functools
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree
from collections import namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "tests", "real")]
sys.dont_write_bytecode = True
import harness  # noqa: E402
from lanes import ALONE, NARROW, WIDE, Job, Lanes, plan  # noqa: E402

TARGET = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR") or "target")
LOGS = os.path.join(TARGET, "test-logs")
# Lines of the log that are shown when a part fails.
TAIL_LINES = 200
# Seeds that the simulation runs from a random one on, in each of its two ways. The fixed ones are tests of the simulator's crate.
RANDOM_SEEDS = 10
# Real programs that also run with a pool in front of the disk.
POOLED = "sort,gcc,sqlite,python,numpy,redis,memstorm,memstorm-4m,python-pool,nginx,load-random,load-runs,load-pagerank,load-stress,scan"
# Real programs that also run with each of the prefetchers that are not the default.
PREFETCHED = "python,memstorm-4m,load-pagerank,scan"
# Seconds that each target is fuzzed for; `make test-long` gives each ten minutes.
FUZZ_SECONDS = 12

# A command of a part: how to run it, and how to count: in what it prints, or in the JUnit report that it writes (see the counters below).
Command = namedtuple("Command", "argv count env report", defaults=({}, None))
# Parts that run when they are named alone, as `make newcomer` does: they build, install and run by the words of the README.
NEWCOMER = ("demo", "demo-kv", "fresh", "packages", "book")
# Parts that test the tests, or what changes seldom, run in turn where none is named: `turn` is (K, N) for those of every Nth seed. The long form has all.
EACH = (0, 1)
# What the name of a long form ends in: it takes the place of the part without that ending, where --long asks for it.
LONG = "-long"
# A part: `shown` are the lines that go to the screen, `missing` tells why it cannot run (or None), `minutes` after which it hangs;
# `takes` are the seconds that it needs, about, on two processors; `width` and `locks` say what may run beside it (tools/lanes.py).
Part = namedtuple("Part", "name what commands minutes shown missing needs_build takes width locks turn",
                  defaults=(r"(?!)", lambda: None, False, 5, NARROW, (), EACH))
# Locks of parts. KERNEL: it changes what the kernel has once for the whole machine (KSM, swap areas, compaction, memory cgroups, loop devices), or tells what
# another one changed. DEBUG: cargo builds in `target/debug`, where it would wait for the other one, or replace a program that the other one runs.
KERNEL, DEBUG = "kernel", "debug"
# A test that was skipped, or a line of the list of those that may be: there, the test and the reason are patterns, as of file names.
Skip = namedtuple("Skip", "part test why")
# The remark on a part that has not begun when the time of --minutes was over.
LEFT_OUT = "left out: the time was over"
# The test, where a whole part is skipped.
WHOLE = "all"
# What came of a part; `failures` are the lines of its log that tell which tests failed.
Row = namedtuple("Row", "counts seconds cpu remark failures", defaults=((),))
# Such a line, in what cargo, the simulator and our drivers print, and how many of a part are shown at the end.
FAILURE = re.compile(r".*\bFAILED\b|seed \d+:? breaks|.* panicked at |error(\[|:)|.* \d+ DIFFERENT\b|did nothing in any round")
FAILURES = 8
# How many lines after it say why.
REASONS = 3


class Counts:
    """Tests that passed, failed and were skipped."""

    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


# ---------------------------------------------------------------------------------------------------- counters
# Each takes the lines that a command printed and returns Counts. The exit status is looked at elsewhere.


def count_status(_lines):
    """A command that is one test: it passed, unless its exit status says something else."""
    return Counts(passed=1)


def count_made(lines):
    """A `make` of something, which is one test; what it left out is in lines that say `skipped: why`.

    >>> print(count_made(["cargo build", "making its input ... skipped: sqlite3 is missing", "1 of 2 results is the same"]))
    1 passed, 0 failed, 1 skipped
    """
    return Counts(passed=1, skipped=sum("skipped: " in line for line in lines))


def count_last_line(lines):
    """A driver of ours: `N passed, N failed, N skipped` is its last line.

    >>> print(count_last_line(["sort ok", "30 passed, 1 failed, 2 skipped"]), count_last_line(["Traceback"]), sep="; ")
    30 passed, 1 failed, 2 skipped; 0 passed, 0 failed, 0 skipped
    """
    found = re.match(r"(\d+) passed, (\d+) failed, (\d+) skipped", lines[-1] if lines else "")
    return Counts(*map(int, found.groups())) if found else Counts()


def count_seeds(lines):
    """The simulator: a line a seed.

    >>> print(count_seeds(["seed 1: holds. 300 steps", "seed 2: holds. 300 steps", "panicked", "seed 3 breaks"]))
    2 passed, 1 failed, 0 skipped
    """
    counts = Counts()
    for line in lines:
        found = re.match(r"seed \d+:? (holds|breaks)", line)
        if found:
            counts.add(Counts(passed=1) if found[1] == "holds" else Counts(failed=1))
    return counts


def count_doctests(lines):
    """`cargo test --doc`.

    >>> print(count_doctests(["test src/lib.rs - a (line 1) ... ok", "test result: ok. 2 passed; 1 failed; 1 ignored; 0 measured", "test result: ok. 1 passed; 0 failed; 0 ignored"]))
    3 passed, 1 failed, 1 skipped
    """
    counts = Counts()
    for line in lines:
        if result := re.match(r"test result: \S+ (\d+) passed; (\d+) failed; (\d+) ignored", line):
            counts.add(Counts(*map(int, result.groups())))
    return counts


class Report:
    """What a JUnit report says: counts, the skipped tests with the reason, and why tests failed.

    >>> one = '<testcase name="test_a"/><testcase name="test_b[x-1]"><skipped message="no root"/></testcase><testcase name="m::c"><system-out>skipped: no KSM\\nskipped: no IPv6</system-out>'
    >>> two = '</testcase><testcase name="d"><failure message="left: 1">panicked\\nleft: 1\\nright: 2</failure></testcase><testcase name="test_e"><error message="x">y</error></testcase>'
    >>> report = Report.of(f"<testsuites><testsuite>{one}{two}</testsuite></testsuites>")
    >>> print(report.counts)
    1 passed, 2 failed, 2 skipped
    >>> report.skips, report.failures
    ([('b x-1', 'no root'), ('m::c', 'no KSM'), ('m::c', 'no IPv6')], ['d FAILED: left: 1', '    panicked', '    right: 2', 'e FAILED: x', '    y'])
    """

    def __init__(self, root):
        self.counts, self.skips, self.failures = Counts(), [], []
        for case in root.iter("testcase"):
            # pytest's names, as one would say them.
            name = re.sub(r"\[(.*)\]$", r" \1", case.get("name", "?").removeprefix("test_"))
            wrong = case.findall("failure") + case.findall("error")
            # (With one thread, a test of Rust's begins in the line that names it.)
            texts = [out.text or "" for kind in ("system-out", "system-err") for out in case.findall(kind)]
            said = [found[1].strip() for text in texts for found in re.finditer(r"^(?:test \S+ \.\.\. )?skipped: (.*)$", text, re.M)]
            whys = [skipped.get("message", "") for skipped in case.findall("skipped")] or said
            if wrong:
                self.counts.failed += 1
                message = (wrong[0].get("message") or "").strip()
                first = message.splitlines()[0] if message else ""
                lines = [line.strip() for line in (wrong[0].text or "").splitlines() if line.strip() and line.strip() != first]
                self.failures += [f"{name} FAILED: {first}"[:300], *("    " + line[:300] for line in lines[:REASONS])]
            elif whys:
                self.counts.skipped += 1
                self.skips += [(name, why) for why in whys]
            else:
                self.counts.passed += 1

    @classmethod
    def of(cls, text):
        """Of its text."""
        return cls(xml.etree.ElementTree.fromstring(text))

    @classmethod
    def at(cls, path):
        """Of a file. Without one nothing ran."""
        try:
            return cls(xml.etree.ElementTree.parse(path).getroot())
        except (OSError, xml.etree.ElementTree.ParseError):
            return cls(xml.etree.ElementTree.Element("testsuites"))


# ---------------------------------------------------------------------------------------------------- skips
# Each takes the lines that a command printed and returns the tests that were skipped with the reason, of each test as many as it gave.


def skips_told(lines):
    """A driver of ours, or a demo: `name skipped: why`, with the time before or after `skipped`, or `skipped: why` of the whole part.

    >>> told = ["nginx        skipped: not installed (nginx-light)", "full     0.01 s  skipped: cannot mount: no", "su  skipped   1.2 s  skipped: no", "a b, poll skipped: c"]
    >>> skips_told([*told, "skipped: no root", "30 passed, 1 failed, 5 skipped"])
    [('nginx', 'not installed (nginx-light)'), ('full', 'cannot mount: no'), ('su', 'no'), ('a b, poll', 'c'), ('all', 'no root')]
    """
    found = []
    for line in lines:
        name, told, why = line.partition("skipped: ")
        if told:
            found.append((re.sub(r"(\s+skipped)?(\s+[\d.]+ s)?\s*$", "", name).strip() or WHOLE, why.strip()))
    return found


# How a command says what it skips, by how it counts; the others skip nothing.
SKIPS = {count_last_line: skips_told, count_made: skips_told}


def skips_of(part, command, lines, counts):
    """The skipped tests of a command. If it counts more than it names, one that has no name stands for the rest.

    >>> skips_of("real", Command([], count_last_line), ["nginx skipped: not installed", "0 passed, 0 failed, 3 skipped"], Counts(0, 0, 3))
    [Skip(part='real', test='nginx', why='not installed'), Skip(part='real', test='?', why='3 were counted, and 1 has a name')]
    """
    found = [Skip(part, test, why) for test, why in SKIPS[command.count](lines)] if command.count in SKIPS else []
    named = len({skip.test for skip in found})
    if counts.skipped > named:
        found.append(Skip(part, "?", f"{counts.skipped} were counted, and {named} {'has' if named == 1 else 'have'} a name"))
    return found


def unlisted(skips, allowed):
    """Those that no line of the list allows. The test of a long form is allowed where that of its short form is.

    >>> allowed = [Skip("unit", "*::ipv6", "no IPv6*"), Skip("soak", "*", "it has not come *")]
    >>> some = [Skip("unit", "net::ipv6", "no IPv6 here"), Skip("unit", "net::ipv6", "no root"), Skip("sim", "net::ipv6", "no IPv6"), Skip("soak-long", "vm", "it has not come to")]
    >>> [skip.why for skip in unlisted(some, allowed)]
    ['no root', 'no IPv6']
    """
    def on(skip, line):
        return skip.part in (line.part, line.part + LONG) and fnmatch.fnmatchcase(skip.test, line.test) and fnmatch.fnmatchcase(skip.why, line.why)

    return [skip for skip in skips if not any(on(skip, line) for line in allowed)]


def skips_allowed(text, known):
    """The list of the tests that may be skipped. Each line has part, test and reason with `|` between them.

    >>> skips_allowed("# why\\n\\nunit | *::ipv6 | no IPv6 | no\\n", ["unit"])
    [Skip(part='unit', test='*::ipv6', why='no IPv6 | no')]
    >>> for wrong in ("unit | a", "real | a | b", "unit | | b"):
    ...     try:
    ...         skips_allowed("\\n" + wrong, ["unit"])
    ...     except ValueError as error:
    ...         print(error)
    line 2: 'unit | a': it must be PART | TEST | REASON
    line 2: 'real | a | b': there is no part real
    line 2: 'unit | | b': it must be PART | TEST | REASON
    """
    allowed = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|", 2)]
        if len(fields) != 3 or not all(fields):
            raise ValueError(f"line {number}: {line!r}: it must be PART | TEST | REASON")
        if fields[0] not in known:
            raise ValueError(f"line {number}: {line!r}: there is no part {fields[0]}")
        allowed.append(Skip(*fields))
    return allowed


# ---------------------------------------------------------------------------------------------------- parts


def nextest(profile, *arguments, toolchain=None, env=None):
    """Tests of crates, whose report goes to the directory of this profile (.config/nextest.toml)."""
    cargo = ["cargo"] + ([f"+{toolchain}", "miri"] if toolchain else [])
    # The report leaves ignored tests out: none are.
    return Command([*cargo, "nextest", "run", "--profile", profile, "--run-ignored", "all", *arguments], None, env or {}, os.path.join(ROOT, "target", "nextest", profile, "junit.xml"))


def pytest(name, *arguments):
    """Tests under tests/; `name` is that of their report."""
    report = os.path.join(LOGS, f"{name}.xml")
    return Command([pytest_python() or sys.executable, "-m", "pytest", "--junitxml", report, "-o", "junit_logging=system-out", *arguments], None, {}, report)


def driven(name, driver, *arguments):
    """A driver of ours that writes such a report itself."""
    report = os.path.join(LOGS, f"{name}.xml")
    return Command([sys.executable, driver, "--junitxml", report, *arguments], None, {}, report)


@functools.cache
def pytest_python():
    """A python3 that has pytest, or None."""
    try:
        return harness.python_with("pytest", "python3-pytest")
    except harness.Unavailable:
        return None


def nextest_missing():
    """Why tests of crates cannot run, or None."""
    known = os.path.join(TARGET, "tools", "bin") + os.pathsep + os.environ.get("PATH", os.defpath)
    return None if shutil.which("cargo-nextest", path=known) else "cargo-nextest is not installed (tools/setup.sh --tests)"


def pytest_missing():
    """Why tests under tests/ cannot run, or None."""
    return None if pytest_python() else "pytest is not installed (apt-get install python3-pytest)"


def apart(name, **env):
    """Environment of a build with other flags, in a target directory of its own so that it does not undo the others'."""
    return {"CARGO_TARGET_DIR": os.path.join(TARGET, "checks", name), **env}


@functools.cache
def nightly():
    """The toolchain that has miri: tools/setup.sh knows."""
    return subprocess.run([os.path.join(ROOT, "tools", "setup.sh"), "--nightly"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def miri_missing():
    """Why miri cannot run, or None."""
    # rustup is not to fetch a toolchain because somebody asks whether it is there.
    environment = {**os.environ, "RUSTUP_AUTO_INSTALL": "0"}
    done = subprocess.run(["cargo", f"+{nightly()}", "miri", "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
    if done.returncode == 0:
        return None
    return f"no miri (rustup toolchain install {nightly()} --no-self-update --profile minimal --component miri --component rust-src)"


def packages_missing():
    """Why no Debian packages can be made, or None."""
    for program, how in (("cargo-deb", "cargo install cargo-deb --locked"), ("dpkg-shlibdeps", "apt-get install dpkg-dev")):
        if shutil.which(program) is None:
            return f"{program} is not installed ({how})"
    return None


def book_missing():
    """Why the book cannot be built, or None."""
    known = os.path.join(TARGET, "tools", "bin") + os.pathsep + os.environ.get("PATH", os.defpath)
    return None if shutil.which("mdbook", path=known) else "mdbook is not installed (tools/setup.sh --book)"


def parts(seed):
    """Every part, in the order of the table; lanes.Order says in which they run.

    These need the machine for themselves: demos and `fresh` measure, or fill RAM; `pace` counts which threads come to a processor; `soak` skips what a busy machine did
    not come to; `bench` switches swap areas, zram and zswap, and looks whether any have stayed.
    """
    suites, soak = (os.path.join(ROOT, "tests", name, "run.py") for name in ("suites", "soak"))
    # Assertions are what the simulator is for; link-time optimisation only costs time in a check.
    checked = {"CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS": "true", "CARGO_PROFILE_RELEASE_LTO": "off"}
    sim_env = apart("sim", **checked)
    sim = ["cargo", "run", "--quiet", "--release", "-p", "farshore-sim", "--"]
    fuzz = [sys.executable, os.path.join(ROOT, "tools", "fuzz.py")]
    tests = r"\s+(FAIL|TIMEOUT|SIG\w+|ABORT|LEAK|SLOW|Summary) |test result|(error|warning)(\[|:)"
    shown = r"tests/.*::|=+ .* =+$"
    newcomer, programs = os.path.join(ROOT, "tests", "newcomer"), "tests/real/test_programs.py"
    kernels, guests = os.path.join(ROOT, "tests", "kernels", "kernels.py"), r".*: Linux |.* FAILED|.* (not run|\d+ s)$"
    emulated = ("tests/kernels/test_emulator.py", "tests/kernels/test_vm.py", "tests/kernels/test_introspect.py", "tests/kernels/test_density.py")
    return [
        Part("demo", "make demo, with little data", [Command(["make", "demo", "ARGS=--size small"], count_made)], 15, r"\[|.*: |skipped",
             takes=300, width=ALONE),
        Part("demo-kv", "make demo-kv, for two seconds",
             [Command(["make", "demo-kv", "ARGS=--seconds 2 --rate 4000"], count_made)], 10, r"pymemcache|filled|server: |.*skipped", takes=300, width=ALONE),
        Part("fresh", "the set-up, the build and both demos in a fresh Debian, with nothing of this machine's but its Rust",
             [Command([sys.executable, os.path.join(newcomer, "fresh.py")], count_last_line)], 30, r"fresh: ", takes=300, width=ALONE),
        Part("packages", "the Debian packages in a fresh Debian: installed, used by an ordinary user, removed",
             [Command(["make", "deb"], count_status),
              Command([sys.executable, os.path.join(newcomer, "packages.py")], count_last_line)], 20, r"packages: ", packages_missing, takes=300, width=ALONE),
        Part("book", "mdBook builds the documents, and the links of the pages lead somewhere",
             [Command([sys.executable, "-m", "doctest", "tools/book.py"], count_status),
              Command([sys.executable, "tools/book.py"], count_status)], 3, r".*\.html: |.* links ", book_missing, takes=10),
        Part("runner", "the counting and the order of this program, what demos say at their end, what guests tell",
             [Command([sys.executable, "-m", "doctest", path], count_status) for path in ("tools/test.py", "tools/lanes.py", "tools/demo.py", "tests/kernels/kernels.py")], 2),
        Part("front", "the set-up, the interpreter of Debian's packages, what CI counts, the order of parts",
             [pytest("front", "tests/newcomer/test_front.py")], 3, shown, pytest_missing),
        Part("documents", "what documents name is there: paths, links, identifiers; modules import downward; no #[path] leaves its crate",
             [Command([sys.executable, "-m", "doctest", f"tools/{tool}.py"], count_status) for tool in ("paths", "layers")]
             + [Command([sys.executable, f"tools/{tool}.py"], count_status) for tool in ("paths", "layers")], 2, r".*:\d+: "),
        Part("format", "cargo fmt --check", [Command(["cargo", "fmt", "--all", "--check", "--", "--color", "never"], count_status)], 2),
        Part("clippy", "warnings are errors",
             [Command(["cargo", "clippy", "--workspace", "--all-targets", "--keep-going", "--", "-D", "warnings"], count_status)], 10,
             takes=150, locks=(DEBUG,)),
        # Without the programs that no test takes from there: optimising all of a program takes half a minute each.
        Part("build", "release build",
             [Command(["cargo", "build", "--workspace", "--release", *(word for name in ("sim", "traces", "fleet", "fuzz", "net-rig") for word in ("--exclude", f"farshore-{name}"))],
                      count_status)], 15, r"(error|warning)(\[|:)",
             takes=180, width=WIDE),
        # Built for debugging: assertions and overflow checks are on, and it compiles faster.
        Part("unit", "unit, integration and conformance tests",
             [nextest("unit", "--workspace", "--exclude", "farshore-sim", env={"FARSHORE_LIBRARY": os.path.join(TARGET, "release", "libfarshore.so")}),
              Command(["cargo", "test", "--doc", "--no-fail-fast", "--workspace", "--exclude", "farshore-sim"], count_doctests)], 30, tests, nextest_missing, needs_build=True,
             takes=800, width=WIDE, locks=(KERNEL, DEBUG)),
        Part("lines", "no cache line is written by two cores on the way of a fault",
             [nextest("lines", "-p", "farshore-engine", "--features", "recorder", "--test", "lines", env=apart("lines"))], 10, tests, nextest_missing, takes=40, width=WIDE),
        Part("sim", f"simulation: fixed seeds, and {RANDOM_SEEDS} from {seed} on",
             [nextest("sim", "--release", "-p", "farshore-sim", env=sim_env),
              Command([*sim, "--seeds", f"{seed}..{seed + RANDOM_SEEDS}"], count_seeds, sim_env),
              Command([*sim, "--seeds", f"{seed}..{seed + RANDOM_SEEDS}", "--rough"], count_seeds, sim_env)],
             15, tests + r"|seed \d+ breaks|to see it again|\d+ seeds: ", nextest_missing, takes=300, width=WIDE),
        Part("canaries", "rules broken on purpose, which the simulation must notice",
             [nextest("canaries", "--release", "-p", "farshore-sim", "--features", "canaries", "--test", "canaries", env=sim_env)],
             15, tests, nextest_missing, takes=250, width=WIDE, turn=(0, 3)),
        Part("fuzz", f"bytes from outside, guided by coverage: {FUZZ_SECONDS} s for each target",
             [Command([*fuzz, "--seconds", str(FUZZ_SECONDS)], count_last_line)], 10, r"", takes=100, locks=("fuzz",), turn=(1, 3)),
        Part("fuzz-long", "the same for ten minutes each", [Command([*fuzz, "--seconds", "600"], count_last_line)], 120, r"", takes=3600, locks=("fuzz",)),
        Part("fuzz-canaries", "planted bugs, which the fuzzer must find",
             [Command([*fuzz, "--seconds", str(FUZZ_SECONDS), "--canaries"], count_last_line)], 20, r"", takes=150, locks=("fuzz",), turn=(1, 3)),
        Part("loom", "all interleavings of core, and of what unithreads' threads share",
             [nextest("loom", "-p", "farshore-core", "--release", "--features", "canaries", "--test", "loom_*", env=apart("loom", RUSTFLAGS="--cfg loom", **checked)),
              nextest("loom", "-p", "farshore-attach", "--release", "--test", "loom_*", env=apart("loom", RUSTFLAGS="--cfg loom", **checked)),
              nextest("loom", "-p", "farshore-uthread", "--release", "--test", "loom_*", env=apart("loom", RUSTFLAGS="--cfg loom", **checked))],
             15, tests, nextest_missing, takes=150, width=WIDE, turn=(2, 3)),
        Part("miri", "undefined behaviour in core",
             [nextest("miri", "-p", "farshore-core", toolchain=nightly(), env=apart("miri", CARGO_PROFILE_DEV_OPT_LEVEL="0"))], 30, tests, lambda: nextest_missing() or miri_missing(), takes=240, turn=(2, 3)),
        Part("real", "real programs, natively and under farshore",
             [pytest("real", programs, "--mode", "upcall"),
              pytest("real-poll", programs, "--mode", "poll", "--fraction", "25")],
             30, shown, pytest_missing, needs_build=True, takes=540),
        Part("real-more", "some of them with a pool before the disk, and with the other prefetchers",
             [pytest("real-pool", programs, "--mode", "upcall", "--fraction", "50", "--cases", POOLED, "--swap", "ram:lz4,size=6M",
                     "--swap", f"dir:{os.environ.get('FARSHORE_SWAP_DIR', '/var/tmp')}"),
              *[pytest(f"real-{name}", programs, "--mode", "upcall", "--fraction", "25", "--cases", PREFETCHED, "--prefetch", name) for name in ("stride", "majority", "none")]],
             30, shown, pytest_missing, needs_build=True, takes=180, turn=(0, 3)),
        Part("rows", "programs of many languages in half and a quarter of their memory: what goes of it",
             [pytest("rows", "tests/real/test_rows.py")], 15, shown, pytest_missing, needs_build=True, takes=170, turn=(1, 2)),
        Part("rows-long", "the same for all rows of the table",
             [pytest("rows-long", "tests/real/test_rows.py", "--rows", "all")], 120, shown, pytest_missing, needs_build=True, takes=2400),
        Part("pace", "how hard evictors work: idle, crowded, on a slow disk, fixed",
             [pytest("pace", "tests/real/test_pace.py")], 20, shown, pytest_missing, needs_build=True, takes=180, width=ALONE, turn=(0, 2)),
        Part("ablate", "what an experiment leaves out is out, and no byte is wrong",
             [pytest("ablate", "tests/real/test_ablate.py")], 12, shown, pytest_missing, needs_build=True, takes=150, turn=(1, 2)),
        Part("autopilot", "limits that follow what a program loses to faults",
             [pytest("autopilot", "tests/real/test_autopilot.py")], 8, shown, pytest_missing, needs_build=True, takes=125),
        Part("budget", "budgets that several programs of one user share",
             [pytest("budget", "tests/real/test_budget.py")], 10, shown, pytest_missing, needs_build=True, takes=85),
        Part("pools", "compressed RAM, alone and in front of a disk",
             [pytest("pools", "tests/real/test_pools.py")], 10, shown, pytest_missing, needs_build=True, takes=90),
        Part("remote", "pages with NBD servers, which are killed, stopped and lie; farshore node",
             [pytest("remote", "tests/real/test_remote.py")], 10, shown, pytest_missing, needs_build=True, takes=90),
        Part("redis", "pages with Redis, one server and a Cluster, whose masters are killed and stopped and whose hash slots move",
             [pytest("redis", "tests/real/test_redis.py")], 10, shown, pytest_missing, needs_build=True, takes=150, turn=(0, 2)),
        Part("redis-long", "the same, each kind of fault twenty times",
             [pytest("redis-long", "tests/real/test_redis.py", "--faults", "20")], 60, shown, pytest_missing, needs_build=True, takes=1500),
        Part("mirror", "pages that are kept on several nodes and disks, of which one is killed, hangs, lies, is full or is exchanged",
             [pytest("mirror", "tests/real/test_mirror.py", "tests/real/test_copies.py")], 12, shown, pytest_missing, needs_build=True, takes=230),
        Part("survived", "faults of nodes and networks at random moments, each kind twice, and how long nothing moves",
             [pytest("survived", "tests/real/test_survived.py")], 8, shown, pytest_missing, needs_build=True, takes=60),
        Part("survived-long", "the same, each kind twenty times, with networks that are cut for up to a minute",
             [pytest("survived-long", "tests/real/test_survived.py", "--faults", "20", "--cuts", "1,10,60")], 120, shown, pytest_missing, needs_build=True, takes=3600),
        Part("manager", "farshore manage: guests of a stand-in, clients that misbehave, managers and clients that are killed; guests that are restored",
             [pytest("manager", "tests/real/test_manager.py", "tests/real/test_manager_clients.py", "tests/real/test_manager_takeover.py", "tests/real/test_manager_keeper.py", "tests/real/test_restore.py")], 10, shown, pytest_missing, needs_build=True, takes=210),
        Part("daemon", "farshore daemon: its API, who may ask, bad input, virtual machines that it starts, its page in a browser",
             [pytest("daemon", "tests/real/test_daemon.py")], 8, shown, pytest_missing, needs_build=True, takes=60),
        Part("unithreads", "unithreads on far memory: on RAM, disks, with errors, in little memory; a server of others on them",
             [pytest("unithreads", "tests/real/test_unithreads.py", "tests/real/test_ported.py")], 10, shown, pytest_missing, needs_build=True, takes=200, locks=(DEBUG,)),
        Part("spaces", "swap spaces that come, go and die while a program runs",
             [pytest("spaces", "tests/real/test_spaces.py")], 10, shown, pytest_missing, needs_build=True, takes=150),
        Part("devices", "block devices as swap space; room that goes back to the disk",
             [pytest("devices", "tests/real/test_devices.py")], 10, shown, pytest_missing, needs_build=True, takes=75, locks=(KERNEL,)),
        Part("calls", "every system call, blocked threads, debuggers: natively and under farshore",
             [pytest("calls", "tests/real/test_calls.py")], 10, shown, pytest_missing, needs_build=True, takes=50, width=WIDE),
        Part("threads", "threads, signals, limits, filters, allocators: natively and under farshore",
             [pytest("threads", "tests/real/test_threads.py")], 10, shown, pytest_missing, needs_build=True, takes=220),
        Part("pages", "what the kernel and programs do to pages: merging, locks, devices, stacks that grow",
             [pytest("pages", "tests/real/test_pages.py")], 10, shown, pytest_missing, needs_build=True, takes=110, locks=(KERNEL,)),
        Part("files", "mappings of files: read, written privately, inherited, changed by others; whose are managed",
             [pytest("files", "tests/real/test_files.py")], 15, shown, pytest_missing, needs_build=True, takes=60),
        Part("asynchronous", "io_uring and Linux AIO of programs, natively and under farshore",
             [pytest("asynchronous", "tests/real/test_asynchronous.py")], 10, shown, pytest_missing, needs_build=True, takes=240),
        Part("dormant", "programs that fit at first, and what they do when they do not",
             [pytest("dormant", "tests/real/test_dormant.py")], 10, shown, pytest_missing, needs_build=True, takes=200),
        Part("sandbox", "programs that restrict themselves or insist on one thread; blocked calls that are knocked at; no threads to be had",
             [pytest("sandbox", "tests/real/test_sandbox.py")], 10, shown, pytest_missing, needs_build=True, takes=80),
        Part("failures", "bad input, full disks, kill -9, other users",
             [pytest("failures", "tests/real/test_failures.py")], 15, shown, pytest_missing, needs_build=True, takes=100, locks=(KERNEL,)),
        Part("follow", "programs that a program starts",
             [pytest("follow", "tests/real/test_follow.py")], 10, shown, pytest_missing, needs_build=True, takes=15),
        Part("hosted", "static programs, Go's and musl's: natively and under farshore",
             [pytest("hosted", "tests/real/test_hosted.py")], 10, shown, pytest_missing, needs_build=True, takes=180),
        Part("secrecy", "--encrypt: swap files are noise, the key is in no core dump",
             [pytest("secrecy", "tests/real/test_secrecy.py")], 3, shown, pytest_missing, needs_build=True, takes=20),
        Part("family", "what farshore shows of itself, and whom it lets in",
             [pytest("family", "tests/real/test_family.py")], 5, shown, pytest_missing, needs_build=True, takes=10),
        Part("policies", "policies beside programs: what they hear and ask for, and that a bad one does no harm; hints of programs; built-in ones that change",
             [pytest("policies", "tests/real/test_policy.py", "tests/real/test_attached.py", "tests/real/test_harm.py", "tests/real/test_chosen.py")], 24, shown, pytest_missing, needs_build=True, takes=240),
        Part("seeing", "farshore top, metrics, plan, record and report, and static probes: programs whose state or pattern is known",
             [pytest("seeing", "tests/real/test_seeing.py", "tests/real/test_record.py", "tests/real/test_usdt.py")], 8, shown, pytest_missing, needs_build=True, takes=90),
        Part("suites", "other people's suites, natively and under farshore: a part of each, one half of it or the other in turn",
             [Command([sys.executable, suites, "--short", "--half", str(seed // 2), "--jobs", "4"], count_last_line)], 25, r" +\d+ s ", needs_build=True, takes=220, width=WIDE, turn=(0, 2)),
        Part("suites-long", "other people's suites as a whole, in a quarter of their memory and in 16 MiB",
             [Command([sys.executable, suites], count_last_line)], 480, r" +\d+ s ", needs_build=True, takes=20000, width=WIDE),
        Part("soak", "stress-ng under changing limits and a failing swap space",
             [Command([sys.executable, soak, "--seconds", "40", "--seed", str(seed)], count_last_line)], 10, r"round|    ", needs_build=True,
             takes=60, width=ALONE),
        Part("soak-long", "the same for ten minutes",
             [Command([sys.executable, soak, "--seconds", "600", "--seed", str(seed)], count_last_line)], 60, r"round|    |left out", needs_build=True,
             takes=700, width=ALONE),
        Part("bench", "farshore bench: what it measures, and that nothing stays behind",
             [pytest("bench", "tests/bench")], 15, shown, pytest_missing, needs_build=True, takes=150, width=ALONE, turn=(1, 2)),
        Part("serve", "farshore-serve with other people's clients, and its limits",
             [pytest("serve", "tests/serve"), pytest("serve-under", "tests/serve", "--memory", "12M")], 20, shown, pytest_missing, needs_build=True, takes=330),
        Part("serve-long", "the same, with ten minutes each of TPC-C and of vsearch while their memory nodes are killed",
             [pytest("serve-long", "tests/serve", "--killed-seconds", "600"), pytest("serve-long-under", "tests/serve", "--memory", "12M")], 60, shown, pytest_missing,
             needs_build=True, takes=1600),
        # Beside nothing that is wide: what a machine of eight processors does is seen only if it gets its turn.
        Part("kernels", "other kernels, libcs and numbers of processors, in emulated machines",
             [driven("kernels", kernels, "--turn", str(seed // 2))], 20, guests, needs_build=True, takes=220, width=WIDE, locks=(DEBUG,), turn=(1, 2)),
        Part("kernels-long", "the same for each kernel that Debian has, with more tests",
             [driven("kernels-long", kernels, "--long")], 240, guests, needs_build=True, takes=7200, width=WIDE, locks=(DEBUG,)),
        Part("guests", "unmodified QEMU, whose guests run in less memory than they have",
             [pytest("guests", *emulated, "--mode", "upcall")], 15, shown, pytest_missing, needs_build=True, takes=200, turn=(0, 2)),
        Part("guests-long", "the same with a guest of 512 MiB, and QEMU as a program",
             [pytest("guests-long", *emulated, "--large")], 60, shown, pytest_missing, needs_build=True, takes=1200),
        Part("report", "the report of farshore bench in a browser",
             [pytest("report", "tests/report")], 10, shown, pytest_missing, takes=150, locks=(DEBUG,)),
    ]


# ---------------------------------------------------------------------------------------------------- running


class Running:
    """One command of a part: its output to the log and, filtered, to the screen; ended when its time is over."""

    # All that run now, and whether somebody wants this program to end.
    now, over = set(), False

    def __init__(self, command, part, log, seconds):
        self.log, self.name, self.shown, self.lines, self.hung, self.cpu = log, part.name, re.compile(part.shown), [], False, 0
        self.deadline = time.monotonic() + seconds
        ours = ("FARSHORE_OPTIONS", "FARSHORE_FAULTY", "LD_PRELOAD", "PYTEST_ADDOPTS")
        environment = {key: value for key, value in os.environ.items() if key not in ours and not key.startswith("NEXTEST_")}
        environment.update(CARGO_TARGET_DIR=TARGET, CARGO_TERM_COLOR="never", PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
        environment["PATH"] = os.path.join(TARGET, "tools", "bin") + os.pathsep + environment.get("PATH", os.defpath)
        environment.update(command.env)
        self.write(f"$ {' '.join(command.argv)}")
        # A session of its own: so that all of it can be found and ended.
        self.process = subprocess.Popen(command.argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        Running.now.add(self)

    def write(self, text):
        """To the log, at once: whoever watches a hang reads it."""
        self.log.write(text + "\n")
        self.log.flush()

    def follow(self):
        """Reads the output to its end; returns the exit status."""
        try:
            rest = b""
            while chunk := self.read():
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    self.line(line)
            if rest:
                self.line(rest)
            return self.wait()
        except subprocess.TimeoutExpired:
            self.hung = True
            for pid in harness.session_pids(self.process.pid):
                self.write(harness.describe_process(pid))
            return None
        finally:
            if self.process.poll() is None or self.hung:
                self.end()
            Running.now.discard(self)

    def wait(self):
        """Waits for the end; returns the exit status."""
        while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > self.deadline:
                raise subprocess.TimeoutExpired(self.process.args, 0)
            time.sleep(0.02)
        # Of itself and of all that it waited for. Unlike the time by the clock, it does not depend on what else the machine does.
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8", errors="replace") as file:
            self.cpu = sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
        return self.process.wait()

    def read(self):
        """What there is; nothing at the end. Not a plain read: a process that outlives its session could keep the pipe open."""
        left = self.deadline - time.monotonic()
        if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
            raise subprocess.TimeoutExpired(self.process.args, 0)
        return os.read(self.process.stdout.fileno(), 1 << 16)

    def line(self, raw):
        text = raw.decode(errors="replace").rstrip()
        self.lines.append(text)
        self.write(text)
        if self.shown.match(text):
            say(f"    {self.name}: {text}")

    def end(self):
        """Ends what is left: first as Ctrl-C does, so that drivers take down what they made."""
        for number, seconds in ((signal.SIGINT, 10), (signal.SIGKILL, 1)):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(seconds)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        # cargo-nextest's tests have process groups of their own.
        for pid in harness.session_pids(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def run_part(part, allowed=None):
    """Runs all commands of a part. If it is given what may be skipped, each other test that is skipped has failed."""
    reason = part.missing()
    if reason:
        return judge(Row(Counts(skipped=1), 0, 0, f"skipped: {reason}"), [Skip(part.name, WHOLE, reason)], allowed)
    total, cpu, remark, started, skips, failures = Counts(), 0, "", time.monotonic(), [], []
    path = os.path.join(LOGS, f"{part.name}.log")
    with open(path, "w", encoding="utf-8") as log:
        for command in part.commands:
            if Running.over:
                break
            if command.report and os.path.exists(command.report):
                os.unlink(command.report)
            running = Running(command, part, log, max(1, part.minutes * 60 - (time.monotonic() - started)))
            status = running.follow()
            if command.report:
                report = Report.at(command.report)
                counts, failures = report.counts, failures + report.failures
                skips += [Skip(part.name, test, why) for test, why in report.skips]
            else:
                counts = command.count(running.lines)
                skips += skips_of(part.name, command, running.lines, counts)
                failures += reasons(running.lines) if counts.failed else []
            cpu += running.cpu
            if running.hung:
                remark = f"no end after {part.minutes} minutes"
            elif status != 0:
                remark = f"exit status {status}"
            elif counts.passed + counts.failed + counts.skipped == 0:
                remark, status = "no test ran", 1
            if (status != 0 or running.hung) and counts.failed == 0:
                # It says that it failed, whatever it counted.
                counts = Counts(max(0, counts.passed - 1) if command.count is count_status else counts.passed, 1, counts.skipped)
            total.add(counts)
            if running.hung:
                break
    if total.failed:
        if failures:
            failures = failures[:FAILURES * (REASONS + 1)]
            say("\n".join([f"--- {path}:", *failures, "---"]))
        else:
            failures = failures_in(path)
    return judge(Row(total, time.monotonic() - started, cpu, remark, tuple(failures)), skips, allowed)


def judge(row, skips, allowed):
    """The row, in which tests that were skipped without leave have failed.

    >>> some = [Skip("real", "nginx", "not installed"), Skip("real", "redis", "no root"), Skip("real", "redis", "no KSM")]
    >>> for leave in (None, [Skip("real", "*", "no*")], [Skip("real", "nginx", "*")]):
    ...     came = judge(Row(Counts(3, 0, 2), 1, 1, ""), some, leave)
    ...     print(came.counts, came.failures)
    3 passed, 0 failed, 2 skipped ()
    3 passed, 0 failed, 2 skipped ()
    3 passed, 1 failed, 1 skipped ('redis FAILED: skipped, which is not on the list: no root', 'redis FAILED: skipped, which is not on the list: no KSM')
    """
    wrong = unlisted(skips, allowed) if allowed is not None else []
    tests = len({skip.test for skip in wrong})
    counts = Counts(row.counts.passed, row.counts.failed + tests, max(0, row.counts.skipped - tests))
    told = tuple(f"{skip.test} FAILED: skipped, which is not on the list: {skip.why}" for skip in wrong)
    return row._replace(counts=counts, failures=(*row.failures, *told))


screen = threading.Lock()


def say(text):
    """To the screen, whole: two parts may want to."""
    with screen:
        print(text, flush=True)


def failures_in(path):
    """Shows the end of a log; returns the lines of it that tell of a failure."""
    with open(path, encoding="utf-8") as log:
        lines = log.read().splitlines()
    say("\n".join([f"--- the last lines of {path}", *lines[-TAIL_LINES:], "---"]))
    return reasons(lines)


def reasons(lines):
    """The lines that tell of failures, each with those that say why. A panic is one only if its test failed: some tests are to panic.

    >>> panics = ["thread 'a::b' (7) panicked at x.rs:1:2:", "left: 1", "thread 'c' (8) panicked at y.rs:3:4:", "mode sud: steps", "", "test c ... FAILED"]
    >>> reasons(panics)
    ["thread 'c' (8) panicked at y.rs:3:4:", '    mode sud: steps', 'test c ... FAILED']
    >>> reasons(["sort ok", "stacks poll FAILED: no end after 60 s", "  task 7 waits", "  in read"])
    ['stacks poll FAILED: no end after 60 s', '    task 7 waits', '    in read']
    """
    failed = {found[1] for line in lines if (found := re.match(r"test (\S+).* FAILED$", line))}
    found, after = [], 0
    for line in lines:
        panic = re.match(r"thread '(.*?)'.* panicked at ", line)
        if FAILURE.match(line) and not (panic and failed and panic[1] not in failed):
            found.append([line.strip()[:300]])
            after = REASONS
        elif after and line.strip() and not panic:
            found[-1].append("    " + line.strip()[:300])
            after -= 1
        else:
            after = 0
    return [line for lines in found[:FAILURES] for line in lines]


def jobs(chosen):
    """What the lanes must know of parts."""
    named = {part.name for part in chosen}
    # What `unit` has compiled need not be compiled again.
    after = {"unithreads": "unit"} if "unit" in named else {}
    return [Job(part.name, part.takes, part.width, part.locks, after.get(part.name, "build" if part.needs_build else None)) for part in chosen]


class Results:
    """Runs parts in lanes, and keeps what came of them."""

    def __init__(self, allowed=None, minutes=None):
        self.rows, self.built, self.allowed = {}, True, allowed
        self.over = None if minutes is None else time.monotonic() + 60 * minutes

    def run(self, part):
        """This part, in the lane of whoever calls."""
        if self.over is not None and time.monotonic() > self.over:
            self.rows[part.name] = Row(Counts(skipped=1), 0, 0, LEFT_OUT)
            return
        say(f"{part.name}: {part.what}")
        if part.needs_build and not self.built:
            row = Row(Counts(failed=1), 0, 0, "not run: the build failed")
        else:
            row = run_part(part, self.allowed)
        if part.name == "build":
            self.built = row.counts.failed == 0
        say(f"{part.name}: {row.counts}, {clock(row.seconds)}{', ' + row.remark if row.remark else ''}")
        self.rows[part.name] = row

    def run_all(self, chosen):
        """All of them."""
        known = {part.name: part for part in chosen}
        Lanes(jobs(chosen), lambda job: self.run(known[job.name])).run_all()


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def table(rows, seconds):
    """Times and counts of all parts."""
    lines, total = [f"\n{'part':13} {'time':>6} {'cpu':>6} {'passed':>7} {'failed':>7} {'skipped':>8}"], Counts()
    for name, row in rows:
        total.add(row.counts)
        numbers = f"{row.counts.passed:7} {row.counts.failed:7} {row.counts.skipped:8}"
        lines.append(f"{name:13} {clock(row.seconds):>6} {clock(row.cpu):>6} {numbers}  {row.remark}".rstrip())
    lines.append(f"{'all':13} {clock(seconds):>6} {clock(sum(row.cpu for _, row in rows)):>6}")
    # Once more at the end: of a long log often no more than that is kept.
    lines += [f"{name}: {line}" for name, row in rows for line in row.failures]
    if left := [name for name, row in rows if row.remark == LEFT_OUT]:
        lines.append(f"left out, as the time was over: {', '.join(left)}")
    say("\n".join([*lines, str(total)]))
    return total


def arguments(known):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=f"these parts alone: {', '.join(known)}")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="first of the random seeds")
    parser.add_argument("--long", action="store_true", help="the long form of each part that has one")
    parser.add_argument("--plan", action="store_true", help="show in which order parts would start, and end")
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    parser.add_argument("--minutes", type=float, help="no part begins after so many minutes: what that leaves out counts as skipped")
    parser.add_argument("--skips", metavar="FILE", help="a list of the tests that may be skipped: any other that is skipped has failed")
    options = parser.parse_args()
    try:
        options.allowed = None
        if options.skips:
            with open(options.skips, encoding="utf-8") as file:
                options.allowed = skips_allowed(file.read(), known)
    except (OSError, ValueError) as error:
        parser.error(f"--skips {options.skips}: {error}")
    unknown = [name for name in options.part if name not in known]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}: it must be one of {', '.join(known)}")
    return options


def usual(everything, long, seed):
    """The names of the parts that run when none is named.

    >>> some = [Part("demo", "", [], 1), Part("unit", "", [], 1), Part("soak", "", [], 1), Part("soak-long", "", [], 1), Part("loom", "", [], 1, turn=(1, 3))]
    >>> usual(some, False, 3), usual(some, False, 4), usual(some, True, 3)
    (['unit', 'soak'], ['unit', 'soak', 'loom'], ['unit', 'soak-long', 'loom'])
    """
    names = [part.name for part in everything]
    if long:
        return [name for name in names if name not in NEWCOMER and name + LONG not in names]
    return [part.name for part in everything if part.name not in NEWCOMER and not part.name.endswith(LONG) and seed % part.turn[1] == part.turn[0]]


def main():
    options = arguments([part.name for part in parts(0)])
    everything = parts(options.seed)
    if options.list:
        for part in everything:
            print(f"{part.name:13} {part.what}")
        return 0
    chosen = [part for part in everything if part.name in (options.part or usual(everything, options.long, options.seed))]
    if any(part.needs_build for part in chosen) and not any(part.name == "build" for part in chosen):
        chosen.insert(0, next(part for part in everything if part.name == "build"))
    if options.plan:
        for name, start, end in plan(jobs(chosen)):
            print(f"{clock(start):>6} {clock(end):>6}  {name}")
        return 0
    os.makedirs(LOGS, exist_ok=True)
    results, started = Results(options.allowed, options.minutes), time.monotonic()
    results.run_all(chosen)
    # A part without a row: its thread died of a bug of ours, and said so.
    rows = [(part.name, results.rows.get(part.name, Row(Counts(failed=1), 0, 0, "not run"))) for part in chosen]
    return 1 if table(rows, time.monotonic() - started).failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        Running.over = True
        for left in list(Running.now):
            left.end()
        sys.exit(130)
