"""`farshore record` and `farshore report`: a program whose pattern is known, recordings that end in every way, and the page in a headless browser."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import harness
import pytest
from browser import Browser
from command import Command, NOBODY
from harness import MIB, expect

# Only a hang comes to it.
PATIENCE = 120
OTHERS = NOBODY - 703
# Of a recorder that got no processor events are lost; the machine may be busy for so many tries.
TRIES = 8
HOSTILE = "<b onclick=x>&amp;"


def data_of(page):
    """The data in a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def line_of(words):
    """`file:line` of the test program, for the line with these words."""
    path = pathlib.Path(harness.PROGRAMS, "sweeps.c")
    return next(f"sweeps.c:{n}" for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if words in line)


@pytest.fixture(autouse=True)
def as_from_a_shell():
    """Ctrl-C ends programs here, also where what started the tests has it ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class TestRecord(Command):
    def view(self):
        """A directory for recordings, and the other program beside the copy of the command."""
        there = os.path.join(self.bin, "farshore-view")
        if not os.path.exists(there):
            shutil.copy(os.path.join(os.path.dirname(harness.find_farshore(self.options.farshore)), "farshore-view"), there)
        return self.folder("record", 0o777)

    @contextlib.contextmanager
    def waiting(self, *words, memory="16M", options=()):
        """The program under Farshore with its array filled; the process, and where the array is."""
        argv = [self.farshore, "run", "--memory", memory, *options, "--", self.public_program("sweeps"), *words]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ, SWEEPS_WAIT="1")) as process:
            try:
                yield process, int(process.stdout.readline(), 16)
            finally:
                process.kill()

    @contextlib.contextmanager
    def recorder(self, *words):
        """A recording that has begun."""
        with subprocess.Popen([self.farshore, "record", *map(str, words)], bufsize=0, stderr=subprocess.PIPE) as process:
            try:
                begun = process.stderr.readline().decode()
                expect("recording process" in begun, begun)
                process.begun = begun
                yield process
            finally:
                process.kill()

    def record_waiting(self, recording, *words, **how):
        """Records the program from when its array is filled until it ends; where the array is."""
        with self.waiting(*words, **how) as (program, first), self.recorder("-o", recording, program.pid) as recorder:
            program.communicate(b"\n", timeout=PATIENCE)
            _, err = recorder.communicate(timeout=PATIENCE)
            expect(program.returncode == 0 and recorder.returncode == 0 and b"events to" in err, f"status {program.returncode}, {recorder.returncode}: {err}")
        return first

    def report(self, recording, part="wrote"):
        """The page of a recording, and what was said."""
        done = self.call("report", recording)
        expect(done.status == 0 and part in done.err, f"status {done.status}: {done.err}")
        return pathlib.Path(recording + ".html").read_text(encoding="utf-8")

    def test_sweep(self):
        """One pass over an array is one line down the heat map; function, line and mapping of its faults are named."""
        size, told = 48 * MIB, ""
        for _ in range(TRIES):
            recording = os.path.join(self.view(), "sweep.rec")
            first = self.record_waiting(recording, str(size), "1M", "1")
            data = data_of(self.report(recording))
            told = f"{data['counts']}, {data['lost']} lost"
            if data["lost"] == 0:
                break
        else:
            raise harness.Failed(f"events were lost each time: {told}")
        expect(data["end"] == "over" and data["limits"][0]["bytes"] == 16 * MIB, f"{data['end']}, {data['limits']}")
        # Two thirds of the array were out, and all of those pages came back.
        expect(data["counts"]["fetched"] + data["counts"]["rescued"] >= 0.6 * size / 4096, told)
        rows = [row for row in data["heat"] if first <= row["start"] and row["end"] <= first + size]
        expect(sum(row["end"] - row["start"] for row in rows) >= 0.6 * size, f"{len(rows)} rows")
        # At its end the program reads the first page once more.
        rows = rows[1:]
        middles = [sum(n * faults for n, faults in enumerate(row["faults"])) / sum(row["faults"]) for row in rows]
        expect(all(one <= other for one, other in zip(middles, middles[1:])) and len(rows) > 40, f"the sweep: {middles}")
        expect(middles[0] < middles[-1], f"{middles}")
        expect({row["mapping"] for row in rows} == {"[anonymous]"}, f"{rows[0]}")
        top = data["code"][0]
        expect(os.path.basename(top["path"][0]) == "sweeps" and top["path"][1] == "sweep" and top["path"][-1].endswith(line_of("the line that sweeps")), f"{top}")
        expect(top["faults"] > 0.8 * data["counts"]["faults"], f"{top} of {told}")
        expect(data["mappings"][0]["mapping"] == "[anonymous]" and data["mappings"][0]["counts"]["faults"] >= top["faults"], f"{data['mappings'][0]}")
        # No page comes back after more others than there are.
        expect(sum(it["returns"] for it in data["distances"]) > 0 and data["distances"][-1]["pages_up_to"] <= 16384, f"{data['distances']}")
        return f"{len(rows)} rows, {told}"

    def test_program(self):
        """A program is run and recorded from its start, with its output and status; and so is one that becomes another."""
        folder, program = self.view(), self.public_program("sweeps")
        recording = os.path.join(folder, "program.rec")
        done = self.call("record", "-o", recording, "--memory", "16M", "--", program, "32M", "1M", "4", timeout=240)
        expect(done.status == 0 and done.out == "4 32\n", f"status {done.status}: {done.out}{done.err}")
        data = data_of(self.report(recording))
        expect(data["program"] == program and data["end"] == "over" and data["counts"]["evicted"] > 4096, f"{data['counts']}")
        names = {path[1] for path in (leaf["path"] for leaf in data["code"]) if len(path) > 1}
        expect("sweep" in names, f"{names}")
        expect(os.stat(recording).st_mode & 0o777 == 0o600, "others can read it")
        # The page, too, and it takes the place of a link that somebody has laid there.
        page, precious = recording + ".html", os.path.join(folder, "precious")
        pathlib.Path(precious).write_text("mine", encoding="utf-8")
        os.unlink(page)
        os.symlink(precious, page)
        self.report(recording)
        expect(pathlib.Path(precious).read_text(encoding="utf-8") == "mine", "the page was written to what a link leads to")
        expect(not os.path.islink(page) and os.stat(page).st_mode & 0o777 == 0o600, "others can read the page")
        for words, status in [(["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["/does/not/exist"], 127), (["/etc/passwd"], 126)]:
            path = os.path.join(folder, f"{status}.rec")
            done = self.call("record", "-o", path, "--memory", "16M", "--", *words)
            expect(done.status == status and done.err, f"{words}: status {done.status}: {done.err}")
            expect(os.path.exists(path) == (status not in (126, 127)), f"{words}: {os.listdir(folder)}")
        path = os.path.join(folder, "exec.rec")
        done = self.call("record", "-o", path, "--memory", "16M", "--", "sh", "-c", f"sleep 2; exec {program} 32M 1M 4", timeout=240)
        expect(done.status == 0 and done.out == "4 32\n", f"status {done.status}: {done.err}")
        expect(data_of(self.report(path))["counts"]["faults"] > 0, "nothing was heard after the exec")
        return f"{data['counts']}"

    def test_ends(self):
        """Ctrl-C, kill -9 and a full disk end a recording; the program goes on, and what was written can be reported."""
        folder = self.view()
        paths = {name: os.path.join(folder, f"{name}.rec") for name in ("stopped", "killed")}
        with self.waiting("24M", "1M", "1000000") as (program, _):
            def recorded(path, how):
                with self.recorder("-o", path, program.pid) as recorder:
                    end = time.monotonic() + PATIENCE
                    while os.stat(path).st_size < 200_000 and time.monotonic() < end:
                        time.sleep(0.05)
                    recorder.send_signal(how)
                    return recorder.wait(PATIENCE)
            program.stdin.write(b"\n")
            program.stdin.flush()
            expect(recorded(paths["stopped"], signal.SIGINT) == 0, "Ctrl-C does not end it")
            expect(recorded(paths["killed"], signal.SIGKILL) == -9, "it is not killed")
            os.mkfifo(os.path.join(folder, "pipe"))
            self.refused(["record", "--force", "-o", os.path.join(folder, "pipe"), str(program.pid)], (125,), "is a pipe")
            full = self.call("record", "--force", "-o", "/dev/full", str(program.pid))
            expect(full.status == 1 and "is its disk full?" in full.err, f"status {full.status}: {full.err}")
            expect(program.poll() is None, "the program has ended")
        expect(data_of(self.report(paths["stopped"]))["end"] == "stopped", "it was stopped")
        page = self.report(paths["killed"], "is not whole")
        data = data_of(page)
        expect(data["end"] == "cut off" and data["broken"] and data["counts"]["faults"] > 1000 and 'id="broken"' in page, f"{data['end']}, {data['counts']}")
        # In the middle of a block, and damaged.
        whole = pathlib.Path(paths["stopped"]).read_bytes()
        for name, some in [("cut", whole[: len(whole) // 2]), ("damaged", whole[:100_000] + bytes([whole[100_000] ^ 4]) + whole[100_001:])]:
            path = os.path.join(folder, name + ".rec")
            pathlib.Path(path).write_bytes(some)
            expect(0 < data_of(self.report(path, "is not whole"))["counts"]["faults"], f"{name}: nothing is left")
        return f"{data['counts']}"

    def test_mistakes(self):
        """Each is a line that says what is wrong, with its status, and leaves no file."""
        folder = self.view()
        there = os.path.join(folder, "there.rec")
        pathlib.Path(there).write_text("mine", encoding="utf-8")
        new = os.path.join(folder, "new.rec")
        with self.waiting("24M", "1M", "1") as (program, _):
            for words, status, part, user in [
                (["-o", there, str(program.pid)], 125, "is there already", None),
                (["-o", there, "--", "true"], 125, "is there already", None),
                (["-o", "/does/not/exist", str(program.pid)], 125, "cannot write '/does/not/exist'", None),
                (["-o", new, "1"], 1, "process 1", None),
                (["-o", new, str(os.getpid())], 1, "was not started by 'farshore run'", None),
                (["-o", new, "4194304"], 1, "there is no process 4194304", None),
                (["-o", new, str(program.pid)], 1, f"process {program.pid}", OTHERS),
                ([], 125, "neither a process nor a program", None),
            ]:
                if user is not None and os.geteuid() != 0:
                    continue
                done = self.call("record", *words, user=user)
                expect(done.status == status and part in done.err and done.err.count("\n") == 1, f"{words}: status {done.status}: {done.err}")
        expect(os.listdir(folder) == ["there.rec"] and pathlib.Path(there).read_text(encoding="utf-8") == "mine", f"{os.listdir(folder)}")
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        for path, part in [(there, "was not written by 'farshore record'"), ("/does/not/exist", "No such file"), ("/dev/zero", "no regular file"), (pipe, "no regular file")]:
            done = self.call("report", path)
            expect(done.status == 1 and part in done.err, f"{path}: status {done.status}: {done.err}")
        return "12 mistakes"

    def test_hostile(self):
        """What a program's debug information names is a pipe by the time of the report: it ends, with what can be known, and says so."""
        folder = self.view()
        program = os.path.join(folder, "sweeps")
        compiler = harness.need("gcc", "gcc")
        done = self.call_program([compiler, "-O2", "-g", "-gdwarf-5", "-gsplit-dwarf", "-std=gnu11", "-o", program, os.path.join(harness.PROGRAMS, "sweeps.c")])
        expect(done.status == 0, f"it is not built: {done.err}")
        rest = next(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".dwo"))
        recording = os.path.join(folder, "hostile.rec")
        done = self.call("record", "-o", recording, "--memory", "16M", "--", program, "32M", "1M", "3", timeout=240)
        expect(done.status == 0, f"status {done.status}: {done.err}")

        def seen(*names):
            page = self.report(recording)
            paths = [leaf["path"] for leaf in data_of(page)["code"] if leaf["path"][0] == program]
            expect(any(path[1] == "sweep" for path in paths), f"the function is not named: {paths}")
            for name in names:
                expect("Not all names of" in page and f"{name}: it cannot be read: it is no regular file" in page, f"{name} is not told: {page[-3000:]}")
            return paths

        line = line_of("the line that sweeps")
        expect(any(path[-1].endswith(line) for path in seen()), "the line is not known")
        os.unlink(rest)
        os.mkfifo(rest)
        seen(os.path.basename(rest))
        os.mkfifo(program + ".dwp")
        seen("sweeps.dwp")
        return f"{len(seen())} places"

    def policies(self, record):
        """What a recording tells of policies: pages read by policy, for each size of memory; and what it is told of the run. `record` makes it, of a run with 32 MiB."""
        for _ in range(TRIES):
            recording = os.path.join(self.view(), "policies.rec")
            record(recording)
            page = self.report(recording)
            data = data_of(page)
            if data["lost"] == 0:
                break
        else:
            raise harness.Failed(f"events were lost each time: {data['counts']}, {data['lost']} lost")
        told = data["policies"]
        expect(told is not None and 'id="policies"' in page and "Bélády (the optimum)" in page, page[-2000:])
        expect(told["limit_bytes"] == 32 * MIB and told["reads"] == data["counts"]["fetched"] and told["sampled"] == 1, f"{told}")
        rows = {row["policy"]: row["reads"] for row in told["rows"]}
        expect(list(rows)[-1] == "Bélády" and {"Farshore", "LRU", "FIFO", "2Q-LRU", "S3-FIFO", "SIEVE"} <= rows.keys(), f"{list(rows)}")
        expect(told["at_least"] <= rows["Bélády"][2] * 1.001 + 1, f"{told['at_least']}, {rows['Bélády']}")
        for name, reads in rows.items():
            expect(all(best <= read for read, best in zip(reads, rows["Bélády"]) if read is not None and not name.startswith("Farshore")), f"{name}: {reads}, the best {rows['Bélády']}")
        return rows, told

    def test_policies_loop(self):
        """Seven rounds over 48 MiB with 32: LRU and FIFO read all of it each time, the best a part, and Farshore is between them. With more than all of it nobody
        reads anything. A recording does not have the touches of pages that were there all the time. With FIFO few are; on a busy machine more, as pages that
        leave are rescued out of turn. LRU and FIFO are then hit in the gaps, at times more often than Farshore: such a run proves nothing, and there is another one."""

        def record(recording):
            self.record_waiting(recording, "48M", "4K", "7", memory="32M", options=["--policy", "fifo"])

        seen = []
        for _ in range(TRIES):
            rows, told = self.policies(record)
            seen.append(f"{rows['Bélády']}, {rows['Farshore']}, {rows['LRU']}")
            if rows["Farshore"][2] < 0.98 * rows["LRU"][2]:
                break
        else:
            raise harness.Failed(f"in no run Farshore reads less than LRU: {seen}")
        every = 7 * 48 * MIB // 4096
        expect(all(0.5 * every <= rows[name][2] <= 1.05 * every for name in ("LRU", "FIFO")), f"{rows['LRU']}, {rows['FIFO']}, all are {every}")
        expect(rows["Bélády"][2] < 0.55 * rows["LRU"][2], f"{rows['Bélády']} of {rows['LRU']}")
        expect(rows["Bélády"][2] < rows["Farshore"][2], seen[-1])
        expect(all(reads[4] == 0 for name, reads in rows.items() if name != "dt-reclaimer"), f"with 64 MiB: {rows}")
        expect(told["doubt"] is None, told["doubt"])
        return f"LRU {rows['LRU'][2]:.0f}, Farshore {rows['Farshore'][2]:.0f}, the best {rows['Bélády'][2]:.0f}, read {told['reads']}"

    def test_policies_hot(self):
        """A hot set of 20 MiB in 96, with 32: what keeps pages that are used reads less than what does not."""

        def record(recording):
            done = self.call("record", "-o", recording, "--memory", "32M", "--", self.public_program("patterns"), "hot", "96M", "20M", "3000000", timeout=240)
            expect(done.status == 0, f"status {done.status}: {done.err}")

        rows, told = self.policies(record)
        expect(rows["LRU"][2] < 0.9 * rows["FIFO"][2], f"LRU {rows['LRU']}, FIFO {rows['FIFO']}")
        expect(rows["S3-FIFO"][2] < 0.9 * rows["FIFO"][2] and rows["CLOCK"][2] < 0.95 * rows["FIFO"][2], f"{rows['S3-FIFO']}, {rows['CLOCK']}, FIFO {rows['FIFO']}")
        expect(rows["Bélády"][2] < rows["LRU"][2], f"{rows['Bélády']}, {rows['LRU']}")
        return f"FIFO {rows['FIFO'][2]:.0f}, LRU {rows['LRU'][2]:.0f}, S3-FIFO {rows['S3-FIFO'][2]:.0f}, the best {rows['Bélády'][2]:.0f}, read {told['reads']}"

    def test_dormant(self):
        """A dormant program is woken, which is said, and recorded."""
        recording = os.path.join(self.view(), "dormant.rec")
        with self.waiting("8M", "1M", "1", memory="1G") as (program, _), self.recorder("-o", recording, program.pid) as recorder:
            expect("dormant" in recorder.begun, recorder.begun)
            program.communicate(b"\n", timeout=PATIENCE)
            expect(recorder.wait(PATIENCE) == 0, "it does not end")
        expect(data_of(self.report(recording))["end"] == "over", "its end is not there")
        return recorder.begun.strip()

    def test_page(self):
        """A browser shows the page in both schemes and two widths, asks for nothing, and runs nothing, whatever the names."""
        folder = self.view()
        program = os.path.join(folder, HOSTILE)
        shutil.copy(self.public_program("sweeps"), program)
        recording = os.path.join(folder, "page.rec")
        done = self.call("record", "-o", recording, "--memory", "16M", "--", program, "32M", "1M", "3", timeout=240)
        expect(done.status == 0, f"status {done.status}: {done.err}")
        page = self.report(recording)
        expect(HOSTILE not in page and data_of(page)["program"] == program, "the name is not escaped")
        path = pathlib.Path(recording + ".html").rename(os.path.join(folder, "page.html"))
        question = """const box = (e) => e.getBoundingClientRect();
            const shown = (s) => [...document.querySelectorAll(s)].filter((e) => box(e).width > 0 && box(e).height > 0).length;
            return { cells: shown('#heat .cell'), parts: shown('#code .part'), series: document.querySelectorAll('#rate polyline').length, rows: shown('#mappings tbody tr'), policies: shown('#policies tbody tr'), drawn: document.querySelectorAll('#policies polyline').length,
                     heading: document.querySelector('h1').textContent, bold: document.querySelectorAll('b').length,
                     wide: document.documentElement.scrollWidth, text: document.body.innerText.length };"""
        with Browser() as browser:
            for scheme in ("light", "dark"):
                for width in (1280, 400):
                    browser.log("performance")
                    browser.show(path.as_uri(), scheme, width)
                    seen = browser.script(question)
                    expect(seen["cells"] > 40 and seen["parts"] >= 4 and seen["series"] == 4 and seen["rows"] > 0 and seen["policies"] >= 11 and seen["drawn"] == 4, f"{scheme} {width}: {seen}")
                    expect(seen["heading"] == program and seen["bold"] == 0 and seen["wide"] <= width, f"{scheme} {width}: {seen}")
                    console = browser.log("browser")
                    expect(not console, f"on the console: {console}")
                    sent = [json.loads(event["message"])["message"] for event in browser.log("performance")]
                    asked = [it["params"]["request"]["url"] for it in sent if it["method"] == "Network.requestWillBeSent"]
                    others = [url for url in asked if url != path.as_uri() and not url.startswith(("data:", "chrome"))]
                    expect(path.as_uri() in asked and not others, f"asked for {others}")
        return f"{seen['cells']} cells, {len(page) // 1024} KiB"
