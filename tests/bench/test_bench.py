"""`farshore bench` from outside: what it writes, what it refuses, and that nothing of it stays behind, however it ends.

As root, or the kernel's targets are skipped. `--seed` is where the moments at which it is ended start.

Sizes are tiny and nothing here looks at speed. After every test the swap areas, cgroups, zram devices, zswap's settings and the
directory of the swap files must be as they were before it.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

import harness
import pytest
from harness import Unavailable, expect

KERNEL = "linux-swap,zram,zswap"
SMALL = ["--size", "24M", "--memory", "12M", "--rounds", "2", "--warm-up-rounds", "0", "--no-device"]
SHORT = ["--seconds", "0.4", "--warmup", "0.1"]
NOBODY = 65534
UTHREAD = ["--seconds", "1", "--warmup", "0.1", "--warm-up-rounds", "0", "--no-device", "--data", "32M", "--share", "40%", "--outstanding", "32"]
# A server of numbers that are wrong, or come twice.
LIAR = """#!/usr/bin/env python3
import socket, struct, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 0))
print("ready: tcp 127.0.0.1:1 udp 127.0.0.1:%d" % server.getsockname()[1], file=sys.stderr, flush=True)
while True:
    asked, peer = server.recvfrom(64)
    server.sendto(asked[:8] + struct.pack("<Q", 4711), peer)
"""
# In the environment of everything that a test starts.
MARK = "FARSHORE_BENCH_TEST"


def snapshot(directory):
    """Everything outside of this program's own files that a run could change."""
    state = {"swaps": sorted(line.split()[0] for line in harness.read_text("/proc/swaps").splitlines()[1:])}
    state["cgroups"] = sorted(path for path, _, _ in os.walk("/sys/fs/cgroup") if "farshore" in path)
    for parent in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        state[parent] = harness.read_text(os.path.join(parent, "cgroup.subtree_control"))
    state["zram"] = sorted(name for name in os.listdir("/sys/block") if name.startswith("zram"))
    folder = "/sys/module/zswap/parameters"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    state["zswap"] = {name: harness.read_text(os.path.join(folder, name)) for name in names}
    state["page-cluster"] = harness.read_text("/proc/sys/vm/page-cluster")
    state["directory"] = sorted(os.listdir(directory))
    journals = os.listdir("/run/farshore-bench") if os.path.isdir("/run/farshore-bench") else []
    # Somebody else's that runs is not ours to look at.
    state["journals"] = sorted(name for name in journals if not os.path.isdir(f"/proc/{name.split('-')[0]}"))
    return state


