#!/usr/bin/env python3
"""Other people's test suites, natively and under Farshore: the same tests pass.

    tests/suites/run.py                            everything (`make test-long`)
    tests/suites/run.py --short                    a part of each suite (`make test`)
    tests/suites/run.py --suite redis --only unit/aofrw,integration/rdb

Each unit runs natively, then with a quarter of the memory that it used there (its peak resident size), then with 16 MiB (--short: a quarter
alone), and each test must end as it did natively. A test that ends otherwise is a difference, unless it is unsteady natively: then the unit
is run natively again, up to three times, and a test that ends in two ways there is counted as unsteady and told apart. A difference that only a second run under
farshore does not show remains one.

Differences that are known, each with its reason, are in known.toml; docs/src/reference/suites.md is made from it (--docs). What else differs fails the run, and its
output stays in the log directory. Suites whose programs are not installed are skipped and counted. The last line is
`N passed, N failed, N skipped`, of tests in a mode; "passed" means: as natively.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True

import cpython  # noqa: E402
import gostd  # noqa: E402
import known  # noqa: E402
import nodejs  # noqa: E402
import perl  # noqa: E402
import redis  # noqa: E402
import sql  # noqa: E402
from suite import NATIVE, QUARTER, SMALL, Context, Place, Run, Unavailable, differences, find_library, harness  # noqa: E402

SUITES = {"cpython": cpython, "redis": redis, "sqlite": sql, "perl": perl, "go": gostd, "node": nodejs}
# How often a unit runs natively at most, when one of its tests ended otherwise under farshore.
NATIVE_RUNS = 4


class Verdict:
    """What came of a unit: its runs, the differences of each mode, and the tests that are unsteady natively."""

    def __init__(self, unit):
        self.unit, self.native, self.runs = unit, None, []
        self.found, self.unsteady, self.error = {}, {}, None

    def total(self):
        """Tests that were compared, in all modes."""
        return sum(len(set(self.native.results) | set(run.results)) for run in self.runs)

    def count(self):
        """Differences of all modes."""
        return sum(map(len, self.found.values()))


class Driver:
    """Runs units, some at a time, and tells how it goes on."""

    def __init__(self, options, place):
        self.options, self.place = options, place
        self.lock, self.started, self.number = threading.Lock(), time.monotonic(), 0
        self.listed = known.load()
        self.verdicts, self.done = [], 0

    def say(self, text):
        """A line with the time."""
        with self.lock:
            print(f"{time.monotonic() - self.started:6.0f} s  {text}", flush=True)

    def context(self, unit, mode, peak=0):
        """A fresh place for one run."""
        with self.lock:
            self.number += 1
            number = self.number
        # Short: paths of sockets in it are limited.
        return Context(self.place, unit, mode, os.path.join(self.place.work, str(number)), peak, number)

    def run_once(self, unit, mode, peak=0):
        """One run of a unit; a run that does not end in its time is told as such."""
        context = self.context(unit, mode, peak)
        results = unit.run(context)
        if context.timed_out:
            results["(timeout)"] = f"no end in {context.timeout} s"
        with open(context.path("results.json"), "w", encoding="utf-8") as file:
            json.dump({"unit": str(unit), "mode": str(mode), "limit": context.limit, "results": results}, file, indent=1)
        return Run(context, results)

    def compare(self, unit):
        """All runs of a unit."""
        verdict = Verdict(unit)
        verdict.native = self.run_once(unit, NATIVE)
        expected = [verdict.native.results]
        for mode in self.options.modes:
            run = self.run_once(unit, mode, verdict.native.peak)
            verdict.runs.append(run)
            found = differences(verdict.native.results, run.results)
            while found and len(expected) < NATIVE_RUNS and not self.all_listed(unit, mode, found):
                again = self.run_once(unit, NATIVE)
                verdict.unsteady.update(differences(verdict.native.results, again.results))
                expected.append(again.results)
                self.tidy(again)
                if all(test in verdict.unsteady for test in found):
                    break
            verdict.found[mode] = {test: ends for test, ends in found.items() if test not in verdict.unsteady}
        return verdict

    def all_listed(self, unit, mode, found):
        """Whether every difference is known: then nothing need be run again."""
        return all(known.reason(self.listed, unit, mode, test) for test in found)

    def tidy(self, run):
        """The directory of a run that nobody will look at."""
        if not self.options.keep:
            shutil.rmtree(run.folder, ignore_errors=True)

    def one(self, unit):
        """Runs a unit and tells about it."""
        try:
            verdict = self.compare(unit)
        except Exception as error:  # noqa: BLE001 - a suite that cannot be driven is a failure, and the others go on
            verdict = Verdict(unit)
            verdict.error = f"{type(error).__name__}: {error}"
        new = self.new_differences(verdict)
        with self.lock:
            self.verdicts.append(verdict)
            self.done += 1
        self.say(f"{self.done:4}/{self.options.count} {self.line(verdict, new)}")
        for mode, test, ends in new[:20]:
            self.say(f"          {mode}: {test[:120]}: natively {ends[0]}, here {ends[1]}")
        if len(new) > 20:
            self.say(f"          and {len(new) - 20} more: results.json in the log directory")
        for run in ([verdict.native] if verdict.native else []) + verdict.runs:
            if new:
                self.keep_logs(verdict.unit, run)
            self.tidy(run)

    def line(self, verdict, new):
        """A unit in a line."""
        if verdict.error:
            return f"{verdict.unit}: {verdict.error}"
        native = verdict.native
        parts = [f"{len(native.results)} tests, {harness.size_text(native.peak)}, {native.seconds:.1f} s"]
        parts += [f"{run.mode} ({harness.size_text(run.limit)}) {run.seconds:.1f} s" for run in verdict.runs]
        listed = verdict.count() - len(new)
        what = f"{len(new)} DIFFERENT" if new else "same"
        return f"{verdict.unit}: {what}{f', {listed} listed' if listed else ''}{f', {len(verdict.unsteady)} unsteady natively' if verdict.unsteady else ''}; {'; '.join(parts)}"

    def new_differences(self, verdict):
        """Differences that known.toml does not explain."""
        return [(mode, test, ends) for mode, found in verdict.found.items() for test, ends in sorted(found.items())
                if not known.reason(self.listed, verdict.unit, mode, test)]

    def keep_logs(self, unit, run):
        """What a run printed."""
        top = os.path.join(self.options.logs, f"{unit.suite}-{unit.name.replace('/', '_').replace('..', '')}-{run.mode}")
        for folder, _, files in os.walk(run.folder):
            for name in files:
                path = os.path.join(folder, name)
                if name in ("stdout", "stderr", "hung", "results.json", "script.sql") or os.path.basename(folder) == "servers":
                    where = os.path.join(top, os.path.relpath(path, run.folder))
                    os.makedirs(os.path.dirname(where), exist_ok=True)
                    shutil.copy(path, where)

    def run(self, units):
        """All units, as many at a time as there are jobs."""
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            futures = [pool.submit(self.one, unit) for unit in units]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.place.end_all()
                raise


def summary(driver, skipped):
    """The table and the last line; whether all is well."""
    rows, totals = [], [0, 0, len(skipped)]
    for suite in SUITES:
        mine = [verdict for verdict in driver.verdicts if verdict.unit.suite == suite]
        if not mine:
            continue
        good = [verdict for verdict in mine if not verdict.error]
        new = sum(len(driver.new_differences(verdict)) for verdict in good) + len(mine) - len(good)
        listed = sum(verdict.count() - len(driver.new_differences(verdict)) for verdict in good)
        unsteady = sum(len(verdict.unsteady) for verdict in good)
        tests = sum(len(verdict.native.results) for verdict in good)
        words = [result for verdict in good for result in verdict.native.results.values()]
        same = sum(verdict.total() for verdict in good) - new - listed
        seconds = [sum(verdict.native.seconds for verdict in good)] + [sum(run.seconds for verdict in good for run in verdict.runs if run.mode is mode) for mode in driver.options.modes]
        rows.append([suite, len(mine), tests, words.count("fail"), words.count("skip"), same, new, listed, unsteady, *(f"{value:.0f}" for value in seconds)])
        totals[0] += same
        totals[1] += new
    header = ["suite", "units", "tests", "fail", "skip", "same", "different", "listed", "unsteady", "native s", *(f"{mode} s" for mode in driver.options.modes)]
    print("\nnatively: tests, fail, skip; in all modes: same, different, listed (known.toml), unsteady (natively, too)")
    print("\n".join(harness.table(header, rows, right=header[1:])))
    for suite, why in skipped.items():
        print(f"{suite} skipped: {why}")
    for entry in known.unseen(driver.listed, driver.verdicts):
        print(f"listed and not seen in this run: {entry}")
    if totals[1]:
        print(f"logs: {driver.options.logs}")
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped", flush=True)
    return totals[1] == 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a part of each suite, with a quarter of its memory")
    parser.add_argument("--half", type=int, help="of the units that would run every second one: those with even numbers, or those with odd ones, as this number is")
    parser.add_argument("--suite", default=",".join(SUITES), help="these suites alone")
    parser.add_argument("--only", help="these units alone, by name")
    parser.add_argument("--without", default="", help="not these units")
    parser.add_argument("--mode", help="quarter, 16M (default: both)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="units at a time (default: one a core)")
    parser.add_argument("--farshore", help="the command to test")
    parser.add_argument("--swap", action="append", default=[], metavar="SPEC", help="swap space for farshore")
    parser.add_argument("--logs", default=os.path.join(harness.target_dir(), "suite-logs"), help="where failures keep what they printed")
    parser.add_argument("--keep", action="store_true", help="keep every run's directory, and say where")
    parser.add_argument("--docs", action="store_true", help="write docs/src/reference/suites.md from known.toml, and end")
    options = parser.parse_args()
    modes = {"quarter": QUARTER, "16M": SMALL}
    wanted = options.mode.split(",") if options.mode else ["quarter"] if options.short else list(modes)
    unknown = [name for name in wanted if name not in modes] + [name for name in options.suite.split(",") if name not in SUITES]
    if unknown:
        parser.error(f"there is no {unknown[0]}: suites are {', '.join(SUITES)}; modes are {', '.join(modes)}")
    options.modes = [modes[name] for name in wanted]
    return options


def choose(options, place):
    """The units to run, and the suites that cannot run with the reason."""
    units, skipped = [], {}
    for name in options.suite.split(","):
        try:
            mine = SUITES[name].units(place)
        except Unavailable as why:
            skipped[name] = str(why)
            continue
        units += [unit for unit in mine if (not options.short or unit.short) and (not options.only or unit.name in options.only.split(","))
                  and unit.name not in options.without.split(",")]
    return units if options.half is None else units[options.half % 2::2], skipped


def main():
    options = arguments()
    if options.docs:
        known.write_docs(known.load())
        return 0
    if not known.docs_are_fresh(known.load()):
        raise SystemExit("docs/src/reference/suites.md does not say what known.toml says: tests/suites/run.py --docs writes it")
    harness.tidy_on_sigterm()
    farshore = harness.find_farshore(options.farshore)
    work = tempfile.mkdtemp(prefix="farshore-suites-", dir=os.environ.get("FARSHORE_SWAP_DIR") or "/var/tmp")
    shutil.rmtree(options.logs, ignore_errors=True)
    try:
        # Before several threads want them.
        for program in ("peak", "standin"):
            harness.build_program(program)
        place = Place(work, farshore, find_library(farshore), options.swap)
        units, skipped = choose(options, place)
        options.count = len(units)
        if not units and not skipped:
            raise SystemExit("no unit of that name")
        driver = Driver(options, place)
        driver.say(f"{len(units)} units, {options.jobs} at a time; local memory: {', '.join(map(str, options.modes))}")
        driver.run(units)
        return 0 if summary(driver, skipped) else 1
    finally:
        if options.keep:
            print(f"kept: {work}", file=sys.stderr)
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
