#!/usr/bin/env python3
"""What the autopilot reaches, against the smallest memory that a search finds: six programs whose phases need different memory.

    tools/autopilot.py [--slowdown PERCENT] [--rounds N] [--steps N] [--scale X] [--only NAME,…] [--swap SPEC] [--farshore COMMAND]

A program runs under `farshore run --slowdown`, ROUNDS times. Then a search halves, STEPS times, the range of fixed limits (`--memory`), for the smallest at which it
takes no longer than the slowdown allows. Each run is between two native ones, and is told in terms of their mean: the speed of a shared machine changes from minute to
minute, by more than what is looked for. The slowdown is the median. The memory of a fixed limit is the limit; that of the autopilot is the mean of what it has
resident, by time.

It takes about an hour on an idle machine (`--scale 0.2 --rounds 1 --steps 3`: some minutes, to see that it works). On a busy one the times say nothing.
"""

import argparse
import json
import os
import statistics
import subprocess

import programs
from programs import MIB


def tree(pid):
    """A process, and all that descend from it."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
    except OSError:
        children = []
    return [pid, *(each for child in children for each in tree(int(child)))]


class Bench:
    """Runs programs natively and under Farshore."""

    def __init__(self, options):
        self.options, self.runs = options, programs.Runs()

    def under(self, name, command, given, how, most=float("inf")):
        """Runs a program under Farshore; returns its seconds, and its mean memory, in bytes."""
        seen = []
        argv = [self.options.farshore, "run", *how, "--swap", self.options.swap, "--", *command]
        seconds = self.runs.run(name, argv, given, most, lambda pid: seen.append(self.memory(pid)))
        seen = [memory for memory in seen if memory]
        return seconds, statistics.mean(seen) if seen else 0

    def memory(self, pid):
        """What a process and those that it has started have local now, in bytes; None: none of them says."""
        resident = []
        for process in tree(pid):
            done = subprocess.run([self.options.farshore, "stat", str(process), "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
            if not done.returncode:
                resident.append(json.loads(done.stdout)["resident_bytes"])
        return sum(resident) if resident else None

    def between(self, name, command, given, how, before):
        """The same between two native runs, of which the first took `before` seconds: how much longer it takes, its memory, and what the second took."""
        took, memory = self.under(name, command, given, how, 2 * before + 1)
        after = self.runs.run(name, command, given)
        return took / statistics.mean((before, after)) - 1, memory, after

    def row(self, name, command, given):
        """One row of the table."""
        target, native, chosen = self.options.slowdown / 100, [self.runs.run(name, command, given)], []
        for _ in range(self.options.rounds):
            *came, after = self.between(name, command, given, ["--slowdown", f"{self.options.slowdown}%"], native[-1])
            chosen.append(came)
            native.append(after)
        # One and a half times what it has natively: Farshore's staging memory is in the limit too.
        low, high = 8 * MIB, 1.5 * programs.peak(command, given)
        for _ in range(self.options.steps):
            middle = (low * high) ** 0.5
            slower, _, after = self.between(name, command, given, ["--memory", str(int(middle))], native[-1])
            native.append(after)
            low, high = (low, middle) if slower <= target else (middle, high)
        return statistics.median(native), statistics.median(it[0] for it in chosen), statistics.median(it[1] for it in chosen), high


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slowdown", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--swap", default="dir:/var/tmp")
    parser.add_argument("--farshore", default=os.path.join(programs.RELEASE, "farshore"))
    options = parser.parse_args()
    bench = Bench(options)
    print("| program | natively, s | slowdown | memory, MiB | smallest for it, MiB |\n|---|---|---|---|---|", flush=True)
    for name, command, given in programs.chosen(programs.phased(options.scale), options.only):
        alone, slowdown, mean, least = bench.row(name, command, given)
        print(f"| {name} | {alone:.1f} | {slowdown * 100:.1f} % | {mean / MIB:.0f} | {least / MIB:.0f} |", flush=True)


if __name__ == "__main__":
    main()
