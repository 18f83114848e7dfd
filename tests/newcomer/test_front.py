"""What a newcomer meets before the first program runs: the set-up leaves his toolchains alone, Debian's Python packages are found, `make build` makes
what is installed, continuous integration counts right, and no two parts of the tests run at a time that must not.

Programs such as rustup and make are stood in for by scripts that note how they were called. Nothing is installed.
"""

import dataclasses
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading

import harness
import lanes
import pytest
import run
from harness import expect

ROOT = harness.ROOT
# Toolchains are directories with two files: `version` and `components`.
RUSTUP = """#!/bin/sh
echo "$*" >> "$STAND_IN/calls"
case "$1 $2" in
    'component list') cat "$STAND_IN/toolchains/$4/components" ;;
    run*) cat "$STAND_IN/toolchains/$2/version" ;;
esac
"""
CARGO = """#!/bin/sh
echo 'cargo 99.0.0 (a stand-in)'
"""
DPKG_QUERY = """#!/bin/sh
printf installed
"""
MAKE = """#!/bin/sh
case "$1 $2" in
    'newcomer ARGS=--skips=tests/skips.txt' | 'test ARGS=--skips=tests/skips.txt --minutes '[1-9]*) ;;
    *) echo 'the list of skips, or the time, is not named' ;;
esac
cat "$STAND_IN/$1.says"
exit "$(cat "$STAND_IN/$1.status")"
"""
# What rustup is asked without being told to change anything.
ASKS = re.compile(r"component list |run \S+ rustc --version$")
MIRI = "miri-x86_64-unknown-linux-gnu\nrust-src\n"


