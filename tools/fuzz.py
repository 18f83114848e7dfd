#!/usr/bin/env python3
"""Coverage-guided fuzzing of the targets in crates/testing/fuzz, with libFuzzer and the stable toolchain.

    tools/fuzz.py                            every target, some seconds of a processor each
    tools/fuzz.py word control --seconds 600 these targets alone, for longer
    tools/fuzz.py --canaries                 a bug is planted for each target: it must be found, from the seeds alone
    tools/fuzz.py word --input FILE          one input, to see a failure again

Inputs that reached new code are kept in the target directory, and are where the next run begins (but for canaries). An input that fails is
kept too; the command that shows it again is printed. A target that finds nothing has passed if the fuzzer was at work: it counted
coverage, and ran inputs.

The last line is `N passed, N failed, N skipped`; the exit status is 1 if anything failed.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CRATE = os.path.join(ROOT, "crates", "testing", "fuzz")
TARGET = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR") or "target")
# Inputs that are kept, failures, and the programs.
WORK = os.path.join(TARGET, "fuzz")
# A build apart: its flags would undo the others' builds.
BUILD = os.path.join(TARGET, "checks", "fuzz")
# The host's own, given all the same: so the flags below do not go to build scripts and macros.
TRIPLE = "x86_64-unknown-linux-gnu"
# What libFuzzer counts and compares; a panic is a failure, and so is an overflow (profile "fuzz").
FLAGS = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    # Conditions that are tested one after the other stay apart, so that each is a place to reach.
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Dwarnings",
]
VARIABLE = "FARSHORE_FUZZ_TARGET"
# Plants the target's canary, in the build that has them.
CANARY_VARIABLE = "FARSHORE_FUZZ_CANARY"
# Longest input, bytes; and how long one may take, seconds.
LENGTH, PATIENCE = 4096, 10
# A target that ran fewer inputs was not fuzzed.
LEAST_RUNS = 1000
# A canary is looked for until it is found: for this many times the seconds that are asked for, at most, …
CANARY_TIMES = 5
# … and then from the start again, so often: what was kept of one hunt can lead it astray for good.
CANARY_HUNTS = 10
# The seconds are a processor's. On a machine that does much else they take this many times as long, at most.
SLOWEST = 10
# Lines of a failure that are shown.
LINES = 40


class Failed(Exception):
    """A target failed: what to print."""


def targets():
    """The targets, which are named by their seeds; a test of the crate holds the two together."""
    return sorted(os.listdir(os.path.join(CRATE, "seeds")))


def build(*features):
    """Builds the program, with this feature, and puts it where no other build takes its place."""
    names = ["libfuzzer", *features]
    command = ["cargo", "build", "--quiet", "--profile", "fuzz", "-p", "farshore-fuzz", "--features", ",".join(names), "--target", TRIPLE]
    environment = dict(os.environ, CARGO_TARGET_DIR=BUILD, RUSTFLAGS=" ".join(FLAGS))
    done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Failed(f"the build failed: {shlex.join(command)}")
    program = os.path.join(WORK, "-".join(["farshore-fuzz", *features]))
    # Not in its place: another run may be using the one that is there.
    shutil.copy2(os.path.join(BUILD, TRIPLE, "fuzz", "farshore-fuzz"), f"{program}.{os.getpid()}")
    os.replace(f"{program}.{os.getpid()}", program)
    return program


def used(pid):
    """Seconds of a processor that a process has used."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(program, target, arguments, seconds, canary=False):
    """Runs libFuzzer until it has had this much of a processor; returns its exit status and its lines."""
    environment = dict(os.environ, RUST_BACKTRACE="0", **{VARIABLE: target}, **({CANARY_VARIABLE: "1"} if canary else {}))
    command = [program, f"-timeout={PATIENCE}", f"-max_total_time={seconds * SLOWEST}", *arguments]
    with tempfile.TemporaryFile(dir=WORK) as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            # It ends by itself when it is told to, and its alarm ends an input that does not.
            told, deadline = False, time.monotonic() + seconds * SLOWEST + 120
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
                if not told and used(process.pid) >= seconds:
                    process.send_signal(signal.SIGUSR1)
                    told = True
        finally:
            hung = process.poll() is None
            if hung:
                process.kill()
                process.wait()
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    if hung:
        raise Failed(f"{target}: the fuzzer did not end; its last lines:\n" + "\n".join(lines[-LINES:]))
    return process.returncode, lines


def fuzz(program, target, kept, failures, seconds, canary=False):
    """Fuzzes for a time. Returns the input that fails (or None), the lines, and how many inputs were run."""
    prefix = os.path.join(failures, f"{target}-")
    arguments = [f"-max_len={LENGTH}", "-rss_limit_mb=1024", "-print_final_stats=1", f"-artifact_prefix={prefix}"]
    words = os.path.join(CRATE, "dictionaries", f"{target}.dict")
    if os.path.exists(words):
        arguments.append(f"-dict={words}")
    status, lines = run(program, target, [*arguments, kept, os.path.join(CRATE, "seeds", target)], seconds, canary)
    text = "\n".join(lines)
    written = re.findall(r"Test unit written to (\S.*)", text)
    if status != 0:
        return (written[-1] if written else None), lines, 0
    ran = re.search(r"stat::number_of_executed_units: (\d+)", text)
    counters = re.search(r"Loaded \d+ modules\s+\((\d+) inline 8-bit counters\)", text)
    if not ran or not counters or int(counters[1]) == 0 or int(ran[1]) < LEAST_RUNS:
        raise Failed(f"{target}: the fuzzer did not work: it ran {ran[1] if ran else 'no'} inputs, with {counters[1] if counters else 'no'} counters")
    return None, lines, int(ran[1])


