"""Programs that fit at first, and what they do when they do not fit any more: each section natively and under Farshore.

The programs are `tests/programs/dormant.c` and, with threads, `tests/programs/halted.c`. What a section prints, and how it ends, must be the same natively and under Farshore; what could wake it is
its own affair. By polling nothing is ever dormant: there it only must be the same.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

import harness
import pytest
from compare import Case
from harness import MIB, expect

# Less than the ballast, and more than what a section maps before it.
LIMIT, BALLAST = 40 * MIB, "64"
# It has threads and descriptors by polling.
UPCALL_ALONE = ("unseen", "refused", "threads-unseen", "threads-stray")
# Sections that print something else under Farshore: what, and a part of the line that Farshore says.
REFUSED = {
    "refused": ("refused: more 0, Cannot allocate memory\nrefused: heap 0, Cannot allocate memory\nrefused: bytes 1, child 0\nrefused: done\n", "goes on with what fits its limit"),
}


def right(wrong):
    """What is wrong, if anything, fails the test."""
    expect(not wrong, wrong)


# Calls in which a dormant program is asked for its counters.
WAITS = ("nanosleep", "poll", "ppoll", "select", "futex", "vectors")


def asked(farshore, program, call):
    """What is wrong with a program that waits in `call` while somebody asks for its counters; None: nothing."""
    argv = [program, BALLAST, f"wait:{call}"]
    run = subprocess.Popen([farshore, "run", "--memory", str(LIMIT), *harness.PATIENT, "--", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = os.read(run.stdout.fileno(), 100)
    time.sleep(0.3)  # The next thing is the call.
    answer = subprocess.run([farshore, "stat", str(run.pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    native = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False).stdout
    try:
        printed, said = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        run.kill()
        return "no end after 60 s"
    if answer.returncode != 0:
        return f"farshore stat: {answer.stdout.decode(errors='replace')}"
    return None if (first + printed, said) == (native, b"") else f"{first + printed} and {said}, natively {native}"


# Swap spaces that wait until the process wakes, besides a directory.
SPACES = {"ram": ["--swap", "ram"], "pool": ["--swap", "ram:lz4"], "pool+dir": ["--swap", "ram:zstd,size=4M", "--swap", "dir:{work}"], "encrypt": ["--encrypt"]}


def kept(farshore, program, options):
    """What is wrong with sections that must show nothing, and find all their bytes, over this swap space; None: nothing."""
    # The ballast does not compress.
    sections = ("unseen",) if options == SPACES["pool"] else ("unseen", "stock")
    for section in sections:
        argv = [program, BALLAST, section]
        native = subprocess.run(argv, stdout=subprocess.PIPE, check=False)
        run = subprocess.run([farshore, "run", "--memory", str(LIMIT), *harness.PATIENT, *options, "--", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
        if (run.returncode, run.stdout, run.stderr) != (0, native.stdout, b""):
            return f"{section}: {run}, natively {native}"
    return None


# Sections that a program runs which a shell has started: it has a share of the limit, and keeps descriptors.
CHILDREN = ("stock", "huge", "jump", "fork", "spawn", "vfork", "storm", "heap", "closes", "threads-waits", "threads-race", "threads-fork")


def child(farshore, program, section):
    """What is wrong with a section in a program that a shell starts; None: nothing."""
    argv = ["sh", "-c", '"$@"; exit $?', "sh", program, BALLAST, section]
    native = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    run = subprocess.run([farshore, "run", "--memory", str(LIMIT), *harness.PATIENT, "--", *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         timeout=120, check=False)
    return None if (run.returncode, run.stdout, run.stderr) == (native.returncode, native.stdout, b"") else f"{run}, natively {native}"


# What a process has open that Farshore has woken.
USERFAULTFD = "anon_inode:[userfaultfd]"


def high_files(pid):
    """What a process has open under high numbers."""
    folder = f"/proc/{pid}/fd"
    return [os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder) if int(fd) >= 60]


# Programs that a shell starts side by side, the limit that they share, and what Farshore may have of its own for each (MiB). Of those that map
# little all stay dormant; those that map more together than the limit wake.
COUNT, SHARED, OWN = 10, 256, 8
SHARES = {"fit": 12, "exceed": 40}


def shares(farshore, program, name):
    """What is wrong with programs that a shell starts side by side; None: nothing."""
    command = f'for i in $(seq {COUNT}); do "$1" "$2" hold < "$3" & done; wait'
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        run = subprocess.Popen([farshore, "run", "--memory", f"{SHARED}M", "--", "sh", "-c", command, "sh", program, str(SHARES[name]), pipe],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # They wait for its end.
        with open(pipe, "wb", buffering=0):
            ready = [run.stdout.readline() for _ in range(COUNT)]
            with open(f"/proc/{run.pid}/task/{run.pid}/children", encoding="ascii") as file:
                children = [int(pid) for pid in file.read().split()]
            asleep = sum(USERFAULTFD not in high_files(pid) for pid in children)
            # A relative gives back within a moment what it has too much.
            most, until = (SHARED + COUNT * OWN) * MIB, time.monotonic() + 60
            while (together := sum(map(harness.anonymous_bytes, children))) > most and time.monotonic() < until:
                time.sleep(0.1)
        printed, said = run.communicate(timeout=60)
    if (run.returncode, set(ready), len(children), printed.count(b"done"), said) != (0, {b"hold: ready\n"}, COUNT, COUNT, b""):
        return f"{run.returncode}, {ready}, {children}, {printed}, {said}"
    # Whoever comes first may find that all its memory is free.
    if (asleep == COUNT) != (name == "fit"):
        return f"{asleep} of {COUNT} are dormant"
    return None if together <= most else f"{together / MIB:.1f} MiB in {SHARED}"


# What a library does to libc's text before Farshore starts: a page of it was written, or is still writable.
CUTS = ("closed", "open")


def cut(farshore, program, how):
    """What is wrong with a program that needs more than its limit, where a library has cut libc's text in pieces; None: nothing."""
    library = harness.build_program("cut_text", ("-shared", "-fPIC"))
    with tempfile.NamedTemporaryFile() as stats:
        run = subprocess.run([farshore, "run", "--memory", str(LIMIT), *harness.PATIENT, "--stats", stats.name, "--", program, BALLAST, "stock"],
                             env={**os.environ, "LD_PRELOAD": library, "CUT_TEXT": how}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        native = subprocess.run([program, BALLAST, "stock"], stdout=subprocess.PIPE, check=False)
        if (run.returncode, run.stdout, run.stderr) != (0, native.stdout, b""):
            return f"{run}, natively {native}"
        text = stats.read()
    if not text:
        return "it has not woken: there are no counters"
    counted = json.loads(text)
    evicted = counted["evictions"]["pages"]
    return None if counted["resident_bytes_peak"] <= LIMIT and evicted > 0 else f"{counted['resident_bytes_peak']} bytes in {LIMIT}, {evicted} pages left"


# How somebody may have started the program.
STARTED = ("ignored", "blocked")


def started(farshore, program, how):
    """What is wrong with a program with threads that was started with all signals ignored, or blocked; None: nothing."""
    for section in ("threads-unseen", "threads-stray", "threads-waits"):
        argv = [program, BALLAST, section]
        run, native = (subprocess.run([program, "--started", how, *before, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
                       for before in ([farshore, "run", "--memory", str(LIMIT), *harness.PATIENT, "--"], []))
        if (run.returncode, run.stdout, run.stderr) != (native.returncode, native.stdout, b""):
            return f"{section}: {run}, natively {native}"
    return None


# Starts of a program that is asked to wake, each a little later than the one before.
EARLY = 40


def early(farshore):
    """What is wrong with a program that somebody asks to wake as soon as it can hear, or a moment later, when it begins its threads; None: nothing."""
    storm = [harness.build_program("memstorm"), "3", "16", "1", "11"]
    native = subprocess.run(storm, stdout=subprocess.PIPE, check=True)
    for start in range(EARLY):
        run = subprocess.Popen([farshore, "run", "--memory", "64M", "--", *storm], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while run.poll() is None:
            caught = re.search(r"^SigCgt:\s*(\w+)", harness.read_text(f"/proc/{run.pid}/status"), re.M)
            if caught and int(caught[1], 16) >> (signal.SIGURG - 1) & 1:
                break
        time.sleep(start // 2 * 0.0002)
        run.send_signal(signal.SIGURG)
        printed, said = run.communicate(timeout=60)
        if (run.returncode, printed, said) != (0, native.stdout, b""):
            return f"start {start}: {run.returncode}, {printed}, {said}, natively {native.stdout}"
    return None


def sections(name):
    """What a test program can do."""
    return subprocess.run([harness.build_program(name), "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()


# How calls that may wait can come by a site of libc's of which nobody knows the number: by syscall(3), or by a newer libc.
BY_ANY_SITE = {
    "number": lambda: ("-include", os.path.join(harness.PROGRAMS, "by_number.h")),
    "debian13": harness.debian_13_flags,
}
# Sections that do without the shell, which has another libc.
WITHOUT_SHELL = ("unseen", "handler", "interrupted", "otherstack", "jump", "masks", "thread", "heap", "threads-unseen", "threads-waits", "threads-storm", "threads-crowd",
                 "threads-early", "threads-race", "threads-last", "threads-deaf", "threads-cancel", "threads-stray")


def by_any_site(name, how):
    """A program whose calls come so."""
    return harness.build_program(name, BY_ANY_SITE[how](), f"{name}-by-{how}")


def pytest_generate_tests(metafunc):
    if "program" in metafunc.fixturenames:
        everywhere = "mode" in metafunc.fixturenames
        some = [(name, section) for name in ("dormant", "halted") for section in sections(name) if (section not in UPCALL_ALONE) == everywhere]
        metafunc.parametrize("program,section", some)


@pytest.fixture(scope="module")
def dormant():
    """The program."""
    return harness.build_program("dormant")


def test_section(program, section, mode, both):
    """Each section prints and ends as natively."""
    both.same(Case(section, lambda _: [harness.build_program(program), BALLAST, section], LIMIT, refused=REFUSED.get(section)), mode)


def test_only_dormant(program, section, both):
    """And those in which a process by polling shows itself."""
    test_section(program, section, "upcall", both)


# In an older libc no thread is cancelled in syscall(3).
@pytest.mark.parametrize("section,how", [(section, how) for section in WITHOUT_SHELL for how in BY_ANY_SITE if (section, how) != ("threads-cancel", "number")])
def test_any_site(section, how, both):
    """The calls of a section come by a site of which nobody knows the number: it is dormant as long, and wakes as well."""
    name = "halted" if section in sections("halted") else "dormant"
    both.same(Case(f"{section}-{how}", lambda _: [by_any_site(name, how), BALLAST, section], LIMIT), "upcall")


@pytest.mark.parametrize("how", BY_ANY_SITE)
@pytest.mark.parametrize("call", WAITS)
def test_asked_at_any_site(farshore, call, how):
    """It waits in such a call, and somebody asks for its counters."""
    right(asked(farshore, by_any_site("dormant", how), call))


@pytest.mark.parametrize("call", WAITS)
def test_asked(farshore, dormant, call):
    """It waits in a call, and somebody asks for its counters."""
    right(asked(farshore, dormant, call))


def test_asked_early(farshore):
    """It is asked at its very start."""
    right(early(farshore))


@pytest.mark.parametrize("how", CUTS)
def test_cut_text(farshore, dormant, how):
    """A library has changed libc's text before."""
    right(cut(farshore, dormant, how))


@pytest.mark.parametrize("how", STARTED)
def test_started(farshore, how):
    """A library has started a thread before."""
    right(started(farshore, harness.build_program("halted"), how))


@pytest.mark.parametrize("section", CHILDREN)
def test_child(farshore, section):
    """A program that a shell starts."""
    name = "halted" if section in sections("halted") else "dormant"
    right(child(farshore, harness.build_program(name), section))


@pytest.mark.parametrize("name", SHARES)
def test_shares(farshore, dormant, name):
    """Programs that a shell starts side by side."""
    right(shares(farshore, dormant, name))


@pytest.mark.parametrize("space", SPACES)
def test_kept(farshore, dormant, work, space):
    """Bytes that are in another kind of swap space."""
    right(kept(farshore, dormant, [word.format(work=work) for word in SPACES[space]]))
