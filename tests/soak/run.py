#!/usr/bin/env python3
"""A soak: stress-ng, which checks what it writes, under Farshore, while the limit changes and the swap space fails.

    tests/soak/run.py                      ten minutes (`make test-long`)
    tests/soak/run.py --seconds 40         `make test`
    tests/soak/run.py --seed 4711          the rounds of that seed again: the same stressors, limits and injected faults

In rounds of `ROUND` seconds, each with a seed of its own, stress-ng runs its memory, process and signal stressors with `--verify`. Meanwhile

- the limit of every process that Farshore manages goes to a random value from 16 to 512 MiB, once or twice a second;
- the swap space fails at random, in ways that can be recovered from: reads and writes that fail, end early, bring a wrong bit or take long
  (FARSHORE_FAULTY; a read is tried three times, so the rates make three failures in a row once in years);
- each second, each process is asked where its frames are: free + cached + taken = limit + debt (rule 4), or a frame leaked.

A round fails if stress-ng says so (a wrong byte, a stressor that could not work), if a process was ended by a signal that is not
the stressor's own, if anything is on stderr that Farshore says of itself, if frames are missing, or if it does not end: then all its processes are
described (threads, kernel stacks, backtraces) and killed. A stressor that did nothing in any round fails a soak of several rounds; in a short one, where a
busy machine may not have come to it, it counts as skipped. Before a long soak, stress-ng runs natively for a short time: stressors that this machine
does not let work are named and left out.

The last line is `N passed, N failed, N skipped`, of rounds.
"""

import argparse
import json
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "real"))
sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MIB, Unavailable  # noqa: E402

ROUND = 40
# In as many rounds each stressor gets to do something.
ROUNDS_FOR_ALL = 5
NATIVE_SECONDS = 4
LIMITS = (16, 512)
# Beyond the end of its time, before a round counts as hung.
GRACE = 150
# Times that a process is asked until its frames add up: others move them while they are counted.
LOOKS = 40
# What is injected, and how often: 0.0015³ is one lost page in 300 million reads.
FAULTY = "read_error=0.0005,short_read=0.0005,corrupt=0.0005,write_error=0.001,short_write=0.001,delay=0.02,delay_time=2ms"

# Stressors, and options of them. Two at a time each, so that they meet. `{n}`: MiB, chosen by the round; `{half}` of them.
STRESSORS = {
    "vm": "--vm 2 --vm-bytes {half}M --vm-method all",
    "mmap": "--mmap 2 --mmap-bytes {half}M --mmap-mprotect",
    "mmapfork": "--mmapfork 1",
    "mmapfixed": "--mmapfixed 1",
    "mmapmany": "--mmapmany 1",
    "mremap": "--mremap 2 --mremap-bytes {half}M",
    "madvise": "--madvise 2",
    "mincore": "--mincore 1",
    "mlock": "--mlock 1",
    "mprotect": "--mprotect 1",
    "fork": "--fork 2 --fork-vm",
    "vfork": "--vfork 1",
    "clone": "--clone 1 --clone-max 16",
    "pthread": "--pthread 2 --pthread-max 128",
    "malloc": "--malloc 2 --malloc-bytes {n}M --malloc-touch",
    "brk": "--brk 2",
    "bigheap": "--bigheap 1 --bigheap-growth 64K",
    "stack": "--stack 1",
    "sigsegv": "--sigsegv 2",
    "sigfpe": "--sigfpe 1",
    "sigq": "--sigq 1",
    "sigsuspend": "--sigsuspend 1",
    "bad-altstack": "--bad-altstack 1",
    "fault": "--fault 1",
    "memthrash": "--memthrash 1",
    "qsort": "--qsort 1 --qsort-size 262144",
    "zlib": "--zlib 1",
    "mergesort": "--mergesort 1",
    "pipe": "--pipe 1",
    "futex": "--futex 1",
}
# In every round: what the others only add to.
ALWAYS = ("vm", "mmap", "mremap", "madvise", "fork", "clone", "pthread", "malloc", "brk", "sigsegv")
# Of the others, so many in a round.
MORE = 4


