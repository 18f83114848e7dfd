#!/usr/bin/env python3
"""What `farshore plan` says of six real programs from one run in half of their memory, against what they then take with 75, 50 and 25 % of it.

    tools/plan_table.py [--rounds N] [--scale X] [--only NAME,…] [--swap SPEC] [--farshore COMMAND]

In turn, ROUNDS times each, a program runs natively, under `farshore plan` with half of what it has natively, and under `farshore run` with each of the three limits. Times are medians;
what a plan says is the median of what its runs said. The plan's cost is its own run against the run with the same limit.

It takes half an hour on an idle machine (`--scale 0.2 --rounds 1`: some minutes, to see that it works). On a busy one the times say nothing.
"""

import argparse
import json
import os
import statistics
import tempfile

import programs
from programs import MIB

PARTS = (75, 50, 25)


def told(plan, memory):
    """The seconds that a plan's curve has for so many bytes, by the straight line between its rows."""
    rows = sorted((row["memory_bytes"], row["seconds"]) for row in plan["curve"])
    if memory <= rows[0][0]:
        return rows[0][1]
    for (low, slow), (high, fast) in zip(rows, rows[1:]):
        if memory <= high:
            return slow + (fast - slow) * (memory - low) / (high - low)
    return rows[-1][1]


class Row:
    """What the runs of one program took, and what its plans said."""

    def __init__(self, options, runs, program):
        self.options, self.runs, self.program = options, runs, program
        self.whole = programs.peak(*program[1:])
        self.native, self.planned, self.said = [], [], []
        self.took = {part: [] for part in PARTS}

    def limit(self, part):
        """So many percent of what it has natively, in bytes."""
        return int(self.whole * part / 100)

    def round(self):
        """Each way to run it, once."""
        name, command, given = self.program
        swap = ["--swap", self.options.swap]
        self.native.append(self.runs.run(name, command, given))
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            argv = [self.options.farshore, "plan", "--json", file.name, "--memory", str(self.limit(50)), *swap, "--", *command]
            self.planned.append(self.runs.run(name, argv, given))
            self.said.append(json.load(file))
        for part in PARTS:
            argv = [self.options.farshore, "run", "--memory", str(self.limit(part)), *swap, "--", *command]
            self.took[part].append(self.runs.run(name, argv, given))

    def line(self):
        """Its line of the table."""
        median = statistics.median
        plans = [said["plan"] for said in self.said if said["plan"]]
        cells = [self.program[0], f"{self.whole / MIB:.0f}", f"{median(self.native):.1f}", f"{100 * (median(self.planned) / median(self.took[50]) - 1):+.0f} %"]
        for part in PARTS:
            took = median(self.took[part])
            if plans:
                says = median(told(plan, self.limit(part)) for plan in plans)
                cells.append(f"{says:.1f} / {took:.1f} ({100 * (says / took - 1):+.0f} %)")
            else:
                cells.append(f"{self.said[0]['outcome']} / {took:.1f}")
        doubts = sum(1 for plan in plans if plan["doubt"])
        return f"| {' | '.join(cells)} | {doubts} of {len(plans)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--swap", default="dir:/var/tmp")
    parser.add_argument("--farshore", default=os.path.join(programs.RELEASE, "farshore"))
    options = parser.parse_args()
    runs = programs.Runs()
    print("| program | its memory, MiB | natively, s | cost of the plan | 75 %: told / took, s | 50 % | 25 % | doubted |\n|---|---|---|---|---|---|---|---|", flush=True)
    for program in programs.chosen(programs.short(options.scale), options.only):
        row = Row(options, runs, program)
        for _ in range(options.rounds):
            row.round()
        print(row.line(), flush=True)


if __name__ == "__main__":
    main()
