#!/usr/bin/env python3
"""Real programs from Debian in half of the memory that they use: the main job of Farshore, shown in about a minute.

    tools/demo.py [--size small] [--only sort,redis] [--farshore PATH] [--dir DIR]

Each program runs natively once, which tells its results, its time and its peak memory, and then under `farshore run` with a memory
limit of half of that peak. The results are compared byte by byte. The exit status is 0 if all that could be shown gave the same results.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time

# Before our own modules come in: the source tree stays as it is.
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "real"))
import cases  # noqa: E402
import harness  # noqa: E402
from harness import Mode, Unavailable, size_text  # noqa: E402
from run import Way, run_once  # noqa: E402

SHOWN = [cases.Sort, cases.Sqlite, cases.Python, cases.Numpy, cases.RedisServer, cases.ZstdThreads]
SHARE = 1 / 2


def show_case(options, number, case_class):
    """One program: a line while it runs, then its row of the table, and whether it was right (None: it cannot be shown here)."""
    folder = os.path.join(options.work, case_class.name)
    os.makedirs(folder)
    case = case_class(options.size, folder)
    print(f"[{number}/{len(options.only)}] {case.summary}", flush=True)
    try:
        print("      making its input ...", end="", flush=True)
        case.prepare()
    except Unavailable as reason:
        print(f"\n      {case.name} skipped: {reason}")
        return [case.name] + ["-"] * 8 + ["skipped"], None
    print(" running natively ...", end="", flush=True)
    native = run_once(options.way, case, Mode(), options.work, None, None)
    if native.problems:
        print(f" failed natively: {native.problems[0]}")
        return [case.name] + ["-"] * 8 + ["failed natively"], False
    peaks = {step.name: step.peak_rss or 0 for step in native.steps}
    print(f" {native.seconds:.1f} s, {size_text(native.most('rss'))}; under farshore ...", end="", flush=True)
    ours = run_once(options.way, case, Mode(options.fault, SHARE), options.work, native, peaks)
    limit = max((step.limit for step in ours.steps if step.limit), default=0)
    print(f" {ours.seconds:.1f} s in {size_text(limit)}: {'the same result' if not ours.problems else 'FAILED'}", flush=True)
    for problem in ours.problems:
        print(f"      {problem}")
    shutil.rmtree(folder, ignore_errors=True)
    row = [case.name, size_text(native.most("rss")), size_text(limit), size_text(ours.most("resident_bytes_peak")), size_text(ours.most("rss")),
           f"{native.seconds:.1f}", f"{ours.seconds:.1f}", ours.total("swap", "pages_out"), ours.total("swap", "pages_in"), "same" if not ours.problems else "FAILED"]
    return row, not ours.problems


def verdict(came):
    """What to say at the end about what came of each program: right, wrong, or (None) skipped.

    >>> print(verdict([True, True]), verdict([True, None]), verdict([True, False]), verdict([None]), sep="; ")
    2 of 2 results are the same.; 1 of 2 results is the same, 1 program was skipped (see above).; Something is wrong, see above.; Nothing could be shown, see above.
    """
    right, skipped = came.count(True), came.count(None)
    if False in came or not right:
        return "Something is wrong, see above." if False in came else "Nothing could be shown, see above."
    left_out = f", {skipped} {'program was' if skipped == 1 else 'programs were'} skipped (see above)" if skipped else ""
    return f"{right} of {len(came)} results {'is' if right == 1 else 'are'} the same{left_out}."


def named(text):
    """The cases of a list of names."""
    unknown = set(text.split(",")) - {case.name for case in SHOWN}
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}: use {', '.join(case.name for case in SHOWN)}")
    return [case for case in SHOWN if case.name in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("demo", "small"), default="demo", help="how much data: 80 to 300 MiB, or (small) some 30 MiB a program [demo]")
    parser.add_argument("--only", type=named, default=SHOWN, metavar="NAME[,NAME]", help=f"these programs alone: {', '.join(case.name for case in SHOWN)}")
    parser.add_argument("--farshore", help="the farshore command (default: $FARSHORE, else this workspace's build)")
    parser.add_argument("--dir", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where cold pages and input go (default /var/tmp)")
    parser.add_argument("--fault", choices=("upcall", "poll"), default="upcall")
    options = parser.parse_args()
    harness.tidy_on_sigterm()
    farshore = harness.find_farshore(options.farshore)
    options.work = tempfile.mkdtemp(prefix="farshore-demo-", dir=options.dir)
    options.way = Way(farshore, [f"dir:{options.work}"], timeout=300)
    started, rows, came = time.monotonic(), [], []
    print(f"Each program runs natively, then in half of that memory; cold pages go to {options.dir}.\n")
    try:
        for number, case in enumerate(options.only, 1):
            row, right = show_case(options, number, case)
            rows.append(row)
            came.append(right)
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    header = ["program", "uses", "limit", "managed peak", "peak RSS", "native s", "farshore s", "pages out", "pages in", "result"]
    print()
    print("\n".join(harness.table(header, rows, right=header[1:-1])))
    print("\nuses: peak memory natively. limit: --memory. managed peak: what Farshore held locally, never more than the limit.")
    print("peak RSS: the whole process, with its text, libraries, stacks and Farshore's own memory.")
    print(f"{time.monotonic() - started:.0f} s in all. {verdict(came)}")
    return 0 if True in came and False not in came else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
