"""What Farshore says of a kernel and does on it: runs in a guest of kernels.py (test_refused where it cannot work), and on any machine by hand.

`farshore doctor` is compared with what this kernel is known to have, by its version, and not by the probes of `sys`, which doctor uses.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import harness
import pytest
from harness import MIB, expect

sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "policies", folder) for folder in ("python", "examples")]
import farshore_policy  # noqa: E402
import hot  # noqa: E402

# What came with which Linux: doctor's finding and the version.
SINCE = {
    "UFFDIO_MOVE": (6, 8),
    "PAGEMAP_SCAN": (6, 7),
    "process_madvise(DONTNEED) on oneself": (6, 13),
    "io_uring": (5, 1),
    "Syscall User Dispatch": (5, 11),
    "faults by SIGBUS": (4, 14),
    "write protection": (5, 7),
}
USER = 1000
# The kernel's idle page tracking.
IDLE = "/sys/kernel/mm/page_idle/bitmap"
# A line is written for each number; the sum is what it reads back.
PERL = 'my @l = map { "$_ " x 40 } 1 .. 20000; my $s = 0; for (1 .. 2) { for (@l) { $s = ($s * 31 + length($_) + ord(substr($_, -3))) % 1000003 } } print "$s\\n"'


def version():
    """Of the kernel that runs."""
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups()))


def as_user():
    """Options of Popen for a command of an ordinary user's."""
    return {"user": USER, "group": USER, "extra_groups": []}


def run(argv, **more):
    """Runs a command: (status, stdout, stderr)."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=120 * harness.PATIENCE, **more)
    return done.returncode, done.stdout, done.stderr


def doctor(farshore, **more):
    """What doctor finds: (exit status, whether it is usable, findings by name)."""
    status, out, err = run([farshore, "doctor", "--json"], **more)
    try:
        said = json.loads(out)
    except ValueError:
        raise harness.Failed(f"doctor: status {status}: {out[-500:]}{err[-500:]}") from None
    return status, said["usable"], {finding["name"]: finding for finding in said["findings"]}


def shows_unreadable():
    """Whether this kernel shows a process the bytes of its own unreadable memory: it may be built to show them to debuggers alone."""
    script = """import ctypes, mmap
libc, memory = ctypes.CDLL(None), mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(b"x")
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert libc.mprotect(ctypes.c_void_p(address), 4096, 0) == 0
with open("/proc/self/mem", "rb", 0) as file:
    file.seek(address)
    print(file.read(1) == b"x")
"""
    status, out, err = run(["/usr/bin/python3", "-c", script])
    expect((status, out) == (0, "True\n") or "Errno 5" in err, f"status {status}: {out}{err}")
    return status == 0


def differing(found):
    """What doctor says of operations that this kernel has, as everybody can look up or try, and says wrong."""
    known = {name: version() >= since for name, since in SINCE.items()}
    known["bytes of unreadable memory"] = shows_unreadable()
    return [f"{found.get(name)}, and this is Linux {os.uname().release}" for name, there in known.items() if name not in found or found[name]["ok"] != there]


def test_doctor(farshore):
    """Each line of doctor's says what this kernel has."""
    status, usable, found = doctor(farshore)
    expect(not differing(found), "\n".join(differing(found)))
    expect((usable, status) == (True, 0), f"usable: {usable}, status {status}: {[finding for finding in found.values() if not finding['ok']]}")
    expect(found["kernel version"]["ok"] and found["kernel version"]["detail"] == os.uname().release, found["kernel version"])
    expect(found["scans"]["ok"] and found["scans"]["detail"].startswith("idle page tracking") == os.path.exists(IDLE), found["scans"])
    expect(found["AES instructions"]["ok"] == (" aes " in harness.read_text("/proc/cpuinfo")), found["AES instructions"])
    missing = [name for name, finding in found.items() if not finding["ok"]]
    expect(all(found[name]["without"] and found[name]["advice"] for name in missing if name != "newer userfaultfd features"), missing)
    libc = found["libc"]
    return f"Linux {os.uname().release}; missing: {', '.join(missing) or 'nothing'}; {os.confstr('CS_GNU_LIBC_VERSION')} {'known' if libc['ok'] else 'searched'}"


