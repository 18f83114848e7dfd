#!/usr/bin/env python3
"""How many guests one budget of RAM has room for, while each of them still answers in time (root).

    tools/density.py [--budget MIB] [--guest MIB] [--data MIB] [--rate N] [--seconds N] [--p99 MS] [--most N] [--step N] [--targets NAME,…] [--farshore COMMAND] [--out FOLDER]

Guests are machines of QEMU's (emulated, one processor each) with Debian's kernel and one program, which has DATA MiB in memory and answers requests on a serial line: for each it reads, checks and changes 100 pages, nine of ten in a
tenth of its data. Requests come to each guest RATE times a second on average, whether it has answered the last one or not. Guests are added one by one, up to MOST; at each STEP beyond what the budget holds natively the answers of SECONDS
seconds are measured, after as many that are not. A target ends where the 99th percentile of the times to an answer is above P99 twice. Then each guest checks all of its data.

| target | what it is |
|---|---|
| farshore | `farshore vm run --budget`, a swap file. One manager is killed (kill -9) before the data are checked |
| linux-swap | a memory cgroup around all guests, a swap file on the same disk. What QEMU has for itself comes on top, as it is natively |
| paused | the same, and a guest is stopped when it has had no request for a second, until the next one |
| zram | the same cgroup, compressed RAM in place of the swap file; what that takes counts |
| balloon | each guest gives up what is above its part of the budget, by its balloon; it ends where a guest has no memory for its program |

Memory beside the guests' own, of managers and of zram, is added to the budget: guests per GiB are of both together. `farshore` runs with what `--farshore` says after its name, such as 'target/release/farshore'.
With --out it writes table.md, results.json and, with Debian's python3-matplotlib, chart.svg. Nothing else may run meanwhile.
"""

import argparse
import contextlib
import json
import os
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tests", place) for place in ("real", "kernels")]

import harness  # noqa: E402
import kernels  # noqa: E402
from mapped import Cgroup  # noqa: E402
from programs import MIB  # noqa: E402

TOUCHES = 100
TARGETS = ("farshore", "linux-swap", "paused", "zram", "balloon")
# How long a guest may take until it is ready, and for an answer.
PATIENCE = 120
# A cgroup has so much more, for what of QEMU's files is counted there.
MARGIN = 8 * MIB
# A guest is idle that has had no request for so long, in seconds.
IDLE, PAUSE = 5, 1


