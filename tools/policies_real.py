#!/usr/bin/env python3
"""Runs real programs beside each policy of `farshore policy` in turn, in a half and a quarter of their memory, and prints what each changes: pages read, faults that
wait for a read, and time, in terms of the same program without a policy. Results are compared with those natively.

    tools/policies_real.py [--size 64M] [--rounds 3] [--percent 50 25] [--kernels pr loop …] [--policies csr …]

Times are medians of rounds in turn. `squeeze` is a scenario of its own: a limit is lowered and raised, with wsr and without.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "real"))
import harness  # noqa: E402

KERNELS = ("bfs", "pr", "cc", "hot", "loop", "phases", "zipf", "matmul", "dgemm", "sort")
POLICIES = ("linear", "csr", "csr+hints", "dt", "sys-r", "sys-agg", "wsr", "leap", "ghost")
HINTS = {"vertices": "stay", "queue": "stay", "edges": "stream"}


class Run:
    """A program under Farshore, and a policy beside it."""

    def __init__(self, options, kernel, limit, extra=()):
        self.farshore = harness.find_farshore()
        self.place = tempfile.mkdtemp(prefix="farshore-policies-", dir=options.swap)
        argv = [self.farshore, "run", "--memory", str(limit), "--swap", f"dir:{self.place}", *extra, "--", harness.build_program("kernels"), kernel, options.size]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.policy = None
        self.line("ready")
        os.set_blocking(self.process.stderr.fileno(), False)
        self.regions = [line.split() for line in (self.process.stderr.read() or "").splitlines() if line.split()[0] in HINTS]

    def line(self, word):
        """What it says next; without the first word."""
        said = self.process.stdout.readline().split()
        harness.expect(said[:1] == [word], f"said {said}, not {word}")
        return said[1:]

    def go_on(self):
        """Lets it go on."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def counters(self):
        """Its counters."""
        done = subprocess.run([self.farshore, "stat", str(self.process.pid), "--json"], stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def set(self, *settings):
        """Changes settings."""
        subprocess.run([self.farshore, "set", str(self.process.pid), *settings], stdout=subprocess.DEVNULL, check=True)

    def attach(self, name):
        """Attaches a policy, and waits until it listens."""
        words = [os.path.join(os.path.dirname(self.farshore), "farshore-advise"), name.split("+")[0], str(self.process.pid)]
        if name.endswith("+hints"):
            path = os.path.join(self.place, "hints")
            with open(path, "w", encoding="ascii") as file:
                file.writelines(f"{HINTS[name]} {where}\n" for name, where in self.regions)
            words += ["--regions", path]
        self.policy = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        while not any(policy["parameters"] for policy in self.counters()["policies"]):
            harness.expect(self.policy.poll() is None, f"policy {name} has ended")
            time.sleep(0.02)
        time.sleep(0.1)

    def work(self):
        """One piece of work: ns, and what the counters have gone up by."""
        before = self.counters()
        self.go_on()
        ns = int(self.line("done")[0])
        after = self.counters()
        counts = {"read": after["swap"]["pages_in"] - before["swap"]["pages_in"], "faults": after["faults"]["fetch"] - before["faults"]["fetch"],
                  "written": after["swap"]["pages_out"] - before["swap"]["pages_out"], "resident": after["resident_bytes"]}
        return ns, counts

    def end(self):
        """Its digest; what the policy has said."""
        self.process.stdin.close()
        said = self.line("sum")
        harness.expect(self.process.wait() == 0, "it did not end well")
        told = self.policy.communicate()[0].strip() if self.policy else ""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.place):
                os.unlink(os.path.join(self.place, name))
            os.rmdir(self.place)
        return said, told


def natively(options, kernel):
    """Its digest without Farshore."""
    done = subprocess.run([harness.build_program("kernels"), kernel, options.size], input="\n", stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()[-1:]


def table(options, kernel, percent):
    """One program with one limit: lines of the table."""
    limit, right = harness.parse_size(options.size) * percent // 100, natively(options, kernel)
    graph = kernel in ("bfs", "pr", "cc")
    policies = [policy for policy in options.policies if graph or not policy.endswith("+hints")]
    found = {}
    for _ in range(options.rounds):
        for policy in ("none", *policies):
            run = Run(options, kernel, limit, ("--prefetch", options.prefetch))
            if policy != "none":
                run.attach(policy)
            ns, counts = run.work()
            said, told = run.end()
            harness.expect(said == right, f"{kernel} with {policy}: {said}, natively {right}")
            found.setdefault(policy, []).append({"ns": ns, "told": told, **counts})
            if options.verbose:
                print(f"    {policy}: {counts} {told.splitlines()[-1:]}", file=sys.stderr, flush=True)
    middle = {policy: {what: statistics.median(one[what] for one in all_of) for what in ("faults", "read", "ns")} for policy, all_of in found.items()}
    none = middle.pop("none")
    print(f"| {kernel} | {percent} | none | {none['faults']:.0f} | {none['read']:.0f} | {none['ns'] / 1e9:.2f} s |")
    for policy, its in middle.items():
        print(f"| {kernel} | {percent} | {policy} | {' | '.join(format(its[what] / max(none[what], 1), '.2f') for what in ('faults', 'read', 'ns'))} |", flush=True)


def squeeze(options):
    """The limit falls to a quarter while the program works, and rises: the time of the next piece of work."""
    size, times = harness.parse_size(options.size), {}
    for _ in range(options.rounds):
        for policy in ("none", "wsr"):
            run = Run(options, "random", size * 2)
            if policy != "none":
                run.attach(policy)
            run.work()
            run.set(f"memory={size // 4}")
            run.work()
            run.set(f"memory={size * 2}")
            ns, counts = run.work()
            run.end()
            times.setdefault(policy, []).append((ns, counts["faults"]))
    for policy, all_of in times.items():
        print(f"| squeeze, the work after it | {policy} | {statistics.median(one[0] for one in all_of) / 1e9:.2f} s | {statistics.median(one[1] for one in all_of):.0f} faults |", flush=True)


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="64M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percent", type=int, nargs="*", default=[50, 25])
    parser.add_argument("--kernels", nargs="*", default=KERNELS)
    parser.add_argument("--policies", nargs="*", default=POLICIES)
    parser.add_argument("--swap", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"))
    parser.add_argument("--prefetch", default="sequential", help="the built-in prefetcher meanwhile")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    os.makedirs(options.swap, exist_ok=True)
    print("| program | % of its memory | policy | faults that read | pages read | time |\n|---|---:|---|---:|---:|---:|", flush=True)
    for percent in options.percent:
        for kernel in options.kernels:
            table(options, kernel, percent)
    squeeze(options)


if __name__ == "__main__":
    main()