def test_libc(farshore, work):
    """Whether the library knows this libc is as doctor says: the calls are found by its table, or by a search."""
    config = os.path.join(work, "trace.toml")
    with open(config, "w", encoding="ascii") as file:
        file.write("trace = true\n")
    # The shell makes another process, for which it wakes.
    status, out, err = run([farshore, "run", "--config", config, "--memory", "64M", "--swap", f"dir:{work}", "--", "sh", "-c", "true & wait; echo done"])
    expect((status, out) == (0, "done\n"), f"status {status}: {out}{err}")
    told = re.search(r"(\d+) of (\d+) system call sites patched \((.*)\)", err)
    # Syscall User Dispatch catches those that cannot be patched.
    expect(told and int(told[1]) > 0.9 * int(told[2]) > 300, err)
    known = doctor(farshore)[2]["libc"]["ok"]
    expect(told[3] == ("planned when the library was built" if known else "found by a search"), f"doctor: {known}; {told[0]}")
    return told[0]


def test_doctor_of_a_user(farshore):
    """An ordinary user has the same, but for faults of the kernel's, which need a right."""
    (_, _, root), (status, usable, found) = doctor(farshore), doctor(farshore, **as_user(), env={"PATH": os.environ["PATH"]})
    differ = {name for name in found if found[name]["ok"] != root[name]["ok"]}
    allowed = harness.read_text("/proc/sys/vm/unprivileged_userfaultfd").strip() == "1" or (os.path.exists("/dev/userfaultfd") and os.stat("/dev/userfaultfd").st_mode & 0o006)
    expect(differ - {"locked memory"} == (set() if allowed else {"userfaultfd for kernel faults"}), differ)
    expect((usable, status) == (True, 0), f"usable: {usable}, status {status}")
    expect(found["scans"]["detail"].startswith("sampled unmapping"), found["scans"])


def test_user(farshore, work):
    """An ordinary user's program gives the same in a quarter of its memory, in both deliveries."""
    folder = tempfile.mkdtemp(dir=work)
    os.chown(folder, USER, USER)
    native = run(["perl", "-e", PERL], **as_user())
    expect(native[0] == 0, native)
    for mode in ("upcall", "poll"):
        stats = f"{folder}/{mode}.json"
        argv = harness.farshore_argv(farshore, ["perl", "-e", PERL], 6 * MIB, mode, [f"dir:{folder}"], stats)
        ours = run(argv, **as_user())
        expect(ours[:2] == native[:2], f"{mode}: {ours}, natively {native}")
        counts = harness.load_stats(stats)
        expect(not harness.check_stats(counts, 6 * MIB) and counts["swap"]["pages_out"] > 200, f"{mode}: {counts}")


