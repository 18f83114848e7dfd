"""Programs that a program starts: they run under Farshore too, and cannot tell.

What can be compared with a native run is compared.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import time

import harness
from command import NOBODY, Command
from harness import Failed, Unavailable, expect

# What is said of a program that Farshore cannot enter.
FOREIGN = "it is a 32-bit program"
TIMEOUT = 120
# Tells whether Farshore is in the program that reads it.
MANAGED = "grep -q libfarshore.so /proc/self/maps && echo managed || echo native"


# Installs a filter that ends a process for one call, and becomes another program; or forks.
FILTERED = """
import ctypes, os, struct, sys
call, kill, allow = int(sys.argv[1]), 0x80000000, 0x7fff0000
words = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, kill), (0x06, 0, 0, allow)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in words))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(words), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0):
    sys.exit("prctl")
if len(sys.argv) > 2:
    os.execv(sys.argv[2], sys.argv[2:])
try:
    child = os.fork()
except BlockingIOError:
    # As Farshore documents it.
    print("forked 0", flush=True)
    os._exit(0)
if child == 0:
    os._exit(0)
print("forked", os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""


def same(natively, under, what):
    """Two texts that must be equal."""
    if natively != under:
        pairs = zip(natively.splitlines() + ["(end)"], under.splitlines() + ["(end)"])
        line = next((f"natively {a!r}, under farshore {b!r}" for a, b in pairs if a != b), "one is longer")
        raise Failed(f"{what}: {line}")


class TestFollow(Command):
    """What a program starts."""

    def ran(self, argv, user=None, env=None):
        """Runs a command to its end. A command that hangs is described and ended, with all that it has started."""
        if user is not None and os.geteuid() == 0:
            argv = [harness.need("setpriv", "util-linux"), "--reuid", str(user), "--regid", str(user), "--clear-groups", *argv]
        environment = dict(os.environ, LC_ALL="C", **(env or {}))
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd="/",
                                   start_new_session=True)
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            pids = harness.session_pids(process.pid)
            print("\n".join(harness.describe_process(pid) for pid in pids))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            process.communicate()
            raise Failed(f"no end after {TIMEOUT} s: {' '.join(argv)}") from None
        status = process.returncode if process.returncode >= 0 else 128 - process.returncode
        return status, out.decode(errors="replace"), err.decode(errors="replace")

    def under(self, argv, extra=(), memory="16M", **options):
        """Runs a command under farshore."""
        return self.ran([self.farshore, "run", "--memory", memory, *extra, "--", *argv], **options)

    def compare(self, argv, what, extra=(), told=(), **options):
        """Runs a command both ways: status, stdout and stderr must be the same, but for a line about each program of `told`, which
        runs without Farshore: its path, and why. Returns stdout."""
        natively, under = self.ran(argv, **options), self.under(argv, extra, **options)
        expect(natively[0] == under[0], f"{what}: status {natively[0]} natively, {under[0]} under farshore: {under[2].strip()[:300]}")
        same(natively[1], under[1], what)
        err = under[2]
        for path, why in told:
            line = f"farshore: '{path}' runs without Farshore: {why}\n"
            expect(line in err, f"{what}: nothing says {line!r}: {err!r}")
            err = err.replace(line, "", 1)
        same(natively[2], err, f"{what}, stderr")
        return under[1]

    def script(self, name, text):
        """A file of this text that every user can read and run."""
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    # ------------------------------------------------------------------------------------------ what is handed on

    def each_way(self, extra, user=None):
        program, outputs, children = self.public_program("exec"), [], []
        for under in (False, True):
            # The same path both times, since it is in what is printed.
            folder = os.path.join(self.work, "each")
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder)
            os.chmod(folder, 0o777)
            argv = [program, "all", folder]
            status, out, err = self.under(argv, extra, user=user) if under else self.ran(argv, user=user)
            expect(status == 0, f"status {status}: {err[-300:]}")
            outputs.append(out)
            children.append([line.rsplit(" ", 1) for line in err.splitlines()])
        same(*outputs, "exec all")
        expect(all(kind == "native" for _, kind in children[0]), "a native run has Farshore in it")
        other = [f"{name} {kind}" for name, kind in children[1] if kind != "managed"]
        expect(not other, f"not under farshore, or lines on stderr: {other[:3]}")
        expect(len(children[0]) == len(children[1]) > 30, f"{len(children[0])} children natively, {len(children[1])} under farshore")
        return f"{len(children[1])} programs, {len(outputs[0].splitlines())} equal lines"

    def test_every_way(self):
        """Every way to exec hands on the same, and what fails fails with the same error."""
        return self.each_way([])

    def test_every_way_poll(self):
        """The same in poll mode."""
        return self.each_way(["--fault", "poll"])

    def test_every_way_as_a_user(self):
        """The same for an ordinary user."""
        if os.geteuid() != 0:
            raise Unavailable("this is an ordinary user already")
        return self.each_way([], user=NOBODY)

    def test_room(self):
        """The largest environment is as large as natively; what has no room for ours runs without, and says so."""
        argv = [self.public_program("exec"), "room", self.work]
        natively, under = self.ran(argv), self.under(argv)
        expect(natively[0] == under[0] == 0, f"status {natively[0]} and {under[0]}: {under[2][:300]}")
        same(natively[1], under[1], "exec room")
        lines = under[2].splitlines()
        expect(lines and all("no room" in line and line.startswith("farshore: ") for line in lines), f"stderr: {under[2][:300]}")
        return natively[1].strip()

    def test_environment(self):
        """A program sees the environment that it was given, and /proc/PID/environ what the kernel was."""
        self.compare(["env", "-i", "A=1", "sh", "-c", "env; exec env"], "env -i")
        self.compare(["env", "LD_PRELOAD=/lib/x86_64-linux-gnu/libm.so.6", "sh", "-c", "env | sort; env env | sort"], "LD_PRELOAD")
        status, out, _ = self.under(["sh", "-c", "sleep 60 & sleep 0.2; tr '\\0' '\\n' < /proc/$!/environ; kill $!"])
        expect(status == 0 and "FARSHORE_OPTIONS=" in out and "LD_PRELOAD=" in out, f"/proc/PID/environ: {out[:200]}")

    # ------------------------------------------------------------------------------------------ who is followed

    def test_notices(self):
        """What is to be said of a swap space is said once, not by every program that follows."""
        place = next((path for path in ("/dev/shm", "/run/shm") if os.access(path, os.W_OK)), None)
        if place is None:
            raise Unavailable("there is no tmpfs to write to")
        status, out, err = self.under(["sh", "-c", "env true; env echo done"], ["--swap", f"dir:{place}"])
        expect((status, out) == (0, "done\n"), f"status {status}: {out} {err}")
        expect(len(err.splitlines()) == 1 and place in err, f"not one line: {err!r}")
        return "one line for five programs"

    def test_no_follow(self):
        """--no-follow, and follow = false in a file: children are ordinary programs."""
        kinds = [self.under(["sh", "-c", MANAGED], extra)[1].strip() for extra in ([], ["--no-follow"])]
        expect(kinds == ["managed", "native"], f"without and with --no-follow: {kinds}")
        config = self.script("far.toml", "follow = false\n")
        kind = self.under(["sh", "-c", MANAGED], ["--config", config])[1].strip()
        expect(kind == "native", f"follow = false: {kind}")

    def test_filters(self):
        """A program that is started in a filter ends no other way than natively, nor does one that forks: also if the filter ends it for a call that only Farshore makes then."""
        copy = [harness.need("dd", "coreutils"), "if=/dev/zero", "of=/dev/null", "bs=48M", "count=2", "status=none"]
        started = {"lseek": 8, "readlink": 89, "getresuid": 118, "fstatfs": 138, "getdents64": 217, "ppoll": 271, "perf_event_open": 298, "statx": 332}
        for call, number in started.items():
            self.compare(["/usr/bin/python3", "-c", FILTERED, str(number), *copy], f"a filter against {call}")
        for call, number in {"open": 2, "close": 3, "dup": 32, "geteuid": 107, "openat": 257, "statx": 332}.items():
            argv = ["/usr/bin/python3", "-c", "data = bytearray(40 << 20)\n" + FILTERED, str(number)]
            natively, under = self.ran(argv), self.under(argv)
            expect(natively[:2] == under[:2] == (0, "forked 0\n"), f"a fork in a filter against {call}: {natively}, under farshore {under}")
            expect(not under[2] or "it cannot fork" in under[2], f"a fork in a filter against {call}: {under[2]}")

    def test_pipeline(self):
        """Each program of a shell's pipeline is one of its own: farshore stat knows it, and it has managed memory."""
        gate = os.path.join(self.folder("pipeline"), "gate")
        os.mkfifo(gate)
        command = "seq 200000 | sort -r | (cat; cat %s) | tail -n 1" % gate
        process = subprocess.Popen([self.farshore, "run", "--memory", "16M", "--", "sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True)
        try:
            seen = self.wait_for_programs(process, {"sh", "tail"})
            for pid, stats in seen.items():
                expect(stats["pid"] == pid and stats["memory_limit_bytes"] <= 16 << 20, f"stat of {pid}: {stats['program']}")
            with open(gate, "wb") as file:
                file.write(b"the end\n")
            out, _ = process.communicate(timeout=TIMEOUT)
        finally:
            for pid in harness.session_pids(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        expect(process.returncode == 0 and out == b"the end\n", f"status {process.returncode}: {out[:100]}")
        tails = [stats for stats in seen.values() if stats["program"] == "tail"]
        expect(all(stats["managed_bytes_peak"] > 0 for stats in tails), "tail has no managed memory")
        return f"{len(seen)} programs answered"

    def wait_for_programs(self, process, names):
        """Asks all processes of the run until programs of these names have answered."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            seen = {}
            for pid in harness.session_pids(process.pid):
                done = subprocess.run([self.farshore, "stat", "--json", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
                if done.returncode == 0:
                    seen[pid] = json.loads(done.stdout)
            if names <= {stats["program"] for stats in seen.values() if stats["managed_bytes_peak"] > 0}:
                return seen
            time.sleep(0.1)
        raise Failed(f"after {TIMEOUT} s only {[stats['program'] for stats in seen.values()]} have answered")

    def test_python(self):
        """Python's subprocess (vfork), posix_spawn, fork and exec, and an exec by descriptor."""
        python = harness.need("python3", "python3")
        script = self.script("children.py", f"""import os, subprocess, sys
command = ["sh", "-c", {MANAGED!r}]
print(subprocess.run(command, stdout=subprocess.PIPE).stdout, subprocess.run(command, env={{}}, stdout=subprocess.PIPE).stdout)
try:
    subprocess.run(["/no/such/program"])
except OSError as error:
    print(error)
sys.stdout.flush()
print(os.waitpid(os.posix_spawnp("sh", command, os.environ), 0)[1])
for by_descriptor in (False, True):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.execve(os.open("/bin/sh", os.O_RDONLY) if by_descriptor else "/bin/sh", command, {{"A": "1"}})
    print(os.waitpid(pid, 0)[1])
os.execvp("sh", command)
""")
        natively, under = self.ran([python, script]), self.under([python, script])
        expect("managed" not in natively[1], natively[1])
        same(natively[1].replace("native", "managed"), under[1], "children.py")
        same(natively[2], under[2], "children.py, stderr")
        return f"{under[1].count('managed')} children"

    def test_many(self):
        """Hundreds of children, from several threads too: the parent keeps nothing of them."""
        python = harness.need("python3", "python3")
        script = self.script("many.py", """import os, subprocess, threading
def some(count):
    for number in range(count):
        assert subprocess.run(["/bin/echo", str(number)], stdout=subprocess.PIPE).stdout == b"%d\\n" % number
def held():
    with open("/proc/self/maps") as maps:
        return len(maps.readlines()), len(os.listdir("/proc/self/fd"))
some(20)
before = held()
some(40)
after = held()
print(after[0] - before[0], after[1] - before[1])
threads = [threading.Thread(target=some, args=(15,)) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("done")
""")
        status, out, err = self.under([python, script])
        expect(status == 0 and not err, f"status {status}: {err[-300:]}")
        grown = [int(word) for word in out.split()[:2]]
        # The allocator may take an arena; 40 leaks would be more.
        expect(grown[0] < 10 and grown[1] == 0, f"after 40 children {grown[0]} mappings and {grown[1]} descriptors more")
        return f"{grown[0]} mappings more after 40 children"

    def test_scripts(self):
        """A script, its interpreter, and what /usr/bin/env starts."""
        plain = self.script("plain.sh", f"#!/bin/sh\n{MANAGED}\n")
        by_env = self.script("by-env.sh", f"#!/usr/bin/env sh\n{MANAGED}\n")
        unmarked = self.script("unmarked", f"{MANAGED}\n")
        status, out, err = self.under(["sh", "-c", f"{plain}; {by_env}; {unmarked}"])
        expect((status, out, err) == (0, "managed\n" * 3, ""), f"status {status}: {out!r} {err!r}")

    # ------------------------------------------------------------------------------------------ who is not

    def foreign(self):
        """A program that Farshore cannot enter."""
        return harness.program_of_32_bits(os.path.join(self.bin, "foreign"))

    def test_foreign(self):
        """A program of 32 bits runs as it is; a line says so."""
        foreign = self.foreign()
        self.compare(["sh", "-c", f"{foreign}; {foreign} a b | cat; exec {foreign}"], "32 bits", told=[(foreign, FOREIGN)] * 3)

    def test_required(self):
        """With --require a program that cannot run under Farshore is not started. What is no program gives the error that it gives natively."""
        foreign = self.foreign()
        text = self.script("text", "echo read by the shell\n")
        command = f"{foreign}; echo $?; /no/such/program; echo $?; {text}; ls -d /"
        status, out, err = self.under(["sh", "-c", command], ["--require"])
        expect((status, out) == (0, "126\n127\nread by the shell\n/\n"), f"status {status}: {out!r} {err!r}")
        expect(err.count("farshore:") == 1 and f"farshore: '{foreign}' is not started (--require): {FOREIGN}\n" in err, err)
        # What would get around it: options in the environment, no environment at all. A program for another machine is none here, so the kernel refuses it.
        for command in (f"FARSHORE_OPTIONS=x {foreign}", f"env -i FARSHORE_OPTIONS= {foreign}", "env -i FARSHORE_OPTIONS= /bin/true"):
            status, out, err = self.under(["sh", "-c", f"{command}; echo $?"], ["--require"])
            expect((status, out) == (0, "126\n") and "is not started (--require)" in err, f"{command}: status {status}: {out!r} {err!r}")
        other = self.script("other", "")
        with open(other, "wb") as file:
            file.write(b"\x7fELF" + bytes([1, 1, 1]) + bytes(9) + struct.pack("<HHI", 2, 40, 1) + bytes(40))
        attempt = "import os, sys\ntry: os.execv(sys.argv[1], sys.argv[1:])\nexcept OSError as error: print(error.errno)"
        natively, under = self.ran(["/usr/bin/python3", "-c", attempt, other]), self.under(["/usr/bin/python3", "-c", attempt, other], ["--require"])
        expect(natively == under and natively[1] == "8\n", f"for another machine: {natively} natively, {under} under farshore")
        # A child of vfork, and one that is found by PATH.
        spawn = "import os, sys\ntry:\n    os.posix_spawnp(sys.argv[1], [sys.argv[1], 'true'], os.environ)\nexcept OSError as error:\n    print(error.errno)"
        status, out, err = self.under(["/usr/bin/python3", "-c", spawn, foreign], ["--require"])
        expect((status, out) == (0, "1\n"), f"status {status}: {out!r} {err!r}")
        status, _, err = self.under(["true"], ["--require", "--no-follow"])
        expect((status, err) == (125, "farshore: --require does not go with --no-follow: leave one of them out\n"), f"status {status}: {err!r}")

    def test_lines_do_no_harm(self):
        """Where stderr takes nothing, the line about a 32-bit program is lost, and the program neither waits for it nor dies of it."""
        foreign = self.foreign()
        argv = [self.farshore, "run", "--memory", "16M", "--", "sh", "-c", f"{foreign}; echo $?"]
        for full in (False, True):
            reading, writing = os.pipe()
            if full:
                os.set_blocking(writing, False)
                try:
                    while True:
                        os.write(writing, bytes(4096))
                except BlockingIOError:
                    os.set_blocking(writing, True)
            else:
                os.close(reading)
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writing, timeout=TIMEOUT, check=False)
            os.close(writing)
            if full:
                os.close(reading)
            what = "a full pipe" if full else "a pipe that nobody reads"
            expect((done.returncode, done.stdout) == (0, b"inside\n0\n"), f"{what}: status {done.returncode}: {done.stdout!r}")

    def test_stat_says_why(self):
        """farshore stat says of a 32-bit program that it is not managed, and why."""
        foreign = self.foreign()
        with subprocess.Popen([foreign], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            # What is started is there once it has said something.
            expect(process.stdout.readline() == b"inside\n", "it does not begin")
            status, out, err = self.ran([self.farshore, "stat", str(process.pid)])
            process.stdin.close()
        expect((status, out, err) == (1, "", f"farshore: process {process.pid} runs without Farshore: {FOREIGN}\n"), f"status {status}: {out!r} {err!r}")

    def test_kinds(self):
        """farshore stat tells what lies in RAM by kind: the numbers are those of a program that has touched so much of each."""
        # The static array and the code are managed, where the threshold is not above them.
        for options, static, code in (([], (0, 1), (0, 1)), (["--threshold", "32M"], (24, 26), (2, 3))):
            command = [self.farshore, "run", "--memory", "16M", *options, "--", self.public_program("kinds")]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                ready = process.stdout.readline()
                status, out, err = self.ran([self.farshore, "stat", "--json", str(process.pid)])
                process.stdin.close()
            expect((ready, status, err) == (b"ready\n", 0, ""), f"{options}: status {status}: {err!r}")
            kinds = json.loads(out)["kinds"]
            mib = 1 << 20
            for name, least, most in (("managed", 12, 18), ("static", *static), ("shared", 6, 7), ("stack", 4, 6), ("executable", *code), ("huge", 0, 0)):
                found = kinds[f"{name}_bytes"]
                expect(least * mib <= found <= most * mib, f"{options}: {name}: {found} bytes, not {least} to {most} MiB: {kinds}")
            expect(kinds["farshore_bytes"] > mib and kinds["file_bytes"] > mib, f"{options}: {kinds}")

    def test_thirty_two_bits(self):
        """A 32-bit program runs as it is, if the kernel has that at all; a line says so."""
        code = bytes.fromhex("b801000000bb07000000cd80")
        base, start = 0x08048000, 52 + 32
        header = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + start, 52, 0, 0, 52, 32, 1, 0, 0, 0)
        segment = struct.pack("<IIIIIIII", 1, 0, base, base, start + len(code), start + len(code), 5, 4096)
        path = os.path.join(self.bin, "small")
        with open(path, "wb") as file:
            file.write(header + segment + code)
        os.chmod(path, 0o755)
        return self.compare(["sh", "-c", f"{path}; echo $?"], "a 32-bit program", told=[(path, "it is a 32-bit program")]).strip()

    def rights(self, prepare, what, why):
        """A copy of `cat` and one of `printenv` that gain rights: they do so as natively, and see nothing of Farshore. A line says why."""
        if os.geteuid() != 0:
            raise Unavailable("only root can make programs that gain rights")
        folder = self.folder("rights")
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            raise Unavailable(f"{folder} lies on a nosuid mount: use another --work")
        commands = []
        for name in ("cat", "printenv"):
            copy = os.path.join(folder, name)
            shutil.copy(harness.need(name, "coreutils"), copy)
            os.chmod(copy, 0o755)
            prepare(copy)
            commands.append(copy)
        text = f"{commands[0]} /proc/self/status | grep -e ^Uid -e ^Gid -e ^CapEff; env -i A=1 {commands[1]}"
        out = self.compare(["sh", "-c", text], what, user=NOBODY, told=[(path, why) for path in commands])
        expect(f"Uid:\t{NOBODY}" in out and "A=1" in out, out)
        return out

    def test_setuid(self):
        """A set-user-ID program gains its rights."""
        out = self.rights(lambda path: os.chmod(path, 0o4755), "set-user-ID", "it is set-user-ID")
        expect(f"Uid:\t{NOBODY}\t0\t0\t0" in out, f"it has not gained them: {out}")

    def test_setgid(self):
        """A set-group-ID program gains its rights."""
        out = self.rights(lambda path: os.chmod(path, 0o2755), "set-group-ID", "it is set-group-ID")
        expect(f"Gid:\t{NOBODY}\t0\t0\t0" in out, f"it has not gained them: {out}")

    def test_capabilities(self):
        """A program with file capabilities gets them."""
        def give(path):
            # CAP_NET_RAW, permitted and effective.
            try:
                os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
            except OSError as error:
                raise Unavailable(f"file capabilities cannot be set here ({error.strerror})") from None
        out = self.rights(give, "capabilities", "it has file capabilities")
        expect("CapEff:\t0000000000002000" in out, f"it has not got them: {out}")

    def test_su(self):
        """su works, and clears the environment as natively; the shell that it starts is followed."""
        if os.geteuid() != 0:
            raise Unavailable("only root can su without a password")
        su = harness.need("su", "util-linux")
        self.compare([su, "-s", "/bin/sh", "-c", "id -u; env | sort | grep -v ^_=", "nobody"], "su")
        status, out, err = self.under([su, "-s", "/bin/sh", "-c", MANAGED, "nobody"])
        expect((status, out, err) == (0, "managed\n", ""), f"status {status}: {out!r} {err!r}")
        # Another user's programs do not get their hands on what the family of processes shares.
        look = "tr '\\0' '\\n' < /proc/$$/environ | grep -o '\"family\":[^,}]*'; ls -l /proc/self/fd | grep -c farshore-family"
        shared = self.under(["sh", "-c", f"sh -c {shlex.quote(look)}"])[1].splitlines()
        apart = self.under([su, "-s", "/bin/sh", "-c", look, "nobody"])[1].splitlines()
        expect(shared[0] != '"family":null' and apart[0] == '"family":null', f"a program of this user got {shared}, of another {apart}")

    def test_library_gone(self):
        """The library's file is replaced or removed: programs start natively, each with a line."""
        for what in ("rm {0}", "cp {0} {0}.new; mv {0}.new {0}"):
            folder = self.folder("gone")
            for name in ("farshore", "libfarshore.so"):
                shutil.copy(os.path.join(self.bin, name), folder)
            command = what.format(os.path.join(folder, "libfarshore.so"))
            process = [os.path.join(folder, "farshore"), "run", "--memory", "16M", "--", "sh", "-c", f"{command}; /no/such/program; {MANAGED}"]
            status, out, err = self.ran(process)
            lines = [line for line in err.splitlines() if "not found" not in line]
            expect((status, out) == (0, "native\n"), f"{command}: status {status}: {out!r} {err!r}")
            expect(lines and all(line.startswith("farshore: '/") and "replaced or removed" in line for line in lines), f"{command}: {err!r}")
            expect(not any("/no/such" in line for line in lines), f"{command}: a line for a program that is not there: {err!r}")

    def test_chroot(self):
        """In another root directory, without the library and without /proc, programs run natively; a line says why: another libc, or the same."""
        if os.geteuid() != 0:
            raise Unavailable("only root can chroot")
        root = self.folder("root")
        for path in ("/bin/echo", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"):
            os.makedirs(root + os.path.dirname(path), exist_ok=True)
            shutil.copy(path, root + path)
        status, out, err = self.under(["chroot", root, "/bin/echo", "in", "there"])
        why = "its dynamic linker is not the one of the program that starts it"
        expect((status, out, err) == (0, "in there\n", f"farshore: '/bin/echo' runs without Farshore: {why}\n"), f"status {status}: {out!r} {err!r}")
        loader = root + "/lib64/ld-linux-x86-64.so.2"
        os.unlink(loader)
        try:
            os.link(os.path.realpath("/lib64/ld-linux-x86-64.so.2"), loader)
        except OSError as error:
            raise Unavailable(f"{root} lies on another file system than libc ({error.strerror})") from None
        status, out, err = self.under(["chroot", root, "/bin/echo", "in", "there"])
        expect((status, out) == (0, "in there\n"), f"status {status}: {out!r} {err!r}")
        expect(len(err.splitlines()) == 1 and err.startswith("farshore: '/bin/echo' runs without"), f"stderr: {err!r}")

    def test_start_that_fails(self):
        """What Farshore needs is not there for a child: it runs without, with a line."""
        folder = self.folder("swap")
        # Its directory; its address space (for copies of the arguments); its descriptors.
        for command in (f"rmdir {folder}", "ulimit -v 5000", "ulimit -n 4"):
            os.makedirs(folder, exist_ok=True)
            status, out, err = self.under(["sh", "-c", f"{command}; exec /bin/echo works"], ["--swap", f"dir:{folder}"])
            expect((status, out) == (0, "works\n"), f"{command}: status {status}: {out!r} {err!r}")
            lines = err.splitlines()
            expect(lines and all(line.startswith("farshore: ") and " runs without Farshore: " in line for line in lines), f"{command}: {err!r}")

    # ------------------------------------------------------------------------------------------ whose counters, whose options

    def test_stats(self):
        """The process that farshore run became writes its counters, whatever it becomes; nobody else does."""
        def stats(command, said=""):
            path = os.path.join(self.work, "stats.json")
            if os.path.exists(path):
                os.unlink(path)
            status, out, err = self.under(["sh", "-c", command], ["--stats", path])
            expect((status, err) == (0, said), f"{command}: status {status}: {err!r}")
            found = harness.load_stats(path)
            expect(found is not None, f"{command}: no stats")
            return found, out
        found, out = stats("seq 100000 | sort -r > /dev/null; echo $$; sleep 0")
        expect((found["program"], found["pid"]) == ("sh", int(out)), f"{found['program']} {found['pid']}, not sh {out}")
        found, out = stats("echo $$; exec sort -o /dev/null /proc/self/status")
        expect((found["program"], found["pid"]) == ("sort", int(out)), f"{found['program']} {found['pid']}, not sort {out}")
        expect(found["managed_bytes_peak"] > 0, "sort has no managed memory")
        foreign = self.foreign()
        found, out = stats(f"echo $$; exec {foreign} > /dev/null", f"farshore: '{foreign}' runs without Farshore: {FOREIGN}\n")
        expect((found["program"], found["pid"]) == ("sh", int(out)), f"{found['program']} {found['pid']}, not sh {out}")
        status, _, err = self.under(["sh", "-c", "seq 10 | sort > /dev/null; sh -c true; exec true"], ["--stats", "-"])
        expect(status == 0 and err.count('"schema"') == 1, f"--stats -: {err.count(chr(34) + 'schema' + chr(34))} times")

    def test_nested(self):
        """farshore run in farshore run: the inner options count for what it starts, the outer ones for the rest."""
        inner = f"{self.farshore} run --memory 8M --stats - -- sh -c '{MANAGED}; true'"
        outer = os.path.join(self.work, "outer.json")
        status, out, err = self.under(["sh", "-c", f"{inner}; {MANAGED}"], ["--stats", outer])
        expect((status, out) == (0, "managed\nmanaged\n"), f"status {status}: {out!r} {err[:300]!r}")
        found = json.loads(err)
        expect(found["memory_limit_bytes"] <= 8 << 20, f"the inner limit is {found['memory_limit_bytes']}")
        found = harness.load_stats(outer)
        expect((found or {}).get("program") == "sh", "no counters of the outer run")
        # Without a shell between them.
        status, out, err = self.under([self.farshore, "run", "--memory", "8M", "--stats", "-", "--", "sh", "-c", f"{MANAGED}; true"])
        expect((status, out) == (0, "managed\n"), f"status {status}: {out!r} {err[:300]!r}")
        expect(json.loads(err)["memory_limit_bytes"] <= 8 << 20, f"the inner limit: {err[:300]!r}")
        # What the command becomes, although the command itself is static: a stand-in for farshore-bench, by every way and name.
        stand_in = os.path.join(self.bin, "farshore-bench")
        with open(stand_in, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{MANAGED}\n")
        os.chmod(stand_in, 0o755)
        copy = os.path.join(self.bin, "another-name")
        shutil.copy(self.farshore, copy)
        for command in (self.farshore, copy):
            for argv in ([command, "bench", "list"], ["sh", "-c", f"{command} bench list"], ["sh", "-c", f"{command} bench list; true"]):
                status, out, err = self.under(argv)
                expect((status, out) == (0, "managed\n"), f"{argv}: status {status}: {out!r} {err[:300]!r}")
        # A family that is left: none of its descriptors is there.
        inner = f"{self.farshore} run --memory 64M -- sh -c 'ls -l /proc/self/fd; true'"
        status, out, err = self.under(["sh", "-c", f"{inner}; true"])
        expect(status == 0 and 0 < out.count("farshore-family") <= 2, f"status {status}: {out} {err[:300]!r}")
        # The inner command is refused as it would be natively.
        status, _, err = self.under([self.farshore, "run", "--memory", "8M", "--", "/no/such/program"])
        expect(status == 127 and len(err.splitlines()) == 1, f"status {status}: {err!r}")

    def test_work(self):
        """A tree of programs that work with more memory than they have: a compressed archive through a pipeline."""
        folder = self.folder("work")
        for number in range(8):
            with open(os.path.join(folder, f"file{number}"), "wb") as file:
                file.write(os.urandom(1 << 19) * 4)
        text = f"cd {folder} && tar cf - . | gzip -1 | gzip -d | tar xf - -O | sort | md5sum; find . -type f -exec md5sum {{}} + | sort"
        self.compare(["bash", "-c", text], "the archive", ["--threshold", "4K"])
