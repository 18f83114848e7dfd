#!/usr/bin/env python3
"""redis-server in part of its memory under load, beside policies in Python: good ones, stopped ones, killed ones, mad ones. Prints what each leaves of the throughput, and what it costs the server's processors.

    tools/policies_redis.py [--rounds 9] [--seconds 5] [--keys 150000] [--memory 96M] [--swap SPEC] [--farshore COMMAND]

Each round has all ways in turn. A ratio is the median of the rounds' ratios to the same round's piece without a policy, with the middle half of them. In the end each value is read
and compared with what was stored.

| way | what is beside the server |
|---|---|
| `none` | nothing; this second piece of a round tells what chance does |
| `listens` | a policy that hears each fault and wishes for nothing |
| `idle` | the same one, with the scheduling policy SCHED_IDLE: it runs when a core has nothing else to do, and is late otherwise |
| `switched` | nothing, but `farshore set PID prefetch=` changes the prefetcher twice a second |
| `stopped` | one that hears each fault, and is stopped by SIGSTOP |
| `killed` | one that is killed by SIGKILL, and comes again, twice a second |
| `random` | one that asks for a million random pages a second, to be fetched and to leave |
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import programs

POLICIES = os.path.join(programs.ROOT, "policies", "python")
SIZE = 1000
WAYS = ("none", "listens", "idle", "switched", "stopped", "killed", "random")
LISTENS = "import sys, farshore_policy\nwith farshore_policy.attach(int(sys.argv[1])) as program:\n    print('there', flush=True)\n    for _ in program.events('fault'): pass\n"
# It asks in lists of a thousand, and says at its end how many requests a second it has made.
RANDOM = """
import random, sys, time, farshore_policy
with farshore_policy.attach(int(sys.argv[1])) as program:
    low, high = int(sys.argv[2], 16) >> 12, int(sys.argv[3], 16) >> 12
    print('there', flush=True)
    pick, began, asked = random.Random(1), time.monotonic(), 0
    while time.monotonic() - began < float(sys.argv[4]):
        pages = [pick.randrange(low, high) << 12 for _ in range(1000)]
        program.ask_all(program.prefetch if asked % 2000 else program.reclaim, pages)
        asked += 1000
        ahead = asked / 1e6 - (time.monotonic() - began)
        if ahead > 0: time.sleep(ahead)
    print(int(asked / (time.monotonic() - began)), flush=True)
"""


def value(key):
    """What is stored under a key."""
    return (hashlib.sha256(str(key).encode()).digest() * 32)[:SIZE]


class Server:
    """redis-server under Farshore."""

    def __init__(self, options, place):
        self.options, self.path = options, os.path.join(place, "socket")
        argv = [options.farshore, "run", "--memory", options.memory, "--swap", options.swap, "--", "redis-server", "--port", "0", "--unixsocket", self.path, "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while not os.path.exists(self.path):
            if time.monotonic() > until or self.process.poll() is not None:
                sys.exit("redis-server did not start")
            time.sleep(0.05)
        self.pid = self.process.pid

    def ask(self, commands):
        """Sends commands, each a list of bytes, and yields the reply to each: bytes, or the line."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.path)
            for at in range(0, len(commands), 500):
                part = commands[at:at + 500]
                connection.sendall(b"".join(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words) for words in part))
                replies = connection.makefile("rb") if at == 0 else replies
                for _ in part:
                    line = replies.readline()
                    yield replies.read(int(line[1:]) + 2)[:-2] if line[:1] == b"$" and line[1:2] != b"-" else line

    def fill(self):
        """Stores all values."""
        for reply in self.ask([[b"SET", b"key:%012d" % key, value(key)] for key in range(self.options.keys)]):
            if reply != b"+OK\r\n":
                sys.exit(f"SET: {reply!r}")

    def check(self):
        """Reads all values; how many are wrong."""
        return sum(reply != value(key) for key, reply in enumerate(self.ask([[b"GET", b"key:%012d" % key] for key in range(self.options.keys)])))

    def load(self, seconds):
        """Reads at random for some seconds: requests a second, and the processor time of one in µs."""
        requests, began, used = 0, time.monotonic(), self.processor()
        argv = ["redis-benchmark", "-s", self.path, "-c", "8", "-n", str(self.options.requests), "-r", str(self.options.keys), "-q", "GET", "key:__rand_int__"]
        while time.monotonic() - began < seconds:
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
            requests += self.options.requests
        return requests / (time.monotonic() - began), (self.processor() - used) / requests * 1e6

    def processor(self):
        """The processor time of the server and what serves its memory, in seconds."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def heap(self):
        """The first and last address of its largest private mapping, in hexadecimal digits."""
        with open(f"/proc/{self.pid}/maps", encoding="utf-8") as file:
            found = [line.split()[0].split("-") for line in file if " rw-p 00000000 " in line]
        return max(found, key=lambda ends: int(ends[1], 16) - int(ends[0], 16))


@contextlib.contextmanager
def policy(pid, code, *words):
    """A policy in Python beside a program, from when it is attached."""
    process = subprocess.Popen([sys.executable, "-c", code, str(pid), *words], env=os.environ | {"PYTHONPATH": POLICIES}, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline() != "there\n":
            sys.exit("the policy did not attach")
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def each_half_second(act):
    """Calls something twice a second, in a process of its own."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        with contextlib.suppress(BaseException):
            while True:
                act()
        os._exit(1)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    try:
        yield
    finally:
        # What it has started goes with it.
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def come_and_die(pid):
    """A policy attaches, listens for half a second, and is killed."""
    with policy(pid, LISTENS):
        time.sleep(0.5)


