"""What Farshore shows of itself, and whom it lets in: descriptors, a family of several users, its socket, programs that bring a runtime of their own.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time

import harness
from command import Command, NOBODY
from harness import Unavailable, expect


def need_root(what):
    """Skips the test unless this is root."""
    if os.geteuid() != 0:
        raise Unavailable(f"{what} needs root")


# Fills memory, and forks when it is told to.
FORKS = """
import os, sys
data = bytearray(os.urandom(1 << 20)) * int(sys.argv[1])
print(os.getpid(), flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    sys.stdin.readline()
    os._exit(0)
print("forked", flush=True)
os.waitpid(child, 0)
print("right" if all(data[:1 << 20] == data[n << 20:n + 1 << 20] for n in range(len(data) >> 20)) else "wrong", flush=True)
"""

# Parent and child each have 24 MiB of bytes of their own, and fault for none of them. Both say what they have in the end.
WRITES_COPIES = """
import os, sys
data = bytearray(24 << 20)
def fill(with_what):
    for at in range(0, len(data), 4096):
        data[at] = with_what
def say(who):
    has = {data[at] for at in range(0, len(data), 4096)}
    print(*has, "in the", who, flush=True)
fill(1)
print(os.getpid(), flush=True)
child = os.fork()
if child == 0:
    fill(2)
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    say("child")
    os._exit(0)
os.waitpid(child, 0)
say("parent")
"""


class TestFamily(Command):
    def test_numbers_of_a_child(self):
        """A child can use each descriptor that it opens, with all numbers that there are."""
        few = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
        done = self.call_program([*few, self.farshore, "run", "--memory", "16M", "--", self.public_program("numbers"), "48M"])
        # (Where the program has all of them, Farshore says that it has none for a swap file of the child's.)
        expect(done.status == 0, f"status {done.status}: {done.out} {done.err[-300:]}")
        return f"{done.out.strip()} opened"

    def jail(self):
        """A directory to be shut in."""
        jail = self.folder("jail")
        os.mkdir(os.path.join(jail, "proc"))
        # The swap space of children is opened by its name.
        os.makedirs(os.path.join(jail, "var/tmp"))
        with open(os.path.join(jail, "inside"), "w", encoding="ascii"):
            pass
        return jail

    def test_jail(self):
        """A program that changes its root directory finds no descriptor by which it could leave, and its memory and children are right there."""
        need_root("chroot")
        unshare, seen = harness.need("unshare", "util-linux"), []
        for proc in (False, True):
            jail = self.jail()
            mount = f"mount -t proc proc {jail}/proc && " if proc else ""
            for options in (["--memory", "16M"], ["--memory", "16M", "--no-follow"], None):
                program = [self.public_program("jail"), jail, "12"]
                argv = program if options is None else [self.farshore, "run", *options, "--", *program]
                done = self.call_program([unshare, "-m", "sh", "-c", f'{mount}exec "$@"', "sh", *argv])
                shown = f"{'native' if options is None else options} {'with' if proc else 'without'} /proc"
                wanted = "jail: 0 ways out, 0 descriptors to be had\njail: memory right\njail: children right\n"
                expect(done.status == 0 and done.out == wanted and not done.err, f"{shown}: status {done.status}: {done.out[-300:]} {done.err[-300:]}")
                seen.append(shown)
        return f"{len(seen)} runs"

    # ------------------------------------------------------------------------------------------ several users

    @contextlib.contextmanager
    def running(self, *argv, **options):
        """A program that waits for lines on stdin, ended at the end."""
        process = harness.Process([str(word) for word in argv], self.work, 120, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        try:
            yield process
        finally:
            process.kill_session()

    def stats(self, pid, user=None):
        """What a process says of itself."""
        done = self.call("stat", str(pid), "--json", user=user)
        expect(done.status == 0, f"stat {pid} as {user}: status {done.status}: {done.err}")
        return json.loads(done.out)

    @staticmethod
    def ledgers(pid):
        """Which files of ledgers a process can write: by a mapping, by a descriptor."""
        maps = [line.split() for line in harness.read_text(f"/proc/{pid}/maps", 1 << 24).splitlines()]
        mapped = {int(fields[4]) for fields in maps if "memfd:farshore-family" in " ".join(fields[5:]) and "w" in fields[1]}
        opened = set()
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(FileNotFoundError):
                if "memfd:farshore-family" in os.readlink(path):
                    flags = int(harness.read_text(f"/proc/{pid}/fdinfo/{name}").split("flags:")[1].split()[0], 8)
                    if flags & os.O_ACCMODE != os.O_RDONLY:
                        opened.add(os.stat(path).st_ino)
        return mapped, opened

    def test_users(self):
        """A child that becomes another user's for good has a limit and a ledger of its own; its user changes nothing of its relatives."""
        need_root("setuid")
        runs = 0
        for options in ([], ["--no-follow"], ["--memory-per-process"]):
            with self.running(self.farshore, "run", "--memory", "16M", *options, "--", self.public_program("owner"), 24, NOBODY) as process:
                words = process.popen.stdout.readline().split()
                expect(len(words) == 4, f"{options}: the program says {words}: {process.stderr_so_far()[-300:]}")
                parent, child = int(words[1]), int(words[3])
                before = self.stats(parent)["memory_limit_bytes"]
                done = self.call("set", str(child), "memory=12M", user=NOBODY)
                expect(done.status == 0, f"{options}: its user cannot set its limit: {done.err}")
                expect(self.stats(child, NOBODY)["memory_limit_bytes"] == 12 << 20, f"{options}: the limit of the child is not what its user has set")
                now = self.stats(parent)["memory_limit_bytes"]
                expect(now == before == 16 << 20, f"{options}: the child's user has set its parent's limit: {before} to {now} bytes")
                for pid in (parent, child):
                    done = self.call("set" if pid == parent else "stat", str(pid), *(["memory=12M"] if pid == parent else []), user=NOBODY + (pid == child))
                    expect(done.status == 1 and "belongs to user" in done.err, f"{options}: another user is answered: {done.status} {done.err}")
                (parents, _), (mapped, opened) = self.ledgers(parent), self.ledgers(child)
                expect(len(parents) == 1 and not parents & (mapped | opened), f"{options}: ledgers {parents}; the child can write {mapped} and {opened}")
                for name in os.listdir(f"/proc/{child}/fd"):
                    path = f"/proc/{child}/fd/{name}"
                    if os.stat(path).st_ino in parents:
                        done = self.call_program(["sh", "-c", f"exec 3<>{path}"], user=NOBODY)
                        expect(done.status != 0, f"{options}: the ledger can be opened for writing by {path}")
                process.popen.stdin.write(b"\n")
                process.popen.stdin.flush()
                said = [process.popen.stdout.readline() for _ in range(2)]
                expect(said == [b"child right\n", b"parent right\n"], f"{options}: {said}: {process.stderr_so_far()[-300:]}")
                # The line of the child is free again, and so is its part.
                expect(self.stats(parent)["memory_limit_bytes"] == 16 << 20, f"{options}: the parent's limit is another")
                process.popen.stdin.write(b"\n")
                process.popen.stdin.close()
                outcome = process.finish()
                expect(outcome.status == 0 and not outcome.stderr, f"{options}: status {outcome.status}: {outcome.stderr[-300:]}")
                runs += 1
        return f"{runs} families"

    def test_fork_below_a_lower_limit(self):
        """A limit that was lowered just before the first fork holds for the family that begins with it, also while pages have yet to leave."""
        argv = ["/usr/bin/python3", "-c", FORKS, "80"]
        with self.running(self.farshore, "run", "--memory", "96M", "--no-follow", "--", *argv) as process:
            pid = process.popen.stdout.readline().decode().strip()
            expect(pid, process.stderr_so_far()[-300:])
            done = self.call("set", pid, "memory=16M")
            process.popen.stdin.write(b"fork\n")
            process.popen.stdin.flush()
            expect(done.status == 0 and process.popen.stdout.readline() == b"forked\n", f"{done.err} {process.stderr_so_far()[-300:]}")
            limit = self.stats(pid)["memory_limit_bytes"]
            process.popen.stdin.write(b"end\n")
            process.popen.stdin.flush()
            expect(process.popen.stdout.readline() == b"right\n", process.stderr_so_far()[-300:])
            outcome = process.finish()
        expect(outcome.status == 0 and not outcome.stderr, f"status {outcome.status}: {outcome.stderr[-300:]}")
        expect(limit == 16 << 20, f"the limit was set to 16 MiB, and is {limit} bytes since the fork")

    def test_a_child_that_never_faults(self):
        """All of it fits, so a child that writes to all of its memory never faults: the copies that the kernel makes count."""
        with self.running(self.farshore, "run", "--memory", "32M", "--no-follow", "--", "/usr/bin/python3", "-c", WRITES_COPIES) as process:
            parent = process.popen.stdout.readline().decode().strip()
            child = process.popen.stdout.readline().decode().strip()
            expect(parent and child, process.stderr_so_far()[-300:])

            def has(pid):
                with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as sums:
                    return int(re.search(r"^Pss_Anon: +(\d+)", sums.read(), re.M)[1]) << 10

            def together():
                return has(parent) + has(child)

            # Farshore's own memory and small programs' parts that are not managed are beside the limit.
            deadline = time.monotonic() + 60
            while (now := together()) > 44 << 20:
                expect(time.monotonic() < deadline, f"the two have {now >> 20} MiB of a limit of 32: {self.stats(parent)['family']}")
                time.sleep(0.1)
            process.popen.stdin.write(b"end\n")
            process.popen.stdin.flush()
            said = [process.popen.stdout.readline().strip() for _ in range(2)]
            outcome = process.finish()
        expect((outcome.status, said) == (0, [b"2 in the child", b"1 in the parent"]), f"status {outcome.status}: {said} {outcome.stderr[-300:]}")
        return f"{now >> 20} MiB"

    # ------------------------------------------------------------------------------------------ the socket

    def test_names(self):
        """Whoever takes the name of a socket first is not believed, and keeps nobody from asking the program; for root and for an ordinary user."""
        need_root("taking the names of others")
        runs = 0
        for user, thief in ((0, NOBODY), (NOBODY, NOBODY - 1), (NOBODY, 0)):
            # A shell that waits until its name is taken, and becomes the program then.
            argv = ["sh", "-c", 'echo $$; read line; exec "$@"', "sh", self.farshore, "run", "--memory", "16M", "--", "sh", "-c", "echo ready; read line"]
            setpriv = harness.need("setpriv", "util-linux")
            become = [setpriv, "--reuid", str(user), "--regid", str(user), "--clear-groups"]
            with self.running(*become, *argv) as process:
                pid = int(process.popen.stdout.readline())
                squatter = f"""
import socket, sys, time
kept = []
for name in ("farshore-{user}-{pid}", "farshore-0-{pid}", "farshore-{user}-{pid}-0000000000000000"):
    one = socket.socket(socket.AF_UNIX)
    try:
        one.bind("\\0" + name)
    except OSError:
        continue
    one.listen(0)
    kept.append(one)
print(len(kept), flush=True)
sys.stdin.readline()
"""
                other = [setpriv, "--reuid", str(thief), "--regid", str(thief), "--clear-groups", sys.executable, "-c", squatter]
                with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as thieves:
                    try:
                        expect(int(thieves.stdout.readline()) >= 2, "the names were not free")
                        process.popen.stdin.write(b"go\n")
                        process.popen.stdin.flush()
                        said = process.popen.stdout.readline()
                        expect(said == b"ready\n", f"the program says {said}: {process.stderr_so_far()}")
                        for asks in {0, user}:
                            now = self.stats(pid, asks or None)
                            expect(now["pid"] == pid and now["memory_limit_bytes"] == 16 << 20, f"user {asks} hears of {now['pid']}")
                            runs += 1
                        done = self.call("stat", str(pid), user=NOBODY - 2)
                        expect(done.status == 1 and "belongs to user" in done.err, f"a third user: {done.status} {done.err}")
                    finally:
                        thieves.stdin.close()
                expect(not process.stderr_so_far(), f"on stderr: {process.stderr_so_far()}")
        return f"{runs} answers"

    def test_stronger(self):
        """A process that has a capability or a group that its user has not opens nothing for that user; for root it does, and for a user with its groups."""
        need_root("capabilities and groups of others")
        setpriv, room = harness.need("setpriv", "util-linux"), self.folder("stronger", 0o770)
        os.chown(room, 0, 4)
        user = [setpriv, "--reuid", str(NOBODY), "--regid", str(NOBODY)]
        more = {"capability": ["--clear-groups", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"], "group": ["--groups", "4"], "none": ["--clear-groups"]}
        for what, rights in more.items():
            with self.running(*user, *rights, self.farshore, "run", "--memory", "16M", "--", "sh", "-c", "echo $$; read line") as process:
                pid, place = process.popen.stdout.readline().decode().strip(), room if what != "none" else self.folder("open", 0o777)
                asked = self.call("set", pid, f"swap+=dir:{place}", user=NOBODY)
                expect((asked.status == 0) == (what == "none"), f"{what}: status {asked.status}: {asked.err}")
                expect(what == "none" or "ask as root" in asked.err, f"{what}: {asked.err}")
                expect(what == "none" or not os.listdir(room), f"{what}: a file of root's: {os.listdir(room)}")
                expect(self.stats(pid, NOBODY)["pid"] == int(pid), f"{what}: no counters")
                with_group = self.call_program([*user, "--groups", "4", self.farshore, "set", pid, f"swap+=file:{place}/x,size=16M"])
                expect((with_group.status == 0) == (what != "capability"), f"{what}, asked with the group: {with_group.status}: {with_group.err}")
                by_root = self.call("set", pid, f"swap+=file:{place}/y,size=16M")
                expect(by_root.status == 0, f"{what}, asked by root: {by_root.err}")
        return f"{len(more)} processes"

    # ------------------------------------------------------------------------------------------ programs of a special kind

    def test_sanitizer(self):
        """AddressSanitizer's runtime is the first library, as it wants: a right program ends as natively, a wrong one is told of; started by us or by a shell."""
        try:
            program = self.public_program("asan", ("-fsanitize=address",))
        except subprocess.CalledProcessError as why:
            raise Unavailable(f"the compiler has no AddressSanitizer: {why}") from None
        runs = 0
        for through in ([], ["sh", "-c", '"$@"; exit $?', "sh"]):
            right = self.call_program([program, "40"])
            stats = os.path.join(self.folder("stats", 0o777), "stats.json")
            done = self.call("run", "--memory", "16M", "--stats", stats, "--", *through, program, "40", timeout=120)
            expect((done.status, done.out, done.err) == (right.status, right.out, right.err), f"{through}: {done.status} {done.out} {done.err[-600:]}")
            now = harness.load_stats(stats)
            expect(through or now["evictions"]["pages"] > 5000, f"it was not managed: {now['evictions']}")
            expect(now["resident_bytes_peak"] <= 16 << 20, f"{now['resident_bytes_peak']} bytes resident in a limit of 16 MiB")
            wrong = self.call_program([program, "40", "wrong"])
            done = self.call("run", "--memory", "16M", "--", *through, program, "40", "wrong", timeout=120)
            told = "heap-use-after-free"
            expect(told in wrong.err and told in done.err, f"{through}: {done.err[-600:]}")
            expect((done.status, done.out) == (wrong.status, wrong.out), f"{through}: status {done.status}, natively {wrong.status}: {done.out}")
            runs += 2
        # A runtime that the user puts in front himself, for a program that does not need it.
        name = next(line.split("[")[1].split("]")[0] for line in subprocess.run(["readelf", "-d", program], stdout=subprocess.PIPE, check=True, text=True)
                    .stdout.splitlines() if "libasan" in line)
        done = self.call("run", "--memory", "16M", "--", "sh", "-c", "echo $LD_PRELOAD", env={"LD_PRELOAD": name, "ASAN_OPTIONS": "detect_leaks=0"})
        expect(done.out == f"{name}\n" and not done.err, f"the user's own: {done.out} {done.err[-600:]}")
        return f"{runs} runs"

    def test_terabyte(self):
        """A reserved terabyte of which little is used costs little, whatever is done with it; and it is right."""
        spent = {}
        with self.running(self.farshore, "run", "--memory", "16M", "--", self.public_program("reserve")) as process:
            for step in ("begin", "reserved", "given back", "unreadable", "end"):
                said = process.popen.stdout.readline().decode().strip()
                expect(said == step, f"{step!r} expected, not {said!r}: {process.stderr_so_far()[-300:]}")
                pid = min(pid for pid in harness.session_pids(process.popen.pid) if pid != process.popen.pid)
                status = dict(line.split(":", 1) for line in harness.read_text(f"/proc/{pid}/status").splitlines())
                # Page tables count: what is only looked at has them.
                resident = sum(int(status[name].split()[0]) << 10 for name in ("VmRSS", "VmPTE"))
                now = self.stats(pid)
                spent[step] = (resident - now["resident_bytes"], now["overhead_bytes"])
                process.popen.stdin.write(b"\n")
                process.popen.stdin.flush()
            outcome = process.finish()
            expect(outcome.status == 0 and not outcome.stderr, f"status {outcome.status}: {outcome.stderr[-300:]}")
        for step, (resident, own) in spent.items():
            before = spent["begin"]
            # Per GiB: a page of flags, its page table and the table's list; twice a page for each page that is used.
            expect(resident - before[0] < 24 << 20, f"{step}: {(resident - before[0]) >> 20} MiB more of RAM")
            expect(own - before[1] < 24 << 20, f"{step}: Farshore says that it has {(own - before[1]) >> 20} MiB more for itself")
        return ", ".join(f"{step} {resident >> 20} MiB" for step, (resident, _) in spent.items())