def memory_of(pid, kinds):
    """Memory of a process of these kinds, as /proc/PID/status has them, in bytes."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.split(":")[0] in kinds)


class Guest:
    """A machine, its serial line and its monitor."""

    def __init__(self, number, words, argv, folder, join=None):
        self.line_path, self.monitor_path = (os.path.join(folder, f"{what}-{number}") for what in ("line", "monitor"))
        self.serial = os.path.join(folder, f"serial-{number}")
        more = ["-serial", f"file:{self.serial}", "-chardev", f"socket,id=line,path={self.line_path},server=on,wait=on", "-serial", "chardev:line", "-qmp", f"unix:{self.monitor_path},server=on,wait=off"]
        self.console = os.path.join(folder, f"console-{number}")
        with open(self.console, "wb") as out:
            self.process = subprocess.Popen([*words, *argv, *more], stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=join, start_new_session=True)
        self.line, self.monitor, self.input, self.waiting, self.stopped, self.asked = None, None, b"", [], False, 0.0
        self.last = time.monotonic()

    def said(self):
        """What it and its manager have said so far."""
        with open(self.console, encoding="utf-8", errors="replace") as file:
            return file.read()

    def connect(self):
        """Waits until its program is ready."""
        end = time.monotonic() + PATIENCE
        self.line = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.line.connect(self.line_path)
                break
            except OSError:
                self.check(end)
                time.sleep(0.05)
        self.line.settimeout(0.2)
        while b"ready\n" not in self.input:
            with contextlib.suppress(TimeoutError):
                self.input += self.line.recv(4096)
            self.check(end)
        self.input = b""
        self.line.setblocking(False)

    def check(self, end):
        """It runs, and is not late."""
        if self.process.poll() is not None or time.monotonic() > end:
            raise Full(f"a guest does not come up: {harness.read_text(self.serial)[-300:] or self.said()[-300:]}")

    def tell(self, command, **arguments):
        """Tells QEMU's monitor something."""
        if self.monitor is None:
            self.monitor = socket.socket(socket.AF_UNIX)
            self.monitor.settimeout(PATIENCE)
            self.monitor.connect(self.monitor_path)
            self.monitor.recv(4096)
            self.tell("qmp_capabilities")
        answer = b""
        with contextlib.suppress(ConnectionError):
            self.monitor.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            while b'"return"' not in answer and b'"error"' not in answer and (piece := self.monitor.recv(1 << 16)):
                answer += piece
        if not answer:
            raise Full(f"a guest has ended: {harness.read_text(self.serial)[-300:]}")
        if b'"error"' in answer:
            raise SystemExit(f"QEMU's monitor refuses {command}: {answer.decode()}")
        return next(told["return"] for told in map(json.loads, answer.splitlines()) if "return" in told)

    def pause(self, stop):
        """Stops its processor, or lets it go on."""
        if stop != self.stopped:
            self.stopped = stop
            self.tell("stop" if stop else "cont")

    def ask(self, number, now):
        """Sends a request; its time to an answer begins now."""
        self.waiting.append((number, now, now - self.last))
        self.last = now
        self.line.setblocking(True)
        self.line.sendall(f"{number} {TOUCHES}\n".encode())
        self.line.setblocking(False)

    def answers(self):
        """What has come: for each answer how long it took, and how long the guest had had no request before."""
        now = time.monotonic()
        piece = self.line.recv(4096)
        if not piece:
            raise Full(f"a guest has ended: {harness.read_text(self.serial)[-300:]}")
        self.input += piece
        *lines, self.input = self.input.split(b"\n")
        for line in lines:
            number, asked, idle = self.waiting.pop(0)
            if line != f"{number} ok".encode():
                raise SystemExit(f"a wrong answer: {line} to {number}")
            yield now - asked, idle

    def check_all(self):
        """All of its data are as they were left."""
        self.pause(False)
        self.line.setblocking(True)
        self.line.settimeout(PATIENCE)
        self.line.sendall(b"all\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += self.line.recv(4096)
        if answer != b"all ok\n":
            raise SystemExit(f"the data of a guest are not as they were left: {answer}")

    def end(self):
        """Ends it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Full(Exception):
    """The target has no room for one more. `begun`: that one has begun."""

    def __init__(self, why, begun=True):
        super().__init__(why)
        self.begun = begun


class Target:
    """What guests run under."""

    def __init__(self, name, options, folder, own):
        self.name, self.options, self.folder, self.stack = name, options, folder, contextlib.ExitStack()
        self.budget, self.own, self.guests = options.budget * MIB, own, []

    def __enter__(self):
        if self.name in ("linux-swap", "paused", "zram", "balloon"):
            self.group = self.stack.enter_context(contextlib.closing(Cgroup(self.budget + MARGIN)))
        if self.name in ("linux-swap", "paused"):
            self.swap_on(self.swap_file())
        if self.name == "zram":
            self.swap_on(self.zram())
        return self

    def __exit__(self, *_):
        for guest in self.guests:
            guest.end()
        if self.name == "farshore":
            wait_until(lambda: not self.managers(), "managers end")
        self.stack.close()

    def swap_file(self):
        """A file for all that guests have."""
        path = os.path.join(self.folder, "swap")
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.options.most * (self.options.guest + 64) * MIB)
        os.chmod(path, 0o600)
        return path

    def zram(self):
        """A device of compressed RAM."""
        with open("/sys/class/zram-control/hot_add", encoding="ascii") as file:
            self.device = int(file.read())
        self.stack.callback(self.write, "/sys/class/zram-control/hot_remove", self.device)
        place = f"/sys/block/zram{self.device}"
        self.write(f"{place}/comp_algorithm", "lz4")
        self.write(f"{place}/disksize", self.options.most * self.options.guest * MIB)
        return f"/dev/zram{self.device}"

    @staticmethod
    def write(path, what):
        """Writes a setting of the kernel's."""
        with open(path, "w", encoding="ascii") as file:
            file.write(str(what))

    def swap_on(self, path):
        """The kernel swaps there."""
        subprocess.run(["mkswap", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(["swapon", "-p", "100", path], check=True)
        self.stack.callback(subprocess.run, ["swapoff", path], check=True)

    def managers(self):
        """The processes that manage guests."""
        said = (re.search(r"manager (\d+)", guest.said()) for guest in self.guests)
        return [int(found[1]) for found in said if found and os.path.exists(f"/proc/{found[1]}")]

    def beside(self):
        """Memory that the guests' costs beside their own, in bytes."""
        if self.name == "zram":
            with open(f"/sys/block/zram{self.device}/mm_stat", encoding="ascii") as file:
                return int(file.read().split()[2])
        return sum(memory_of(pid, ("RssAnon",)) for pid in self.managers())

    def add(self, argv):
        """One guest more."""
        words, join = [], None
        if self.name == "farshore":
            budget = f"density-{os.getpid()}" + ("" if self.guests else f"={self.options.budget}M")
            words = [*self.options.farshore.split(), "vm", "run", "--budget", budget, "--memory-min", "4M", "--swap", f"dir:{self.folder}", "--"]
        else:
            # What QEMU has for itself is beside the budget.
            self.group.set_limit(self.budget + MARGIN + (len(self.guests) + 1) * self.own)
            join = self.group.join
        if self.name == "balloon":
            argv = [*argv, "-device", "virtio-balloon-pci"]
            # It boots with all of its memory, which the others give up first.
            self.inflate(self.budget - self.options.guest * MIB)
        guest = Guest(len(self.guests), words, argv, self.folder, join)
        self.guests.append(guest)
        guest.connect()
        if self.name == "balloon":
            self.inflate(self.budget)

    def inflate(self, budget):
        """Guests keep so much together, and have given up the rest."""
        if not self.guests:
            return
        wanted, end = min(budget // len(self.guests), self.options.guest * MIB), time.monotonic() + PATIENCE / 4
        for guest in self.guests:
            guest.tell("balloon", value=wanted)
        while any(guest.tell("query-balloon")["actual"] > wanted + MIB for guest in self.guests):
            if time.monotonic() > end:
                raise Full(f"guests do not give up what is above {wanted // MIB} MiB", False)
            time.sleep(0.2)


def wait_until(is_so, what):
    """Waits for something that comes soon."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"it does not come to be: {what}")
        time.sleep(0.05)


def load(target, seconds, rate, pick):
    """Requests for so long: the times to answers in seconds, and of those of guests that were idle before."""
    guests, times, after = target.guests, [], []
    due = [time.monotonic() + pick.expovariate(rate) for _ in guests]
    end, number = time.monotonic() + seconds, 0
    with selectors.DefaultSelector() as selector:
        for guest in guests:
            selector.register(guest.line, selectors.EVENT_READ, guest)
        while True:
            now = time.monotonic()
            waiting = [guest for guest in guests if guest.waiting]
            if now >= end and not waiting:
                return times, after
            if waiting and now - min(guest.waiting[0][1] for guest in waiting) > PATIENCE:
                raise Full(f"no answer in {PATIENCE} s")
            for index, guest in enumerate(guests):
                if now < end and due[index] <= now:
                    guest.pause(False)
                    number += 1
                    guest.ask(pick.getrandbits(60), due[index])
                    due[index] += pick.expovariate(rate)
                elif target.name == "paused" and not guest.waiting and now - guest.last > PAUSE:
                    guest.pause(True)
            for key, _ in selector.select(max(0.0, min(0.05, min(due) - time.monotonic()))):
                for took, idle in key.data.answers():
                    times.append(took)
                    if idle >= IDLE:
                        after.append(took)


def quantile(times, part):
    """That quantile, in ms."""
    return sorted(times)[min(len(times) - 1, int(part * len(times)))] * 1000 if times else float("nan")


def own_memory(options, argv, folder):
    """What QEMU has for itself beside the guest's memory, in bytes, after some requests."""
    shared = ["-object", f"memory-backend-memfd,id=all,size={options.guest}M,share=on", "-machine", "memory-backend=all"]
    guest = Guest(0, [], [*argv, *shared], folder)
    try:
        guest.connect()
        alone = argparse.Namespace(guests=[guest], name="native")
        times, _ = load(alone, options.seconds, options.rate, random.Random(1))
        return memory_of(guest.process.pid, ("RssAnon",)), quantile(times, 0.99)
    finally:
        guest.end()


def measure(name, options, argv, folder, own):
    """All numbers of guests of one target: for each a row."""
    rows, natively = [], options.budget // options.guest
    place = tempfile.mkdtemp(prefix=f"{name}-", dir=folder)
    os.chmod(place, 0o755)
    with Target(name, options, place, own) as target:
        pick, why = random.Random(4711), "no more were asked for"
        try:
            while len(target.guests) < options.most:
                target.add(argv)
                if len(target.guests) < natively or (len(target.guests) - natively) % options.step:
                    continue
                load(target, options.seconds, options.rate, pick)
                times, after = load(target, options.seconds, options.rate, pick)
                if quantile(times, 0.99) > options.p99:
                    # Once more: it may not have come to rest, and it may have been something else on this machine.
                    times, after = load(target, options.seconds, options.rate, pick)
                rows.append({"guests": len(target.guests), "p50_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99), "resume_ms": quantile(after, 0.5), "resumes": len(after),
                             "answers": len(times), "beside_bytes": target.beside()})
                print(f"{name}: {rows[-1]['guests']} guests, p50 {rows[-1]['p50_ms']:.1f} ms, p99 {rows[-1]['p99_ms']:.1f} ms, of idle ones {rows[-1]['resume_ms']:.1f} ms, "
                      f"{rows[-1]['beside_bytes'] / MIB:.0f} MiB beside", flush=True)
                if rows[-1]["p99_ms"] > options.p99:
                    why = f"above {options.p99:g} ms"
                    break
        except Full as full:
            why = " ".join(str(full).split())
            if full.begun:
                target.guests.pop().end()
        if name == "balloon":
            # Those whose program had no memory have ended.
            time.sleep(2)
            target.guests = [guest for guest in target.guests if guest.process.poll() is None]
        if name == "farshore":
            os.kill(target.managers()[0], signal.SIGKILL)
        for guest in target.guests:
            guest.check_all()
        print(f"{name}: {len(target.guests)} guests have their data as they left them; the end: {why}", flush=True)
    shutil.rmtree(place)
    return {"name": name, "rows": rows, "end": why}


def density(found, options):
    """The most guests in time, and how many that are for a GiB."""
    fit = [row for row in found["rows"] if row["p99_ms"] <= options.p99]
    if not fit:
        return None
    best = max(fit, key=lambda row: row["guests"])
    return best, best["guests"] / ((options.budget * MIB + best["beside_bytes"]) / 1024 / MIB)


def table(results, options, own, native):
    """The page."""
    lines = [f"{options.budget} MiB for the memory of guests of {options.guest} MiB, {options.data} of them data; {options.rate:g} requests a second to each, {TOUCHES} pages each; at most {options.p99:g} ms for 99 % of the answers. "
             f"A guest alone: {native:.1f} ms. QEMU's own memory, {own / MIB:.0f} MiB each, is beside all.", "",
             "| target | guests | guests/GiB | to natively | p99, ms | a guest that was idle for 5 s, median, ms | MiB beside | what ended it |", "|---|---|---|---|---|---|---|---|"]
    natively = options.budget // options.guest
    lines.append(f"| no far memory | {natively} | {natively * 1024 / options.budget:.1f} | 1.0 | | | | |")
    for found in results:
        if (best := density(found, options)) is None:
            lines.append(f"| {found['name']} | none | | | | | | {found['end']} |")
            continue
        row, per = best
        lines.append(f"| {found['name']} | {row['guests']} | {per:.1f} | {per / (natively * 1024 / options.budget):.2f} | {row['p99_ms']:.1f} | {row['resume_ms']:.1f} ({row['resumes']}) | {row['beside_bytes'] / MIB:.0f} | {found['end'][:80]} |")
    return "\n".join(lines) + "\n"


def chart(results, options, path):
    """The time of 99 % of the answers over the number of guests, a line for each target."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("no chart: apt-get install python3-matplotlib, and run by /usr/bin/python3", file=sys.stderr)
        return
    matplotlib.use("svg")
    from matplotlib import pyplot
    _, axes = pyplot.subplots(figsize=(8, 4.5))
    for found in results:
        per = [row["guests"] / ((options.budget * MIB + row["beside_bytes"]) / 1024 / MIB) for row in found["rows"]]
        axes.plot(per, [row["p99_ms"] for row in found["rows"]], marker="o", label=found["name"])
    axes.axhline(options.p99, color="grey", linestyle=":")
    axes.axvline(1024 / options.guest, color="grey", linestyle=":")
    axes.set(xlabel="guests for each GiB (dotted: as many as fit without far memory)", ylabel="99 % of answers within, ms", yscale="log")
    axes.legend()
    pyplot.tight_layout()
    pyplot.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("budget", 512), ("guest", 128), ("data", 48), ("most", 20), ("step", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N" if name in ("most", "step") else "MIB")
    for name, default in (("rate", 0.5), ("seconds", 10.0), ("p99", 50.0)):
        parser.add_argument(f"--{name}", type=float, default=default, metavar="N")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--farshore", default=os.path.join(ROOT, "target", "release", "farshore"), metavar="COMMAND")
    parser.add_argument("--out", metavar="FOLDER")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("needs root: for cgroups and swap")
    if unknown := set(options.targets.split(",")) - set(TARGETS):
        raise SystemExit(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    # Guests, swap and cgroups go with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="farshore-density-", dir=os.environ.get("FARSHORE_SWAP_DIR") or "/var/tmp") as folder:
        os.chmod(folder, 0o755)
        argv = kernels.plain_guest(folder, "packed", options.guest, 1, ["requested"], [("size", options.data)], modules=True)
        own, native = own_memory(options, argv, folder)
        print(f"a guest alone: p99 {native:.1f} ms; QEMU itself has {own / MIB:.0f} MiB", flush=True)
        results = [measure(name, options, argv, folder, own) for name in options.targets.split(",")]
    page = table(results, options, own, native)
    print(page)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "table.md"), "w", encoding="ascii") as file:
            file.write(page)
        with open(os.path.join(options.out, "results.json"), "w", encoding="ascii") as file:
            json.dump({"options": vars(options), "own_bytes": own, "native_p99_ms": native, "targets": results}, file, indent=1)
        chart(results, options, os.path.join(options.out, "chart.svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
