"""System calls of a program under Farshore, and the program as others see it: what is natively, is so here.

| tests | what |
|---|---|
| matrix | every system call of the net's table (farshore-call-matrix, crates/testing/call-matrix), natively and under Farshore: with buffers that are resident, absent, half absent, across the edges and the end of managed memory, write-protected, and leaving at that moment. Each line of output must be the native one; the states of the pages, as the kernel tells them, must have been those |
| blocked | hundreds of threads blocked in calls with large buffers, and many that pin much at one time: the others go on |
| the others | gdb, strace, SIGSTOP, /proc/PID/mem and a core dump of a managed program |
"""

import collections
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time


import harness
import pytest
from harness import MIB, PAGE, Unavailable, expect, need

TIMEOUT = 240
# What must be seen of each way, as shares of the pages that the matrix' buffers lie on: state and least share.
WANTED = {
    "resident": ("absent", None, 0.1), "absent": ("absent", 0.9, None), "half": ("absent", 0.2, 0.8), "edge-out": ("absent", 0.9, None),
    "edge-in": ("absent", 0.9, None), "end": ("absent", 0.9, None), "clean": ("protected", 0.5, None), "leaving": ("absent", 0.01, 0.99),
}


class Rig:
    """What all tests need: the command, and a directory."""

    def __init__(self, farshore, work):
        self.farshore, self.work = farshore, work

    def under_farshore(self, argv, limit, mode, *more):
        """The command line of a managed run. In RAM: it is not the disk that is tested here, and pages shall leave quickly."""
        return harness.farshore_argv(self.farshore, argv, limit, mode, ["ram,size=1G"], extra=more)

    def environment(self):
        """Without settings of Farshore's."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FARSHORE_") and key != "LD_PRELOAD"}
        return {**kept, "LC_ALL": "C"}

    def finish(self, argv, folder, timeout=TIMEOUT, stdin=None):
        """Runs a program to its end: (outcome, lines of its output)."""
        path = tempfile.mktemp(prefix="out-", dir=self.work)
        with open(path, "wb") as stdout:
            process = harness.Process(argv, self.work, timeout, stdin=stdin, stdout=stdout, env=self.environment(), cwd=folder)
            outcome = process.finish()
        if outcome.timed_out:
            print(f"\n{' '.join(argv)} hangs:\n{outcome.picture}\n", file=sys.stderr)
        return outcome, harness.read_text(path, 1 << 26).splitlines()

    @contextlib.contextmanager
    def folder(self):
        """A directory for one run: always the same name, which some calls tell."""
        path = os.path.join(self.work, "here")
        os.makedirs(path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def rig(farshore, work):
    """The same."""
    return Rig(farshore, work)


def ended_badly(outcome, expected=0):
    """What is wrong about how a run ended."""
    if outcome.timed_out:
        return ["no end"]
    return [] if outcome.status == expected else [f"status {outcome.status}: {outcome.stderr.strip()[-400:]}"]


# ------------------------------------------------------------------------------------------------ the matrix


def namespaces():
    """A command that gives the matrix mounts, host names and message queues of its own; none if that is not allowed here."""
    for more in ([], ["-U", "-r"]):
        argv = ["unshare", *more, "-m", "-u", "-i", "--propagation", "private"]
        if shutil.which("unshare") and subprocess.run([*argv, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return argv
    return []


def right(problems):
    """Problems, if there are any, fail the test."""
    expect(not problems, "\n".join(text[:600] for text in problems[:30]))


def row_of(line):
    """The call that a line of the matrix is about."""
    return re.match(r"\w*", line)[0]


def compare(native, managed):
    """Rows of the table, each with the lines that differ."""
    rows = collections.OrderedDict()
    for line in native:
        rows.setdefault(row_of(line), [])
    for ours, theirs in zip(native, managed):
        if ours != theirs:
            rows[row_of(ours)].append(f"{theirs}\n      natively {ours}")
    if len(native) != len(managed):
        rows["rows"].append(f"{len(managed)} lines, natively {len(native)}")
    return rows


def states(path):
    """What the counts of page states lack."""
    try:
        with open(path, encoding="utf-8") as file:
            counts = json.load(file)
    except (OSError, ValueError) as error:
        return [f"no counts: {error}"]
    wrong = []
    for way, (state, least, most) in WANTED.items():
        pages = counts[way]["pages"]
        share = counts[way][state] / pages
        if (least is not None and share < least) or (most is not None and share > most):
            wrong.append(f"{way}: {counts[way][state]} of {pages} pages were {state}")
    return wrong


@pytest.fixture(scope="module")
def apart():
    """What gives the matrix names of its own."""
    return namespaces()


@pytest.fixture(scope="module")
def program(rig):
    """The matrix: its command line."""
    path = os.environ.get("FARSHORE_CALL_MATRIX") or os.path.join(os.path.dirname(rig.farshore), "farshore-call-matrix")
    if not os.access(path, os.X_OK):
        pytest.fail(f"no farshore-call-matrix at {path}: build it with `cargo build --workspace --release`, or name it by FARSHORE_CALL_MATRIX")
    return [path]


@pytest.fixture(scope="module")
def natively(rig, apart, program):
    """What it prints."""
    with rig.folder() as folder:
        outcome, lines = rig.finish([*apart, *program, *(["--apart"] if apart else [])], folder)
    right(ended_badly(outcome))
    return lines


def test_matrix(rig, apart, program, natively, mode, pytestconfig):
    """Each row as natively, and pages were in the states that they should have been in."""
    counts = os.path.join(rig.work, f"counts-{mode}.json")
    argv = [*program, *(["--apart"] if apart else []), "--managed", "--rounds", str(pytestconfig.option.rounds), "--counts", counts]
    with rig.folder() as folder:
        # Children that the matrix looks at from outside are ordinary programs. Nothing is read ahead: what a call finds absent is what this puts out.
        outcome, lines = rig.finish([*apart, *rig.under_farshore(argv, 5 * MIB, mode, "--no-follow", "--prefetch", "none")], folder)
    right(ended_badly(outcome))
    rows = compare(natively, lines)
    different = [wrong for wrong in rows.values() if wrong]
    right([f"{len(different)} of {len(rows)} rows differ", *(line for wrong in different[:10] for line in wrong[:3])] if different else [])
    right(states(counts))
    return f"{len(rows)} rows"


def test_names(apart):
    """The matrix has mounts and names of its own; otherwise it has made those calls with arguments that are refused."""
    if not apart:
        raise Unavailable("namespaces cannot be made here (unshare)")


# ----------------------------------------------------------------------------------------- blocked threads

BLOCKED = {"600 wait": (["600", "40"], 16 * MIB), "300 wait in 5M": (["300", "20"], 5 * MIB), "64 at once": (["--busy", "64"], 5 * MIB)}


@pytest.mark.parametrize("threads", BLOCKED)
def test_blocked(rig, threads, mode):
    """Threads that block, or pin much, in a limit that does not hold what they name."""
    program, (arguments, limit) = harness.build_program("blocked"), BLOCKED[threads]
    with rig.folder() as folder:
        outcome, native = rig.finish([program, *arguments], folder)
    right(ended_badly(outcome))
    with rig.folder() as folder:
        outcome, lines = rig.finish(rig.under_farshore([program, *arguments], limit, mode), folder)
    right(ended_badly(outcome))
    expect(lines == native, f"{lines}, natively {native}")


# --------------------------------------------------------------------------------------------- from outside


class Debugged:
    """The program `debugged` under Farshore in a fifth of its memory, which runs until its input ends."""

    MIB = 40

    def __init__(self, rig, mode, folder, before=(), arguments=()):
        argv = [harness.build_program("debugged"), str(self.MIB), *arguments]
        argv = [*before, *rig.under_farshore(argv, 8 * MIB, mode)]
        self.output = os.path.join(folder, "out")
        with open(self.output, "wb") as stdout:
            self.process = harness.Process(argv, rig.work, TIMEOUT, stdin=subprocess.PIPE, stdout=stdout, env=rig.environment(), cwd=folder)
        self.pid, self.start, self.size = self.where()

    def where(self):
        """What the program says about itself."""
        while self.process.alive():
            found = re.search(r"^(\d+) (0x[0-9a-f]+) (\d+)$", self.process.stderr_so_far(), re.M)
            if found:
                return int(found[1]), int(found[2], 16), int(found[3])
            time.sleep(0.05)
        raise Unavailable(f"debugged has not started: {self.process.stderr_so_far()[-300:]}")

    def pages(self):
        """Addresses of pages, by whether they are there."""
        with open(f"/proc/{self.pid}/pagemap", "rb") as file:
            file.seek(self.start // PAGE * 8)
            entries = file.read(self.size // PAGE * 8)
        there = [int.from_bytes(entries[at:at + 8], "little") >> 63 for at in range(0, len(entries), 8)]
        return [[self.start + index * PAGE for index, present in enumerate(there) if present == wanted] for wanted in (0, 1)]

    def word(self, address):
        """What the program has written there."""
        return 3 * ((address - self.start) // 8) + 1

    def finish(self, expected=0, lines=("right",)):
        """Ends its input, and looks at how it ended."""
        with contextlib.suppress(BrokenPipeError):
            self.process.popen.stdin.close()
        outcome = self.process.finish()
        if outcome.timed_out:
            print(f"\ndebugged hangs:\n{outcome.picture}\n", file=sys.stderr)
        problems = ended_badly(outcome, expected)
        found = harness.read_text(self.output).split("\n")[:-1]
        return problems if problems or found == list(lines) else [f"it said {found}"]


@contextlib.contextmanager
def stopped(pid):
    """All threads of a process are stopped meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if all(harness.read_text(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()[:1] == ["T"] for task in os.listdir(f"/proc/{pid}/task")):
                break
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def memory_file(program):
    """`/proc/PID/mem` while the program is stopped: pages that are there can be read, the others are an error, never zeros."""
    wrong = []
    with stopped(program.pid), open(f"/proc/{program.pid}/mem", "rb", buffering=0) as file:
        absent, present = program.pages()
        if not absent or not present:
            wrong.append(f"{len(absent)} pages are absent, {len(present)} present")
        for address in present[:200]:
            if os.pread(file.fileno(), 8, address) != program.word(address).to_bytes(8, "little"):
                wrong.append(f"the page at {address:#x} reads wrong")
        for address in absent[:200]:
            try:
                data = os.pread(file.fileno(), 8, address)
                wrong.append(f"the absent page at {address:#x} reads {data}")
            except OSError as error:
                if error.errno != 5:
                    wrong.append(f"the absent page at {address:#x}: {error}")
    return wrong


# What a user types first; documented in docs/src/reference/debuggers.md.
GDB = ["-nx", "-batch", "-ex", "set pagination off", "-ex", "set debuginfod enabled off", "-ex", "set language c", "-ex", "handle SIGBUS SIGSYS SIGSEGV nostop noprint pass"]


def run_gdb(program, gdb, *commands):
    """Attaches, does commands, detaches; its output."""
    argv = [gdb, *GDB, "-p", str(program.pid)] + [word for command in (*commands, "detach") for word in ("-ex", command)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT / 2, check=False)
    return done.stdout.decode(errors="replace")


def calls_natively(gdb):
    """Whether this gdb can call a function of an ordinary program: not where it does not know all of the processor's registers."""
    with subprocess.Popen([harness.build_program("debugged"), "1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        try:
            return "$1 = 10\n" in run_gdb(program, gdb, "break work", "continue", "delete", "print look(memory, 3)")
        finally:
            program.kill()


def function_called(program, gdb):
    """gdb calls a function of the program; the program itself fetches what that needs."""
    words = [program.size // 8 * part // 7 for part in range(7)]
    text = run_gdb(program, gdb, "break work", "continue", "delete", *(f"print look(memory, {word})" for word in words))
    if [int(value) for value in re.findall(r"^\$\d+ = (\d+)$", text, re.M)] != [3 * word + 1 for word in words]:
        return [f"a function that is called reads wrong: {text[-600:]}"]
    return []


def debugger(program, gdb, folder):
    """gdb attaches, shows a backtrace, a variable, present and absent memory, stops at a breakpoint, and goes."""
    # Which pages are there is known only when the program has been stopped by gdb: a command of gdb's finds out then.
    chosen, script = os.path.join(folder, "chosen"), os.path.join(folder, "choose.py")
    with open(script, "w", encoding="ascii") as file:
        file.write(f"""import struct
pages = open("/proc/{program.pid}/pagemap", "rb")
pages.seek({program.start // PAGE * 8})
there = [entry >> 63 for entry, in struct.iter_unpack("<Q", pages.read({program.size // PAGE * 8}))]
for name, wanted in (("absent", 0), ("present", 1)):
    print("echo", name + "\\\\n")
    print("x/1gx", hex({program.start} + {PAGE} * there.index(wanted)))
""")
    text = run_gdb(program, gdb, "backtrace", "print marker", f"shell {sys.executable} {script} > {chosen}", f"source {chosen}")
    # A command that fails ends a script: the present page comes first in a second look.
    with open(chosen, encoding="ascii") as file:
        absent = int(file.read().split("x/1gx")[1].split()[0], 16)
    wrong = [] if "main" in text else [f"no backtrace: {text[-600:]}"]
    if 'number = 4711, text = "there is such a variable"' not in text:
        wrong.append(f"no variable: {text[-600:]}")
    if f"Cannot access memory at address {absent:#x}" not in text:
        wrong.append(f"the absent page at {absent:#x} is not an error: {text[-600:]}")
    text = run_gdb(program, gdb, f"shell {sys.executable} {script} | tail -n 1 > {chosen}", f"source {chosen}")
    with open(chosen, encoding="ascii") as file:
        present = int(file.read().split()[1], 16)
    if not re.search(rf"{present:#x}:\s+0x{program.word(present):016x}", text):
        wrong.append(f"the present page at {present:#x} reads wrong: {text[-600:]}")
    text = run_gdb(program, gdb, "break work", "continue", "print words", "continue", "print rounds", "delete")
    if text.count("Breakpoint 1, ") != 2 or f"= {program.size // 8}\n" not in text:
        wrong.append(f"no breakpoint: {text[-600:]}")
    return wrong


def core_file(pid, folder):
    """Where the kernel puts a core dump of a process, or why it cannot be found."""
    pattern = harness.read_text("/proc/sys/kernel/core_pattern").strip()
    if pattern.startswith("|") or not pattern:
        raise Unavailable(f"core dumps go elsewhere: kernel.core_pattern is {pattern!r}")
    name = pattern.replace("%p", str(pid))
    if "%" in name:
        raise Unavailable(f"core dumps have other names: kernel.core_pattern is {pattern!r}")
    if "%p" not in pattern and harness.read_text("/proc/sys/kernel/core_uses_pid").strip() == "1":
        name += f".{pid}"
    return os.path.join(folder, name)


@pytest.fixture(scope="module")
def gdb():
    """Path of gdb."""
    return need("gdb", "gdb")


def test_core_dump(rig, gdb, mode):
    """A core dump has a backtrace; pages that were there have their bytes, the others are zeros."""
    with rig.folder() as folder:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        try:
            program = Debugged(rig, mode, folder, arguments=["abort"])
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        path = None
        try:
            path = core_file(program.pid, folder)
        finally:
            wrong = program.finish(128 + signal.SIGABRT)
        if not os.path.exists(path):
            raise Unavailable(f"the kernel has written no core dump to {path} (a hard limit of {hard} bytes?)")
        # The first and the last page of the memory: checked from its start to its end, so the last is there.
        last = program.start + program.size - PAGE
        argv = [gdb, "-nx", "-batch", "-ex", "set debuginfod enabled off", harness.build_program("debugged"), path, "-ex", "backtrace",
                "-ex", f"x/1gx {program.start:#x}", "-ex", f"x/1gx {last:#x}"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT / 2, check=False)
        os.unlink(path)
        text = done.stdout.decode(errors="replace")
        if "abort" not in text or "main" not in text:
            wrong.append(f"no backtrace: {text[-600:]}")
        for address, values in ((program.start, (0, program.word(program.start))), (last, (program.word(last),))):
            found = re.search(rf"{address:#x}:\s+(0x[0-9a-f]+)", text)
            if not found or int(found[1], 16) not in values:
                wrong.append(f"the page at {address:#x}: {found and found[1]}")
        right(wrong)


@pytest.fixture
def debugged(rig, mode):
    """A managed program that does not mind who looks at it."""
    with rig.folder() as folder:
        program = Debugged(rig, mode, folder)
        program.folder = folder
        try:
            yield program
        finally:
            right(program.finish())


def test_memory_file(debugged):
    """/proc/PID/mem."""
    right(memory_file(debugged))


def test_gdb(debugged, gdb):
    """gdb looks at it."""
    right(debugger(debugged, gdb, debugged.folder))


def test_gdb_calls(debugged, gdb):
    """gdb has it call a function."""
    if not calls_natively(gdb):
        raise Unavailable("this gdb cannot call a function of an ordinary program on this processor")
    right(function_called(debugged, gdb))


def test_strace(rig, mode):
    """strace sees the program's own calls, by its own number."""
    strace = need("strace", "strace")
    with rig.folder() as folder:
        trace = os.path.join(folder, "trace")
        program = Debugged(rig, mode, folder, before=[strace, "-f", "-o", trace, "-e", "trace=poll,write"])
        right(program.finish())
        expect(re.search(r"poll\(.*fd=0, events=POLLIN", harness.read_text(trace, 1 << 28)), f"no call of the program's in the trace: {harness.read_text(trace, 400)}")
