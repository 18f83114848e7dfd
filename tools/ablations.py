#!/usr/bin/env python3
"""What each mechanism of Farshore gives: one page, from `farshore bench` with each switch of `--ablate` in turn against a run with none.

    tools/ablations.py [--rounds N] [--scale X] [--only WORKLOAD,…] [--switches LIST;…] [--dir DIRECTORY] [--farshore COMMAND] [--out FILE]

The first table has a row for each workload and switch: the medians with all of Farshore and without that part of it, and how many times better Farshore is with it, as
`farshore bench` says it. All targets of a workload run once in each round, in turn. A run in which the counter of a switch does not show that its mechanism was out ends the tool.

The second table is of TLB flushes: pages a call that flushes, from Farshore's counters, and interrupts for it that the processors got, from the row TLB of /proc/interrupts,
which counts all programs of the machine. Nothing else may run.

It takes about an hour on an idle machine (`--scale 0.1 --rounds 1`: some minutes, to see that it works). On a busy one the figures say nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import programs
from programs import MIB

# Name, words of the workload, MiB of its data at scale 1, percent of them that are local, and the columns of the first table in words.
WORKLOADS = (
    ("random updates, 2 threads", ["random", "--threads", "2"], 512, 50),
    ("random reads, 2 threads", ["random", "--mode", "read", "--threads", "2"], 512, 50),
    ("scan", ["scan", "--passes", "3"], 512, 50),
    ("write and read back, 2 threads", ["stress", "--threads", "2"], 512, 50),
    ("updates, 9 of 10 of a tenth", ["hotset", "--threads", "2"], 512, 25),
    ("PageRank, 2 threads", ["pagerank", "--threads", "2"], 512, 50),
)
# Workloads that have an end of their own are not told how long they run.
ENDS = ("scan", "stress", "pagerank")
SWITCHES = ("pipeline", "caches", "rescue", "delegation", "write-runs", "partitions", "prefetch", "headroom", "migration", "batch=1", "batch=8", "batch=32", "batch=128", "batch=512")
# The smallest sizes that make the limit's largest batch 512 pages.
LEAST_MIB = 64


def is_out(switch, it):
    """Whether the counters of a run show that this was left out."""
    evictors, evictions, swap = it["evictors"], it["evictions"], it["swap"]
    word, _, number = switch.partition("=")
    return it["ablated"] == switch and {
        "pipeline": lambda: evictors["batches_in_flight_peak"] <= 1,
        "caches": lambda: it["frames"]["cached"] == 0,
        "rescue": lambda: it["faults"]["rescue"] == 0,
        "delegation": lambda: swap["delegations"] == 0,
        "write-runs": lambda: swap["writes"] >= swap["pages_out"],
        "partitions": lambda: evictors["lists"] == 1,
        "prefetch": lambda: it["prefetch"]["issued"] == 0,
        "headroom": lambda: evictors["high_pages"] > 2,
        "migration": lambda: evictors["bound"] == evictors["count"],
        "batch": lambda: evictions["pages"] <= int(number) * evictions["batches"],
    }[word]()


def number(value):
    """A figure with three digits that count."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g}"


class Bench:
    """Runs workloads."""

    def __init__(self, options):
        self.options = options
        self.load = os.path.join(os.path.dirname(os.path.realpath(options.farshore)), "farshore-load")

    def size(self, mib):
        """The data of a workload, in MiB."""
        return max(LEAST_MIB, int(mib * self.options.scale))

    def words(self, words, mib):
        """The workload's command line behind its name."""
        seconds = [] if words[0] in ENDS else ["--seconds", str(self.options.seconds), "--warmup", "1"]
        return [*words, "--size", f"{self.size(mib)}M", *seconds]

    def experiment(self, words, mib, percent, switches):
        """One comparison: Farshore, and Farshore without each of these."""
        targets = ["farshore:label=all", *(f"farshore:ablate={switch}+label=no {switch}".replace(",", "\\,") for switch in switches)]
        with tempfile.TemporaryDirectory() as folder:
            told = os.path.join(folder, "told.json")
            argv = [self.options.farshore, "bench", *self.words(words, mib), "--memory", f"{self.size(mib) * percent // 100}M", "--rounds", str(self.options.rounds),
                    "--warm-up-rounds", str(min(1, self.options.rounds - 1)), "--no-device", "--dir", self.options.dir, "--json", told]
            argv += [word for target in targets for word in ("--against", target)]
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(argv)}: status {done.returncode}\n{done.stderr[-2000:]}")
            with open(told, encoding="utf-8") as file:
                return json.load(file)["experiments"][0]

    def interrupts(self):
        """Interrupts for TLB flushes that all processors have had; None: the kernel does not tell."""
        with open("/proc/interrupts", encoding="ascii", errors="replace") as file:
            row = next((line.split() for line in file if line.strip().startswith("TLB:")), None)
        return sum(int(word) for word in row[1:] if word.isdigit()) if row else None

    def flushes(self, words, mib, percent, batch):
        """The counters of a run under Farshore with batches of so many pages (None: as they are), and the interrupts meanwhile."""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            argv = [self.options.farshore, "run", "--memory", f"{self.size(mib) * percent // 100}M", "--swap", f"dir:{self.options.dir}", "--stats", file.name,
                    *(["--ablate", f"batch={batch}"] if batch else []), "--", self.load, *self.words(words, mib)]
            before = self.interrupts()
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
            after = self.interrupts()
            return json.load(file), None if before is None else after - before


