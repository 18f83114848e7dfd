#!/usr/bin/env python3
"""Farshore against Linux swap (and zram), in turn, on the same disk, with the same amount of local memory.

    tools/compare.py --size 512M --memory 256M --threads 1,8 --seconds 6 --rounds 5
    tools/compare.py --size 1G --memory 100M --rounds 3 -- sort -S 1G --parallel=2 big.txt

A round runs every side once, one after the other, so that a machine which is slower for a while is slower for all. Each
run is a fresh process of tests/programs/randupdate.c, which checks its own sums at the end. The sides:

  farshore     farshore run --memory M --swap dir:DIR
  linux-swap   the program in a memory cgroup (version 1 or 2) of M plus --text, swapping to a file in the same DIR
  zram         the same cgroup, swapping to a zram device with lz4

The Linux sides need root. --text (default 4M) is room for what a cgroup counts and Farshore's limit does not: the program's text,
stacks and page tables. The swap file and the device are on only while their side runs, and all is taken down at the end, after errors
and after Ctrl-C. `--what fits` compares a program whose data fits the limit with its native run instead.
With a PROGRAM of your own behind `--`, its time is compared, natively too, and what it prints must be the same everywhere;
--size is then what the swap area must hold.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# Before our own modules come in: the source tree stays as it is.
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "real"))
import harness  # noqa: E402


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def command(*argv):
    """Runs a system tool; its stderr becomes the error."""
    tool = harness.need(argv[0], "util-linux")
    done = subprocess.run([tool, *argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise harness.Unavailable(f"{' '.join(argv)}: {done.stderr.decode(errors='replace').strip()}")


class Cgroup:
    """A memory cgroup of our own, version 2 where its memory controller is, else version 1."""

    def __init__(self, limit):
        name = f"farshore-compare-{os.getpid()}"
        self.path = None
        for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            controllers = harness.read_text(os.path.join(base, "cgroup.controllers"))
            if "memory" in controllers.split():
                with contextlib.suppress(OSError):
                    write(os.path.join(base, "cgroup.subtree_control"), "+memory")
                self.path, self.version = os.path.join(base, name), 2
        if self.path is None and os.path.isdir("/sys/fs/cgroup/memory"):
            self.path, self.version = f"/sys/fs/cgroup/memory/{name}", 1
        if self.path is None:
            raise harness.Unavailable("no memory cgroup at /sys/fs/cgroup: mount one, or start Linux with cgroup_enable=memory")
        try:
            os.mkdir(self.path)
            limit_file = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
            write(os.path.join(self.path, limit_file), str(limit))
        except OSError as error:
            self.remove()
            raise harness.Unavailable(f"cannot make the cgroup {self.path}: {error.strerror} (root is needed)") from None

    def wrap(self, argv):
        """A command line that enters the cgroup and becomes `argv`."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.path, "cgroup.procs"), *argv]

    def remove(self):
        """The kernel refuses while a process is still ending: a few tries."""
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)
        print(f"left behind: {self.path}", file=sys.stderr)


def switch_off(area):
    """Switches a swap area off for good. While the last program is still ending, its pages may not fit anywhere: a few tries."""
    for _ in range(30):
        try:
            area.switch(False)
            return
        except harness.Unavailable as error:
            reason = error
            time.sleep(0.2)
    print(f"left behind: {reason}", file=sys.stderr)


