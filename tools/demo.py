#!/usr/bin/env python3
"""Real programs from Debian in half of the memory that they use: the main job of Farshore, shown in about a minute.

    tools/demo.py [--farshore PATH] [--dir DIR]

Each program runs natively once, which tells its results, its time and its peak memory, and then under `farshore run` with a memory
limit of half of that peak. The results are compared byte by byte.
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
from run import Context  # noqa: E402

SHOWN = [cases.Sort, cases.Sqlite, cases.Python, cases.Numpy, cases.RedisServer, cases.ZstdThreads]
SHARE = 1 / 2


def one_run(options, case, mode, native, peaks):
    """Runs a case in one mode."""
    folder = tempfile.mkdtemp(prefix="run-", dir=options.work)
    context = Context(options, case, mode, folder, native, peaks)
    try:
        case.run(context)
    except Exception as error:  # pylint: disable=broad-except
        context.problem(f"{type(error).__name__}: {error}")
    finally:
        context.abandon()
        shutil.rmtree(folder, ignore_errors=True)
    return context


def show_case(options, number, case_class):
    """One program: a line while it runs, then its row of the table; None if it cannot be shown here."""
    folder = os.path.join(options.work, case_class.name)
    os.makedirs(folder)
    case = case_class("demo", folder)
    print(f"[{number}/{len(SHOWN)}] {case.summary}", flush=True)
    try:
        print("      making its input ...", end="", flush=True)
        case.prepare()
    except Unavailable as reason:
        print(f" skipped: {reason}")
        return None
    print(" running natively ...", end="", flush=True)
    native = one_run(options, case, Mode(), None, None)
    if native.problems:
        print(f" failed natively: {native.problems[0]}")
        return [case.name] + ["-"] * 8 + ["failed natively"], False
    peaks = {step.name: step.peak_rss or 0 for step in native.steps}
    print(f" {native.seconds:.1f} s, {size_text(native.most('rss'))}; under farshore ...", end="", flush=True)
    ours = one_run(options, case, Mode(options.fault, SHARE), native, peaks)
    limit = max((step.limit for step in ours.steps if step.limit), default=0)
    print(f" {ours.seconds:.1f} s in {size_text(limit)}: {'the same result' if not ours.problems else 'FAILED'}", flush=True)
    for problem in ours.problems:
        print(f"      {problem}")
    shutil.rmtree(folder, ignore_errors=True)
    row = [case.name, size_text(native.most("rss")), size_text(limit), size_text(ours.most("resident_bytes_peak")), size_text(ours.most("rss")),
           f"{native.seconds:.1f}", f"{ours.seconds:.1f}", ours.total("swap", "pages_out"), ours.total("swap", "pages_in"), "same" if not ours.problems else "FAILED"]
    return row, not ours.problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--farshore", help="the farshore command (default: $FARSHORE, else this workspace's build)")
    parser.add_argument("--dir", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where cold pages and input go (default /var/tmp)")
    parser.add_argument("--fault", choices=("upcall", "poll"), default="upcall")
    options = parser.parse_args()
    harness.tidy_on_sigterm()
    options.farshore, options.timeout = harness.find_farshore(options.farshore), 300
    options.work = tempfile.mkdtemp(prefix="farshore-demo-", dir=options.dir)
    options.swap = [f"dir:{options.work}"]
    started, rows, right = time.monotonic(), [], True
    print(f"Each program runs natively, then in half of that memory; cold pages go to {options.dir}.\n")
    try:
        for number, case in enumerate(SHOWN, 1):
            shown = show_case(options, number, case)
            if shown:
                rows.append(shown[0])
                right = right and shown[1]
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    header = ["program", "uses", "limit", "managed peak", "peak RSS", "native s", "farshore s", "pages out", "pages in", "result"]
    print()
    print("\n".join(harness.table(header, rows, right=header[1:-1])))
    print("\nuses: peak memory natively. limit: --memory. managed peak: what Farshore held locally, never more than the limit.")
    print("peak RSS: the whole process, with its text, libraries, stacks and Farshore's own memory.")
    print(f"{time.monotonic() - started:.0f} s in all. {'All results are the same.' if right and rows else 'Something is wrong, see above.'}")
    return 0 if right and rows else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