def told(lines):
    """What a failure says: the panic and what libFuzzer makes of it, without the way there."""
    start = next((n for n, line in enumerate(lines) if "panicked at" in line or "==ERROR" in line or "ALARM" in line), len(lines))
    return "\n".join(f"    {line}" for line in lines[start:][:LINES] or lines[-LINES:])


def again(target, path):
    """The command that shows a failure again."""
    return shlex.join(["tools/fuzz.py", target, "--input", os.path.relpath(path, ROOT) if path.startswith(ROOT + os.sep) else path])


def hunt(program, target, seconds):
    """One target for a time; what to say of it."""
    kept, failures = os.path.join(WORK, "kept", target), os.path.join(WORK, "failures")
    os.makedirs(kept, exist_ok=True)
    os.makedirs(failures, exist_ok=True)
    found, lines, ran = fuzz(program, target, kept, failures, seconds)
    if ran == 0:
        shown = f"to see it again: {again(target, found)}" if found else "it wrote no input"
        raise Failed(f"{target} FAILS:\n{told(lines)}\n    {shown}")
    covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", "\n".join(lines))
    places, _, inputs = covered[-1] if covered else ("?", "?", "?")
    return f"{target:8} holds: {ran} inputs in {seconds} s, {places} places reached, {inputs} inputs kept"


def find_canary(program, clean, target, seconds):
    """The planted bug must be found from the seeds, and be what fails."""
    all_ran = 0
    for _ in range(CANARY_HUNTS):
        with tempfile.TemporaryDirectory(dir=WORK) as directory:
            found, lines, ran = fuzz(program, target, directory, directory, seconds * CANARY_TIMES, canary=True)
            if ran == 0:
                check_canary(clean, target, found, lines)
                tries = re.findall(r"^#(\d+)\s", "\n".join(lines), re.M)
                return f"{target:8} finds its canary after {all_ran + int(tries[-1] if tries else 0)} inputs or more"
            all_ran += ran
    raise Failed(f"{target}: {all_ran} inputs in {CANARY_HUNTS} times {seconds * CANARY_TIMES} s did not find the canary")


def check_canary(clean, target, found, lines):
    """What was found is the canary."""
    if not found or not os.path.basename(found).startswith(f"{target}-crash-"):
        raise Failed(f"{target}: something else than the canary was found:\n{told(lines)}")
    status, lines_clean = run(clean, target, [found], PATIENCE)
    if status != 0:
        os.makedirs(os.path.join(WORK, "failures"), exist_ok=True)
        kept = shutil.copy(found, os.path.join(WORK, "failures"))
        raise Failed(f"{target} FAILS without its canary too:\n{told(lines_clean)}\n    to see it again: {again(target, kept)}")


def show(program, target, path):
    """Runs one input, with all that it says on the screen."""
    environment = dict(os.environ, **{VARIABLE: target})
    os.chdir(ROOT)
    os.execve(program, [program, path], environment)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*", help=f"these alone: {', '.join(targets())}")
    parser.add_argument("--seconds", type=int, default=12, help="of a processor, for each target")
    parser.add_argument("--canaries", action="store_true", help="find planted bugs")
    parser.add_argument("--input", metavar="FILE", help="run this input alone")
    options = parser.parse_args()
    unknown = [name for name in options.target if name not in targets()]
    if unknown:
        parser.error(f"there is no target {', '.join(unknown)}: it must be one of {', '.join(targets())}")
    if options.input and len(options.target) != 1:
        parser.error("--input needs the name of its target")
    if options.seconds < 1:
        parser.error("--seconds must be at least 1")
    return options


def all_of(jobs):
    """Runs jobs, as many at a time as there are cores; prints what each says, and the counts. The exit status."""
    passed = failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job in [pool.submit(*job) for job in jobs]:
            try:
                print(job.result(), flush=True)
                passed += 1
            except Failed as why:
                print(why, flush=True)
                failed += 1
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def main():
    options = arguments()
    chosen = options.target or targets()
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++")):
        for name in chosen:
            print(f"{name} skipped: no C++ compiler for libFuzzer (apt-get install g++)")
        print(f"0 passed, 0 failed, {len(chosen)} skipped")
        return 0
    os.makedirs(WORK, exist_ok=True)
    try:
        clean = build()
        if options.input:
            show(clean, chosen[0], os.path.abspath(options.input))
        if options.canaries:
            sick = build("canaries")
            return all_of([(find_canary, sick, clean, name, options.seconds) for name in chosen])
        return all_of([(hunt, clean, name, options.seconds) for name in chosen])
    except Failed as why:
        print(f"{why}\n0 passed, 1 failed, 0 skipped")
        return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
