"""Programs that load no library: static ones, and those of another libc. A helper puts Farshore's library beside them, and they cannot tell.

What a program prints, and how it ends, must be the same natively and under Farshore. The program is `tests/programs/hosted.c`, linked in each way that
there is, and the threads, arrays and pages of other tests, linked statically; beside it one in Go, and busybox.
"""

import os
import re
import shutil
import subprocess
import time

import harness
import pytest
from command import NOBODY, Command
from compare import Case
from harness import MIB, Unavailable, expect
from test_threads import BALLAST, LIMIT, REFUSED

SECTIONS = ("found", "again", "children", "threads-exec", "stops", "killed", "low", "data", "calls", "orphans", "chld", "chld-of-own")
# How a program is linked: its compiler, and what that is told.
LINKED = {
    "static": ("gcc", ("-static",)),
    "static-pie": ("gcc", ("-static-pie",)),
    "stripped": ("gcc", ("-static", "-s")),
    "musl": ("musl-gcc", ("-static",)),
    "musl-dynamic": ("musl-gcc", ()),
}


def linked(way):
    """The program; its path."""
    compiler, flags = LINKED[way]
    out = os.path.join(harness.target_dir(), "test-programs", f"hosted-{way}")
    source = os.path.join(harness.PROGRAMS, "hosted.c")
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(source):
        tool = harness.need(compiler, "musl-tools" if compiler == "musl-gcc" else "gcc")
        os.makedirs(os.path.dirname(out), exist_ok=True)
        partial = f"{out}.{os.getpid()}"
        subprocess.run([tool, "-O2", "-Wall", "-pthread", *flags, "-o", partial, source], check=True)
        os.replace(partial, out)
    return out


def in_go(*flags, name="hosted-go"):
    """The program in Go, without libc; its path."""
    return harness.build_go("hosted", name, flags=flags)


