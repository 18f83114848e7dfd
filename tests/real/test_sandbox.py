"""Programs that restrict themselves, or insist on one thread: natively and under Farshore, as root and as an ordinary user.

| tests | what |
|---|---|
| stock | `true`, shells, unshare, bwrap, setpriv: what they print, how they end, and how many threads a process has |
| rights | tests/programs/sandbox.c: after each kind of restriction all threads have the same rights, and memory is right |
| knocked | tests/programs/knocked.c: `farshore stat` answers from a process without threads of ours, whose blocked call goes on; other users do it no harm |
| container | filters as Docker's and Podman's default profiles, without what Farshore asks for; what `doctor` says there |
| no_thread | no thread can be had (`RLIMIT_NPROC`, set from outside): the program goes on, its data is right, and one line says so |
"""

import concurrent.futures
import errno
import json
import os
import resource
import struct
import signal
import subprocess
import tempfile
import time

import harness
import pytest
from command import NOBODY, Command
from harness import MIB, Failed, Unavailable, expect

SECONDS = 90
LIMIT = 16 * MIB
# Sections that only root can do.
ROOT_ONLY = {"capset", "bounding", "securebits", "users", "setpriv", "filtercloneusers", "nprocusers", "sigpending"}
COUNT = "set -- /proc/$$/task/*; echo $# task"
# Who the tests are run as: root if we are, and an ordinary user.
USERS = {"root": None, "nobody": NOBODY} if os.geteuid() == 0 else {"user": None}
SHELL = ["/bin/sh", "-c"]
# Programs of the distribution: what is needed, its package, its arguments. What runs in a sandbox needs its swap space there.
UNSHARE, BWRAP, SETPRIV = ("unshare", "util-linux"), ("bwrap", "bubblewrap"), ("setpriv", "util-linux")
STOCK = {
    "true": (("true", "coreutils"),),
    "threads": (("sh", "dash"), "-c", f"{COUNT}; true; {COUNT}; (true); {COUNT}; ls /proc/self/task | wc -l"),
    "unshare": (UNSHARE, "-Ur", "id", "-u"),
    "unshare-all": (UNSHARE, "-Urmpinuf", "true"),
    "bwrap": (BWRAP, "--ro-bind", "/", "/", "--bind", "{work}", "{work}", "true"),
    "bwrap-all": (BWRAP, "--ro-bind", "/", "/", "--bind", "{work}", "{work}", "--dev", "/dev", "--unshare-all", "--die-with-parent", *SHELL, "echo inside"),
    "setpriv": (SETPRIV, "--no-new-privs", "--inh-caps=-all", "grep", "-E", "^(Cap|NoNew)", "/proc/self/status"),
    "setpriv-users": (SETPRIV, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "grep", "-E", "^(Uid|Gid|Groups|Cap|NoNew)", "/proc/self/status"),
}
# Calls of a container's default profile that Farshore would make: userfaultfd, and what it does without.
USERFAULTFD, OTHERS = 323, (440, 425, 426, 427)
PROFILES = {"docker": errno.EPERM, "podman": errno.ENOSYS}
SUMS = ["/usr/bin/python3", "-c", "data = [bytes([i % 251]) * 1000000 for i in range(64)]\nprint(sum(map(sum, data)), data[7][5])"]

COUNTED = r"""
import os
data, proc = bytearray(40 << 20), os.open("/proc", os.O_PATH)
def count(value):
    for at in range(0, len(data), 4096):
        data[at] = value
    links = os.stat("/proc/self/task").st_nlink, os.stat("self/task/", dir_fd=proc).st_nlink
    os.write(1, b"%d %d %d\n" % (*links, sum(data) // value))
count(1)
child = os.fork()
count(2)
if child == 0:
    os._exit(0)
os.write(1, b"%d\n" % os.waitpid(child, 0)[1])
"""