def stress_argv(names, seconds, seed, choice, report):
    """The command line of stress-ng for these stressors."""
    argv = [harness.need("stress-ng", "stress-ng"), "--verify", "--timeout", f"{seconds}s", "--seed", str(seed), "--metrics", "--yaml", report, "--keep-name"]
    for name in names:
        size = choice.randrange(24, 96)
        argv += STRESSORS[name].format(n=size, half=size // 2).split()
    return argv


def operations(report):
    """{stressor: operations} of stress-ng's report (YAML, of which two keys are wanted)."""
    text = harness.read_text(report)
    return {name: int(float(count)) for name, count in re.findall(r"^ *- stressor: (\S+)\n *bogo-ops: (\S+)$", text, re.M)}


# ---------------------------------------------------------------------------------------------------- the control socket


def ask(pid, uid, request):
    """One request to a managed process; its answer, or None if it is gone or is not managed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(10)
            client.connect(f"\0farshore-{uid}-{pid}")
            client.sendall(json.dumps(request).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                piece = client.recv(1 << 16)
                if not piece:
                    return None
                data += piece
    except (ConnectionError, FileNotFoundError, socket.timeout, TimeoutError) as error:
        return {"silent": str(error)} if isinstance(error, (socket.timeout, TimeoutError)) and alive(pid) else None
    return json.loads(data)


def alive(pid):
    """Whether a process runs (a stopped or dead one cannot answer)."""
    fields = harness.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(fields) and fields[0] in "RSD"


def managed_processes(session):
    """Processes of a session that have a control socket, as (process, user)."""
    names = set(re.findall(r"@farshore-(\d+)-(\d+)$", harness.read_text("/proc/net/unix", 1 << 24), re.M))
    wanted = set(harness.session_pids(session))
    return [(int(pid), int(uid)) for uid, pid in sorted(names) if int(pid) in wanted]


# ---------------------------------------------------------------------------------------------------- a round


class Round:
    """One run of stress-ng under farshore, what is done to it, and what was seen."""

    def __init__(self, options, work, number, names, seconds, done):
        self.done = done
        self.options, self.number, self.names, self.seconds = options, number, names, seconds
        self.seed = options.seed + number
        self.choice = random.Random(f"farshore soak {self.seed}")
        self.work = os.path.join(work, f"round-{number}")
        os.makedirs(self.work)
        self.problems, self.checks, self.changes, self.processes = [], 0, 0, set()
        self.evicted, self.injected, self.low, self.high = {}, {}, None, None

    def pick(self):
        """The stressors of this round."""
        always = [name for name in ALWAYS if name in self.names]
        others = [name for name in self.names if name not in ALWAYS]
        return always + sorted(self.choice.sample(others, min(MORE, len(others))))

    def run(self):
        """Runs it to its end; whether all was well."""
        chosen = self.pick()
        report = os.path.join(self.work, "report.yaml")
        argv = stress_argv(chosen, self.seconds, self.seed, self.choice, report)
        limit = self.choice.randrange(*LIMITS) * MIB
        command = harness.farshore_argv(self.options.farshore, argv, limit, swap=self.options.swap)
        env = {**os.environ, "FARSHORE_FAULTY": f"seed={self.seed},{FAULTY}", "LC_ALL": "C", "TMPDIR": self.work}
        with open(os.path.join(self.work, "stdout"), "wb") as out:
            process = harness.Process(command, self.work, self.seconds + GRACE, stdout=out, env=env, cwd=self.work)
            try:
                self.watch(process)
            except BaseException:
                process.kill_session()
                raise
            outcome = process.finish()
        left = harness.session_pids(process.popen.pid)
        process.kill_session()
        self.judge(outcome, chosen, report, left)
        return not self.problems

    def watch(self, process):
        """Until it ends: limits change, frames are counted."""
        next_check = next_change = time.monotonic()
        while process.alive():
            now = time.monotonic()
            everyone = managed_processes(process.popen.pid)
            if now >= next_check:
                next_check = now + 1
                for pid, uid in everyone:
                    self.check_frames(pid, uid)
            if now >= next_change:
                next_change = now + self.choice.uniform(0.3, 1.5)
                for pid, uid in everyone:
                    self.change_limit(pid, uid)
            time.sleep(0.1)

    def change_limit(self, pid, uid):
        """Another limit for one process, at random."""
        answer = ask(pid, uid, {"op": "set", "key": "memory", "value": f"{self.choice.randrange(*LIMITS)}M"})
        if answer and answer.get("ok"):
            self.changes += 1
        elif answer:
            self.problems.append(f"process {pid}: the limit could not be set: {answer.get('error') or answer}")

    def check_frames(self, pid, uid):
        """Rule 4 for one process. Frames move while they are counted, so one that is missing must be so at every look."""
        least = None
        for _ in range(LOOKS):
            answer = ask(pid, uid, {"op": "stat"})
            if answer is None:
                return
            if "silent" in answer:
                self.problems.append(f"process {pid} does not answer: {answer['silent']}")
                return
            frames = answer["frames"]
            missing = frames["limit"] + frames["debt"] - frames["free"] - frames["cached"] - frames["taken"]
            least = missing if least is None or abs(missing) < abs(least) else least
            if missing == 0:
                break
            time.sleep(0.01)
        self.checks += 1
        self.processes.add(pid)
        self.evicted[pid], self.injected[pid] = answer["evictions"]["pages"], answer["swap"]["errors"]
        if least:
            self.problems.append(f"process {pid}: {least} frames are missing (limit + debt - free - cached - taken): {frames}")

    def judge(self, outcome, chosen, report, left):
        """What was wrong, at the end."""
        if outcome.timed_out:
            self.problems.append(f"no end {GRACE} s after its time")
            self.keep("hung", outcome.picture)
        elif outcome.status != 0:
            self.problems.append(f"exit status {outcome.status}")
        self.keep("stderr", outcome.stderr)
        said = outcome.stderr + harness.read_text(os.path.join(self.work, "stdout"), 1 << 24)
        self.problems += list(dict.fromkeys(line for line in said.splitlines() if wrong_line(line)))[:20]
        done = operations(report)
        for name in chosen:
            self.done[name] = self.done.get(name, 0) + done.get(name, 0)
        if left and not outcome.timed_out:
            self.problems.append(f"{len(left)} processes were left behind")
        if self.checks == 0 or self.changes == 0:
            self.problems.append(f"{self.checks} checks of frames and {self.changes} changes of limits were made: nothing was tested")
        if not sum(self.evicted.values()):
            self.problems.append("no page was evicted: nothing was tested")
        self.operations = sum(done.values())

    def keep(self, name, text):
        """Into a file of the round's directory."""
        with open(os.path.join(self.work, name), "w", encoding="utf-8") as file:
            file.write(text)

    def line(self):
        """The round in a line."""
        return (f"round {self.number}, seed {self.seed}: {'as it should' if not self.problems else 'FAILED'}; {self.operations} operations, {len(self.processes)} processes asked, "
                f"{self.checks} checks of frames, {self.changes} limits, {sum(self.evicted.values())} pages evicted, {sum(self.injected.values())} injected errors survived")


def wrong_line(line):
    """Whether a line of stress-ng or of Farshore tells that something is wrong.

    >>> [wrong_line(line) for line in ["stress-ng: fail:  [1] vm: detected 3 bit errors", "stress-ng: info:  [1] ok", "farshore: page 0x1 is lost", "stress-ng: error: [7] x"]]
    [True, False, True, True]
    """
    return bool(re.match(r"stress-ng: (fail|error):", line) or line.startswith("farshore: "))


# ---------------------------------------------------------------------------------------------------- everything


def works_natively(work, names):
    """Stressors that work on this machine without Farshore; the others with what they said."""
    good, bad = [], {}
    for name in names:
        report = os.path.join(work, f"native-{name}.yaml")
        argv = stress_argv([name], NATIVE_SECONDS, 1, random.Random(1), report)
        # Some at a time would do, but then nobody knows whose failure it is.
        outcome = harness.run(argv, work, NATIVE_SECONDS + 60, cwd=work)
        said = [line for line in outcome.stderr.splitlines() if wrong_line(line)]
        if outcome.status == 0 and not said and operations(report).get(name, 0):
            good.append(name)
        else:
            bad[name] = said[0] if said else f"exit status {outcome.status}, {operations(report).get(name, 0)} operations"
    return good, bad


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="of all rounds together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="what the rounds follow from")
    parser.add_argument("--only", help="these stressors alone")
    parser.add_argument("--without", default="", help="not these stressors")
    parser.add_argument("--farshore", help="the command to test")
    parser.add_argument("--swap", action="append", default=[], metavar="SPEC", help="swap space for farshore")
    parser.add_argument("--logs", default=os.path.join(harness.target_dir(), "soak-logs"), help="where failed rounds keep what they printed")
    options = parser.parse_args()
    if options.seconds < 5:
        parser.error(f"--seconds {options.seconds}: at least 5")
    return options


def main():
    options = arguments()
    harness.tidy_on_sigterm()
    options.farshore = harness.find_farshore(options.farshore)
    try:
        harness.need("stress-ng", "stress-ng")
    except Unavailable as why:
        print(f"skipped: {why}\n0 passed, 0 failed, 1 skipped")
        return 0
    work = tempfile.mkdtemp(prefix="farshore-soak-", dir=os.environ.get("FARSHORE_SWAP_DIR") or "/var/tmp")
    shutil.rmtree(options.logs, ignore_errors=True)
    failed = passed = 0
    done = {}
    try:
        wanted = options.only.split(",") if options.only else list(STRESSORS)
        wanted = [name for name in wanted if name not in options.without.split(",")]
        if options.seconds > 120:
            names, bad = works_natively(work, wanted)
        else:
            names, bad = wanted, {}
        for name, why in bad.items():
            print(f"left out: {name} does not work natively: {why}", flush=True)
        rounds = max(1, round(options.seconds / ROUND))
        print(f"{rounds} rounds of {options.seconds // rounds} s, seed {options.seed}, {len(names)} stressors", flush=True)
        for number in range(rounds):
            one = Round(options, work, number, names, options.seconds // rounds, done)
            good = one.run()
            passed, failed = passed + good, failed + (not good)
            print(one.line(), flush=True)
            for problem in one.problems[:30]:
                print(f"    {problem[:300]}", flush=True)
            if not good:
                shutil.copytree(one.work, os.path.join(options.logs, os.path.basename(one.work)), dirs_exist_ok=True)
                print(f"    logs: {options.logs}/{os.path.basename(one.work)}; again: tests/soak/run.py --seconds {options.seconds // rounds} --seed {one.seed}", flush=True)
            shutil.rmtree(one.work, ignore_errors=True)
        idle = [name for name, count in done.items() if count == 0]
        skipped = 0 if rounds >= ROUNDS_FOR_ALL else len(idle)
        failed += bool(idle) and not skipped
        if idle and not skipped:
            print(f"did nothing in any round: {', '.join(idle)}")
        for name in idle if skipped else []:
            print(f"{name} skipped: it has not come to its work in {rounds} rounds (in {ROUNDS_FOR_ALL} it must)")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
