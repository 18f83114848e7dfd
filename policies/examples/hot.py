#!/usr/bin/env python3
"""Which memory is hot? `hot.py PID [SECONDS]` looks at a few pages of each 2 MiB at a time, for so long, and prints the parts that are used."""

import random
import sys
import time

import farshore_policy

PAGE, GRANULE, ROUND = farshore_policy.PAGE, 512, 64


def mappings(pid):
    """The private memory of the program that no file is behind: first and last page."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split()
            if fields[1] == "rw-p" and fields[4] == "0" and "stack" not in line:
                first, end = (int(edge, 16) // PAGE for edge in fields[0].split("-"))
                yield first, end


def parts(pid):
    """The same in pieces of 2 MiB at most."""
    for first, end in mappings(pid):
        while first < end:
            upto = min(end, (first // GRANULE + 1) * GRANULE)
            yield first, upto
            first = upto


def watch(program, seconds, interval=0.1):
    """Looks at pages of all parts by turns. Returns of each part how many were looked at, and how many were used."""
    seen, until = {}, time.monotonic() + seconds
    order = list(parts(program.pid))
    random.shuffle(order)
    program.want("scanned")
    turn, refused = 0, 0
    while order and time.monotonic() < until:
        # All that a round looks at leave together, with one flush of the TLB.
        pages = [random.randrange(*order[(turn + n) % len(order)]) * PAGE for n in range(ROUND >> refused)]
        left = program.ask_all(lambda page: program.scan(page, 1, interval), pages)
        turn, refused = turn + left, max(refused - 1, 0)
        if not program.is_there:
            break
        while left and program.wait(2):
            while (event := program.take()) is not None:
                if event.kind == "scanned":
                    left -= 1
                    # Scans have their share of the time; what is refused was too much for it.
                    refused = max(refused, 2 * event.detail)
                    part = event.address // PAGE // GRANULE
                    looked, used = seen.get(part, (0, 0))
                    seen[part] = looked + event.looked.bit_count(), used + event.accessed.bit_count()
    return seen


if __name__ == "__main__":
    with farshore_policy.attach(int(sys.argv[1])) as attached:
        found = watch(attached, float(sys.argv[2]) if len(sys.argv) > 2 else 10)
    for part, (looked, used) in sorted(found.items()):
        if used:
            print(f"{part * GRANULE * PAGE:#014x} {used} of {looked} pages used")
