#!/usr/bin/env python3
"""How calls that flush TLBs overlap on this kernel: pages a second that threads of one process take away at once, by the two calls of Farshore's evictors.

    tools/flushes.py [--rounds N] [--passes N] [--threads 1 2 4] [--pages 1 8 64 256 512] [--size 32M] [--out FILE]

MAGE (§4.1) pipelines evictions because an eviction thread waits while TLBs are flushed. A thread of user space waits in its call all that time. What overlap there is comes from
other threads in such calls: the columns tell how many times the pages of one thread several bring. 1 is no overlap. On fewer cores than threads they also share those.

`protect` is UFFDIO_WRITEPROTECT, `unmap` is MADV_DONTNEED (tests/programs/flushes.c, which checks what each pass has done). Each cell is the median over all passes of the rounds,
with the smallest and the largest. Combinations take turns, round by round. It takes a minute or two on an idle machine. On a busy one the figures say nothing.
"""

import argparse
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "real"))
import harness  # noqa: E402

CALLS = (("protect", "write-protecting"), ("unmap", "unmapping"))


def number(value):
    """A figure with three digits that count."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g}"


def measure(options):
    """Pages a second of each pass, by call, threads, and pages a call."""
    program, found = harness.build_program("flushes"), {}
    for _ in range(options.rounds):
        for call, _ in CALLS:
            for pages in options.pages:
                for threads in options.threads:
                    words = [program, call, str(threads), str(pages), options.size, str(options.passes)]
                    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=600)
                    if done.returncode != 0:
                        raise SystemExit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr}")
                    # The first pass finds caches and page tables cold.
                    rates = [float(line) for line in done.stdout.split()][1:]
                    found.setdefault((call, threads, pages), []).extend(rates)
    return found


def table(options, found):
    """The page."""
    others = [threads for threads in options.threads if threads != options.threads[0]]
    first = options.threads[0]
    lines = [f"{len(os.sched_getaffinity(0))} cores, Linux {os.uname().release}\n"]
    heads = [f"{threads} thread{'s' if threads > 1 else ''}" for threads in options.threads] + [f"{threads} over {first}" for threads in others]
    lines.append(f"| call | pages a call | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}")
    for call, name in CALLS:
        for pages in options.pages:
            cells = []
            for threads in options.threads:
                rates = found[call, threads, pages]
                cells.append(f"{number(statistics.median(rates))}/s ({number(min(rates))}–{number(max(rates))})")
            middle = {threads: statistics.median(found[call, threads, pages]) for threads in options.threads}
            cells += [f"{middle[threads] / middle[first]:.2f}" for threads in others]
            lines.append(f"| {name} | {pages} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=4, help="passes of a run, the first of which does not count")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--pages", type=int, nargs="+", default=[1, 8, 64, 256, 512], help="pages of a call")
    parser.add_argument("--size", default="32M", help="memory of each thread")
    parser.add_argument("--out", help="a file, for the page")
    options = parser.parse_args()
    if options.rounds < 1 or options.passes < 2:
        raise SystemExit("--rounds 1 or more, --passes 2 or more")
    page = table(options, measure(options))
    print(page, end="")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(page)


if __name__ == "__main__":
    sys.exit(main())