class TestFront:
    number = 0

    @pytest.fixture(autouse=True)
    def made_ready(self, work):
        """Where stand-ins lie."""
        self.work = work

    def stand_ins(self, **programs):
        """A directory with these scripts, and an environment in which they come first."""
        TestFront.number += 1
        place = os.path.join(self.work, f"stand-ins-{self.number}")
        os.makedirs(os.path.join(place, "bin"))
        for name, text in programs.items():
            path = os.path.join(place, "bin", name.replace("_", "-"))
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(path, 0o755)
        environment = {key: value for key, value in os.environ.items() if key != "NIGHTLY"}
        return place, {**environment, "PATH": f"{place}/bin:{os.environ['PATH']}", "STAND_IN": place, "LC_ALL": "C"}

    def set_up(self, toolchains, option="--tests", **more):
        """Runs the set-up where the user has these toolchains (name: version and components): what it printed, and what it told rustup to change."""
        place, environment = self.stand_ins(rustup=RUSTUP, cargo=CARGO, dpkg_query=DPKG_QUERY)
        for name, (version, components) in toolchains.items():
            os.makedirs(f"{place}/toolchains/{name}")
            for file_name, text in (("version", version), ("components", components)):
                with open(f"{place}/toolchains/{name}/{file_name}", "w", encoding="ascii") as file:
                    file.write(text)
        done = subprocess.run([os.path.join(ROOT, "tools", "setup.sh"), option], env={**environment, **more}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        expect(done.returncode == 0, f"status {done.returncode}: {done.stderr}")
        calls = harness.read_text(f"{place}/calls").splitlines() if os.path.exists(f"{place}/calls") else []
        return done, [call for call in calls if not ASKS.match(call)]

    def test_help(self):
        """`make` alone shows what there is, to its last line."""
        done = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        expect(done.returncode == 0 and not done.stderr, f"status {done.returncode}: {done.stderr}")
        shown = re.findall(r"^  make ([a-z-]+)", done.stdout, re.M)
        expect({"demo", "test", "install"} <= set(shown) and "default /var/tmp" in done.stdout.splitlines()[-1], done.stdout)
        return f"{len(shown)} targets"

    def test_toolchains(self):
        """The set-up installs one nightly of a fixed day beside what the user has, if that is missing, and changes nothing else."""
        dated = self.set_up({}, "--nightly")[0].stdout.strip()
        expect(re.fullmatch(r"nightly-\d{4}-\d\d-\d\d", dated), f"not pinned by date: {dated}")
        day = subprocess.run(["date", "-d", f"{dated[8:]} - 1 day", "+%F"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        same, other = f"rustc 1.99.0-nightly (0123456 {day})\n", "rustc 1.98.0-nightly (0123456 2026-01-01)\n"
        install = [f"toolchain install {dated} --no-self-update --profile minimal --component miri --component rust-src"]
        for what, toolchains, name, changes in (
                ("none", {}, dated, install),
                ("stable alone", {"stable": ("rustc 1.95.0 (0123456 2026-03-01)\n", "")}, dated, install),
                ("an older nightly with miri", {"nightly": (other, MIRI)}, dated, install),
                ("the day's nightly without miri", {"nightly": (same, "rustc\n")}, dated, install),
                ("the day's nightly with miri", {"nightly": (same, MIRI)}, "nightly", []),
                ("the dated one", {dated: (same, MIRI), "nightly": (other, MIRI)}, dated, [])):
            told = self.set_up(toolchains)[1]
            expect(told == changes, f"{what}: rustup was told {told}, not {changes}")
            found = self.set_up(toolchains, "--nightly")
            expect((found[0].stdout.strip(), found[1]) == (name, []), f"{what}: {found[0].stdout.strip()} is used, not {name}; rustup was told {found[1]}")
        return "6 homes, one of which is touched by nothing but an install beside"

    def test_named_nightly(self):
        """$NIGHTLY is used as it is; it is installed if it is not there, and never changed if it is."""
        there = {"mine": ("rustc 1.99.0-nightly (0123456 2026-01-01)\n", "rustc\n")}
        done, told = self.set_up(there, NIGHTLY="mine")
        expect(told == [] and "mine has no miri" in done.stderr, f"rustup was told {told}: {done.stderr}")
        told = self.set_up(there, NIGHTLY="theirs")[1]
        expect([call.split()[:3] for call in told] == [["toolchain", "install", "theirs"]], f"rustup was told {told}")
        expect(self.set_up(there, "--nightly", NIGHTLY="mine")[0].stdout == "mine\n", "another one is used")
        return "left alone, or installed"

    def test_interpreter(self):
        """Where the python3 that comes first in PATH has not Debian's packages, the one that has them is used."""
        module, package = "pymemcache", "python3-pymemcache"
        owner = harness.python_with(module, package)
        place = os.path.join(self.work, "bare")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        bare, script = os.path.join(place, "bin", "python3"), os.path.join(self.work, "script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"import sys\nsys.path.insert(0, {os.path.dirname(harness.__file__)!r})\nimport harness\n"
                       f"first = len(sys.argv) == 1\nharness.again_with({module!r}, {package!r})\nimport {module}\nprint('imported')\n")
        expect(subprocess.run([bare, "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False).returncode != 0, "the bare one has it")
        environment = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}"}
        done = subprocess.run([bare, script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        expect(done.stdout == "imported\n", f"status {done.returncode}: {done.stdout}")
        try:
            harness.python_with("a_module_that_nobody_has", "a-package")
            expect(False, "a module that nobody has was found")
        except harness.Unavailable as reason:
            expect("apt-get install a-package" in str(reason), f"it does not say what to do: {reason}")
        return f"{module} by {owner}"

    def test_installed(self):
        """A plain `cargo build --release` makes what `make install` installs, and nothing else."""
        argv = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"]
        told = json.loads(subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
        members = [package for package in told["packages"] if package["id"] in told["workspace_default_members"]]
        targets = [target for package in members for target in package["targets"]]
        built = {target["name"] for target in targets if "bin" in target["kind"]} | {f"lib{target['name']}.so" for target in targets if "cdylib" in target["kind"]}
        installed = set(re.findall(r"^\tinstall .*\$\(TARGET\)/release/(\S+) ", harness.read_text(os.path.join(ROOT, "Makefile")), re.M))
        expect(built == installed and installed, f"{sorted(built)} are built, {sorted(installed)} are installed")
        return ", ".join(sorted(installed))

    def test_packaging(self):
        """The Debian packages name the workspace's version."""
        def first(pattern, *path):
            return re.search(pattern, harness.read_text(os.path.join(ROOT, *path)), re.M)[1]

        version = first(r'^version = "(.*)"', "Cargo.toml")
        depends = first(r'^depends = ".*farshore \(= (.*)\)"', "crates", "measuring", "bench", "Cargo.toml")
        told = first(r"^Version: (.*)", "crates", "services", "uthread-c", "farshore_uthread.pc")
        expect(depends == told == version, f"the workspace is {version}; farshore-bench wants {depends}, pkg-config would say {told}")
        return version

    def test_container(self):
        """What the development container is made of is there, and its user is the one that its recipe makes."""
        place = os.path.join(ROOT, ".devcontainer")
        container = json.loads(harness.read_text(os.path.join(place, "devcontainer.json")))
        recipe = harness.read_text(os.path.join(place, container["build"]["dockerfile"]))
        copied = [word for line in re.findall(r"^COPY (.*)", recipe, re.M) for word in line.split()[:-1]]
        gone = [path for path in copied if not os.path.exists(os.path.normpath(os.path.join(place, container["build"]["context"], path)))]
        expect(copied and not gone, f"it copies {copied}; {gone} are nowhere")
        expect(re.search(rf"^RUN useradd .* {container['remoteUser']}\nUSER {container['remoteUser']}$", recipe, re.M), f"no user {container['remoteUser']}")
        return ", ".join(copied)

    def test_way(self):
        """Who runs programs of the test driver, as the demo does, names the command and the swap spaces alone: all else has a default."""
        rest = [field.name for field in dataclasses.fields(run.Way)[2:] if field.default is dataclasses.MISSING]
        expect(not rest, f"no default: {rest}")
        argv = run.Way("farshore", ["dir:/a"]).argv(["true"], 1 << 26, "upcall", "counters.json")
        expect(argv[:2] == ["farshore", "run"] and argv[-2:] == ["--", "true"], f"{argv}")
        asked = set(re.findall(r"\bway\.(\w+)", harness.read_text(run.__file__))) - {"argv"}
        expect(asked and asked <= {field.name for field in dataclasses.fields(run.Way)}, f"{asked} are asked for")
        return f"{len(dataclasses.fields(run.Way))} fields"

    def test_sizes(self):
        """The test drivers and the C programs read and refuse sizes as Farshore does, whose own test has the same table."""
        program = harness.build_program("sizes")
        with open(os.path.join(ROOT, "tests", "sizes.json"), encoding="utf-8") as file:
            table = json.load(file)
        for text, wanted in table:
            try:
                ours = harness.parse_size(text)
            except SystemExit as refused:
                ours = str(refused)
            done = subprocess.run([program, text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            told = int(done.stdout) if done.returncode == 0 else done.stderr
            if isinstance(wanted, int):
                expect(ours == told == wanted, f"{text!r}: {ours} and {told}, not {wanted}")
            else:
                expect(ours.startswith(f"invalid size {json.dumps(text)}: {wanted}; write "), f"{text!r}: {ours}")
                expect(told.startswith(f'failed: invalid size "{text}": {wanted}; write '), f"{text!r}: {told}")
        return f"{len(table)} texts"

    def ci(self, newcomer, test):
        """Runs .ci/run with a make that says these things and ends with these statuses: the exit status and the last line."""
        place, environment = self.stand_ins(make=MAKE)
        os.makedirs(f"{place}/.ci")
        shutil.copy(os.path.join(ROOT, ".ci", "run"), f"{place}/.ci/run")
        for target, (said, status) in (("newcomer", newcomer), ("test", test)):
            for ending, text in (("says", said), ("status", str(status))):
                with open(f"{place}/{target}.{ending}", "w", encoding="ascii") as file:
                    file.write(text)
        done = subprocess.run([f"{place}/.ci/run"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        expect("is not named" not in done.stdout, f"{done.stdout}")
        return done.returncode, done.stdout.splitlines()[-1]

    def test_ci(self):
        """The last line counts the newcomer's steps and the tests; a demo that fails makes it fail, and one that does not count."""
        well, tests = ("demo ok\n8 passed, 0 failed, 1 skipped\n", 0), ("10 passed, 0 failed, 0 skipped\n", 0)
        wrong = ("demo FAILED\n7 passed, 1 failed, 0 skipped\nmake: *** [Makefile:40: newcomer] Error 1\n", 2)
        for newcomer, test, wanted in ((well, tests, (0, "18 passed, 0 failed, 1 skipped")), (wrong, tests, (1, "17 passed, 1 failed, 0 skipped")),
                                       (well, wrong, (1, "15 passed, 1 failed, 1 skipped")), (wrong, wrong, (1, "14 passed, 2 failed, 0 skipped")),
                                       (("", 0), tests, (1, "10 passed, 1 failed, 0 skipped")), (("set-up failed\n", 2), tests, (1, "10 passed, 1 failed, 0 skipped")),
                                       (("3 passed, 0 failed, 0 skipped\n", 2), tests, (1, "13 passed, 1 failed, 0 skipped"))):
            came = self.ci(newcomer, test)
            expect(came == wanted, f"{newcomer}, {test}: {came}, not {wanted}")
        return "7 ways to end"

    def runner(self):
        """tools/test.py as a module."""
        spec = importlib.util.spec_from_file_location("runner", os.path.join(ROOT, "tools", "test.py"))
        runner = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(runner)
        runner.LOGS = self.work
        return runner

    def test_lanes(self):
        """Whatever parts take, each runs once, after the build if it needs that, and never beside one that it must not meet; a part that breaks stops no other."""
        runner, rng = self.runner(), random.Random(4711)
        everything = runner.parts(0)
        usual = [[part for part in everything if part.name in runner.usual(everything, False, seed)] for seed in range(6)]
        left = {part.name for part in everything if not part.name.endswith(runner.LONG)} - {part.name for chosen in usual for part in chosen}
        expect(left == set(runner.NEWCOMER), f"no turn: {left}")
        for chosen in [*usual, everything] + usual * 5:
            jobs = {job.name: job for job in runner.jobs(chosen)}
            took = {name: rng.uniform(1, 900) for name in jobs}
            rows = lanes.plan(list(jobs.values()), took)
            expect(sorted(name for name, _, _ in rows) == sorted(jobs), f"not each once: {rows}")
            ends = {name: end for name, _, end in rows}
            for n, (name, start, end) in enumerate(rows):
                expect(jobs[name].after is None or start >= ends[jobs[name].after], f"{name} starts before {jobs[name].after} is done")
                for other, begins, _ in rows[n + 1:]:
                    expect(begins >= end or not (why := lanes.clash(jobs[name], jobs[other])), f"{other} starts while {name} runs: {why}")
        ran, together = [], threading.Barrier(2)

        def run(job):
            ran.append(job.name)
            if job.name in "ab":
                together.wait(60)
            if job.name == "c":
                raise SystemExit

        lanes.Lanes([lanes.Job(name, 9 - n) for n, name in enumerate("abcdef")] + [lanes.Job("z", 99, lanes.ALONE)], run).run_all()
        expect(sorted(ran) == list("abcdefz") and ran[-1] == "z", f"{ran}")
        return f"{len(usual[0])} parts, 37 plans"

    def test_time(self):
        """What has not begun when its time is over is left out, and said; a part that runs then is not ended."""
        runner = self.runner()
        command = runner.Command([sys.executable, "-c", "import time; time.sleep(1); print('1 passed, 0 failed, 0 skipped')"], runner.count_last_line)
        parts = [runner.Part(name, "a stand-in", [command], 1, width=lanes.ALONE) for name in ("one", "two")]
        results = runner.Results(minutes=0.5 / 60)
        results.run_all(parts)
        came = {name: (str(row.counts), row.remark) for name, row in results.rows.items()}
        expect(came == {"one": ("1 passed, 0 failed, 0 skipped", ""), "two": ("0 passed, 0 failed, 1 skipped", runner.LEFT_OUT)}, f"{came}")
        return "one of two"

    def test_skips(self):
        """A test that is skipped and is not on the list has failed, where a list is given; the list is one, of tests that there are."""
        runner = self.runner()
        says = "print('a ok'); print('b  0.1 s  skipped: no root'); print('1 passed, 0 failed, 1 skipped')"
        part = runner.Part("real", "a stand-in", [runner.Command([sys.executable, "-c", says], runner.count_last_line)], 1)
        for lines, wanted in ((None, "1 passed, 0 failed, 1 skipped"), ("", "1 passed, 1 failed, 0 skipped"), ("real | b | no root", "1 passed, 0 failed, 1 skipped"),
                              ("real | b | no KSM", "1 passed, 1 failed, 0 skipped"), ("real | b | no *\nreal | a | no *", "1 passed, 0 failed, 1 skipped")):
            came = runner.run_part(part, None if lines is None else runner.skips_allowed(lines, ["real"]))
            expect(str(came.counts) == wanted, f"{lines!r}: {came.counts}, not {wanted}")
        path = os.path.join(ROOT, "tests", "skips.txt")
        allowed = runner.skips_allowed(harness.read_text(path), [part.name for part in runner.parts(0)])
        sources = subprocess.run(["git", "grep", "-hIE", r"def |fn |class |name|Case\(|\"|'", "--", "*.rs", "*.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        words = set(re.findall(r"[\w-]+", sources))
        # As `test_` is no part of the names of our drivers' tests.
        gone = [skip for skip in allowed for word in re.findall(r"\w[\w-]+\w", skip.test) if not {word, f"test_{word}"} & words and skip.test != runner.WHOLE]
        expect(not gone, f"tests/skips.txt names what is nowhere: {gone}")
        return f"{len(allowed)} lines"