def cases():
    """All of them."""
    found = []
    for way in LINKED:
        for section in SECTIONS:
            found.append(Case(f"{way}:{section}", lambda _, way=way, section=section: [linked(way), section], 12 * MIB, {"HOSTED_A": "1", "HOSTED_B": "two words"}))
    found.append(Case("go", lambda _: [in_go()], 24 * MIB))
    found.append(Case("go:stripped", lambda _: [in_go("-ldflags=-s -w", name="hosted-go-stripped")], 24 * MIB))
    found.append(Case("go:pie", lambda _: [in_go("-buildmode=pie", name="hosted-go-pie")], 24 * MIB))
    threads = harness.build_program("threads", ("-static",), out_name="threads_static")
    listed = subprocess.run([threads, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    # What is linked statically opens no plugins.
    for section in filter(lambda section: section != "plugins", listed):
        found.append(Case(f"threads:{section}", lambda _, section=section: [threads, BALLAST, section], LIMIT, refused=REFUSED.get(section)))
    statics = harness.build_program("statics", ("-static",), out_name="statics_static")
    for section in subprocess.run([statics, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split():
        found.append(Case(f"arrays:{section}", lambda _, section=section: [statics, section], 16 * MIB))
    return found


def test_same(case, both, mode):
    """Each program prints and ends as natively."""
    both.same(case, mode)


class TestHosted(Command):
    """Whom it is for, and where it cannot be."""

    def public(self, path):
        """A copy of a program where every user can run it."""
        copy = os.path.join(self.bin, os.path.basename(path))
        if not os.path.exists(copy):
            shutil.copy(path, copy)
            os.chmod(copy, 0o755)
        return copy

    @pytest.mark.parametrize("way", ("static", "musl"))
    def test_pages_leave(self, way):
        """Pages leave, within the limit, of root's programs and others'; and those of the program's arrays too."""
        program = self.public(linked(way))
        for user in (0, NOBODY):
            stats = os.path.join(self.folder("stats", 0o777), "stats.json")
            done = self.call("run", "--memory", "12M", "--stats", stats, "--", program, "data", user=user, timeout=120)
            expect(done.status == 0 and not done.err, f"user {user}: status {done.status}: {done.err[-500:]}")
            found = harness.load_stats(stats)
            expect(found["evictions"]["pages"] > 4000 and found["resident_bytes_peak"] <= 12 * MIB, f"user {user}: {found['evictions']}")
            # The array, and six threads' data.
            expect(found["managed_bytes_peak"] > 40 * MIB, f"user {user}: {found['managed_bytes_peak']} bytes were managed")

    def test_calls_are_patched(self):
        """Calls of each kind of program go by jumps, not by traps."""
        config = os.path.join(self.folder("config"), "farshore.toml")
        with open(config, "w", encoding="ascii") as file:
            file.write('memory = "64M"\ntrace = true\n')
        seen = []
        for way, least in (("static", 0.9), ("static-pie", 0.9), ("stripped", 0.9), ("musl", 0.6), ("go", 0.9), ("go-stripped", 0.9), ("go-pie", 0.9)):
            if way.startswith("go"):
                flags = {"go-stripped": ("-ldflags=-s -w",), "go-pie": ("-buildmode=pie",)}.get(way, ())
                program = in_go(*flags, name=f"hosted-{way}")
            else:
                program = linked(way)
            done = self.call("run", "--config", config, "--", program)
            said = re.search(r"farshore: (\d+) of (\d+) system call sites patched", done.err)
            expect(done.status == 0 and said, f"{way}: status {done.status}: {done.err[:300]}")
            patched, sites = map(int, said.groups())
            expect(sites >= 30 and patched >= least * sites, f"{way}: {said[0]}")
            seen.append(f"{way} {patched} of {sites}")
        return ", ".join(seen)

    def test_no_foreign_thread_locals(self):
        """All instructions of the library that go by the thread pointer are on the list of those that are changed for hosted programs."""
        objdump, readelf = harness.need("objdump", "binutils"), harness.need("readelf", "binutils")
        library = os.path.join(self.bin, "libfarshore.so")
        text = subprocess.run([objdump, "-d", "--no-show-raw-insn", library], stdout=subprocess.PIPE, check=True).stdout.decode()
        used = sum("%fs:" in line for line in text.splitlines())
        sections = subprocess.run([readelf, "-SW", library], stdout=subprocess.PIPE, check=True).stdout.decode()
        size = int(re.search(r" farshore_by_thread +\w+ +\w+ +\w+ +(\w+)", sections)[1], 16)
        expect(used > 10 and used == size // 4, f"{used} instructions go by fs, {size // 4} are on the list")
        # Each page of them is copied when a hosted program starts.
        pages = {line.split(":")[0].strip()[:-3] for line in text.splitlines() if "%fs:" in line}
        expect(len(pages) <= 12, f"{used} instructions that go by fs lie on {len(pages)} pages")
        return f"{used} instructions on {len(pages)} pages"

    def test_traced(self):
        """A program whose start somebody else traces cannot have a helper: it runs natively with a line, or is not started."""
        strace, program = harness.need("strace", "strace"), linked("static")
        trace = os.path.join(self.folder("trace"), "trace")
        line = f"'{program}' runs without Farshore: its start cannot be traced"
        done = self.call("run", "--memory", "16M", "--", strace, "-o", trace, "-f", program, "leaf")
        expect(done.status == 3 and line in done.err, f"status {done.status}: {done.err[-500:]}")
        done = self.call("run", "--memory", "16M", "--require", "--", strace, "-o", trace, "-f", program, "leaf")
        expect(done.status == 1 and f"'{program}' is not started (--require): its start cannot be traced" in done.err, f"status {done.status}: {done.err[-500:]}")
        done = self.call_program([strace, "-o", trace, "-f", self.farshore, "run", "--memory", "16M", "--", program, "leaf"])
        expect(done.status == 125 and "a helper has to put Farshore's into it" in done.err, f"status {done.status}: {done.err[-500:]}")

    def test_library_is_gone(self):
        """Where the library cannot be mapped into the program, it runs natively with a line; with --require it ends with 125."""
        if os.geteuid() != 0:
            raise Unavailable("changing the root directory needs root")
        root, program = self.folder("root"), linked("static")
        shutil.copy(program, os.path.join(root, "program"))
        script = "import os, sys\nos.chroot(sys.argv[1])\nos.chdir('/')\nos.execv('/program', ['/program', 'leaf'])"
        done = self.call("run", "--memory", "16M", "--", "/usr/bin/python3", "-c", script, root)
        expect(done.status == 3 and "'/program' runs without Farshore: the library" in done.err, f"status {done.status}: {done.err[-500:]}")
        done = self.call("run", "--memory", "16M", "--require", "--", "/usr/bin/python3", "-c", script, root)
        expect(done.status == 1 and "'/program' is not started (--require)" in done.err, f"status {done.status}: {done.err[-500:]}")

    def test_steps_that_fail(self):
        """Where a step of the helper's fails, the program runs natively with a line, as it was; or it is not started."""
        if os.geteuid() != 0:
            raise Unavailable("hiding the dynamic linker needs root")
        unshare, program, loader = harness.need("unshare", "util-linux"), linked("static"), "/lib64/ld-linux-x86-64.so.2"
        hidden = f"mount --bind /dev/null {loader}; exec {program} leaf"
        for extra, status, word in ((), 3, "a static program runs without Farshore: "), (["--require"], 125, "a static program is not started (--require): "):
            done = self.call("run", "--memory", "16M", *extra, "--", unshare, "-m", "sh", "-c", hidden)
            expect(done.status == status and f"{word}glibc's dynamic linker cannot be mapped" in done.err, f"{extra}: status {done.status}: {done.err[-500:]}")

    def python(self, script, *arguments, extra=(), user=None):
        """A Python program that does something to itself and then becomes another program."""
        begin = "import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        return self.call("run", "--memory", "16M", *extra, "--", "/usr/bin/python3", "-c", begin + script, *arguments, user=user)

    @pytest.mark.parametrize("why, script, user", (
        # PR_SET_DUMPABLE
        ("its start cannot be traced", "libc.prctl(4, 0)", NOBODY),
        # PR_SET_MDWE
        ("its code cannot be changed", "ok = libc.prctl(65, 1, 0, 0, 0) == 0", None),
        # CLONE_NEWPID
        ("its children will be in another process-id namespace", "ok = libc.unshare(0x20000000) == 0", None),
        # capset: none
        ("it is static, and regains capabilities",
         "ok = libc.capset(ctypes.byref((ctypes.c_uint32 * 2)(0x20080522, 0)), ctypes.byref((ctypes.c_uint32 * 6)())) == 0", None),
    ), ids=("undumpable", "mdwe", "namespace", "capabilities"))
    def test_no_helper(self, why, script, user):
        """What can have no helper runs natively, with a line that says why; or is not started."""
        if user is None and os.geteuid() != 0:
            raise Unavailable("this needs root")
        if script.startswith("libc.prctl(4") and os.geteuid() != 0:
            user = None
        program = self.public(linked("static"))
        for _ in range(6):
            done = self.python(f"ok = True\n{script}\nif not ok: sys.exit(77)\nos.execv(sys.argv[1], [sys.argv[1], 'leaf'])", program, user=user)
            if done.status == 77:
                raise Unavailable(f"this kernel does not let it be tried: {script}")
            expect(done.status == 3 and f"'{program}' runs without Farshore: {why}" in done.err, f"status {done.status}: {done.err[-500:]}")
        done = self.python(f"{script}\nos.execv(sys.argv[1], [sys.argv[1], 'leaf'])", program, extra=["--require"], user=user)
        expect(done.status == 1 and f"'{program}' is not started (--require): {why}" in done.err, f"status {done.status}: {done.err[-500:]}")

    def test_killed_leave_nothing(self):
        """Programs that are killed while a helper is at work leave no process behind."""
        with self.running(["--memory", "16M"], [linked("static"), "killed"]) as process:
            outcome, _ = self.ended(process)
            expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-500:]}")
            # The kernel takes a moment to end those that it has killed.
            deadline = time.monotonic() + 60
            while (left := harness.session_pids(process.popen.pid)) and time.monotonic() < deadline:
                time.sleep(0.05)
            expect(not left, "\n".join(harness.describe_process(pid) for pid in left[:3]))

    def test_busybox(self):
        """A shell and tools that are one static program, of which each starts others."""
        busybox = harness.need("busybox", "busybox-static")
        command = f"{busybox} seq 20000 | {busybox} sort -r | {busybox} md5sum; {busybox} sh -c 'for n in 1 2 3; do {busybox} echo $n; done; exit 4'; echo $?"
        native = self.call_program([busybox, "sh", "-c", command])
        done = self.call("run", "--memory", "16M", "--", busybox, "sh", "-c", command)
        expect((done.status, done.out, done.err) == (native.status, native.out, ""), f"status {done.status}: {done.out!r} {done.err!r}")
        managed = self.call("run", "--memory", "16M", "--", "/bin/sh", "-c", f"{busybox} grep -c libfarshore /proc/self/maps")
        expect(managed.status == 0 and int(managed.out) > 0, f"busybox was not managed: {managed.out!r} {managed.err!r}")