def first_table(bench, workloads, switches, out):
    """What each switch costs each workload."""
    out("| workload | left out | all of Farshore | without it | with it is better by |\n|---|---|---|---|---|")
    for name, words, mib, percent in workloads:
        found = bench.experiment(words, mib, percent, switches)
        figure = found["figure"]
        whole, *others = found["targets"]
        if not whole["summary"]:
            raise SystemExit(f"{name}: no good round: {[each['wrong'] for each in whole['rounds']]}")
        for switch, target in zip(switches, others):
            bad = [each["wrong"] or "the counters do not show it" for each in target["rounds"] if each["wrong"] or not is_out(switch, each["stats"])]
            if bad or not target["summary"]:
                raise SystemExit(f"{name} without {switch}: {bad}")
            ratio = target["summary"]["ratio"]
            # The bench says how many times better the reference is.
            shown = f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})" if ratio else ""
            unit = figure["unit"]
            out(f"| {name} | {switch} | {number(whole['summary']['figure']['median'])}{unit} | {number(target['summary']['figure']['median'])}{unit} | {shown} |")


def second_table(bench, workloads, out):
    """Pages a flush, and interrupts."""
    out("\n| workload | pages of a batch | pages left | dirty | pages a protecting call | pages an unmapping call | pages a flush | interrupts a flush |\n"
        "|---|---|---|---|---|---|---|---|")
    for name, words, mib, percent in workloads:
        for batch in (None, 1, 32, 256, 512):
            it, interrupts = bench.flushes(words, mib, percent, batch)
            pages, flushes = it["evictions"]["pages"], it["flushes"]
            dirty = pages - it["evictions"]["clean_pages"]
            calls = flushes["protect_calls"] + flushes["unmap_calls"]
            share = lambda part, whole: f"{part / whole:.1f}" if whole else "–"  # noqa: E731
            # Taking a protection off is such a call too, and so is a huge page.
            all_calls = calls + it["faults"]["write_protect"] + it["huge_pages"]["mapped"]
            told = "not told" if interrupts is None else share(interrupts, all_calls)
            out(f"| {name} | {batch or 'as they are'} | {pages} | {100 * dirty // max(1, pages)} % | {share(dirty, flushes['protect_calls'])} | "
                f"{share(pages, flushes['unmap_calls'])} | {share(pages, calls)} | {told} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--only", default="", help="workloads whose names have one of these in them")
    parser.add_argument("--switches", default=";".join(SWITCHES), help="lists for --ablate, with semicolons between them")
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--farshore", default=os.path.join(programs.RELEASE, "farshore"))
    parser.add_argument("--out", help="a file, for the page")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    workloads = [each for each in WORKLOADS if not words or any(word in each[0] for word in words)]
    if not workloads:
        raise SystemExit(f"--only {options.only}: there are {', '.join(each[0] for each in WORKLOADS)}")
    page = []

    def out(text):
        print(text, flush=True)
        page.append(text + "\n")

    bench = Bench(options)
    first_table(bench, workloads, options.switches.split(";"), out)
    second_table(bench, workloads, out)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.writelines(page)


if __name__ == "__main__":
    sys.exit(main())
