#!/usr/bin/env python3
"""What pages of another machine's memory cost, beside what the socket and other people's client and server give on the same machine.

    tools/remote.py [--rounds N] [--seconds N] [--farshore COMMAND] [--out FILE]

| row | is set against |
|---|---|
| random reads, one thread, `farshore node`: the median of an access, three of four of which fetch | a bare answer of 4 KiB to a question of 28 bytes over TCP (tests/programs/echo.c) |
| random reads, 8 threads, `nbdkit memory`: pages a second | the same server read by fio's libnbd client, the best of its depths |
| `farshore node` as a server: fio's libnbd client, the best of its depths | `nbdkit memory` |
| reading in order, half local, `farshore node`: bytes a second | one direction of the loopback's TCP |

All by the loopback (TCP). Each round measures all of them, one after another; a ratio is the median of the rounds' ratios, with their range. It needs Debian's fio and nbdkit. Pages are encrypted on
their way, as they are where nothing is said; with --no-encrypt they are not. On a machine that does other work the figures say nothing.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tests", "real")]

import harness  # noqa: E402

SIZE = 256 << 20
DEPTHS = (8, 32, 64)


class Servers:
    """A node and an nbdkit, each with room for all."""

    def __init__(self, options, stack):
        self.ports = {name: harness.free_port() for name in ("node", "nbdkit")}
        node = [*options.farshore.split(), "node", "--listen", f"127.0.0.1:{self.ports['node']}", "--memory", str(4 * SIZE), "--keep", "1"]
        nbdkit = [harness.need("nbdkit", "nbdkit"), "-f", "-i", "127.0.0.1", "-p", str(self.ports["nbdkit"]), "memory", str(2 * SIZE)]
        for argv in (node, nbdkit):
            stack.enter_context(running(argv))
        self.exports = 0

    def uri(self, name):
        """An export that nobody has used; nbdkit has one."""
        self.exports += 1
        return f"nbd://127.0.0.1:{self.ports[name]}/" + (f"e{self.exports}" if name == "node" else "")


@contextlib.contextmanager
def running(argv):
    """A server, until the end."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        if process.poll() is not None:
            raise SystemExit(f"{' '.join(argv)}: ended with status {process.returncode}")
        yield
    finally:
        process.kill()
        process.wait()


def read_out(argv):
    """What a command prints."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}: status {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    return done.stdout.decode()


def under_farshore(options, swap, workload, memory):
    """A workload under Farshore: what it printed, its counters, and its measured seconds."""
    with tempfile.NamedTemporaryFile(suffix=".json") as stats:
        words = [*options.farshore.split(), "run", "--memory", str(memory), "--swap", swap, "--stats", stats.name, *(["--no-encrypt"] if options.no_encrypt else [])]
        if workload[0] == "random":
            words += ["--prefetch", "none"]
        out = read_out([*words, "--", harness.find_load(), *workload])
        return out, json.load(stats)


def fio(options, uri):
    """4 KiB reads a second at random, by the best depth."""
    best = 0.0
    for depth in DEPTHS:
        argv = [harness.need("fio", "fio"), "--name=reads", "--ioengine=nbd", f"--uri={uri}", "--rw=randread", "--bs=4k", f"--iodepth={depth}", f"--size={SIZE}", "--time_based",
                f"--runtime={options.seconds}", "--output-format=json"]
        found = json.loads(re.search(r"^\{.*", read_out(argv), re.M | re.S)[0])
        best = max(best, found["jobs"][0]["read"]["iops"])
    return best


def fill(uri):
    """Writes the whole range, so that no server answers for nothing."""
    read_out([harness.need("fio", "fio"), "--name=fill", "--ioengine=nbd", f"--uri={uri}", "--rw=write", "--bs=256k", "--iodepth=8", f"--size={SIZE}"])


def number(pattern, text):
    """A number that a workload has printed, with k, M, G and units of time."""
    found = re.search(pattern, text)
    if not found:
        raise SystemExit(f"no {pattern} in {text}")
    units = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "": 1}
    return float(found[1]) * units[found[2] if found.lastindex == 2 else ""]


def one_round(options, servers):
    """Every figure once: pairs of ours and what it is set against."""
    echo, _, loopback = map(float, read_out([harness.build_program("echo"), "20000", str(min(options.seconds, 3))]).split())
    random = ["random", "--mode", "read", "--size", str(SIZE), "--seconds", str(options.seconds)]
    out, _ = under_farshore(options, servers.uri("node"), [*random, "--threads", "1"], SIZE // 4)
    rows = {"access": (number(r"p50 ([\d.]+) (ns|us|ms|s)", out), echo)}
    out, stats = under_farshore(options, servers.uri("nbdkit"), [*random, "--threads", "8"], SIZE // 4)
    reads = number(r"random: ([\d.]+) reads/s", out)
    # Of all accesses of the run, the part that fetched.
    accesses = reads * stats["uptime_ns"] / 1e9
    rows["threads"] = (reads * min(1.0, stats["faults"]["fetch"] / accesses), fio(options, servers.uri("nbdkit")))
    node = servers.uri("node")
    fill(node)
    rows["servers"] = (fio(options, node), rows["threads"][1])
    out, stats = under_farshore(options, servers.uri("node"), ["scan", "--size", str(SIZE), "--passes", "6"], SIZE // 2)
    rows["scan"] = (number(r"scan: ([\d.]+) pages/s", out) * 4096, loopback)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=int, default=4, metavar="N")
    parser.add_argument("--no-encrypt", action="store_true")
    parser.add_argument("--farshore", default=os.path.join(ROOT, "target", "release", "farshore"), metavar="COMMAND")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds < 1:
        parser.error("--rounds and --seconds must be at least 1")
    rounds = []
    with contextlib.ExitStack() as stack:
        servers = Servers(options, stack)
        fill(servers.uri("nbdkit"))
        for index in range(options.rounds):
            rounds.append(one_round(options, servers))
            print(f"round {index + 1}: " + ", ".join(f"{name} {ours:.4g} to {other:.4g}" for name, (ours, other) in rounds[-1].items()), file=sys.stderr, flush=True)
    words = {
        "access": ("random reads, one thread: median access", "a bare answer", lambda ns: f"{ns / 1000:.1f} µs"),
        "threads": ("random reads, 8 threads, nbdkit: pages fetched", "libnbd (fio)", lambda rate: f"{rate:,.0f} /s"),
        "servers": ("farshore node, read by libnbd (fio)", "nbdkit memory", lambda rate: f"{rate:,.0f} /s"),
        "scan": ("reading in order, half local", "loopback TCP, one direction", lambda rate: f"{rate / 1e6:,.0f} MB/s"),
    }
    lines = ["| | Farshore | compared with | ratio |", "|---|---|---|---|"]
    for name, (what, other, show) in words.items():
        pairs = [found[name] for found in rounds]
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        ours, theirs = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        lines.append(f"| {what} | {show(ours)} | {other}: {show(theirs)} | {statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f}) |")
    page = "\n".join(lines) + "\n"
    print(page)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
