#!/usr/bin/env python3
"""Real programs, natively and under Farshore: the same bytes, within the memory limit.

    tests/real/run.py --size small                 everything, as `make test` does
    tests/real/run.py --only sort,redis --mode poll --fraction 25

Each case runs natively, then under farshore with a limit that is never reached, which tells how much managed memory the
program really uses; then, for each mode and fraction, with that part of it. A test passes when status and results are those of
the native run, the managed memory stayed within the limit, pages really left, no eviction happened in a fault, and no
swap error was counted. Programs that are not installed are skipped and counted.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

# Before our own modules come in: the source tree stays as it is.
sys.dont_write_bytecode = True

import harness  # noqa: E402
from cases import CASES  # noqa: E402
from harness import Mode, Unavailable, size_text  # noqa: E402

# A program that uses less than this more than its limit need not evict: evictors keep some frames free below the limit.
SLACK = 1.3


@dataclasses.dataclass
class Way:
    """How programs are run: all that a [Context] goes by, and no other options. What is new here has a default, so that whoever makes one is not broken by it."""

    farshore: str
    swap: list
    # Seconds after which a run hangs; None: as the case says.
    timeout: float = None
    encrypt: bool = False
    prefetch: str = None

    def argv(self, argv, limit, fault, stats):
        """The command that runs `argv` under farshore with a limit."""
        extra = ["--encrypt"] if self.encrypt else []
        extra += ["--prefetch", self.prefetch] if self.prefetch else []
        return harness.farshore_argv(self.farshore, argv, limit, fault, self.swap, stats, extra)


class Step:
    """One program that a case ran, and what came of it."""

    def __init__(self, name, limit, outcome, stats):
        self.name, self.limit, self.stats = name, limit, stats
        self.status, self.seconds, self.peak_rss, self.stderr = outcome.status, outcome.seconds, outcome.peak_rss, outcome.stderr


class Context:
    """What a case sees while it runs in one mode."""

    def __init__(self, way, case, mode, folder, native=None, peaks=None):
        self.way, self.case, self.mode, self.folder = way, case, mode, folder
        self.native, self.peaks = native, peaks or {}
        self.steps, self.results, self.texts, self.problems = [], {}, {}, []
        self.timeout = way.timeout or case.timeout.get(case.size, 300)
        self.pending = {}

    # -- starting programs

    @property
    def counters_wanted(self):
        """Whether `farshore stat` has something to tell."""
        return not self.mode.native

    def limit_of(self, step):
        """The limit of a step in this mode, in bytes."""
        if self.case.fixed_limit:
            return self.case.fixed_limit
        if self.mode.share is None:
            return harness.ROOMY
        wanted = int(self.peaks.get(step, 0) * self.mode.share)
        return max(harness.SMALLEST_LIMIT, wanted // harness.PAGE * harness.PAGE)

    def _start(self, step, argv, stdin, stdout, env):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FARSHORE_") or key in ("FARSHORE_SWAP_DIR", "FARSHORE_LIBRARY")}
        environment.update({"LC_ALL": "C", "TMPDIR": self.folder}, **(env or {}))
        limit, stats = None, None
        if not self.mode.native:
            limit, stats = self.limit_of(step), os.path.join(self.folder, f"stats-{len(self.steps)}.json")
            argv = self.way.argv(argv, limit, self.mode.fault, stats)
        process = harness.Process(argv, self.folder, self.timeout, stdin=stdin, stdout=stdout, env=environment, cwd=self.folder)
        self.pending[process] = (step, limit, stats)
        return process

    def run(self, step, argv, stdin=None, env=None):
        """Runs a program to its end; returns the path of what it wrote to stdout."""
        out = os.path.join(self.folder, f"out-{len(self.steps)}")
        with open(out, "wb") as stdout, open(stdin or os.devnull, "rb") as file:
            process = self._start(step, argv, file, stdout, env)
        self.finish(process)
        return out

    def serve(self, step, argv, env=None, talk=False):
        """Starts a program that works beside us; `talk` gives pipes to its stdin and stdout. End it with `finish`."""
        pipe = subprocess.PIPE if talk else None
        return self._start(step, argv, pipe, pipe, env)

    def finish(self, process):
        """Waits for the end of a program and looks at its status and counters."""
        step, limit, stats_path = self.pending[process]
        # Interrupted here, the process stays pending, and `abandon` ends it.
        outcome = process.finish()
        del self.pending[process]
        stats = harness.load_stats(stats_path) if stats_path else None
        self.steps.append(Step(step, limit, outcome, stats))
        if outcome.timed_out:
            self.problem(f"{step}: no end after {self.timeout} s")
            print(f"\n{self.case.name} {self.mode} {step} hangs:\n{outcome.picture}\n", file=sys.stderr)
            return
        expected = self.case.statuses.get(step, 0)
        if outcome.status != expected:
            text = outcome.stderr.strip()[-400:]
            self.problem(f"{step}: status {outcome.status}, not {expected}{': ' + text if text else ''}")
        if not self.mode.native and outcome.status == expected:
            for sentence in self.check_counters(step, stats, limit):
                self.problem(f"{step}: {sentence}")

    def abandon(self):
        """Ends what a case left running when it failed."""
        for process in list(self.pending):
            process.kill_session()
            self.finish(process)

    def check_counters(self, step, stats, limit):
        """What the counters of a run under farshore must say."""
        if step in self.case.uncounted:
            # The counters, if there are any, are those of the program that it became.
            return harness.check_stats(stats, limit) if stats is not None else []
        wrong = harness.check_stats(stats, limit)
        peak = self.peaks.get(step, 0)
        if self.case.fixed_limit and self.case.evicts:
            peak = max(native.peak_rss or 0 for native in self.native.steps if native.name == step)
        if stats is not None and limit != harness.ROOMY and peak > limit * SLACK and stats["evictions"]["pages"] == 0:
            wrong.append(f"no page left although {size_text(peak)} were used in {size_text(limit)}")
        return wrong

    def live_counters(self, process):
        """`farshore stat PID --json` for a program that runs, or None."""
        pids = [pid for pid in harness.session_pids(process.popen.pid) if pid != process.popen.pid]
        if not pids:
            return None
        argv = [self.way.farshore, "stat", str(min(pids)), "--json"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30, check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    # -- looking at results

    def problem(self, text):
        """Notes what makes this test fail."""
        self.problems.append(text)

    def same(self, label, value):
        """`value` must be what it was natively."""
        self.results[label] = value
        if self.native is not None and self.native.results.get(label) != value:
            self.problem(f"{label}: {str(value)[:80]} differs from the native {str(self.native.results.get(label))[:80]}")

    def same_output(self, label, path):
        """The file must hold the bytes that it held natively."""
        digest = harness.hash_file(path) if os.path.exists(path) else "missing"
        self.results[label] = digest
        # Short texts are kept, so that a difference can be shown.
        if os.path.exists(path) and os.path.getsize(path) < 1 << 16:
            self.texts[label] = harness.read_text(path).splitlines()
        if self.native is not None and self.native.results.get(label) != digest:
            self.problem(f"{label}: differs from the native run{self._first_difference(label)}")

    def _first_difference(self, label):
        """The first line that differs, where both texts were kept."""
        ours, theirs = self.texts.get(label), self.native.texts.get(label)
        if ours is None or theirs is None:
            return ""
        pairs = zip(ours + ["(end)"], theirs + ["(end)"])
        return next((f": {a[:120]!r}, natively {b[:120]!r}" for a, b in pairs if a != b), "")

    def same_file(self, label, path, original):
        """The file must hold the bytes of another one."""
        if harness.hash_file(path) != harness.hash_file(original):
            self.problem(f"{label}: differs from the original")

    # -- sums over the steps

    @property
    def seconds(self):
        return sum(step.seconds for step in self.steps)

    def most(self, key):
        """The largest value of a counter, or of the peak RSS, over the steps."""
        values = [step.peak_rss if key == "rss" else (step.stats or {}).get(key) for step in self.steps]
        return max((value for value in values if value is not None), default=None)

    def total(self, group, key):
        """The sum of a counter over the steps."""
        return sum((step.stats or {}).get(group, {}).get(key, 0) for step in self.steps)


class Runner:
    """All cases in all modes."""

    def __init__(self, options):
        self.options, self.rows, self.records = options, [], []
        self.way = Way(options.farshore, options.swap, options.timeout, options.encrypt, options.prefetch)
        self.passed = self.failed = self.skipped = 0

    def run_mode(self, case, mode, native=None, peaks=None):
        """One test. The folder of the run goes when it is over."""
        folder = tempfile.mkdtemp(prefix="run-", dir=self.options.work)
        context = Context(self.way, case, mode, folder, native, peaks)
        try:
            case.run(context)
        except Exception as error:  # pylint: disable=broad-except
            # A broken output breaks the case's own parsing: that is a failure of this test, not the end of all.
            context.problem(f"{type(error).__name__}: {error}")
        finally:
            context.abandon()
            shutil.rmtree(folder, ignore_errors=True)
        self.record(case, context, native)
        return context

    def record(self, case, context, native):
        """Adds a line to the table and counts."""
        limits = [step.limit for step in context.steps if step.limit and step.limit != harness.ROOMY]
        verdict = "ok" if not context.problems else "FAILED"
        if native is not None or context.problems:
            self.passed, self.failed = self.passed + (not context.problems), self.failed + bool(context.problems)
        row = [case.name, str(context.mode), size_text(max(limits)) if limits else "-", f"{context.seconds:.2f}",
               f"{context.seconds / native.seconds:.2f}" if native and native.seconds else "-", size_text(context.most("resident_bytes_peak")),
               size_text(context.most("rss")), context.total("swap", "pages_in") if native else "-", context.total("swap", "pages_out") if native else "-", verdict]
        self.rows.append(row)
        self.records.append({"case": case.name, "mode": str(context.mode), "seconds": context.seconds, "problems": context.problems,
                             "steps": [{"step": step.name, "status": step.status, "seconds": step.seconds, "limit": step.limit, "peak_rss_bytes": step.peak_rss,
                                        "stats": step.stats} for step in context.steps]})
        print(f"{case.name:12} {str(context.mode):12} {context.seconds:8.2f} s  {verdict}", flush=True)
        for text in context.problems[:12]:
            print(f"    {text}", flush=True)

    def run_case(self, case_class):
        """Native, natural peak, then every mode and fraction."""
        folder = os.path.join(self.options.work, f"input-{case_class.name}")
        os.makedirs(folder)
        case = case_class(self.options.size, folder)
        try:
            case.prepare()
        except Unavailable as reason:
            self.skipped += 1
            self.rows.append([case.name] + ["-"] * 8 + ["skipped"])
            print(f"{case.name:12} skipped: {reason}", flush=True)
            return
        native = self.run_mode(case, Mode())
        if native.problems:
            return
        if case.fixed_limit:
            for fault in self.options.mode * self.options.repeat:
                self.run_mode(case, Mode(fault, 0), native)
        else:
            # The natural peak is a matter of the program: one delivery is enough to learn it. It is `poll`, since a process with `upcall`
            # stays dormant where everything fits, and counts nothing.
            roomy = self.run_mode(case, Mode("poll"), native)
            if "upcall" in self.options.mode:
                self.run_mode(case, Mode("upcall"), native)
            peaks = {step.name: harness.natural_peak(step.stats) if step.stats else step.peak_rss or 0 for step in roomy.steps}
            for fault in self.options.mode * self.options.repeat:
                for share in self.options.fraction:
                    self.run_mode(case, Mode(fault, share), native, peaks)
        shutil.rmtree(folder, ignore_errors=True)

    def summary(self):
        """The table and the last line."""
        header = ["case", "mode", "limit", "seconds", "x native", "managed peak", "peak RSS", "pages in", "pages out", "verdict"]
        print()
        print("\n".join(harness.table(header, self.rows, right=header[2:-1])))
        print("managed peak: what Farshore counts against the limit; peak RSS: the whole process, with its text, stacks and Farshore's own memory")
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")


def arguments():
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("small", "full"), default="small", help="how much data (default small)")
    parser.add_argument("--only", metavar="NAME[,NAME]", help=f"these cases alone: {', '.join(names)}")
    parser.add_argument("--mode", default="upcall,poll", help="upcall, poll or both (default both)")
    parser.add_argument("--fraction", default="50,25", help="per cent of the natural memory (default 50,25)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run each test N times, to look for what happens seldom")
    parser.add_argument("--swap", action="append", default=[], metavar="SPEC", help="as for farshore run; repeat for an array (default dir: of --work)")
    parser.add_argument("--encrypt", action="store_true", help="run with --encrypt")
    parser.add_argument("--prefetch", metavar="NAME", help="as for farshore run")
    parser.add_argument("--farshore", help="the farshore command (default: $FARSHORE, else this workspace's build)")
    parser.add_argument("--work", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where input and swap files go (default /var/tmp)")
    parser.add_argument("--timeout", type=float, help="seconds after which a run hangs (default: 150 small, 3600 full)")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    options = parser.parse_args()
    if options.list:
        for case in CASES:
            print(f"{case.name:12} {case.summary}")
        sys.exit(0)
    options.cases = CASES if not options.only else [case for case in CASES if case.name in options.only.split(",")]
    unknown = set((options.only or names[0]).split(",")) - set(names)
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}: see --list")
    options.mode = options.mode.split(",")
    if set(options.mode) - {"upcall", "poll"}:
        parser.error("--mode is upcall, poll or upcall,poll")
    options.fraction = [float(part.rstrip("%")) / 100 for part in options.fraction.split(",")]
    return options


def main():
    harness.tidy_on_sigterm()
    options = arguments()
    options.farshore = harness.find_farshore(options.farshore)
    options.work = tempfile.mkdtemp(prefix="farshore-real-", dir=options.work)
    options.swap = options.swap or [f"dir:{options.work}"]
    started, runner = time.monotonic(), Runner(options)
    try:
        if "poll" in options.mode and not harness.poll_allowed():
            options.mode.remove("poll")
            runner.skipped += 1
            print("poll mode skipped: it needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or rights to /dev/userfaultfd")
        for case in options.cases if options.mode else []:
            runner.run_case(case)
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"size": options.size, "seconds": time.monotonic() - started, "tests": runner.records}, file, indent=1)
    runner.summary()
    return 1 if runner.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