def ours(directory):
    """Processes that a test has started, and theirs: the mark in their environment tells."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if f"{MARK}={directory}\0".encode() in file.read():
                found.append(pid)
    return found


class TestBench:
    """farshore bench from outside."""

    @pytest.fixture(autouse=True, scope="class")
    def made_ready(self, request, farshore, work):
        """Once: where it works, and when it is interrupted."""
        ours = type(self)
        ours.work, ours.farshore, ours.rng = work, farshore, random.Random(request.config.option.seed)
        ours.directory = os.path.join(work, "swap")
        os.mkdir(ours.directory)
        os.chmod(ours.directory, 0o1777)
        ours.root = os.geteuid() == 0

    @pytest.fixture(autouse=True)
    def leaves_nothing(self):
        """After each test all is as it was."""
        before = snapshot(self.directory)
        yield
        after = snapshot(self.directory)
        expect(after == before, f"left behind: {before} became {after}")

    # ------------------------------------------------------------------------------------------------ tools

    def argv(self, *words, user=None):
        argv = [self.farshore, "bench", *words]
        return ["setpriv", f"--reuid={user}", "--clear-groups", *argv] if user else argv

    def start(self, *words, user=None, **more):
        more.setdefault("env", {**os.environ, MARK: self.directory})
        return subprocess.Popen(self.argv(*words, user=user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

    def call(self, *words, user=None, timeout=240):
        """Status, stdout and stderr."""
        process = self.start(*words, user=user)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for pid in [process.pid, *map(int, ours(self.directory))]:
                print(harness.describe_process(pid), file=sys.stderr)
            process.kill()
            raise AssertionError(f"no end after {timeout} s: {words}") from None
        return process.returncode, out, err

    def measured(self, *words, status=0, user=None):
        """Runs a comparison in the test's directory; its results."""
        folder = tempfile.mkdtemp(dir=self.work)
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "results.json")
        cut = words.index("--") if "--" in words else len(words)
        done, out, err = self.call(*words[:cut], "--dir", self.directory, "--json", path, *words[cut:], user=user)
        expect(done == status, f"status {done}, not {status}: {err[-1500:]}{out[-500:]}")
        with open(path, encoding="utf-8") as file:
            return json.load(file), out, err

    def target(self, experiment, label):
        found = [target for target in experiment["targets"] if target["label"] == label]
        expect(len(found) == 1, f"{label} is not among {[target['label'] for target in experiment['targets']]}")
        return found[0]

    # ------------------------------------------------------------------------------------------------ what it measures

    def test_every_target(self):
        """The JSON has figure, ratio, interval, latencies, faults and the share of the device for each target."""
        against = f"farshore,{KERNEL},native" if self.root else "farshore,native"
        words = ["random", "--size", "24M", "--memory", "12M", "--threads", "2", "--rounds", "3", *SHORT, "--against", against]
        results, out, _ = self.measured(*words)
        expect(results["schema"] == 1 and results["machine"]["cpus"] >= 1, "no schema or machine")
        kinds = {point["access"] for point in results["device"]["points"]}
        expect(kinds == {"random-read", "random-write", "random-mixed", "sequential-read", "sequential-write"}, f"device: {kinds}")
        (experiment,) = results["experiments"]
        for label in against.split(","):
            if label in results["skipped"]:
                print(f"skipped: {label}: {results['skipped'][label]}")
                continue
            target = self.target(experiment, label)
            wrong = [why for turn in target["rounds"] for why in turn["wrong"]]
            # The kernel ends programs under a cgroup's limit now and then, with swap space left: a result, not an error of ours.
            ended = label in KERNEL.split(",") and any("out of memory" in why for why in wrong)
            expect(len(target["rounds"]) == 3 and (ended or not wrong), f"{label}: {wrong}")
            good = sum(not turn["wrong"] for turn in target["rounds"])
            summary = target["summary"]
            expect((summary is None) == (good == 0), f"{label}: {good} good rounds, and the summary is {summary}")
            if ended:
                print(f"note: {label}: the kernel ended {3 - good} of 3 runs for want of memory")
            if summary is None:
                continue
            expect(summary["figure"]["median"] > 0, f"{label}: no figure")
            expect(set(summary["latency"]) == {"p50", "p90", "p99", "p999", "max"} and summary["latency"]["max"] > 0, f"{label}: no latency")
            expect((summary["ratio"] is None) == (label == "farshore"), f"{label}: ratio {summary['ratio']}")
            if label != "farshore":
                expect(len(summary["ratio"]["rounds"]) == good and summary["ratio"]["low"] <= summary["ratio"]["high"], f"{label}: {summary['ratio']}")
            if label != "native":
                expect(summary["faults"] > 0 and summary["cpu_us_per_fault"] > 0, f"{label}: no faults: {summary}")
            on_device = label in ("farshore", "linux-swap")
            expect((summary["device_percent"] is not None) >= on_device, f"{label}: share of the device {summary['device_percent']}")
            expect(label in out, f"{label} is not in the table")

    def test_workloads(self):
        """Every workload, verified, natively and under Farshore."""
        for words in (["random", "--mode", "read", "--run-length", "512", *SHORT], ["scan", "--passes", "2"], ["scan", "--mode", "update", "--passes", "1"],
                      ["hotset", *SHORT], ["gups-move", *SHORT], ["phase"], ["pagerank", "--iterations", "2"], ["bfs", "--threads", "2"], ["cc", "--threads", "2", "--trials", "1"], ["stress", "--threads", "3"],
                      ["kmers", *SHORT], ["list", "--passes", "1"], ["images", "--threads", "2"], ["images", "--change", "flip", "--passes", "1"],
                      ["grid", *SHORT], ["tree", *SHORT], ["tree", "--mode", "read", *SHORT]):
            results, _, err = self.measured(*words, *SMALL, "--against", "farshore,native")
            for target in results["experiments"][0]["targets"]:
                expect(all(not turn["wrong"] for turn in target["rounds"]), f"{words} under {target['label']}: {err[-500:]}")

    def paper(self, name, *words):
        """Measures the quick form of a paper's figure; its raw rows, its page, what was printed, and the directory."""
        folder = tempfile.mkdtemp(dir=self.work)
        done, out, err = self.call("paper", name, "--quick", "--out", folder, "--dir", self.directory, *words)
        expect(done == 0, f"{name}: status {done}: {err[-1500:]}{out[-500:]}")
        with open(os.path.join(folder, name, "raw.json"), encoding="utf-8") as file:
            raw = json.load(file)
        page = harness.read_text(os.path.join(folder, name, "index.html"))
        expect("Quick form" in page and "<figure" in page and "What agrees:" in page, f"{name}: the page")
        return raw, page, out, folder

    def test_paper(self):
        """A paper's figure: raw rows, page and index; the limit that is lifted; the same page again from its rows."""
        raw, page, out, folder = self.paper("mage-5")
        index = harness.read_text(os.path.join(folder, "index.html"))
        expect('href="mage-5/index.html"' in index and "was not measured" in index and "(quick form)" in index, "the index")
        expect("too few rounds" in out and "What agrees:" in out, f"no verdicts: {out}")
        experiments = {(one["paper"]["x"], one["paper"]["variant"]): one for one in raw["experiments"]}
        expect(sorted(experiments) == [(x, variant) for x in (1, 8) for variant in ("faults alone", "with evictions")], f"points: {sorted(experiments)}")
        for (x, variant), experiment in experiments.items():
            lifted = variant == "faults alone"
            expect((experiment["raised_bytes"] > experiment["data_bytes"]) == lifted, f"{variant}: {experiment['raised_bytes']}")
            expect(experiment["threads"] == x and experiment["paper"]["quick"], f"{variant}: {experiment['threads']} threads at {x}")
            for target in experiment["targets"]:
                (turn,) = target["rounds"]
                expect(turn["wrong"] == [], f"{variant}, {target['label']}: {turn['wrong']}")
                expect(turn["measured"]["pages_in"] > 1000, f"{variant}, {target['label']}: {turn['measured']['pages_in']} pages came")
                # With the limit lifted all that is read stays; else it never is more than the limit, and what a cgroup gets on top.
                peak, limit = turn["peak_limited_bytes"], experiment["memory_bytes"] + (4 << 20)
                enough = peak > experiment["data_bytes"] * 0.8 if lifted else peak <= limit
                expect(enough, f"{variant}, {target['label']}: at most {peak} of {experiment['data_bytes']} bytes were local")
                if target["label"] == "farshore":
                    wanted = experiment["raised_bytes"] if lifted else experiment["memory_bytes"]
                    limit = turn["stats"]["memory_limit_bytes"]
                    expect(limit // 4096 == wanted // 4096, f"{variant}: the limit is {limit}, not {wanted}")
        rows = os.path.join(folder, "mage-5", "raw.json")
        again = tempfile.mkdtemp(dir=self.work)
        done, _, err = self.call("paper", "mage-5", "--from", rows, "--out", again)
        expect(done == 0 and harness.read_text(os.path.join(again, "mage-5", "index.html")) == page, f"status {done}, or another page: {err}")
        done, _, err = self.call("paper", "mage-9", "--from", rows, "--out", again)
        expect(done == 1 and "has rows of mage-5, not of mage-9" in err, f"status {done}: {err}")

    def test_paper_over_load(self):
        """A figure over load: the highest throughput first, then a share of it."""
        if len(os.sched_getaffinity(0)) < 2:
            raise Unavailable("one processor: none is left for the generator")
        raw, _, _, _ = self.paper("adios-7")
        peak, load = raw["experiments"]
        expect([peak["paper"]["panel"], load["paper"]["panel"]] == ["array-peak", "array"], f"{peak['paper']}, {load['paper']}")
        busy = self.target(peak, "busy:1")["summary"]["figure"]["median"]
        expect(abs(load["paper"]["shown"] - busy * load["paper"]["x"] / 100) < 1, f"{load['paper']} of {busy}")

    def test_paper_modelled(self):
        """A figure of a machine that is not here: computed, the same each time, and its page says so."""
        raw, page, out, _ = self.paper("scaleswap-12-model")
        again, _, _, _ = self.paper("scaleswap-12-model")
        expect(raw["experiments"] == again["experiments"], "another run has other numbers")
        expect("Modelled." in page and "lock of lists" in page and "agrees" in out + page, "the page")
        ours, linux = ([self.target(one, label)["summary"]["figure"]["median"] for one in raw["experiments"] if one["paper"]["panel"] == "ssds"][0]
                       for label in ("ScaleSwap", "Linux"))
        expect(ours > 1.5 * linux, f"{ours} over {linux}")

    def test_paper_little_room(self):
        """Swap space that is nearly full: cores ask each other for room, and that is counted; with much room they do not."""
        raw, page, _, _ = self.paper("scaleswap-t6")
        delegations = {one["paper"]["x"]: one["targets"][0]["rounds"][0]["stats"]["swap"]["delegations"] for one in raw["experiments"]}
        expect(sorted(delegations) == [64, 192] and delegations[64] > 0 == delegations[192], f"delegations: {delegations}")
        expect("Mean time of a delegation" in page, "the plot of delegations")

    def test_families(self):
        """A row at a part of its peak: what zram has compressed counts within the limit, and all is in one table."""
        against = "farshore,farshore:swap=ram:lz4+swap=dir" + (",linux-swap,zram:pool=counted" if self.root else "")
        words = ["families", "--only", "grid", "--local", "60", "--rounds", "1", "--warm-up-rounds", "0", "--no-device", "--against", against]
        results, out, err = self.measured(*words)
        native, limited = results["experiments"]
        expect(native["family"] == limited["family"] == "grid" and native["memory_bytes"] == 0, f"rows: {native['family']}, {limited['family']}")
        peak = native["targets"][0]["rounds"][0]["peak_resident_bytes"]
        expect(0 <= peak * 0.6 - limited["memory_bytes"] < 1 << 20, f"60 % of {peak} is not {limited['memory_bytes']}")
        for target in limited["targets"]:
            (turn,) = target["rounds"]
            if target["kind"] == "farshore":
                expect(turn["wrong"] == [], f"{target['label']}: {turn['wrong']} {err[-500:]}")
            if target["kind"] == "zram" and not turn["wrong"]:
                settings = {name: int(target["settings"][name]) for name in ("limit_bytes", "compressed_bytes_peak", "total_bytes_peak")}
                expect(settings["compressed_bytes_peak"] > 1 << 20, f"nothing was compressed: {settings}")
                # Between two looks more may be there, but not all that there would be without them.
                most = settings["limit_bytes"] + settings["compressed_bytes_peak"]
                expect(settings["total_bytes_peak"] < most, f"the limit was not kept: {settings}")
        expect("to farshore:swap=ram:lz4+swap=dir" in out and "grid" in out, f"no table of families: {out[-800:]}")
        done, out, _ = self.call("families", "--list")
        expect(done == 0 and "tree:" in out and "java-g1:" in out, f"status {done}: {out}")
        done, _, err = self.call("families", "--memory", "1G")
        expect(done != 0 and "--memory" in err, f"status {done}: {err}")

    def test_kv(self):
        """Servers under load."""
        for server in ("redis", "memcached"):
            if shutil.which("redis-server" if server == "redis" else server) is None:
                raise Unavailable(f"no {server} (apt-get install redis-server memcached)")
            words = ["kv", "--server", server, "--size", "8M", "--memory", "8M", "--rate", "500", "--connections", "3", "--seconds", "1", "--warmup", "0.2"]
            results, _, err = self.measured(*words, "--rounds", "1", "--warm-up-rounds", "0", "--no-device", "--against", "farshore,native")
            for target in results["experiments"][0]["targets"]:
                expect(target["rounds"][0]["wrong"] == [], f"{server} under {target['label']}: {target['rounds'][0]['wrong']} {err[-500:]}")
                expect(target["summary"]["latency"]["p99"] > 0, f"{server}: no latency")

    def test_uthread(self):
        """Services that wait in each way: a number is chosen, phases follow, answers are checked."""
        modes = ["--mode", "yield:1", "--mode", "busy:1", "--mode", "block:2,4", "--mode", "swap:4"]
        for words, phases in ((["array", *modes], 5), (["kv", "--mode", "block:2", "--phases", "throughput,local", "--transport", "tcp"], 2),
                              (["scan", "--mode", "yield:1", "--phases", "throughput,latency", "--rate", "500"], 2),
                              (["array", "--mode", "yield:1", "--swap", f"dir:{self.directory}", "--phases", "latency", "--rate", "500", "--cores", "0"], 1)):
            results, out, err = self.measured("uthread", *words, *UTHREAD, "--rounds", "1")
            experiments = results["experiments"]
            expect(len(experiments) == phases, f"{words}: {[experiment['name'] for experiment in experiments]}")
            for experiment in experiments:
                for target in experiment["targets"]:
                    turn = target["rounds"][0]
                    # The kernel ends a server in so small a cgroup now and then.
                    if target["kind"] == "linux-swap" and turn["wrong"]:
                        continue
                    expect(turn["wrong"] == [] and turn["outcome"]["operations"] > 0, f"{words}, {target['label']}: {turn['wrong']} {err[-500:]}")
                    expect((target["kind"] != "farshore") or turn["stats"], f"{words}, {target['label']}: no counters")
                    expect(target["label"] in out, f"{target['label']} is not in the table")
            expect("cores" in results["machine"]["settings"], "who was bound to which core is not told")
            far = self.target(experiments[0], experiments[0]["targets"][0]["label"])
            expect(far["summary"]["fetches"] > 0, f"{words}: nothing was far away")
        done, out, _ = self.call("uthread", "switch")
        expect(done == 0 and "ns" in out and "cycles" in out, f"status {done}: {out}")

    def test_uthread_memcached(self):
        """The real memcached is measured beside ours, and the highest rate is found, or that there is none."""
        if shutil.which("memcached") is None:
            raise Unavailable("no memcached (apt-get install memcached)")
        modes = ["--mode", "yield-rr:2", "--mode", "memcached:1,2", "--mode", "memcached-swap:2", "--extra", "32M"]
        common = [*modes, *UTHREAD, "--rounds", "1", "--phases", "capacity", "--rates", "50..100"]
        for words, reachable in ((["--transport", "tcp", "--target", "p50=900ms"], True), (["--target", "p99=1ns"], False)):
            results, out, err = self.measured("uthread", "kv", *common, *words)
            expect(len(results["experiments"]) == 2, f"{words}: {[experiment['name'] for experiment in results['experiments']]}")
            for target in results["experiments"][1]["targets"]:
                turn = target["rounds"][0]
                if target["kind"] == "linux-swap" and turn["wrong"]:
                    continue
                expect(turn["wrong"] == [] and turn["outcome"]["operations"] > 0, f"{words}, {target['label']}: {turn['wrong']} {err[-500:]}")
                best = turn["outcome"]["best_rate"]
                expect((best is not None) == reachable and turn["figure"] == (best or 0), f"{words}, {target['label']}: {best}, {turn['figure']}")
                expect(turn["outcome"]["rate_limit"] in out, f"{words}: why there is no higher rate is not told")

    def test_uthread_wrong_answers(self):
        """Wrong answers make it fail; so does a server that does not start."""
        server = os.path.join(self.work, "liar")
        words = ["uthread", "array", "--mode", "block:1", "--phases", "throughput", *UTHREAD, "--rounds", "1"]
        for text, part in ((LIAR, "wrong values"), ("#!/bin/sh\necho no luck >&2; exit 3\n", "status 3: no luck")):
            with open(server, "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(server, 0o755)
            env = {**os.environ, MARK: self.directory, "FARSHORE_SERVE": server}
            process = self.start(*words, "--dir", self.directory, env=env)
            out, err = process.communicate(timeout=120)
            expect(process.returncode == 1 and part in err, f"status {process.returncode}: {err[-800:]}{out[-300:]}")
            self.nothing_runs()

    def test_uthread_ends_by_signal(self):
        """Server and generator end with it."""
        for _ in range(3):
            before = snapshot(self.directory)
            words = ["uthread", "array", "--mode", "yield:1", "--mode", "swap:2", *UTHREAD, "--rounds", "50", "--dir", self.directory]
            process = self.start(*words)
            self.until_caught(process, signal.SIGINT)
            time.sleep(self.rng.uniform(0.5, 6))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
            expect(process.returncode == 130, f"status {process.returncode}: {err[-500:]}")
            self.nothing_runs()
            expect(snapshot(self.directory) == before, "left behind")

    def test_sweeps_and_report(self):
        """A comparison for each point; the page and its data."""
        for sweep, values in (("memory=100,50", [100, 50]), ("threads=1,2", [1, 2]), ("files=1,2", [1, 2])):
            folder = os.path.join(self.work, f"report-{sweep[:3]}")
            against = "farshore,linux-swap" if self.root else "farshore"
            words = ["random", *SHORT, "--size", "24M", "--rounds", "1", "--warm-up-rounds", "0", "--no-device", "--against", against]
            results, _, _ = self.measured(*words, "--sweep", sweep, "--report", folder)
            found = [experiment["sweep"]["value"] for experiment in results["experiments"]]
            expect(found == values, f"{sweep}: {found}")
            page = harness.read_text(os.path.join(folder, "index.html"))
            expect("<svg" in page and os.path.exists(os.path.join(folder, "results.json")), f"{sweep}: no page")

    def test_program(self):
        """Any program: same output, or it is said."""
        lines = os.path.join(self.work, "lines")
        with open(lines, "w", encoding="ascii") as file:
            file.writelines(f"{self.rng.random()}\n" for _ in range(300000))
        flags = ["--memory", "8M", "--rounds", "2", "--warm-up-rounds", "0", "--no-device", "--against", "native,farshore,command:env X=1"]
        results, out, _ = self.measured(*flags, "--", "sort", "-S", "200M", lines)
        hashes = {turn["output_sha256"] for target in results["experiments"][0]["targets"] for turn in target["rounds"]}
        expect(len(hashes) == 1 and len(hashes.pop()) == 64, f"hashes {hashes}")
        expect("the output was the same in all good runs: SHA-256" in out, out)
        peaks = [target["summary"]["peak_resident_bytes"] for target in results["experiments"][0]["targets"]]
        expect(all(peak > 1 << 20 for peak in peaks), f"peaks {peaks}")
        _, _, err = self.measured(*flags, "--", "sh", "-c", "echo $$", status=1)
        expect("printed something else" in err, f"not said: {err[-500:]}")
        results, _, err = self.measured(*flags, "--", "sh", "-c", "echo oh no >&2; exit 3", status=1)
        expect("status 3: oh no" in err, f"not said: {err[-500:]}")

    def test_ballast(self):
        """A target's environment reaches the program, and a ballast that makes no sense is refused by it."""
        _, _, err = self.measured("random", *SHORT, *SMALL, "--against", "native,native:env.LOAD_BALLAST=200", status=1)
        expect("LOAD_BALLAST" in err, f"not said: {err[-500:]}")

    def test_compare(self):
        """Two files, and two builds."""
        first = os.path.join(self.work, "a.json")
        second = os.path.join(self.work, "b.json")
        for path in (first, second):
            done, _, err = self.call("random", *SHORT, *SMALL, "--against", "farshore,native", "--dir", self.directory, "--json", path)
            expect(done == 0, err[-500:])
        done, out, err = self.call("--compare", first, second)
        expect(done == 0 and "farshore" in out, f"status {done}: {out}{err}")
        results, _, _ = self.measured("random", *SHORT, *SMALL, "--builds", self.farshore, os.path.dirname(self.farshore))
        expect([target["label"] for target in results["experiments"][0]["targets"]] == ["new", "old"], "builds")
        for path, part in ((os.path.join(self.work, "none.json"), "none.json"), (os.path.join(harness.ROOT, "README.md"), "README.md")):
            done, _, err = self.call("--compare", first, path)
            expect(done == 1 and part in err and err.count("\n") == 1, f"status {done}: {err}")

    # ------------------------------------------------------------------------------------------------ what it refuses

    def test_bad_input(self):
        """One line that names what was wrong."""
        exists = ["--dir", self.directory]
        for words, status, part in (
            (["random", "--against", "ext4"], 125, "ext4"),
            (["random", "--against", "farshore:prefetch=odd"], None, "odd"),
            (["random", "--against", "farshore:speed=9"], 125, "speed"),
            (["random", "--against", ""], 125, "target"),
            (["random", "--size", "1Q"], 125, "1Q"),
            (["random", "--threads", "0"], 125, "0"),
            (["random", "--sweep", "luck"], 125, "luck"),
            (["random", "--sweep", "threads=1.5"], 125, "1.5"),
            (["random", "--rounds", "0"], 125, "rounds"),
            (["walk"], 125, "walk"),
            ([], 125, "nothing to measure"),
            (["--", "true"], 125, "--memory"),
            (["random", "--json", "/no/such/place/x.json"], 125, "/no/such/place"),
            (["random", "--dir", "/no/such/dir"], 1, "/no/such/dir"),
            (["random", "--size", "900T", "--memory", "1M", "--against", "linux-swap", *exists], 1, "900"),
            (["random", "--size", "900T", "--memory", "1M", "--against", "native", *exists], 1, "900"),
            (["canonical", "--only", "no such thing"], 125, "no such thing"),
            (["uthread", "list"], 125, "list"),
            (["uthread", "--mode", "sleep:1"], 125, "sleep:1"),
            (["uthread", "--mode", "block:65"], 125, "block:65"),
            (["uthread", "--mode", "yield:1", "--mode", "yield:1"], 125, "twice"),
            (["uthread", "--swap", "tape:x"], 125, "tape:x"),
            (["uthread", "--share", "0"], 125, "share"),
            (["uthread", "--phases", "latency"], 125, "--rate"),
            (["uthread", "--against", "native"], 125, "--mode"),
            (["uthread", "--cores", "4096"], 125, "--cores"),
            (["uthread", "array", "--mode", "memcached:1"], 125, "is for kv"),
            (["uthread", "kv", "--mode", "memcached-rr:1"], 125, "memcached-rr:1"),
            (["uthread", "kv", "--phases", "capacity", "--rates", "9..5"], 125, "9..5"),
            (["uthread", "kv", "--phases", "capacity", "--target", "1ms"], 125, "1ms"),
            (["uthread", "--data", "900T", "--mode", "yield:1", *exists], 1, "900"),
        ):
            done, out, err = self.call(*words, timeout=60)
            expect(part in err, f"{words}: {part!r} is not in {err!r}")
            expect(status is None or done == status, f"{words}: status {done}: {err}")
            expect(done != 0 and len(err.strip().splitlines()) <= (1 if status else 9), f"{words}: status {done}: {err}")

    @pytest.mark.root
    def test_root_is_not_led_elsewhere(self):
        """Root makes nothing in another user's directory, where its names could be changed for others' while it works, and writes results through no link."""
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            theirs, precious = os.path.join(folder, "theirs"), os.path.join(folder, "precious")
            inner = os.path.join(theirs, "inner")
            os.makedirs(inner)
            os.chmod(folder, 0o755)
            os.chown(theirs, NOBODY, NOBODY)
            open_to_all = os.path.join(folder, "open")
            os.mkdir(open_to_all)
            os.chmod(open_to_all, 0o777)
            with open(precious, "w", encoding="utf-8") as file:
                file.write("precious")
            for directory, part in ((theirs, f"belongs to user {NOBODY}"), (inner, f"belongs to user {NOBODY}"), (open_to_all, "by others")):
                done, _, err = self.call("random", *SHORT, *SMALL, "--against", "native", "--dir", directory, timeout=60)
                expect(done == 1 and part in err and len(err.splitlines()) == 1, f"{directory}: status {done}: {err}")
                expect(set(os.listdir(directory)) <= {"inner"}, f"{os.listdir(directory)}")
            # Its own user may work there.
            done, _, err = self.call("random", *SHORT, *SMALL, "--against", "native", "--dir", theirs, user=NOBODY)
            expect(done == 0, f"status {done}: {err}")
            # Links where the results go, by every name that could be guessed.
            path, report = os.path.join(open_to_all, "out.json"), os.path.join(open_to_all, "page")
            os.mkdir(report)
            for name in (path + ".new", os.path.join(report, "index.html"), os.path.join(report, ".farshore-bench-new")):
                os.symlink(precious, name)
            words = ["random", *SHORT, *SMALL, "--against", "native", "--dir", self.directory]
            done, _, err = self.call(*words, "--json", path)
            expect(done == 0 and os.path.getsize(path) > 100, f"status {done}: {err}")
            done, _, err = self.call(*words, "--report", report)
            expect(done == 1 and "links are not followed" in err, f"status {done}: {err}")
            os.remove(path)
            os.symlink(precious, path)
            done, _, err = self.call(*words, "--json", path)
            expect(done == 125 and "links are not followed" in err, f"status {done}: {err}")
            done, _, err = self.call(*words, "--json", "/dev/null")
            expect(done == 125 and stat.S_ISCHR(os.stat("/dev/null").st_mode), f"status {done}: {err}")
            with open(precious, encoding="utf-8") as file:
                expect(file.read() == "precious", "a link was followed")

    @pytest.mark.root
    def test_sudo_is_told(self):
        """A program of the user's runs as root, which is said; a workload of ours needs no word."""
        sudo = {**os.environ, MARK: self.directory, "SUDO_UID": str(NOBODY)}
        for words, told in (
            (["--memory", "16M", "--against", "native", "--", "sh", "-c", "printf '\\033[2J' >&2; id -u; exit 3"], True),
            (["random", *SHORT, *SMALL, "--against", "native"], False),
        ):
            cut = words.index("--") if "--" in words else len(words)
            process = self.start(*words[:cut], "--rounds", "1", "--dir", self.directory, "--no-device", *words[cut:], env=sudo)
            out, err = process.communicate(timeout=240)
            expect(("runs as root here" in err and str(NOBODY) in err) == told, f"{words}: {err}")
            # What it says reaches the terminal as text.
            expect("\x1b" not in out + err, f"{words}: {out!r} {err!r}")

    @pytest.mark.root
    def test_ordinary_user(self):
        """Kernel targets are named with the reason; the others are measured."""
        results, _, err = self.measured("random", *SHORT, *SMALL, "--against", f"farshore,native,{KERNEL}", user=NOBODY)
        expect(sorted(results["skipped"]) == sorted(KERNEL.split(",")), f"skipped {results['skipped']}")
        expect(all("root" in why for why in results["skipped"].values()), f"{results['skipped']}")
        expect(err.count("left out") == 3, err)
        expect([target["label"] for target in results["experiments"][0]["targets"]] == ["farshore", "native"], "targets")

    # ------------------------------------------------------------------------------------------------ how it ends

    def long_run(self, json_path=None):
        """A run that would take long, with everything that can be set up."""
        against = f"farshore,{KERNEL}".replace("zram", "zram:readahead=none") if self.root else "farshore,native"
        words = ["random", "--size", "24M", "--memory", "12M", "--seconds", "1", "--warmup", "0.1", "--rounds", "200", "--no-device",
                 "--against", against, "--dir", self.directory]
        return self.start(*words, *(["--json", json_path] if json_path else []))

    @staticmethod
    def until_caught(process, number):
        """Waits until a signal has a handler there."""
        until = time.monotonic() + 60
        while True:
            with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as file:
                caught = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")), 0)
            if caught >> (number - 1) & 1:
                return
            expect(process.poll() is None and time.monotonic() < until, f"{number.name} has no handler: status {process.returncode}")
            time.sleep(0.01)

    def nothing_runs(self):
        until = time.monotonic() + 60
        while ours(self.directory):
            expect(time.monotonic() < until, f"still there: {ours(self.directory)}")
            time.sleep(0.1)

    def test_ends_by_signal(self):
        """SIGINT, SIGTERM and SIGHUP at odd moments: everything is taken down, what was measured is kept."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGINT, signal.SIGINT):
            before = snapshot(self.directory)
            path = os.path.join(self.work, "interrupted.json")
            process = self.long_run(path)
            # Later than its first look at signals: before that there is nothing to take down.
            self.until_caught(process, number)
            wait = self.rng.uniform(0.5, 8)
            time.sleep(wait)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            expect(process.returncode == 128 + number, f"{number.name} after {wait:.2f} s: status {process.returncode}: {err[-500:]}")
            self.nothing_runs()
            after = snapshot(self.directory)
            expect(after == before, f"{number.name} after {wait:.2f} s: {before} became {after}")
            with open(path, encoding="utf-8") as file:
                json.load(file)

    def test_killed(self):
        """kill -9 at odd moments: the next start takes down what is left, and says so."""
        said = 0
        for _ in range(6):
            before = snapshot(self.directory)
            process = self.long_run()
            wait = self.rng.uniform(0.3, 9)
            time.sleep(wait)
            process.kill()
            process.communicate(timeout=60)
            done, _, err = self.call("--memory", "8M", "--rounds", "1", "--warm-up-rounds", "0", "--no-device", "--against", "native", "--dir", self.directory, "--", "true")
            expect(done == 0, f"the next start: status {done}: {err}")
            said += "farshore:" in err
            self.nothing_runs()
            after = snapshot(self.directory)
            expect(after == before, f"killed after {wait:.2f} s: {before} became {after}; said: {err}")
        expect(said > 0, "what was cleaned up was never said")

    def test_errors(self):
        """A program that is not there, one that crashes, one that takes too long."""
        against = f"farshore,native,{KERNEL}" if self.root else "farshore,native"
        flags = ["--memory", "8M", "--rounds", "1", "--warm-up-rounds", "0", "--no-device", "--against", against]
        for program, part in ((["/no/such/program"], "no such"), (["sh", "-c", "kill -SEGV $$"], "SIGSEGV"), (["sleep", "1000"], "timeout")):
            _, _, err = self.measured(*flags, "--timeout", "2", "--", *program, status=1)
            expect(part.lower() in err.lower(), f"{program}: {err[-800:]}")
            self.nothing_runs()

    def test_two_at_once(self):
        """Two at the same time leave each other's things alone."""
        process = self.long_run()
        time.sleep(2)
        done, _, err = self.call("random", *SHORT, *SMALL, "--against", "farshore,native", "--dir", self.directory)
        alive = process.poll() is None
        process.send_signal(signal.SIGINT)
        _, other = process.communicate(timeout=60)
        expect(done == 0, f"the second: status {done}: {err[-500:]}")
        expect(alive and process.returncode == 130, f"the first: status {process.returncode}: {other[-500:]}")