def switch(options, pid, names=["none", "sequential"]):  # noqa: B006 (the list turns on purpose)
    """The next prefetcher."""
    names.reverse()
    subprocess.run([options.farshore, "set", str(pid), f"prefetch={names[0]}"], stdout=subprocess.DEVNULL, check=True)
    time.sleep(0.5)


def piece(options, server, way):
    """A piece of load beside something: requests a second, and processor time of each."""
    pid, seconds = server.pid, options.seconds
    if way == "none":
        return server.load(seconds)
    if way == "switched":
        with each_half_second(lambda: switch(options, pid)):
            found = server.load(seconds)
        subprocess.run([options.farshore, "set", str(pid), f"prefetch={options.prefetch}"], stdout=subprocess.DEVNULL, check=True)
        return found
    if way == "killed":
        with each_half_second(lambda: come_and_die(pid)):
            return server.load(seconds)
    if way == "random":
        with policy(pid, RANDOM, *server.heap(), str(seconds)) as process:
            found = server.load(seconds)
            options.asked.append(int(process.stdout.readline() or 0))
            return found
    with policy(pid, LISTENS) as process:
        if way == "idle":
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        if way == "stopped":
            process.send_signal(signal.SIGSTOP)
        return server.load(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--keys", type=int, default=150_000)
    parser.add_argument("--requests", type=int, default=20_000, help="of each run of redis-benchmark")
    parser.add_argument("--memory", default="96M")
    parser.add_argument("--swap", default="dir:/var/tmp")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--farshore", default=os.path.join(programs.RELEASE, "farshore"))
    options = parser.parse_args()
    options.asked, ways = [], options.ways.split(",")
    rates, costs = {way: [] for way in ways}, {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="farshore-redis-") as place:
        server = Server(options, place)
        try:
            server.fill()
            found = json.loads(subprocess.run([options.farshore, "stat", str(server.pid), "--json"], stdout=subprocess.PIPE, check=True).stdout)
            options.prefetch = found["prefetcher"]
            server.load(options.seconds)
            for _ in range(options.rounds):
                rate, cost = server.load(options.seconds)
                for way in ways:
                    found = piece(options, server, way)
                    rates[way].append(found[0] / rate)
                    costs[way].append(found[1] / cost)
            wrong = server.check()
        finally:
            server.process.kill()
            server.process.wait()
    print(f"{rate:.0f} requests/s, {cost:.1f} µs of processor time each, without a policy, in the last round\n")
    print("| beside | throughput | middle half | processor time a request | middle half |\n|---|---|---|---|---|")
    for way in ways:
        cells = [f"{statistics.median(of[way]):.3f} | {' to '.join(f'{it:.3f}' for it in statistics.quantiles(of[way], n=4)[::2])}" for of in (rates, costs)]
        print(f"| {way} | {cells[0]} | {cells[1]} |")
    if options.asked:
        print(f"\n`random` has asked for {statistics.median(options.asked):.0f} pages a second.")
    print(f"{wrong} of {options.keys} values are wrong.")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