def sections(name):
    """What a test program can do."""
    return subprocess.run([harness.build_program(name), "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()


def pytest_generate_tests(metafunc):
    if "program" in metafunc.fixturenames:
        only_root = ("setpriv-users",)
        metafunc.parametrize("program,user", [(name, user) for user in USERS for name in STOCK if user == "root" or name not in only_root])
    if "section" in metafunc.fixturenames:
        some = [(section, user) for user in USERS for section in sections("sandbox") if user == "root" or section not in ROOT_ONLY]
        metafunc.parametrize("section,user", some)
    if "call" in metafunc.fixturenames:
        metafunc.parametrize("call", sections("knocked"))


def at_once(one, other):
    """The results of two functions that mostly wait."""
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        second = beside.submit(other)
        return one(), second.result()


class TestSandbox(Command):
    """Programs natively and under Farshore."""

    @pytest.fixture(autouse=True, scope="class")
    def for_everybody(self, work):
        """Other users have swap space there, too."""
        os.chmod(work, 0o1777)

    def argv(self, argv, user=None, limit=LIMIT):
        """Natively, and under Farshore; as another user if one is given."""
        drop = [harness.need("setpriv", "util-linux"), f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return drop + argv, drop + harness.farshore_argv(self.farshore, argv, limit, swap=[f"dir:{self.work}"])

    def run(self, argv, before=None, inherited=()):
        """(stdout, status, stderr) of a command. `before` runs in the child; these descriptors are its own too."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("FARSHORE") and key != "LD_PRELOAD"}
        env["LC_ALL"] = "C"
        with tempfile.TemporaryFile(dir=self.work) as out, tempfile.TemporaryFile(dir=self.work) as err:
            with subprocess.Popen(argv, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=env, cwd="/", preexec_fn=before, pass_fds=inherited) as process:
                try:
                    status = process.wait(SECONDS)
                except subprocess.TimeoutExpired as late:
                    picture = harness.describe_process(process.pid)
                    process.kill()
                    raise Failed(f"no end after {SECONDS} s\n{picture}") from late
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return texts[0], status, texts[1]

    def same(self, argv, user=None, limit=LIMIT):
        """The command prints and ends natively and under Farshore alike, and Farshore says nothing."""
        native, ours = self.argv(argv, user, limit)
        printed, status, complaint = self.run(native)
        if status != 0:
            raise Unavailable(f"natively it ends with status {status}: {(complaint or printed).strip()[-200:]}")
        got, ended, said = self.run(ours)
        if got != printed or ended != status:
            raise Failed(f"status {ended}, natively {status}\n--- printed\n{got[-2000:]}\n--- instead of\n{printed[-2000:]}\n--- stderr\n{said[-2000:]}")
        lines = [line for line in said.splitlines() if line.startswith("farshore")]
        if lines:
            raise Failed(f"a line on stderr: {lines[0]}")

    def test_stock(self, program, user):
        """Programs of the distribution."""
        (name, package), *words = STOCK[program]
        self.same([harness.need(name, package), *(word.format(work=self.work) for word in words)], USERS[user], 64 * MIB)

    @pytest.mark.parametrize("when", ("early", "late"))
    def test_rights(self, section, when, user):
        """Each kind of restriction, with threads of ours before it, and without."""
        self.same([harness.build_program("sandbox"), str(LIMIT // MIB), when, section], USERS[user])

    def test_counted(self, mode):
        """What a sandbox does that insists on one thread: it looks how many links the list of its threads has. With memory that is short; in a child, too."""
        native, ours = self.argv(["/usr/bin/python3", "-c", COUNTED])
        ours[ours.index("--fault") + 1] = mode
        printed, status, complaint = self.run(native)
        expect(status == 0, f"natively it ends with status {status}: {complaint}")
        got, ended, said = self.run(ours)
        expect((got, ended, said) == (printed, 0, ""), f"status {ended}, printed {got!r}, natively {printed!r}; stderr {said!r}")

    def knock(self, argv, user=None):
        """Runs a program that waits under Farshore, asks it for its counters meanwhile; what it printed but for its number. Without a buffer, in which `communicate`
        would leave what came with the first line when this process was late."""
        _, ours = self.argv(argv, user)
        with subprocess.Popen(ours, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/") as process:
            pid = process.stdout.readline().decode().split()[-1]
            before = len(os.listdir(f"/proc/{pid}/task"))
            if user is None and os.geteuid() == 0:
                other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", self.farshore, "stat", pid]
                refused = subprocess.run(other, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=SECONDS)
                if refused.returncode == 0 and user is None:
                    raise Failed("another user was answered")
            asked = subprocess.run([self.farshore, "stat", "--json", pid], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=SECONDS)
            try:
                out, err = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired as late:
                process.kill()
                raise Failed("the call does not come back") from late
        if asked.returncode != 0:
            raise Failed(f"farshore stat: {asked.stderr.decode()}")
        if before != 1:
            raise Failed(f"{before} threads before anybody asked")
        if process.returncode != 0:
            raise Failed(f"status {process.returncode}: {err.decode()}")
        return out.decode()

    @pytest.mark.parametrize("who", ("itself", "child"))
    def test_knocked(self, call, who):
        """Every call that waits, of a program and of its child."""
        argv = [harness.build_program("knocked"), call, *([who] if who == "child" else [])]
        (native, _, _), got = at_once(lambda: self.run(argv), lambda: self.knock(argv))
        wanted = native.split("\n", 1)[1]
        expect(got == wanted, f"{got!r}, natively {wanted!r}")

    def stopped(self, argv, who=None, pending=None):
        """What a program that waits prints when it is stopped, `who` begins to ask for its counters, signal 40 comes, and it goes on. It is stopped until `pending` of the kernel's signals, one of
        which says that somebody asks, is there."""
        with subprocess.Popen(argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/") as process:
            asking = None
            try:
                *_, number, pid = process.stdout.readline().decode().split()
                self.until(lambda: self.is_in(pid, number), "the call is made")
                pid = int(pid)
                os.kill(pid, signal.SIGSTOP)
                self.until(lambda: self.field(pid, "State")[0] == "T", "it is stopped")
                if who:
                    asking = subprocess.Popen([*who, str(pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    self.until(lambda: any(int(self.field(pid, "ShdPnd"), 16) >> (number - 1) & 1 for number in pending), "somebody asks")
                os.kill(pid, 40)
                os.kill(pid, signal.SIGCONT)
                if asking:
                    _, complaint = asking.communicate(timeout=SECONDS)
                    expect(asking.returncode == 0, f"farshore stat: {complaint.decode()}")
                out, err = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired as late:
                raise Failed(f"the call does not come back\n{harness.describe_process(pid)}") from late
            finally:
                for one in (process, asking):
                    if one and one.poll() is None:
                        one.kill()
                        one.wait()
        expect(process.returncode == 0, f"status {process.returncode}: {err.decode()}")
        return out.decode()

    @pytest.mark.parametrize("busy_call", ("pause", "nanosleep", "poll", "futex"))
    def test_asked_in_a_handler(self, busy_call):
        """A dormant process is asked for its counters while a handler with all signals blocked runs on top of a call, which the signal has ended."""
        argv = [harness.build_program("knocked"), busy_call, "itself", "busy"]
        wanted = self.stopped(argv)
        with subprocess.Popen(self.argv(argv)[1], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/") as process:
            try:
                *_, number, pid = process.stdout.readline().decode().split()
                self.until(lambda: self.is_in(pid, number), "the call is made")
                os.kill(int(pid), 40)
                self.until(lambda: int(self.field(pid, "SigBlk"), 16) >> (signal.SIGURG - 1) & 1, "the handler runs")
                with subprocess.Popen([self.farshore, "stat", "--json", pid], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asking:
                    time.sleep(0.3)  # For it to ask; there is nothing to be seen of that.
                    process.stdin.write(b"\n")
                    process.stdin.flush()
                    _, complaint = asking.communicate(timeout=SECONDS)
                out, err = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired as late:
                process.kill()
                raise Failed("the call does not come back") from late
        expect(asking.returncode == 0, f"farshore stat: {complaint.decode()}")
        expect((process.returncode, out.decode()) == (0, wanted), f"{out!r} {err!r}, natively {wanted!r}")

    @staticmethod
    def is_in(pid, number):
        """Whether a process waits in this system call."""
        with open(f"/proc/{pid}/syscall", encoding="ascii") as call:
            return call.read().split()[0] == number

    @staticmethod
    def field(pid, name):
        """A line of a process's status."""
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            return next(line.split(":")[1].strip() for line in status if line.startswith(f"{name}:"))

    @staticmethod
    def until(condition, what):
        """Waits for it."""
        end = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"not in time: {what}")
            time.sleep(0.01)

    @pytest.mark.parametrize("how", ("end", "restart"))
    @pytest.mark.parametrize("who", ("itself", "child"))
    def test_knocked_beside_a_signal(self, call, who, how):
        """A signal of the program's that comes while Farshore's threads are made ends the call, or does not, as natively."""
        argv = [harness.build_program("knocked"), call, who, how]
        managed = self.argv(argv)[1]
        wanted, got = at_once(lambda: self.stopped(argv), lambda: self.stopped(managed, [self.farshore, "stat", "--json"], (signal.SIGBUS, signal.SIGURG)))
        expect(got == wanted, f"{got!r}, natively {wanted!r}")

    def contained(self, argv, forbidden, error, run=(), devices=()):
        """(stdout, status, stderr) of a command in a container without these calls, which fail with `error`. `run` is what starts the container; `devices` are passed into it."""
        # Load the number, a jump to the last instruction for each that is forbidden, and the two answers.
        code = [struct.pack("<HBBI", 0x20, 0, 0, 0)]
        code += [struct.pack("<HBBI", 0x15, len(forbidden) - index, 0, number) for index, number in enumerate(forbidden)]
        code += [struct.pack("<HBBI", 0x06, 0, 0, answer) for answer in (0x7FFF0000, 0x00050000 | error)]
        with tempfile.TemporaryFile() as file:
            file.write(b"".join(code))
            file.seek(0)
            command = [*run, harness.need("bwrap", "bubblewrap"), "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid"]
            command += [word for device in devices for word in ("--dev-bind", device, device)]
            return self.run([*command, "--seccomp", str(file.fileno()), "--", *argv], inherited=(file.fileno(),))

    def sums(self):
        """A program under Farshore that computes in more memory than it may have."""
        return harness.farshore_argv(self.farshore, SUMS, LIMIT, swap=[f"dir:{self.work}"])

    @pytest.mark.parametrize("profile", PROFILES)
    def test_container(self, profile):
        """doctor's word is what happens, and nobody computes anything else."""
        out, status, _ = self.contained([self.farshore, "doctor"], (USERFAULTFD, *OTHERS), PROFILES[profile])
        expect(status != 0 and "allow userfaultfd(2)" in out, f"doctor: status {status}\n{out}")
        out, status, said = self.contained(self.sums(), (USERFAULTFD, *OTHERS), PROFILES[profile])
        expect(status != 0 and not out and "userfaultfd" in said, f"run: status {status}, printed {out!r}, said {said!r}")

    @pytest.mark.parametrize("profile", PROFILES)
    def test_container_allowed(self, profile):
        """With userfaultfd alone it works."""
        out, status, said = self.contained(self.sums(), OTHERS, PROFILES[profile])
        expect((out, status) == (self.run(SUMS)[0], 0), f"status {status}, printed {out!r}: {said[-1000:]}")

    @pytest.mark.root
    @pytest.mark.parametrize("profile", PROFILES)
    def test_container_device(self, profile, mode):
        """With the device of userfaultfd it works though the call is forbidden, and doctor says by which way."""
        device = "/dev/userfaultfd"
        if not os.access(device, os.R_OK | os.W_OK):
            raise Unavailable(f"no {device}")
        out, status, _ = self.contained([self.farshore, "doctor"], (USERFAULTFD, *OTHERS), PROFILES[profile], devices=[device])
        expect(status == 0 and f"by {device}, since userfaultfd(2) is forbidden" in out, f"doctor: status {status}\n{out}")
        with tempfile.NamedTemporaryFile() as stats:
            argv = harness.farshore_argv(self.farshore, SUMS, LIMIT, swap=[f"dir:{self.work}"], stats=stats.name, fault=mode)
            out, status, said = self.contained(argv, (USERFAULTFD, *OTHERS), PROFILES[profile], devices=[device])
            counted = json.loads(stats.read() or "{}")
        expect((out, status) == (self.run(SUMS)[0], 0), f"status {status}, printed {out!r}: {said[-1000:]}")
        expect(counted.get("fault_mode") == mode and counted["evictions"]["pages"] > 0, f"{mode}: {counted}")

    @pytest.mark.parametrize("profile", PROFILES)
    def test_container_required(self, profile):
        """The container is started under Farshore, and its filter comes then: --require keeps its programs from starting."""
        for options, expected in (((), (0, "inside\n")), (("--require",), (1, ""))):
            run = [self.farshore, "run", "--memory", "16M", *options, "--"]
            out, status, said = self.contained(["/bin/echo", "inside"], (USERFAULTFD,), PROFILES[profile], run)
            right = (status, out) == expected and bool(options) == ("is not started (--require): a filter" in said)
            expect(right, f"{options}: status {status}, printed {out!r}, said {said!r}")

    @pytest.mark.root
    def test_no_thread(self):
        """No thread can be had, and the program does not know."""

        def limited():
            os.setgroups([])
            os.setresgid(NOBODY - 7, NOBODY - 7, NOBODY - 7)
            os.setresuid(NOBODY - 7, NOBODY - 7, NOBODY - 7)
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

        native, ours = self.argv([harness.build_program("sandbox"), str(LIMIT // MIB), "early", "nothing"])
        printed, status, _ = self.run(native, limited)
        got, ended, said = self.run(ours, limited)
        expect((got, ended) == (printed, status), f"status {ended}, natively {status}\n{got}\n{said}")
        lines = [line for line in said.splitlines() if "no thread of our own can be made" in line]
        expect(len(lines) == 1, f"{len(lines)} lines about it:\n{said[-1500:]}")
