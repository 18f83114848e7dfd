"""Copies of a swap space (mirror:) that come and go while a program runs (`farshore set PID swap+=… swap-=…`), under programs that check their data."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import harness
from command import NOBODY
from harness import MIB, Unavailable, expect
from spaces import Program, Spaces
from test_remote import Relay, Remote


class Holding(Relay):
    """A network that can keep what programs send, and bring it to the server long after they have given up. Connections that are made later are not kept."""

    def __init__(self, path, server):
        self.kept, self.kept_bytes, self.on_its_way = [], 0, threading.Event()
        super().__init__(path, server)

    def carry(self, here, there):
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                if there in self.kept:
                    self.kept_bytes += len(data)
                    self.on_its_way.wait()
                there.sendall(data)
        self.shut(here, there)

    def keep(self):
        """Keeps what is sent to the server over the connections that there are."""
        self.kept = self.ends[1::2]

    def bring(self):
        """Brings what was kept, to its end."""
        self.on_its_way.set()

    def close(self):
        self.bring()
        super().close()


class TestCopies(Remote, Spaces):
    """Disks and memory nodes that are exchanged."""

    @staticmethod
    def mirror(*copies):
        return f"mirror:({','.join(copies)})"

    def copies(self, program):
        """State and missing pages of each copy."""
        (space,) = program.stat()["spaces"]
        return {copy["name"]: (copy["state"], copy["stale_pages"]) for copy in space["copies"]}

    def until(self, program, what, is_so):
        deadline = time.monotonic() + 90
        while not is_so(copies := self.copies(program)):
            expect(time.monotonic() < deadline and program.process.alive(), f"it never comes: {what}; {copies}: {program.process.stderr_so_far()[-300:]}")
            time.sleep(0.05)

    def whole(self, program, *specs):
        """The copies are these, and each has all."""
        self.until(program, f"{specs} have all", lambda copies: copies == dict.fromkeys(specs, ("works", 0)))

    @contextlib.contextmanager
    def nodes(self, name, count):
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self.node(f"{name}-{n}", "--memory", "512M")) for n in range(count)]

    def test_disks(self):
        """Under load each of two disks is exchanged for another one, and its directory deleted: the data are right, and the old files closed."""
        turns = 0
        for mode in self.modes():
            for options in ((), ("--encrypt",), ("--swap", "PLACE")):
                there = self.folders(*(f"{mode}-{len(options)}-{n}" for n in range(6)))
                swap, options = [self.mirror(*there[:2])], [*options]
                if "PLACE" in options:
                    swap, options = ["ram:lz4,size=4M", *swap], []
                with self.program("20M", swap, self.load("64M"), ["--fault", mode, *options]) as program:
                    for turn, comes in enumerate(there[2:]):
                        goes, stays = there[turn], there[turn + 1]
                        program.change(f"swap+={comes}")
                        expect(self.copies(program)[comes][0] == "works", f"{self.copies(program)}")
                        program.change(f"swap-={goes}")
                        program.closed(goes[4:])
                        shutil.rmtree(goes[4:])
                        self.whole(program, stays, comes)
                        turns += 1
                        # The first turn is while memory is filled.
                        expect(turn > 0 or program.answer() == ["filled"], "it says something else")
                    now = program.stat()
                    expect(now["resident_bytes_peak"] <= 20 * MIB and now["evictions"]["synchronous"] == 0, f"{now}")
                    expect(set(there[-2:]) == set(now["spaces"][-1]["name"].removeprefix("mirror:(").removesuffix(")").split(",")), f"{now['spaces']}")
                expect(not program.err, f"{program.err}")
        return f"{turns} disks exchanged"

    def test_nodes(self, mode):
        """Each of two nodes is exchanged for another one and killed; the second had died before. The program forks meanwhile."""
        with self.nodes(f"nodes-{mode}", 4) as nodes:
            specs = [node.spec for node in nodes]
            with self.updates(self.mirror(*specs[:2]), ("--fault", mode), forks=True) as (process, pid):
                program = Program(self, process)
                self.rounds(process, 10)
                for n in (0, 1):
                    if n == 1:
                        nodes[1].kill()
                    # The program is heard meanwhile, or its output would fill the pipe.
                    self.through(process, program, f"swap+={specs[n + 2]}", f"swap-={specs[n]}")
                    if n == 0:
                        nodes[0].kill()
                    self.rounds(process, 30)
                expect(set(self.copies(program)) == set(specs[2:]), f"{self.copies(program)}")
                nodes[3].kill()
                self.rounds(process, 20)

    def through(self, process, program, *settings):
        """Makes settings while the program works."""
        for setting in settings:
            asked = program.begin(setting)
            deadline = time.monotonic() + 120
            while asked.poll() is None:
                expect(time.monotonic() < deadline, f"{setting} does not end: {self.copies(program)}")
                self.rounds(process, 1)
            _, err = asked.communicate()
            expect(asked.returncode == 0 and not err, f"{setting}: {err}")

    def test_refused(self):
        """What cannot be is refused, with what to do, and nothing changes."""
        a, b, c, d, e = self.folders("a", "b", "c", "d", "e")
        sized = [f"file:{spec[4:]}/f,size=256M" for spec in (a, b)]
        with self.lost("8M", [self.mirror(*sized)], 8000, faulty="space=2,write_delay=1,delay_time=50ms") as program:
            for spec in sized:
                program.fails(f"swap-={spec}", "two copies are the fewest", "swap+=")
            program.fails(f"swap-={c}", "none of the copies", sized[0], sized[1])
            program.fails(f"swap+={sized[0]}", "already")
            program.fails(f"swap+=file:{c[4:]}/f,size=64M", "64M", "256M", "larger")
            program.fails("swap+=ram:lz4", "pool")
            program.fails("swap+=nbd://127.0.0.1:1", "without a server")
            program.fails("swap+=dir:/no/such/place", "does not exist")
            program.fails(f"swap+={self.mirror(c, d)}", "one of the copies")
            self.whole(program, *sized)
            # A slow one is being filled.
            asked = program.begin(f"swap+={c}")
            self.until(program, "it is being filled", lambda copies: copies.get(c, ("", 0))[0] == "filling")
            program.fails(f"swap+={c}", "just being added")
            program.fails(f"swap-={sized[0]}", f"{c}, which would stay, does not have", "farshore stat")
            program.fails(f"swap+={d}", "three copies")
            expect("filling, " in self.call("stat", str(program.pid)).out, "farshore stat does not show it")
            # Called off: it goes again.
            program.change(f"swap-={c}")
            _, err = asked.communicate(timeout=60)
            expect(asked.returncode == 1 and b"taken away again" in err, f"status {asked.returncode}: {err}")
            self.whole(program, *sized)
            program.change(f"swap+={d}", f"swap-={sized[0]}")
            program.change(f"swap+={e}", f"swap-={sized[1]}")
            self.whole(program, d, e)
            expect(program.tell("lost") == ["lost"] and program.tell("rest 2") == ["right"], "wrong data")
        expect(not program.err, program.err)
        with self.program("20M", [a], self.load("30M")) as program:
            program.fails(f"swap+={self.mirror(b, c)}", "only dir:, file: and dev:")

    def test_a_disk_that_fails_meanwhile(self):
        """The new disk fails while it is filled, and works again later; another one fails for good when the old ones have gone."""
        a, b, c, d = self.folders("a", "b", "c", "d")
        with self.lost("8M", [self.mirror(a, b)], 12000, faulty="space=2,write_error=1,until=6s") as program:
            asked = program.begin(f"swap+={c}")
            self.until(program, "it is down", lambda copies: copies.get(c, ("", 0))[0] == "down")
            # It is asked again and again, and answers until it is written.
            program.fails(f"swap-={a}", f"{c}, which would stay, does not ")
            expect(program.tell("rest 1") == ["right"], "wrong data")
            _, err = asked.communicate(timeout=100)
            expect(asked.returncode == 0 and not err, f"{err}")
            program.change(f"swap-={a}")
            expect(program.tell("lost") == ["lost"], "wrong data")
        with self.lost("8M", [self.mirror(a, b)], 12000, faulty="space=2,read_error=1,write_error=1,from=5s") as program:
            program.change(f"swap+={c}", f"swap-={a}")
            self.until(program, "it is down", lambda copies: program.tell("rest 1") == ["right"] and copies[c][0] == "down")
            program.fails(f"swap-={b}", "two copies are the fewest")
            program.change(f"swap+={d}")
            program.fails(f"swap-={b}", f"{c}, which would stay, does not ")
            program.change(f"swap-={c}")
            shutil.rmtree(c[4:])
            self.whole(program, d, b)
            expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")

    def test_killed(self):
        """The program is killed while a copy is filled, and while one goes: nothing of it is left."""
        a, b, c = self.folders("a", "b", "c")
        for pause in (0.0, 0.3, 1.0):
            with self.lost("8M", [self.mirror(a, b)], 12000, status=128 + signal.SIGKILL) as program:
                asked = program.begin(f"swap+={c}")
                time.sleep(pause)
                os.kill(program.pid, signal.SIGKILL)
                _, err = asked.communicate(timeout=60)
                expect(asked.returncode in (0, 1), f"{asked.returncode} {err}")
            expect(all(not os.listdir(spec[4:]) for spec in (a, b, c)), "files are left")

    def waits(self, program, asked, spec):
        """A copy is kept until the children have ended: the command that takes it away does not end."""
        self.until(program, f"{spec} is leaving", lambda copies: copies[spec][0] == "leaving")
        time.sleep(2)
        expect(asked.poll() is None, "the command does not wait")

    def gone(self, program, asked, spec):
        """The children have ended: the command ends, and the disk may be deleted."""
        _, err = asked.communicate(timeout=60)
        expect(asked.returncode == 0 and not err, f"swap-={spec}: {asked.returncode} {err}")
        if spec.startswith("dir:"):
            program.closed(spec[4:])
            shutil.rmtree(spec[4:])

    def test_children_of_disks(self):
        """A disk is kept until a child that reads from it has ended; later children, and programs that are started, use those that are there."""
        a, b, c, d = self.folders("a", "b", "c", "d")
        with self.lost("12M", [self.mirror(a, b)], 8000) as program:
            child = int(program.tell("fork")[0])
            program.change(f"swap+={c}")
            asked = program.begin(f"swap-={a}")
            self.waits(program, asked, a)
            expect(program.tell("rest 2") == ["right"] and program.tell("lost") == ["lost"], "wrong data")
            expect(program.has_open(a[4:], child), "the child has no file any more that it reads from")
            expect(program.tell("reap") == ["right"], "wrong data in the child")
            self.gone(program, asked, a)
            program.change(f"swap+={d}", f"swap-={b}")
            program.closed(b[4:])
            later = int(program.tell("fork")[0])
            expect(program.tell("rest 1") == ["right"], "wrong data")
            expect(not program.has_open(b[4:], later) and program.has_open(c[4:], later), "the later child has its parent's old files")
            expect(program.tell("reap") == ["right"], "wrong data in the later child")
        expect("is used no more but by 1 processes" in program.err and len(program.err.splitlines()) == 1, program.err)

    def child(self, before="", then=""):
        """A program that forks a child, does this, and says `ready`. When it is told so, the child does that, checks its data and its limit, and both end: `right`."""
        return [sys.executable, "-c",
                "import os, re, sys\n"
                "def data(): return bytearray(range(256)) * (40 << 12)\n"
                "mine, more = data(), bytearray()\n"
                "go, end = os.pipe()\n"
                "child = os.fork()\n"
                "if child == 0:\n"
                "    os.close(end)\n"
                "    os.read(go, 1)\n"
                f"    {then or 'pass'}\n"
                "    whole = bytes(range(256)) * 16\n"
                "    right = lambda area: all(area[i:i + 4096] == whole for i in range(0, len(area), 4096))\n"
                "    print('child', flush=True)\n"
                "    os._exit(0 if right(mine) and right(more) else 1)\n"
                "os.close(go)\n"
                f"{before or 'pass'}\n"
                "print('ready', child, flush=True)\n"
                "sys.stdin.readline()\n"
                "os.close(end)\n"
                "print('right' if os.waitpid(child, 0)[1] == 0 else 'wrong', flush=True)\n"
                "sys.stdin.read()\n"]

    def test_a_child_that_writes_late(self):
        """A child makes a swap space of its own when it first needs one: where its parent's copies were when it was forked. They are kept for that."""
        a, b, c = self.folders("a", "b", "c")
        with self.program("20M", [self.mirror(a, b)], self.child(then="more = data()"), ["--memory-per-process"]) as program:
            program.answer()
            program.change(f"swap+={c}")
            asked = program.begin(f"swap-={a}")
            self.waits(program, asked, a)
            expect(program.tell("") == ["child"], "it says something else")
            expect(program.answer() == ["right"], "wrong data in the child")
            self.gone(program, asked, a)
        expect("has no swap space" not in program.err, program.err)

    def test_a_child_of_another_user(self):
        """The parent changes its user, and with that its family. The copies that a child from before reads are kept all the same, and closed when it has ended."""
        if os.geteuid() != 0:
            raise Unavailable("only root can change its user")
        a, b, c = self.folders("a", "b", "c")
        user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        become = f"os.setgid({NOBODY}); os.setuid({NOBODY})"
        with self.program("20M", [self.mirror(a, b)], self.child(before=become)) as program:
            program.answer()
            done = self.call("set", str(program.pid), f"swap+={c}", user=NOBODY, timeout=100)
            expect(done.status == 0 and not done.err, f"{done.status} {done.err}")
            asked = program.begin(f"swap-={a}", before=user)
            deadline = time.monotonic() + 60
            while "leaving" not in (shown := self.call("stat", str(program.pid), user=NOBODY).out):
                expect(time.monotonic() < deadline, f"it is not leaving: {shown}")
                time.sleep(0.05)
            time.sleep(2)
            expect(asked.poll() is None, "the command does not wait for the child of before")
            expect(program.has_open(a[4:]), "the copy that the child reads is closed")
            expect(program.tell("") == ["child"] and program.answer() == ["right"], "wrong data in the child")
            _, err = asked.communicate(timeout=60)
            expect(asked.returncode == 0 and not err, f"the copy does not go when the child has ended: {asked.returncode} {err}")
            program.closed(a[4:])
            shutil.rmtree(a[4:])
        expect("is used no more but by 1 processes" in program.err, program.err)

    def test_one_server_by_two_names(self):
        """A copy by another name is refused before a byte is written there, however the program was started: its pages are right, and those of the program that has started it."""
        port = harness.free_port()
        fills = ("import subprocess, sys\n"
                 "mine = bytearray(range(256)) * (40 << 12)\n"
                 "status = subprocess.call(sys.argv[1:])\n"
                 "sys.exit(status or 3 * (mine != bytearray(range(256)) * (40 << 12)))\n")
        lost = [self.public_program("lost"), "8000"]
        both = [word for address in ("127.0.0.1", "127.0.0.2") for word in ("--listen", f"{address}:{port}")]
        with self.node("names-tcp", *both, "--memory", "512M"), self.node("names", "--memory", "512M") as node:
            os.symlink(node.socket, alias := f"{node.socket}-alias")
            there, aliases = [f"nbd://127.0.0.1:{port}", node.spec], [f"nbd://127.0.0.2:{port}", f"nbd+unix:///?socket={alias}"]
            for argv in (lost, ["sh", "-c", f"{' '.join(lost)}; true"], [sys.executable, "-c", fills, *lost]):
                with self.program("16M", [self.mirror(*there)], argv) as program:
                    program.answer()
                    (program.pid,) = [pid for pid in harness.session_pids(program.process.popen.pid) if harness.read_text(f"/proc/{pid}/comm") == "lost\n"]
                    for known, other in zip(there, aliases):
                        program.fails(f"swap+={other}", f"the same place as {known}, by another name", "name another")
                        self.whole(program, *there)
                    # Longer than until a copy's stamp is looked at.
                    time.sleep(2)
                    expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")
                    self.whole(program, *there)
                expect(not program.err, f"{argv[0]}: {program.err}")

    def test_one_place_by_two_names(self):
        """A directory by another name is no second copy, neither at the start nor later: a link, a way round, and a bind mount."""
        a, b, c = self.folders("a", "b", "c")
        os.symlink(a[4:], link := f"{a[4:]}-link")
        names = [f"dir:{link}", f"{a}/../a", f"dir:{link}/."]
        with contextlib.ExitStack() as stack:
            if os.geteuid() == 0:
                os.mkdir(bound := f"{a[4:]}-bound")
                subprocess.run(["mount", "--bind", a[4:], bound], check=True)
                stack.callback(subprocess.run, ["umount", bound], check=True)
                names.append(f"dir:{bound}")
            for name in names:
                self.refused(["run", "--memory", "16M", "--swap", self.mirror(a, name), "--", "true"], {125}, "the same place as")
            file, again = f"file:{b[4:]}/f,size=256M", f"file:{b[4:]}/../b/f,size=256M"
            with self.lost("8M", [self.mirror(a, file)], 8000) as program:
                for name in names:
                    program.fails(f"swap+={name}", f"the same place as {a}, by another name", "name another")
                program.fails(f"swap+={again}", f"the same place as {file}, by another name")
                self.whole(program, a, file)
                # The directory of another disk by a name that led to the first one before.
                os.unlink(link)
                os.symlink(c[4:], link)
                program.change(f"swap+=dir:{link}", f"swap-={a}")
                program.fails(f"swap+={c}", f"the same place as dir:{link}")
                program.change(f"swap+={a}")
                self.whole(program, a, file, f"dir:{link}")
                expect(program.tell("rest 1") == ["right"] and program.tell("lost") == ["lost"], "wrong data")
            expect(not program.err, program.err)

    def test_a_server_whose_writes_were_lost(self):
        """A node that has let a program wait for its writes is exchanged. It does not come again, by none of its names: the writes may come late. They do, and hit nobody."""
        a, b = self.folders("a", "b")
        with self.node("late", "--memory", "512M") as node, self.node("late-other", "--memory", "512M") as other:
            relay = Holding(os.path.join(self.folder("relay"), "socket"), node.socket)
            spec = f"nbd+unix:///?socket={relay.path}"
            os.symlink(relay.path, f"{relay.path}-alias")
            # A relay among other work may need more than the second that a server with copies beside it has.
            with contextlib.closing(relay), self.lost("8M", [self.mirror(spec, a)], 8000, options=("--io-timeout", "30s")) as program:
                relay.keep()
                expect(program.tell("rest 1") == ["right"] and relay.kept_bytes > 0, f"wrong data, or {relay.kept_bytes} bytes kept")
                self.whole(program, spec, a)
                program.change(f"swap+={b}", f"swap-={spec}")
                for name in (spec, f"{spec}-alias", f"nbd+unix:///?socket={node.socket}"):
                    program.fails(f"swap+={name}", name, "writes that were lost on the way", "name another")
                    self.whole(program, a, b)
                program.change(f"swap+={other.spec}", f"swap-={a}")
                relay.bring()
                expect(program.tell("rest 2") == ["right"] and program.tell("lost") == ["lost"], "wrong data")
                self.whole(program, b, other.spec)
            # Another program knows nothing of it.
            done = self.call("run", "--memory", "16M", "--swap", self.mirror(node.spec, b), "--", sys.executable, "-c", "x = bytearray(40 << 20)")
            expect(done.status == 0 and not done.err, f"{done.status} {done.err}")

    def test_no_room(self):
        """A copy that comes and has no room is taken away again, and the user hears of it; one that had none from the start is told of."""
        a, b, c = self.folders("a", "b", "c")
        with self.lost("8M", [self.mirror(a, b)], 8000, faulty="space=2,full=1") as program:
            line = program.fails(f"swap+={c}", "no room for ", "it is taken away again", "make room there")
            expect("0B" not in line, line)
            program.closed(c[4:])
            shutil.rmtree(c[4:])
            self.whole(program, a, b)
            expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")
        expect("dir:" in program.err and "has no room for" in program.err and "make room there" in program.err, program.err)
        (c,) = self.folders("c")
        with self.lost("8M", [self.mirror(a, c)], 8000, faulty="space=1,full=1") as program:
            self.until(program, "it is full", lambda copies: copies[c][0] == "full" and copies[c][1] > 0)
            expect("full, " in self.call("stat", str(program.pid)).out, "farshore stat does not show it")
            expect(program.tell("lost") == ["lost"] and program.tell("rest 1") == ["right"], "wrong data")
        expect("has no room for" in program.err, program.err)

    def test_children_of_nodes(self):
        """A node is kept until a child that reads from it has ended: the command waits, and the user is told. swap+= takes it back."""
        with self.nodes("kept", 4) as nodes:
            specs = [node.spec for node in nodes]
            with self.lost("12M", [self.mirror(*specs[:2])], 8000) as program:
                program.tell("fork")
                program.change(f"swap+={specs[2]}")
                asked = program.begin(f"swap-={specs[0]}")
                self.until(program, "it is leaving", lambda copies: copies[specs[0]][0] == "leaving")
                program.fails(f"swap-={specs[0]}", "just being taken away")
                program.change(f"swap+={specs[0]}")
                _, err = asked.communicate(timeout=60)
                expect(asked.returncode == 1 and b"called off by swap+=" in err, f"{asked.returncode} {err}")
                self.whole(program, *specs[:3])
                asked = program.begin(f"swap-={specs[0]}")
                self.until(program, "it is leaving", lambda copies: copies[specs[0]][0] == "leaving")
                time.sleep(2)
                expect(asked.poll() is None, "the command does not wait")
                expect(program.tell("rest 1") == ["right"], "wrong data")
                expect(program.tell("reap") == ["right"], "wrong data in the child")
                _, err = asked.communicate(timeout=60)
                expect(asked.returncode == 0 and not err, f"{asked.returncode} {err}")
                nodes[0].kill()
                # Programs that are forked now have the copies of now.
                program.tell("fork")
                nodes[1].kill()
                expect(program.tell("lost") == ["lost"] and program.tell("reap") == ["right"], "wrong data")
            expect("keep it until they have ended" in program.err, program.err)

    def test_programs_that_are_started(self):
        """A program that is started later has the copies that are there then, and they can be exchanged. Those of a forked child cannot."""
        a, b, c, d = self.folders("a", "b", "c", "d")
        text = ("import os, subprocess, sys\n"
                "mine = bytearray(40 << 20)\n"
                "go, end = os.pipe()\n"
                "child = os.fork()\n"
                "if child == 0:\n"
                "    os.close(end)\n"
                "    for i in range(0, len(mine), 4096): mine[i] = 1\n"
                "    print('child', os.getpid(), flush=True)\n"
                "    os.read(go, 1)\n"
                "    os._exit(0 if all(mine[i] == 1 for i in range(0, len(mine), 4096)) else 1)\n"
                "sys.stdin.readline()\n"
                "x = subprocess.Popen([sys.executable, '-c', 'm = bytearray(range(256)) * (40 << 12); print(1, flush=True); input(); print(m == bytearray(range(256)) * (40 << 12))'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
                "x.stdout.readline()\n"
                "print('started', x.pid, flush=True)\n"
                "sys.stdin.readline()\n"
                "assert x.communicate(b'\\n')[0] == b'True\\n'\n"
                "os.close(end)\n"
                "assert os.waitpid(child, 0)[1] == 0 and not any(mine)\n"
                "print('over', flush=True)\n"
                "sys.stdin.read()\n")
        with self.program("24M", [self.mirror(a, b)], [sys.executable, "-c", text]) as program:
            child = int(program.answer()[1])
            for setting in (f"swap-={a}", f"swap+={c}"):
                done = program.set(setting, pid=child)
                expect(done.status == 1 and "was forked by another program" in done.err, f"{setting}: {done.status} {done.err}")
            program.change(f"swap+={c}")
            asked = program.begin(f"swap-={a}")
            self.waits(program, asked, a)
            program.process.popen.stdin.write(b"\n")
            program.process.popen.stdin.flush()
            started = int(program.answer()[1])
            names = {copy["name"] for copy in program.stat(started)["spaces"][0]["copies"]}
            expect(names == {b, c}, f"{names}")
            done = program.set(f"swap+={d}", f"swap-={b}", pid=started)
            expect(done.status == 0 and not program.has_open(b[4:], started), f"{done.err}")
            expect(program.tell("") == ["over"], "it says something else")
            self.gone(program, asked, a)
