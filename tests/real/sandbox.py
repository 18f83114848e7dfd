#!/usr/bin/env python3
"""Programs that restrict themselves, or insist on one thread: natively and under Farshore, as root and as an ordinary user.

    tests/real/sandbox.py                        everything
    tests/real/sandbox.py --only stock,knocked   these groups alone
    tests/real/sandbox.py --section users        one section of tests/programs/sandbox.c alone

| group | what |
|---|---|
| stock | `true`, shells, unshare, bwrap, setpriv: what they print, how they end, and how many threads a process has |
| rights | tests/programs/sandbox.c: after each kind of restriction all threads have the same rights, and memory is right |
| knocked | tests/programs/knocked.c: `farshore stat` answers from a process without threads of ours, whose blocked call goes on; other users do it no harm |
| containers | filters as Docker's and Podman's default profiles, without what Farshore asks for; what `doctor` says there |
| full | no thread can be had (`RLIMIT_NPROC`, set from outside): the program goes on, its data is right, and one line says so |

The last line is `N passed, N failed, N skipped`.
"""

import argparse
import errno
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MIB, Unavailable  # noqa: E402

SECONDS = 90
LIMIT = 16 * MIB
NOBODY = 65534
# Sections that only root can do.
ROOT_ONLY = {"capset", "bounding", "securebits", "users", "setpriv", "filtercloneusers", "nprocusers", "sigpending"}
COUNT = "set -- /proc/$$/task/*; echo $# task"


class Failed(Exception):
    """What was wrong."""


