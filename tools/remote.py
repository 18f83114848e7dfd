#!/usr/bin/env python3
"""What pages of another machine's memory cost, beside what the socket and other people's client and server give on the same machine.

    tools/remote.py [--rounds N] [--seconds N] [--farshore COMMAND] [--out FILE]

| row | is set against |
|---|---|
| random reads, one thread, a sixteenth local, `farshore node`: the median of an access | a bare answer of 4 KiB to a question of 28 bytes over TCP (tests/programs/echo.c) |
| random reads, 8 threads, a quarter local, `nbdkit memory`: fetches a second | the same server read by fio's libnbd client over one connection, the best of its depths |
| `farshore node` as a server: fio's libnbd client, the best of its depths | `nbdkit memory` |
| reading in order, half local, `farshore node`: bytes that come a second | one direction of the loopback's TCP |

All by the loopback (TCP). Each round measures all of them, one after another; a ratio is the median of the rounds' ratios, with their range. It needs Debian's fio and nbdkit. Pages are encrypted on
their way, as they are where nothing is said. On a machine that does other work the figures say nothing.
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
        node = [*options.farshore.split(), "node", "--listen", f"127.0.0.1:{self.ports['node']}", "--memory", str(32 * SIZE), "--keep", "60"]
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


def under_farshore(options, swap, workload, memory, prefetch):
    """One measured run of a workload under Farshore: its round, as `farshore bench` tells it."""
    with tempfile.TemporaryDirectory(prefix="farshore-remote-") as folder:
        told = os.path.join(folder, "told.json")
        words = [*options.farshore.split(), "bench", *workload, "--size", str(SIZE), "--memory", str(memory), "--against", f"farshore:prefetch={prefetch}+swap={swap}", "--rounds", "1", "--warm-up-rounds", "0",
                 "--no-device", "--json", told]
        read_out(words)
        with open(told, encoding="utf-8") as file:
            [target] = json.load(file)["experiments"][0]["targets"]
    [found] = target["rounds"]
    if found["wrong"]:
        raise SystemExit(f"{' '.join(words)}: {found['wrong']}")
    return target["summary"], found


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


def one_round(options, servers):
    """Every figure once: pairs of ours and what it is set against."""
    echo, _, loopback = map(float, read_out([harness.build_program("echo"), "20000", str(min(options.seconds, 3))]).split())
    reads = ["random", "--mode", "read", "--seconds", str(options.seconds)]
    summary, _ = under_farshore(options, servers.uri("node"), [*reads, "--threads", "1"], SIZE // 16, "none")
    rows = {"access": (summary["latency"]["p50"], echo)}
    _, found = under_farshore(options, servers.uri("nbdkit"), [*reads, "--threads", "8"], SIZE // 4, "none")
    node = servers.uri("node")
    fill(node)
    others = fio(options, servers.uri("nbdkit"))
    rows["threads"] = (found["measured"]["fetches"] / found["measured_seconds"], others)
    rows["servers"] = (fio(options, node), others)
    _, found = under_farshore(options, servers.uri("node"), ["scan", "--passes", "6"], SIZE // 2, "sequential")
    rows["scan"] = (found["measured"]["pages_in"] * 4096 / found["measured_seconds"], loopback)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=int, default=4, metavar="N")
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
        "access": ("random reads, one thread, a sixteenth local: median access", "a bare answer", lambda ns: f"{ns / 1000:.1f} µs"),
        "threads": ("random reads, 8 threads, a quarter local, nbdkit: fetches", "libnbd (fio)", lambda rate: f"{rate:,.0f} /s"),
        "servers": ("farshore node, read by libnbd (fio)", "nbdkit memory", lambda rate: f"{rate:,.0f} /s"),
        "scan": ("reading in order, half local: bytes that come", "loopback TCP, one direction", lambda rate: f"{rate / 1e6:,.0f} MB/s"),
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
