"""Swap spaces that come and go while a program runs (`farshore set PID swap+=… swap-=…`), and spaces that die.

The programs check their own data. A space that is gone has no file open any more, and its disk space is free.
"""

import os
import re
import subprocess
import sys
import time

import harness
from command import NOBODY
from harness import MIB, PAGE, expect
from spaces import Program, Spaces


class TestSpaces(Spaces):
    """Spaces that come, go and die."""

    def test_come_and_go(self):
        """Under load, spaces come and go in turn: the data are right, and the files of those that have gone are closed."""
        turns = 0
        for mode in self.modes():
            for options in ((), ("--encrypt",)):
                a, b, c = self.folders("a", "b", "c")
                with self.program("20M", [a, b], self.load("64M"), ["--fault", mode, *options]) as program:
                    for turn, (comes, goes) in enumerate(((c, a), (a, b), (b, c), (c, a))):
                        program.change(f"swap+={comes}")
                        expect(program.spaces()[comes] == "works", f"{program.spaces()}")
                        program.change(f"swap-={goes}")
                        expect(goes not in program.spaces(), f"{program.spaces()}")
                        program.closed(goes[4:])
                        turns += 1
                        # The first turn is while memory is filled.
                        expect(turn > 0 or program.answer() == ["filled"], "it says something else")
                    now = program.stat()
                    used = [space["used_bytes"] for space in now["spaces"]]
                    expect(now["resident_bytes_peak"] <= 20 * MIB and len(used) == 2 and sum(used) > 16 * MIB, f"{used}")
                    expect(now["evictions"]["synchronous"] == 0, "evictions in faults")
                expect(not program.err, f"{program.err}")
        return f"{turns} turns"

    def test_memstorm(self):
        """The same with a program that moves its memory about: its output is as natively."""
        storm = [self.public_program("memstorm"), "3", "48", "8", "11"]
        right, (a, b, c) = self.call_program(storm), self.folders("a", "b", "c")
        turns = 0
        with self.program("8M", [a, b], storm) as program:
            while program.process.alive():
                for comes, goes in ((c, a), (a, b), (b, c)):
                    for setting in (f"swap+={comes}", f"swap-={goes}"):
                        done = program.set(setting)
                        if done.status != 0:
                            expect(not program.process.alive() or "process" in done.err, f"set {setting}: {done.err}")
                            break
                        turns += 1
        expect(program.out == right.out, f"{program.out} natively {right.out}")
        expect(turns > 2, f"{turns} changes")
        return f"{turns} changes"

    def test_disk_space(self):
        """What a space took of its disk is free when it has gone."""
        (rest,) = self.folders("rest")
        free = {}
        for kind, place in (("tmpfs", self.tmpfs("100M")), ("ext4", self.image(128 * MIB))):
            with place as folder:
                def left(folder=folder):
                    seen = os.statvfs(folder)
                    return seen.f_bfree * seen.f_frsize

                before = left()
                with self.program("12M", [f"dir:{folder}", rest], self.load("60M")) as program:
                    deadline = time.monotonic() + 60
                    while left() > before - 8 * MIB:
                        expect(time.monotonic() < deadline, f"{kind}: nothing is written")
                        time.sleep(0.02)
                    program.change(f"swap-=dir:{folder}")
                    program.closed(folder)
                    while left() < before - MIB:
                        expect(time.monotonic() < deadline, f"{kind}: {before - left()} bytes are still taken")
                        time.sleep(0.02)
                free[kind] = before - left()
        return f"all but {free}"

    def test_full_rest(self):
        """The others have no room: the drain says so, the space is used again, and the program goes on."""
        place, (b,) = self.folder("small"), self.folders("b")
        small = f"file:{place}/f,size=8M"
        with self.lost("12M", [small, b], 12000) as program:
            program.fails(f"swap-={b}", "no room")
            expect(program.spaces()[b] == "works", f"{program.spaces()}")
            expect(program.tell("lost") == ["lost"] and program.tell("rest 2") == ["right"], "wrong data")
            # With more room, or more memory, it goes well.
            (c,) = self.folders("c")
            program.change(f"swap+={c}", f"swap-={b}")
            program.change("memory=64M", f"swap-={c}")
            expect(list(program.spaces()) == [small], f"{program.spaces()}")
            expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")
        expect(program.err.count("stays: ") == 1, f"{program.err}")
        return "undone, and went on"

    def told_pages(self, program, spec):
        """Numbers of the pages that were told, range by range, to be in a space alone."""
        form = re.compile(rf"farshore: (\d+) pages from 0x([0-9a-f]+) to before 0x([0-9a-f]+) are in swap space {re.escape(spec)} alone and cannot be read")
        told = []
        for line in program.process.stderr_so_far().splitlines():
            if found := form.fullmatch(line):
                count, start, end = int(found[1]), int(found[2], 16), int(found[3], 16)
                expect(end - start == count * PAGE, line)
                told += range((start - program.area) // PAGE, (end - program.area) // PAGE)
        return told

    def test_read_errors(self):
        """A space dies in the middle of a run, and is drained: what can be saved is, and exactly the rest is told, and lost."""
        seen = []
        for fault in self.modes():
            a, b = self.folders("a", "b")
            with self.lost("5M", [a, b], 3000, options=["--fault", fault], faulty="space=1,read_error=1,write_error=1,from=6s") as program:
                self.until_dead(program, b)
                line = program.fails(f"swap-={b}", "could not be saved", "SIGBUS")
                count = int(re.search(r"(\d+) pages", line)[1])
                told = self.told_pages(program, b)
                expect(len(told) == len(set(told)) == count > 100, f"{len(told)} pages are told, and {count} by the command")
                space = next(space for space in program.stat()["spaces"] if space["name"] == b)
                expect((space["state"], space["used_bytes"]) == ("left", count * PAGE), f"{space}")
                lost = [int(n) for n in program.tell("lost")[1:]]
                expect(lost == sorted(told), f"{len(lost)} pages are lost, {len(told)} were told; {sorted(set(lost) ^ set(told))[:9]}")
                expect(program.tell("rest 2") == ["right"], "wrong data")
                expect(program.fails(f"swap-={b}", f"{count} pages could not be saved"), "a second try")
                seen.append(f"{fault} {count}")
            self.told_one_by_one(program, lost)
        return "pages lost: " + ", ".join(seen)

    def until_dead(self, program, spec):
        """Goes on until the space is known to have failed: nothing else is as sure of the time."""
        deadline = time.monotonic() + 60
        while program.spaces()[spec] != "fails":
            expect(time.monotonic() < deadline, f"{program.spaces()}")
            program.tell("rest 1")

    def told_one_by_one(self, program, lost):
        """Each page that was lost has a line of its own, with where it was and why."""
        self.check_lost_pages(program.err, ["the thread that needs it gets SIGBUS"])
        pages = {(int(at, 16) - program.area) // PAGE for at in re.findall(r"page 0x([0-9a-f]+) cannot be had", program.err)}
        expect(pages == set(lost), f"{len(pages)} pages have a line, {len(lost)} were lost")

    def test_dies(self):
        """A space dies and nobody does anything: each page that was only there is told when it is touched, and the program goes on with the others."""
        a, b = self.folders("a", "b")
        with self.lost("5M", [a, b], 3000, faulty="space=1,read_error=1,write_error=1,from=5s") as program:
            self.until_dead(program, b)
            lost = [int(n) for n in program.tell("lost")[1:]]
            space = next(space for space in program.stat()["spaces"] if space["name"] == b)
            # Those of others that are in memory may have a slot there, too.
            expect(100 < len(lost) <= space["used_bytes"] // PAGE, f"{len(lost)} pages are lost, {space}")
            expect(program.tell("rest 3") == ["right"], "wrong data")
            expect([int(n) for n in program.tell("lost")[1:]] == lost, "other pages are lost")
        self.told_one_by_one(program, lost)
        return f"{len(lost)} pages lost, the others right"

    def test_comes_back(self):
        """A space cannot be read for a while: its drain ends with what could not be saved; later it goes well."""
        a, b = self.folders("a", "b")
        with self.lost("8M", [a, b], 8000, faulty="space=1,read_error=1,until=8s") as program:
            program.fails(f"swap-={b}", "could not be saved")
            expect(program.spaces()[b] == "left", f"{program.spaces()}")
            program.change(f"swap+={b}")
            expect(program.spaces()[b] == "works", f"{program.spaces()}")
            deadline = time.monotonic() + 60
            while program.set(f"swap-={b}").status != 0:
                expect(time.monotonic() < deadline, "it is not drained")
                time.sleep(0.2)
            program.closed(b[4:])
            expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")
        return "drained in the end"

    SLOW = "space=1,delay=1,delay_time=60ms"

    def test_called_off(self):
        """A drain that is under way is shown, goes on without the command that asked for it, and is called off by swap+=."""
        a, b = self.folders("a", "b")
        with self.lost("8M", [a, b], 16000, faulty=self.SLOW) as program:
            asked = program.begin(f"swap-={b}")
            program.until_state(b, "draining")
            program.fails(f"swap-={b}", "is being drained already")
            program.fails(f"swap-={a}", "no other swap space")
            # The drain goes on without the command that asked for it. (Not by SIGINT, which those that a shell runs in the background ignore.)
            asked.terminate()
            asked.communicate()
            before = program.stat()["spaces"][1]
            deadline = time.monotonic() + 60
            while (after := program.stat()["spaces"][1])["used_bytes"] >= before["used_bytes"]:
                expect(time.monotonic() < deadline, f"{before}, {after} after a minute")
                time.sleep(0.05)
            expect(after["state"] == "draining", f"{before}, {after}")
            expect("draining, " in self.call("stat", str(program.pid)).out, "farshore stat does not say how far it is")
            asked = program.begin(f"swap-={b}") if program.set(f"swap+={b}").status == 0 else None
            expect(asked is not None, "swap+= does not call it off")
            program.until_state(b, "draining")
            program.change(f"swap+={b}")
            _, err = asked.communicate(timeout=60)
            expect(asked.returncode == 1 and b"called off" in err and err.count(b"\n") == 1, f"{asked.returncode}: {err}")
            program.until_state(b, "works")
            expect(program.tell("lost") == ["lost"], "wrong data")
        return "twice"

    def test_two_at_once(self):
        """Two drains at once, and a space that comes meanwhile."""
        a, b, c, d = self.folders("a", "b", "c", "d")
        with self.lost("8M", [a, b, c], 12000, faulty="delay=0.3,delay_time=5ms") as program:
            both = [program.begin(f"swap-={spec}") for spec in (a, b)]
            program.change(f"swap+={d}")
            for asked in both:
                _, err = asked.communicate(timeout=100)
                expect(asked.returncode == 0 and not err, f"{asked.returncode}: {err}")
            expect(list(program.spaces().values()) == ["works"] * 2 and {c, d} == set(program.spaces()), f"{program.spaces()}")
            program.closed(a[4:])
            program.closed(b[4:])
            expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")
        return "both gone, one came"

    def test_hangs(self):
        """A space does not answer while it is drained: others are used and asked meanwhile, and it ends when that one answers."""
        a, b, c = self.folders("a", "b", "c")
        with self.lost("8M", [a, b], 8000, options=["--io-timeout", "300ms"], faulty="space=1,hang=1,from=3s,until=9s") as program:
            told = self.wait_for_hang(program, b)
            asked = program.begin(f"swap-={b}")
            program.change(f"swap+={c}") if asked.poll() is None else None
            _, err = asked.communicate(timeout=100)
            expect(asked.returncode == 0, f"{asked.returncode}: {err}")
            expect({a, c} == set(program.spaces()), f"{program.spaces()}")
            expect(all(program.answer() == ["right"] for _ in range(told)), "wrong data")
            expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")
        return "ended when it answered"

    def wait_for_hang(self, program, spec):
        """Touches pages until one of them hangs (from a moment on all do, for some seconds). How many answers are still to come."""
        told = 0
        while f"{spec} has not answered for " not in program.process.stderr_so_far():
            expect(program.process.alive(), f"it ended: {program.process.stderr_so_far()[-300:]}")
            if told < 30:
                program.process.popen.stdin.write(b"rest 2\n")
                program.process.popen.stdin.flush()
                told += 1
            time.sleep(0.2)
        return told

    def test_pool(self):
        """With a pool of compressed pages in front."""
        turns = 0
        for kind in ("lz4", "zstd"):
            a, b, c = self.folders("a", "b", "c")
            with self.program("20M", [f"ram:{kind},size=6M", a, b], self.load("64M")) as program:
                for comes, goes in ((c, a), (a, b)):
                    program.change(f"swap+={comes}", f"swap-={goes}")
                    program.closed(goes[4:])
                    turns += 1
                    expect(turns % 2 == 0 or program.answer() == ["filled"], "it says something else")
                now = program.stat()
                expect(now["pool"]["pages"] > 0 and now["resident_bytes_peak"] <= 20 * MIB, f"{now['pool']}")
            with self.program("20M", [f"ram:{kind}"], self.load("24M")) as program:
                program.fails(f"swap+={a}", f"ram:{kind}")
                program.fails(f"swap-=ram:{kind}", f"ram:{kind}")
        return f"{turns} turns"

    def test_fork(self):
        """A child reads what its parent had in a space that has gone since; later children use the spaces that are there."""
        a, b, c = self.folders("a", "b", "c")
        with self.lost("12M", [a, b], 8000) as program:
            child = int(program.tell("fork")[0])
            program.change(f"swap+={c}", f"swap-={a}")
            program.closed(a[4:])
            expect(program.has_open(a[4:], child), "the child has no file any more that it reads from")
            expect(program.tell("rest 2") == ["right"] and program.tell("lost") == ["lost"], "wrong data")
            program.change(f"swap+={a}", f"swap-={b}")
            expect(program.tell("reap") == ["right"], "wrong data in the child")
            later = int(program.tell("fork")[0])
            expect(program.tell("rest 1") == ["right"], "wrong data")
            expect(not program.has_open(b[4:], later) and program.has_open(c[4:], later), "the later child has its parent's old files")
            expect(program.tell("reap") == ["right"], "wrong data in the later child")
        return "one before, one after"

    def test_children(self):
        """Forks that write, while spaces come and go in them and in their parent; a program that is started later."""
        a, b, c = self.folders("a", "b", "c")
        text = ("import os, select, subprocess, sys\n"
                "def page(i, who): return (b'%d %d ' % (i, who)) * 600\n"
                "mine = [page(i, 0) for i in range(6000)]\n"
                "print('ready', os.getpid(), flush=True)\n"
                "sys.stdin.readline()\n"
                "gate, end = os.pipe()\n"
                "child = os.fork()\n"
                "who = 1 if child == 0 else 2\n"
                "if child == 0:\n"
                "    os.close(end)\n"
                "    for i in range(0, 6000, 2): mine[i] = page(i, who)\n"
                "    print('child', os.getpid(), flush=True)\n"
                "    while not select.select([gate], [], [], 0)[0]:\n"
                "        assert all(mine[i] == page(i, 0 if i % 2 else 1) for i in range(6000))\n"
                "        for i in range(0, 6000, 6): mine[i] = page(i, 1)\n"
                "    os._exit(0)\n"
                "assert all(mine[i] == page(i, 0) for i in range(6000))\n"
                "sys.stdin.readline()\n"
                "os.close(end)\n"
                "assert os.waitpid(child, 0)[1] == 0\n"
                "assert all(mine[i] == page(i, 0) for i in range(6000))\n"
                "x = subprocess.Popen([sys.executable, '-c', 'import time; x = bytearray(1 << 20); print(1, flush=True); input()'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
                "x.stdout.readline()\n"
                "print('started', x.pid, flush=True)\n"
                "sys.stdin.readline()\n"
                "x.communicate(b'\\n')\n")
        with self.program("24M", [a, b], [sys.executable, "-c", text]) as program:
            expect(program.answer()[0] == "ready", "it did not start")
            program.change(f"swap+={c}", f"swap-={a}")
            program.process.popen.stdin.write(b"\n")
            program.process.popen.stdin.flush()
            child = int(program.answer()[1])
            expect(set(program.spaces(child)) == {b, c}, f"{program.spaces(child)}")
            for settings in ([f"swap+={a}", f"swap-={b}"], [f"swap-={c}"], [f"swap+={b}", f"swap-={a}"]):
                done = program.set(*settings, pid=child)
                expect(done.status == 0, f"in the child: {done.err}")
            program.change(f"swap-={b}")
            program.process.popen.stdin.write(b"\n")
            program.process.popen.stdin.flush()
            started = int(program.answer()[1])
            expect(set(program.spaces(started)) == {c}, f"{program.spaces(started)}")
            program.process.popen.stdin.write(b"\n")
            program.process.popen.stdin.flush()
        return "changed in a child and in its parent"

    def test_many(self):
        """As many spaces as can be, one more, and all but one away again."""
        names = [f"n{number}" for number in range(65)]
        all_of_them = self.folders(*names)
        with self.lost("8M", all_of_them[:1], 6000) as program:
            program.change(*(f"swap+={spec}" for spec in all_of_them[1:64]))
            program.fails(f"swap+={all_of_them[64]}", "64")
            expect(program.tell("rest 1") == ["right"], "wrong data")
            program.change(*(f"swap-={spec}" for spec in all_of_them[:63]))
            expect(list(program.spaces()) == [all_of_them[63]], f"{program.spaces()}")
            expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")
            # Again and again: numbers are used again, and there is always room for one more.
            for spec in all_of_them[:40]:
                program.change(f"swap+={spec}", f"swap-={spec}")
        return "64, then one, then 40 in turn"

    def test_ordinary_user(self):
        """Without any privilege."""
        if os.geteuid() != 0:
            return "this is one"
        a, b = self.folders("a", "b")
        setpriv = [harness.need("setpriv", "util-linux"), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        argv = [*setpriv, self.farshore, "run", "--memory", "12M", "--swap", a, "--", self.public_program("scan"), str(40 * MIB), "1"]
        process = harness.Process(argv, self.work, 90, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            first = process.popen.stdout.readline().decode().split()
            program = Program(self, process)
            for settings in ([f"swap+={b}", f"swap-={a}"],):
                done = self.call("set", str(program.pid), *settings, user=NOBODY)
                expect(done.status == 0, f"{done.err}")
            process.popen.stdin.write(b"\n\n")
            process.popen.stdin.close()
            outcome, out = self.ended(process)
        finally:
            process.kill_session()
            process.finish()
        expect(outcome.status == 0 and out.split()[2] == first[2], f"status {outcome.status}: {out} {outcome.stderr[-300:]}")
        return "went well"

    def test_refused(self):
        """Bad input: one line each that names it, and nothing changes."""
        (a,) = self.folders("a")
        full, gone = os.path.join(self.folder("full"), "f"), self.folder("gone")
        with open(full, "wb") as file:
            file.write(b"something")
        with self.lost("8M", [a], 4000) as program:
            bad = [("swap+=", "swap+="), ("swap+=tape:/x", "tape:/x"), ("swap+=dir:/nonexistent/x", "/nonexistent/x"), (f"swap+=file:{full}", full),
                   (f"swap+=file:{gone}/f,size=1M", "too small"), ("swap+=file:/x,size=lots", "lots"), ("swap+=ram", "dir:"), ("swap+=ram:lz4", "dir:"),
                   (f"swap+={a}", "already"), ("swap+=delay:10us", "dir:"), ("swap+=remote:a:1", "remote:a:1"), (f"swap-={a}", "no other swap space"),
                   ("swap-=dir:/nonexistent/x", a), ("swap-=ram", a), ("swap-=", "swap-="), ("swap-=x", "x"), (f"swap={a}", "swap+=")]
            for setting, word in bad:
                done = program.set(setting)
                expect(done.status in (1, 125) and len(done.err.splitlines()) == 1, f"set {setting}: status {done.status}: {done.err!r}")
                expect(word in done.err, f"set {setting}: the line does not say {word!r}: {done.err}")
            expect(program.spaces() == {a: "works"}, f"{program.spaces()}")
            # By a path that depends on where one is.
            here = self.call_program(["sh", "-c", f"cd {gone} && {self.farshore} set {program.pid} swap+=dir:. && {self.farshore} set {program.pid} swap-=dir:."])
            expect(here.status == 0 and not here.err, f"dir:.: {here.err}")
        with self.program("8M", ["ram,size=64M"], self.load("16M")) as program:
            program.fails(f"swap+={a}", "ram,size=64M")
            program.fails("swap-=ram,size=64M", "only files")
        return f"{len(bad) + 2} bad inputs, each with one line"
