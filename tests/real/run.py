"""How a case of real programs (cases.py) is run, and what is looked at: status and results are those of the native run, the managed memory stays within the limit,
pages really leave, nothing is evicted in a fault, and no error of a swap space is counted.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile

import harness
from harness import size_text
from memory import Watch

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
    # Whether the memory of what runs is watched (memory.py).
    watched: bool = False

    def argv(self, argv, limit, fault, stats):
        """The command that runs `argv` under farshore with a limit."""
        extra = ["--encrypt"] if self.encrypt else []
        extra += ["--prefetch", self.prefetch] if self.prefetch else []
        return harness.farshore_argv(self.farshore, argv, limit, fault, self.swap, stats, extra)


class Step:
    """One program that a case ran, and what came of it."""

    def __init__(self, name, limit, outcome, stats, watch=None):
        self.name, self.limit, self.stats, self.watch = name, limit, stats, watch
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
        watch = Watch(process.popen.pid) if self.way.watched else None
        if watch:
            watch.start()
        self.pending[process] = (step, limit, stats, watch)
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
        step, limit, stats_path, watch = self.pending[process]
        # Interrupted here, the process stays pending, and `abandon` ends it.
        outcome = process.finish()
        del self.pending[process]
        if watch:
            watch.stop()
        stats = harness.load_stats(stats_path) if stats_path else None
        self.steps.append(Step(step, limit, outcome, stats, watch))
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


def run_once(way, case, mode, work, native=None, peaks=None):
    """Runs a case in one mode; its folder, in `work`, goes when it is over."""
    folder = tempfile.mkdtemp(prefix="run-", dir=work)
    context = Context(way, case, mode, folder, native, peaks)
    try:
        case.run(context)
    except Exception as error:  # pylint: disable=broad-except
        # A broken output breaks the case's own parsing: that is a failure of this run.
        context.problem(f"{type(error).__name__}: {error}")
    finally:
        context.abandon()
        shutil.rmtree(folder, ignore_errors=True)
    return context