class SwapFile:
    """A swap file in the directory that farshore uses too; fully allocated, as swapon demands."""

    def __init__(self, directory, size):
        self.path, self.on = os.path.join(directory, f"linux-swap-{os.getpid()}"), False
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                block = bytes(1 << 22)
                for _ in range(-(-size // len(block))):
                    file.write(block)
                os.fsync(file.fileno())
            command("mkswap", self.path)
        except (OSError, harness.Unavailable) as error:
            self.remove()
            raise harness.Unavailable(f"cannot make a swap file in {directory}: {error}") from None

    def switch(self, on):
        if on != self.on:
            command("swapon" if on else "swapoff", self.path)
            self.on = on

    def remove(self):
        switch_off(self)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


class Zram:
    """A zram device of our own with lz4."""

    def __init__(self, size):
        control, self.number, self.on = "/sys/class/zram-control", None, False
        if not os.path.isdir(control):
            if shutil.which("modprobe", path="/sbin:/usr/sbin:/bin:/usr/bin"):
                subprocess.run(["modprobe", "zram", "num_devices=0"], stderr=subprocess.DEVNULL, check=False)
            if not os.path.isdir(control):
                raise harness.Unavailable("no zram: this kernel has none built in and modprobe cannot load it")
        try:
            self.number = int(harness.read_text(f"{control}/hot_add"))
            device = f"/sys/block/zram{self.number}"
            write(f"{device}/comp_algorithm", "lz4")
            write(f"{device}/disksize", str(size))
        except (OSError, ValueError) as error:
            self.remove()
            raise harness.Unavailable(f"cannot set up a zram device with lz4: {error}") from None
        self.path = f"/dev/zram{self.number}"
        if not os.path.exists(self.path):
            major, minor = map(int, harness.read_text(f"{device}/dev").split(":"))
            os.mknod(self.path, 0o600 | 0o060000, os.makedev(major, minor))
        command("mkswap", self.path)

    def switch(self, on):
        if on != self.on:
            command("swapon" if on else "swapoff", self.path)
            self.on = on

    def remove(self):
        if self.number is None:
            return
        switch_off(self)
        with contextlib.suppress(OSError):
            write(f"/sys/block/zram{self.number}/reset", "1")
            write("/sys/class/zram-control/hot_remove", str(self.number))


class Farshore:
    """The side under test."""

    def __init__(self, options, directory):
        self.options, self.directory, self.stats = options, directory, None

    def prepare(self):
        pass

    def wrap(self, argv):
        self.stats = os.path.join(self.directory, "stats.json")
        spec = f"dir:{self.directory}"
        return harness.farshore_argv(self.options.farshore, argv, self.options.memory, self.options.fault, [spec], self.stats, self.options.extra)

    def after(self, result):
        stats = harness.load_stats(self.stats)
        result["wrong"] += harness.check_stats(stats, self.options.memory)
        if stats is not None:
            result["stats"] = stats
            os.unlink(self.stats)


class LinuxSwap:
    """The program in a cgroup, with a swap area that is on only for the run."""

    def __init__(self, options, area, cgroup):
        self.options, self.area, self.cgroup = options, area, cgroup

    def prepare(self):
        self.area.switch(True)

    def wrap(self, argv):
        return self.cgroup.wrap(argv)

    def after(self, _result):
        self.area.switch(False)


class Native:
    """The program alone."""

    def prepare(self):
        pass

    def wrap(self, argv):
        return argv

    def after(self, _result):
        pass


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read()).hexdigest()


def run_once(side, argv, work, timeout, parsed=True):
    """One run of one side: the program's own JSON (or time and hash of what it printed), with what was wrong."""
    os.sync()
    side.prepare()
    out = os.path.join(work, "out.json")
    with open(out, "wb") as file:
        outcome = harness.run(side.wrap(argv), work, timeout, stdout=file)
    result = (harness.load_stats(out) if parsed else {"printed": sha256_of(out), "seconds": outcome.seconds}) or {}
    result["wrong"] = []
    if outcome.timed_out:
        print(outcome.picture, file=sys.stderr)
        result["wrong"].append(f"no end after {timeout} s")
    elif outcome.status != 0:
        result["wrong"].append(f"status {outcome.status}: {outcome.stderr.strip()[-300:]}")
    result["peak_rss_bytes"] = outcome.peak_rss
    side.after(result)
    return result


def spread(values):
    """Median with the smallest and the largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None


def sides_for(options, work, stack):
    """The sides that this machine and user can run; the others are named with the reason."""
    sides, skipped = {}, {}
    if options.what == "fits" or options.program:
        sides["native"] = Native()
    if not options.no_farshore:
        options.farshore = harness.find_farshore(options.farshore)
        sides["farshore"] = Farshore(options, work)
    wanted = [] if options.what == "fits" else [name for name in options.against.split(",") if name]
    if wanted and os.geteuid() != 0:
        return sides, {name: "root is needed" for name in wanted}
    cgroup = None
    for name in wanted:
        try:
            if cgroup is None:
                cgroup = Cgroup(options.memory + options.text)
                stack.callback(cgroup.remove)
            if name == "linux-swap":
                area = SwapFile(work, options.size + (256 << 20))
            elif name == "zram":
                area = Zram(options.size + (256 << 20))
            else:
                raise SystemExit(f"--against does not know {name!r}: use linux-swap, zram")
            stack.callback(area.remove)
            sides[name] = LinuxSwap(options, area, cgroup)
        except harness.Unavailable as error:
            skipped[name] = str(error)
    return sides, skipped


def complain(name, result):
    """Says what was wrong with a run. Only ours make the comparison fail: Linux kills programs under a cgroup limit now and then (seen
    with zram and 8 threads: out of memory while swap is half empty), and that is a result, not an error of the tool."""
    if result["wrong"]:
        print(f"{name}: {'; '.join(result['wrong'])}", file=sys.stderr)
    return 1 if result["wrong"] and name in ("farshore", "native") else 0


def compare_random(options, sides, work):
    """Random updates: all sides in turn, for each number of threads."""
    program, report, bad = harness.build_program("randupdate"), [], 0
    for threads in options.threads:
        rounds = {name: [] for name in sides}
        for number in range(options.rounds):
            line = [f"{threads} threads, round {number + 1}:"]
            # Half of the rounds the other way round, so that no side always comes after the same neighbour.
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            for name in order:
                argv = [program, str(options.size), str(threads), str(options.seconds), str(number + 1), str(options.warmup)]
                result = run_once(sides[name], argv, work, 120 + options.seconds * 10 + options.size // (2 << 20))
                bad += complain(name, result)
                rounds[name].append(result)
                line.append(f"{name} {result.get('updates_per_second', 0) / 1000:.1f} k/s")
            print("  ".join(line), flush=True)
        report.append({"threads": threads, "sides": summarise(rounds)})
    return report, bad


def summarise(rounds):
    """Medians, ranges, and the ratio to farshore in each round."""
    summary = {}
    for name, results in rounds.items():
        good = [result for result in results if not result["wrong"] and "updates_per_second" in result]
        entry = {"updates_per_second": spread([result["updates_per_second"] for result in good]), "runs": results}
        if good:
            entry["latency_ns"] = {key: statistics.median(result["latency_ns"][key] for result in good) for key in good[0]["latency_ns"]}
            entry["fill_seconds"] = statistics.median(result["fill_seconds"] for result in good)
            entry["scan_seconds"] = statistics.median(result["scan_seconds"] for result in good)
        pairs = [(ours.get("updates_per_second"), theirs.get("updates_per_second")) for ours, theirs in zip(rounds.get("farshore", []), results)]
        ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
        if ratios and name != "farshore":
            entry["farshore_ratio"] = spread(ratios)
            entry["farshore_ratio"]["rounds"] = ratios
        summary[name] = entry
    return summary


def print_random(report):
    header = ["threads", "side", "updates/s", "range", "p50 us", "p99 us", "p99.9 us", "fill s", "scan s", "farshore is"]
    rows = []
    for entry in report:
        for name, side in entry["sides"].items():
            speed, latency, ratio = side["updates_per_second"], side.get("latency_ns"), side.get("farshore_ratio")
            if speed is None:
                rows.append([entry["threads"], name, "failed"] + ["-"] * 7)
                continue
            row = [entry["threads"], name, f"{speed['median']:.0f}", f"{speed['min']:.0f}-{speed['max']:.0f}"]
            row += [f"{latency[key] / 1000:.1f}" for key in ("p50", "p99", "p999")]
            row += [f"{side['fill_seconds']:.2f}", f"{side['scan_seconds']:.2f}"]
            row.append(f"{ratio['median']:.2f} x ({ratio['min']:.2f}-{ratio['max']:.2f})" if ratio else "")
            rows.append(row)
    print("\n".join(harness.table(header, rows, right=[name for name in header if name not in ("side",)])))


def compare_fits(options, sides, work):
    """A program that fits: seconds of its passes, natively and under farshore in turn."""
    program, bad, rounds = harness.build_program("fits"), 0, {name: [] for name in sides}
    for number in range(options.rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in order:
            result = run_once(sides[name], [program, str(options.size), "5"], work, 600)
            bad += complain(name, result)
            rounds[name].append(result)
        print(f"round {number + 1} done", flush=True)
    report = {}
    for kind in ("stream", "chase", "sort", "calls"):
        # The fastest pass of a run is its undisturbed one; the median over rounds then is a run's typical best.
        best = {name: [min(result["seconds"][kind]) for result in results if "seconds" in result] for name, results in rounds.items()}
        report[kind] = {name: spread(values) for name, values in best.items()}
        if best.get("native") and best.get("farshore"):
            report[kind]["ratio"] = spread([ours / plain for ours, plain in zip(best["farshore"], best["native"])])
    return {"kinds": report, "runs": rounds}, bad


def print_fits(report):
    rows = []
    for kind, entry in report["kinds"].items():
        native, ours, ratio = entry.get("native"), entry.get("farshore"), entry.get("ratio")
        rows.append([kind] + [f"{value['median']:.4f}" if value else "-" for value in (native, ours)]
                    + [f"{ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})" if ratio else "-"])
    print("\n".join(harness.table(["pass", "native s", "farshore s", "ratio"], rows, right=["native s", "farshore s", "ratio"])))


def compare_command(options, sides, work):
    """A program of the user's: seconds, natively and on every side in turn."""
    rounds, bad = {name: [] for name in sides}, 0
    for number in range(options.rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        line = [f"round {number + 1}:"]
        for name in order:
            result = run_once(sides[name], options.program, work, 3600, parsed=False)
            if rounds["native"] and result["printed"] != rounds["native"][0]["printed"]:
                result["wrong"].append("it printed something else than natively")
            bad += complain(name, result)
            rounds[name].append(result)
            line.append(f"{name} {result['seconds']:.2f} s")
        print("  ".join(line), flush=True)
    report = {}
    for name, results in rounds.items():
        pairs = zip(results, rounds.get("farshore", []))
        ratios = [theirs["seconds"] / ours["seconds"] for theirs, ours in pairs if not theirs["wrong"] and not ours["wrong"]]
        report[name] = {"seconds": spread([r["seconds"] for r in results if not r["wrong"]]), "farshore_ratio": spread(ratios), "runs": results}
    return report, bad


def print_command(report):
    rows = []
    for name, side in report.items():
        seconds, ratio = side["seconds"], side["farshore_ratio"]
        row = [name, f"{seconds['median']:.2f}", f"{seconds['min']:.2f}-{seconds['max']:.2f}"] if seconds else [name, "failed", "-"]
        rows.append(row + [f"{ratio['median']:.2f} x" if ratio and name != "farshore" else ""])
    print("\n".join(harness.table(["side", "seconds", "range", "farshore is faster by"], rows, right=["seconds", "range", "farshore is faster by"])))


def machine():
    """What a reader of the numbers must know."""
    model = [line.split(":", 1)[1].strip() for line in harness.read_text("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    return {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "kernel": platform.release(), "cpus": os.cpu_count(), "cpu": model[0] if model else "unknown",
            "transparent_huge_pages": harness.read_text("/sys/kernel/mm/transparent_hugepage/enabled").strip(),
            "page_cluster": harness.read_text("/proc/sys/vm/page-cluster").strip(), "swappiness": harness.read_text("/proc/sys/vm/swappiness").strip()}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("random", "fits"), default="random", help="random updates (default), or a program that fits")
    parser.add_argument("--size", default="512M", help="data of the program (default 512M)")
    parser.add_argument("--memory", help="local memory (default: half of --size; twice --size for fits)")
    parser.add_argument("--text", default="4M", help="what the cgroup gets on top of --memory (default 4M)")
    parser.add_argument("--threads", default="1,8", help="numbers of threads (default 1,8)")
    parser.add_argument("--seconds", type=float, default=6, help="measured seconds of a run (default 6)")
    parser.add_argument("--warmup", type=float, default=2, help="seconds before that (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--against", default="linux-swap", help="linux-swap, zram, or both with a comma (default linux-swap)")
    parser.add_argument("--dir", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where swap files go (default /var/tmp)")
    parser.add_argument("--fault", choices=("upcall", "poll"), default="upcall")
    parser.add_argument("--extra", nargs="*", default=[], metavar="OPTION", help="more options for farshore run, such as --extra=--evictors=2")
    parser.add_argument("--farshore", help="the farshore command (default: $FARSHORE, else this workspace's build)")
    parser.add_argument("--no-farshore", action="store_true", help="measure the other sides alone")
    parser.add_argument("--json", metavar="FILE", help="write all runs and the summary there")
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help="a program of your own, with its arguments, behind --")
    options = parser.parse_args()
    options.size = harness.parse_size(options.size)
    share = 2 if options.what == "fits" else 0.5
    options.memory = harness.parse_size(options.memory) if options.memory else int(options.size * share)
    options.text = harness.parse_size(options.text)
    options.threads = [int(count) for count in options.threads.split(",")]
    return options


def main():
    options = arguments()
    harness.tidy_on_sigterm()
    with contextlib.ExitStack() as stack:
        work = tempfile.mkdtemp(prefix="farshore-compare-", dir=options.dir)
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        sides, skipped = sides_for(options, work, stack)
        for name, reason in skipped.items():
            print(f"skipped {name}: {reason}")
        if not sides:
            raise SystemExit("nothing to run")
        others = [line.split()[0] for line in harness.read_text("/proc/swaps").splitlines()[1:]]
        if others:
            print(f"note: other swap is on ({', '.join(others)}): the Linux sides may use it as well; switch it off for a fair comparison")
        print(f"data {harness.size_text(options.size)}, local memory {harness.size_text(options.memory)}, {options.rounds} rounds, in {options.dir}")
        compare, show = {"fits": (compare_fits, print_fits), "random": (compare_random, print_random)}[options.what]
        if options.program:
            compare, show = compare_command, print_command
        report, bad = compare(options, sides, work)
    print()
    show(report)
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key not in ("json",)}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine(), "settings": settings, "skipped": skipped, "results": report}, file, indent=2)
            file.write("\n")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