def test_stat_and_set(farshore, work):
    """A program that runs is looked at, and its limit is changed."""
    argv = [harness.find_load(), "random", "--size=24M", "--threads=4", "--seconds=600", "--warmup=0"]
    process = subprocess.Popen(harness.farshore_argv(farshore, argv, 16 * MIB, swap=[f"dir:{work}"]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60 * harness.PATIENCE
        while time.monotonic() < deadline:
            status, out, _ = run([farshore, "stat", "--json", str(process.pid)])
            if status == 0 and json.loads(out)["swap"]["pages_out"] > 200:
                break
            time.sleep(0.2)
        else:
            raise harness.Failed(f"no page has left: status {status}: {out}")
        status, _, err = run([farshore, "set", str(process.pid), "memory=8M"])
        expect(status == 0, err)
        while time.monotonic() < deadline:
            counts = json.loads(run([farshore, "stat", "--json", str(process.pid)])[1])
            if counts["resident_bytes"] <= 8 * MIB:
                break
            time.sleep(0.2)
        expect(counts["memory_limit_bytes"] == 8 * MIB and counts["resident_bytes"] <= 8 * MIB, counts)
    finally:
        process.kill()
        process.wait()


def attached(pid):
    """A policy, attached to a program, which may have to wake."""
    deadline = time.monotonic() + 60 * harness.PATIENCE
    while True:
        try:
            policy = farshore_policy.attach(pid)
            policy.want("scanned")
            return policy
        except farshore_policy.Refused as refused:
            expect(time.monotonic() < deadline, refused)


@contextlib.contextmanager
def beside(farshore, work, argv, last, **more):
    """A program that says that it is ready, with a policy attached: (its process, the policy, the pages of its largest mapping). `last`: what ends it, and what it says then."""
    folder = tempfile.mkdtemp(dir=work)
    os.chmod(folder, 0o777)
    process = subprocess.Popen(harness.farshore_argv(farshore, argv, 64 * MIB, swap=[f"dir:{folder}"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
    try:
        expect(process.stdout.readline() == b"ready\n", "it does not begin")
        with attached(process.pid) as policy:
            yield process, policy, range(*max(hot.mappings(process.pid), key=lambda edges: edges[1] - edges[0]))
        out, _ = process.communicate(last[0], timeout=120 * harness.PATIENCE)
        expect((process.returncode, out) == (0, last[1]), f"status {process.returncode}: {out}")
    finally:
        process.kill()
        process.wait()


def hotset(farshore, work, **more):
    """The same for a program with 12 MiB, of which it uses the first again and again. At the end its bytes are right."""
    return beside(farshore, work, [harness.build_program("hotset"), "12M", "1M"], (b"end\n", b"right\n"), **more)


def scanned(policy, pages, at_once, seconds, enough):
    """Looks at pages, until `enough` is true of what is known: of each page that was looked at whether it was used each time."""
    seen, deadline = {}, time.monotonic() + 60 * harness.PATIENCE
    while not enough(seen):
        expect(time.monotonic() < deadline, f"{len(seen)} of {len(pages)} pages were looked at")
        starts = [page for page in range(pages.start, pages.stop, at_once) if page not in seen][:32]
        left = policy.ask_all(lambda page: policy.scan(page * hot.PAGE, min(at_once, pages.stop - page), seconds), starts)
        while left and policy.wait(30):
            while (event := policy.take()) is not None:
                left -= 1
                for n in (n for n in range(event.pages) if event.looked >> n & 1 and not event.detail):
                    page = event.address // hot.PAGE + n
                    seen[page] = seen.get(page, True) and bool(event.accessed >> n & 1)
        expect(not left, f"{left} scans have no answer")
        time.sleep(0.2)
    return seen


def scans_of(farshore, process):
    """What the program counts of scans, and pages that have left."""
    status, out, err = run([farshore, "stat", "--json", str(process.pid)])
    expect(status == 0, err)
    counts = json.loads(out)
    return counts["scans"]["watched_pages"], counts["scans"]["taken_pages"], counts["evictions"]["pages"]


def test_scan(farshore, work):
    """Where the kernel has idle page tracking, a scan of a program of root's tells which pages are used, and they stay where they are."""
    if not os.path.exists(IDLE):
        pytest.skip(f"the kernel has no {IDLE}")
    with hotset(farshore, work) as (process, policy, pages):
        seen = scanned(policy, pages, 64, 2, lambda seen: len(seen) > 0.95 * len(pages))
        by_kernel, taken, left = scans_of(farshore, process)
        expect(by_kernel > 0.9 * len(seen) and max(taken, left) < 0.05 * len(seen), f"{by_kernel} pages were watched and {taken} taken away, of which {left} have left")
        # The first MiB is hot; behind it, as far as a huge page reaches, pages may be used with it.
        inner = [seen[page] for page in range(pages.start, pages.start + 256) if page in seen]
        outer = [seen[page] for page in range(pages.start + 256 + 512, pages.stop) if page in seen]
        expect(sum(inner) >= 0.95 * len(inner) > 200, f"of {len(inner)} hot pages {sum(inner)} are said to be used")
        expect(sum(outer) <= 0.05 * len(outer), f"of {len(outer)} cold pages {sum(outer)} are said to be used")
    return f"{by_kernel} pages watched, {taken} taken away; {sum(inner)} of {len(inner)} hot ones are used, {sum(outer)} of {len(outer)} others"


def test_scan_of_a_user(farshore, work):
    """Scans of an ordinary user's program take pages away."""
    with hotset(farshore, work, **as_user()) as (process, policy, pages):
        some = range(pages.stop - 600, pages.stop - 520)
        seen = scanned(policy, some, 4, 0.1, lambda seen: len(seen) > 8)
        by_kernel, taken, left = scans_of(farshore, process)
        expect(by_kernel == 0 and 8 < taken <= left, f"{by_kernel} pages were watched and {taken} taken away, of which {left} have left")
        expect(not any(seen.values()), f"cold pages are said to be used: {seen}")
    return f"{taken} pages taken away"


# Has memory, and does what it is told.
TOLD = "import os, sys\nmemory = bytearray(b'x') * (8 << 20)\nprint('ready', flush=True)\nfor line in sys.stdin:\n    exec(line)\n    print('done', flush=True)\nprint(memory.count(b'x'))\n"


def test_scan_of_one_that_gives_up(farshore, work):
    """A program of root's that shuts itself in, or gives its rights up, is scanned by taking pages away from then on."""
    if not os.path.exists(IDLE):
        pytest.skip(f"the kernel has no {IDLE}")
    told = []
    for call in (f"os.chroot({tempfile.mkdtemp(dir=work)!r})", f"os.setresuid({USER}, {USER}, {USER})"):
        with beside(farshore, work, ["/usr/bin/python3", "-c", TOLD], (b"", b"%d\n" % (8 << 20))) as (process, policy, pages):
            some = [range(pages.start + 700 + n, pages.start + 780 + n) for n in (0, 100)]
            scanned(policy, some[0], 4, 0.1, lambda seen: len(seen) > 8)
            before = scans_of(farshore, process)
            expect(before[0] > 8 and before[1] == 0, f"{before[0]} pages were watched and {before[1]} taken away")
            process.stdin.write(f"{call}\n".encode())
            process.stdin.flush()
            expect(process.stdout.readline() == b"done\n", f"it does not go on after {call}")
            # Attachments end with rights, a moment later.
            time.sleep(1)
            if not policy.is_there:
                policy.close()
                policy = attached(process.pid)
            with policy:
                scanned(policy, some[1], 4, 0.1, lambda seen: len(seen) > 8)
            after = scans_of(farshore, process)
            expect(after[0] == before[0] and after[1] > 8, f"after {call}: {after[0] - before[0]} pages were watched and {after[1]} taken away")
            told.append(f"{call.partition('(')[0]}: {before[0]} watched, then {after[1]} taken away")
    return "; ".join(told)


@pytest.mark.too_old
def test_refused(farshore, work):
    """Where the kernel is too old, `run` says why in one line and starts nothing; doctor says what is missing."""
    for more in ({}, as_user()):
        status, out, err = run([farshore, "run", "--memory", "64M", "--swap", f"dir:{work}", "--", "echo", "started"], **more)
        expect((status, out) == (125, ""), f"status {status}: {out}{err}")
        expect(len(err.splitlines()) == 1 and os.uname().release in err and "6.8" in err, err)
    status, usable, found = doctor(farshore)
    expect((usable, status != 0) == (False, True), f"usable: {usable}, status {status}")
    expect(not differing(found), "\n".join(differing(found)))
    expect(not found["kernel version"]["ok"] and found["kernel version"]["required"], found["kernel version"])
    return err.strip()