class Tests:
    """All groups, counted."""

    def __init__(self, options):
        self.options = options
        self.farshore = harness.find_farshore(options.farshore)
        self.work = options.work
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.lock = threading.Lock()

    def check(self, name, test):
        """Runs one test and counts it."""
        try:
            test()
            outcome, text = "passed", "ok"
        except Unavailable as why:
            outcome, text = "skipped", f"skipped: {why}"
        except Failed as why:
            outcome, text = "failed", f"FAILED: {why}"
        with self.lock:
            self.counts[outcome] += 1
            print(f"{name:32} {text}", flush=True)

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

    def users(self):
        """Who the tests are run as: root if we are, and an ordinary user."""
        return [("root", None), ("nobody", NOBODY)] if os.geteuid() == 0 else [("user", None)]

    def stock(self):
        """Programs of the distribution."""
        shell = ["/bin/sh", "-c"]
        # What runs in a sandbox needs its swap space there.
        swap = ["--bind", self.work, self.work]
        for who, user in self.users():
            each = {
                "true": ["true"],
                "threads": [*shell, f"{COUNT}; true; {COUNT}; (true); {COUNT}; ls /proc/self/task | wc -l"],
                "unshare": lambda: [harness.need("unshare", "util-linux"), "-Ur", "id", "-u"],
                "unshare-all": lambda: [harness.need("unshare", "util-linux"), "-Urmpinuf", "true"],
                "bwrap": lambda: [harness.need("bwrap", "bubblewrap"), "--ro-bind", "/", "/", *swap, "true"],
                "bwrap-all": lambda: [harness.need("bwrap", "bubblewrap"), "--ro-bind", "/", "/", *swap, "--dev", "/dev", "--unshare-all", "--die-with-parent", *shell, "echo inside"],
                "setpriv": lambda: [harness.need("setpriv", "util-linux"), "--no-new-privs", "--inh-caps=-all", "grep", "-E", "^(Cap|NoNew)", "/proc/self/status"],
            }
            if user is None and os.geteuid() == 0:
                each["setpriv-users"] = lambda: [harness.need("setpriv", "util-linux"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "grep", "-E", "^(Uid|Gid|Groups|Cap|NoNew)", "/proc/self/status"]
            for name, argv in each.items():
                self.check(f"stock {name} ({who})", lambda argv=argv, user=user: self.same(argv() if callable(argv) else argv, user, 64 * MIB))

    def rights(self):
        """Each section, with threads of ours before the restriction, and without."""
        program = harness.build_program("sandbox")
        listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
        for who, user in self.users():
            for section in listed:
                if self.options.section not in (None, section) or (section in ROOT_ONLY and (user or os.geteuid() != 0)):
                    continue
                for when in ("early", "late"):
                    argv = [program, str(LIMIT // MIB), when, section]
                    self.check(f"rights {section} {when} ({who})", lambda argv=argv, user=user: self.same(argv, user))

    def knock(self, argv, user=None):
        """Runs a program that waits under Farshore, asks it for its counters meanwhile; what it printed but for its number."""
        _, ours = self.argv(argv, user)
        with subprocess.Popen(ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/") as process:
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

    def knocked(self):
        """Every call that waits."""
        program = harness.build_program("knocked")
        listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()

        def one(argv):
            native, status, _ = self.run(argv)
            wanted = native.split("\n", 1)[1]
            got = self.knock(argv)
            if got != wanted:
                raise Failed(f"{got!r}, natively {wanted!r}")

        for call in listed:
            for more in ([], ["child"]):
                self.check(" ".join(["knocked", call, *more]), lambda call=call, more=more: one([program, call, *more]))

    def contained(self, argv, forbidden, error, run=()):
        """(stdout, status, stderr) of a command in a container without these calls, which fail with `error`. `run` is what starts the container."""
        # Load the number, a jump to the last instruction for each that is forbidden, and the two answers.
        code = [struct.pack("<HBBI", 0x20, 0, 0, 0)]
        code += [struct.pack("<HBBI", 0x15, len(forbidden) - index, 0, number) for index, number in enumerate(forbidden)]
        code += [struct.pack("<HBBI", 0x06, 0, 0, answer) for answer in (0x7FFF0000, 0x00050000 | error)]
        with tempfile.TemporaryFile() as file:
            file.write(b"".join(code))
            file.seek(0)
            command = [*run, harness.need("bwrap", "bubblewrap"), "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid"]
            return self.run([*command, "--seccomp", str(file.fileno()), "--", *argv], inherited=(file.fileno(),))

    def containers(self):
        """Each profile: doctor's word is what happens, and nobody computes anything else."""
        userfaultfd, others = 323, (440, 425, 426, 427)
        script = "data = [bytes([i % 251]) * 1000000 for i in range(64)]\nprint(sum(map(sum, data)), data[7][5])"
        argv = ["/usr/bin/python3", "-c", script]
        ours = harness.farshore_argv(self.farshore, argv, LIMIT, swap=[f"dir:{self.work}"])

        def refused(error):
            out, status, _ = self.contained([self.farshore, "doctor"], (userfaultfd, *others), error)
            if status == 0 or "allow userfaultfd(2)" not in out:
                raise Failed(f"doctor: status {status}\n{out}")
            out, status, said = self.contained(ours, (userfaultfd, *others), error)
            if status == 0 or out or "userfaultfd" not in said:
                raise Failed(f"run: status {status}, printed {out!r}, said {said!r}")

        def right(forbidden, error):
            out, status, said = self.contained(ours, forbidden, error)
            wanted = self.run(argv)[0]
            if (out, status) != (wanted, 0):
                raise Failed(f"status {status}, printed {out!r}, not {wanted!r}: {said[-1000:]}")

        def required(error):
            """The container is started under Farshore, and its filter comes then: --require keeps its programs from starting."""
            for options, expected in (((), (0, "inside\n")), (("--require",), (1, ""))):
                run = [self.farshore, "run", "--memory", "16M", *options, "--"]
                out, status, said = self.contained(["/bin/echo", "inside"], (userfaultfd,), error, run)
                if (status, out) != expected or bool(options) != ("is not started (--require): a filter" in said):
                    raise Failed(f"{options}: status {status}, printed {out!r}, said {said!r}")

        for name, error in (("docker", errno.EPERM), ("podman", errno.ENOSYS)):
            self.check(f"containers {name}", lambda error=error: refused(error))
            self.check(f"containers {name}, allowed", lambda error=error: right(others, error))
            self.check(f"containers {name}, required", lambda error=error: required(error))

    def full(self):
        """No thread can be had, and the program does not know."""
        program = harness.build_program("sandbox")
        if os.geteuid() != 0:
            self.check("full", lambda: (_ for _ in ()).throw(Unavailable("needs root, to be another user")))
            return

        def limited():
            os.setgroups([])
            os.setresgid(NOBODY - 7, NOBODY - 7, NOBODY - 7)
            os.setresuid(NOBODY - 7, NOBODY - 7, NOBODY - 7)
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

        def test():
            argv = [program, str(LIMIT // MIB), "early", "nothing"]
            native, ours = self.argv(argv)
            printed, status, _ = self.run(native, limited)
            got, ended, said = self.run(ours, limited)
            if (got, ended) != (printed, status):
                raise Failed(f"status {ended}, natively {status}\n{got}\n{said}")
            lines = [line for line in said.splitlines() if "no thread of our own can be made" in line]
            if len(lines) != 1:
                raise Failed(f"{len(lines)} lines about it:\n{said[-1500:]}")

        self.check("full nproc", test)


def main():
    groups = ("stock", "rights", "knocked", "containers", "full")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GROUP[,GROUP]", help=f"these alone: {', '.join(groups)}")
    parser.add_argument("--section", help="one section of tests/programs/sandbox.c alone")
    parser.add_argument("--farshore", help="the farshore command (default: $FARSHORE, else this workspace's build)")
    parser.add_argument("--work", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where files go (default /var/tmp)")
    options = parser.parse_args()
    harness.tidy_on_sigterm()
    options.work = tempfile.mkdtemp(prefix="farshore-sandbox-", dir=options.work)
    os.chmod(options.work, 0o1777)
    wanted = options.only.split(",") if options.only else (["rights"] if options.section else groups)
    if set(wanted) - set(groups):
        parser.error(f"there is no group {', '.join(sorted(set(wanted) - set(groups)))}")
    tests = Tests(options)
    try:
        for group in wanted:
            getattr(tests, group)()
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    print(", ".join(f"{count} {name}" for name, count in tests.counts.items()))
    return 1 if tests.counts["failed"] or not tests.counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
