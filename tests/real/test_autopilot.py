"""The autopilot: a limit that follows what a program loses to faults. It comes down to the hot part of a program, follows it when it changes, is set and ended
while the program runs, is one for a family, and refuses what it cannot aim at.

Programs check their own data. What is judged are limits and counters, never times: a busy machine may take its time, and a run that hangs is ended and described.
"""

import os
import signal
import subprocess
import sys
import time

import harness
from command import NOBODY
from harness import MIB, expect
from hotset import SWAP, WATCHDOG, Hotset, Program


class TestAutopilot(Hotset):
    def test_hot_set(self):
        """The limit comes down to the hot part, follows it up and down, and never leaves its bounds; the program's bytes are right."""
        seen = []
        with self.program(["--slowdown", "10%", "--memory-min", "24M", "--memory-max", "400M"], "160M", "40M") as program:
            found = program.until_limit(24, 90)
            expect(found["autopilot"]["target_ppm"] == 100_000 and found["autopilot"]["decides"], f"{found['autopilot']}")
            expect(found["autopilot"]["least_bytes"] == 24 * MIB and found["autopilot"]["most_bytes"] == 400 * MIB, f"{found['autopilot']}")
            seen.append(f"{found['memory_limit_bytes'] / MIB:.0f} MiB for 40")
            program.say("hot 120M")
            found = program.until_limit(118, 400)
            seen.append(f"{found['memory_limit_bytes'] / MIB:.0f} for 120")
            program.say("hot 30M")
            found = program.until_limit(24, 90)
            seen.append(f"{found['memory_limit_bytes'] / MIB:.0f} for 30")
            text = self.call("stat", str(program.pid)).out
            expect("chosen for" in text and "10.00 %" in text and "measured slowdown" in text, text)
        last = program.last["autopilot"]
        expect(last and last["changes"] > 3 and last["lost_ns"] > 0 and last["ran_ns"] > 0, f"{last}")
        return ", ".join(seen)

    def test_nothing_is_needed(self):
        """A program that touches next to nothing comes down to the least that there may be, and all of it is there at its end."""
        with self.program(["--slowdown", "5%"], "100M", "1M") as program:
            program.until_limit(16, 17)
        return "16 MiB"

    def test_everything_is_needed(self):
        """A program that needs all of its memory keeps it, but for what the tries take."""
        with self.program(["--slowdown", "5%"], "100M", "100M") as program:
            program.until("a choice", lambda found: found["autopilot"]["changes"] >= 10 and found["autopilot"]["ran_ns"] > 10_000_000_000)
            low = min(program.limit() for _ in range(20) if not time.sleep(0.2))
            expect(low > 85, f"{low} MiB of the 100 that it needs")
        return f"{low:.0f} MiB at the least"

    def test_builds_its_data(self):
        """A program that has done with little for a while builds much at once: it gets room, and what it has just built does not leave for the next of it."""
        build = "import sys; some = b'1' * (20 << 20); print('ready', flush=True); sys.stdin.readline(); more = b'2' * (200 << 20); print('built', flush=True)" \
                "; sys.stdin.readline(); print('right' if more.count(b'2') == len(more) and some.count(b'1') == len(some) else 'wrong')"
        command = [self.farshore, "run", "--slowdown", "5%", "--memory-min", "8M", "--memory-max", "1G", "--swap", SWAP, "--", sys.executable, "-c", build]
        process = harness.Process(command, self.work, 3 * WATCHDOG, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            expect(process.popen.stdout.readline() == b"ready\n", f"it is not ready: {process.stderr_so_far()[-400:]}")
            program = Program(self, process, self.managed(process))
            before = program.until_limit(8, 40)["evictions"]["pages"]
            program.say("build")
            expect(process.popen.stdout.readline() == b"built\n", f"it is not built: {process.stderr_so_far()[-400:]}")
            evicted = program.counters()["evictions"]["pages"] - before
            expect(evicted < 200 * MIB // 4096 // 16, f"{evicted} pages have left, of {200 * MIB // 4096} that were built")
            program.say("end")
            outcome, out = self.ended(process)
            expect(outcome.status == 0 and out == "right\n", f"status {outcome.status}, {out!r}: {outcome.stderr[-500:]}")
        finally:
            process.kill_session()
            process.finish()
        return f"{evicted} of {200 * MIB // 4096} pages have left"

    def test_takes_and_gives_up(self):
        """A program that takes fresh memory all the time and gives up as much does not grow, also where pages have left before they are given up: its limit comes down, and stays there."""
        churn = "import mmap, select, sys; kept = b'1' * (64 << 20); ring = [None] * 16; more = b'2' * (4 << 20); at = 0\nprint('ready', flush=True)\n" \
                "while not select.select([sys.stdin], [], [], 0)[0]:\n" \
                "    old = ring[at % 16]\n" \
                "    if old: assert old[at % 1024 * 4096] == more[0]; old.close()\n" \
                "    ring[at % 16] = mmap.mmap(-1, len(more), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); ring[at % 16].write(more); at += 1\n" \
                "print('right' if kept.count(b'1') == len(kept) else 'wrong')"
        command = [self.farshore, "run", "--slowdown", "5%", "--memory-min", "8M", "--memory-max", "1G", "--swap", SWAP, "--", sys.executable, "-c", churn]
        process = harness.Process(command, self.work, 3 * WATCHDOG, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            expect(process.popen.stdout.readline() == b"ready\n", f"it is not ready: {process.stderr_so_far()[-400:]}")
            program = Program(self, process, self.managed(process))
            program.until_limit(8, 150)
            most = max(program.limit() for _ in range(60) if not time.sleep(0.2))
            expect(most < 200, f"a limit of {most:.0f} MiB for 64 MiB that it takes and gives up, and 64 that it keeps")
            program.say("end")
            outcome, out = self.ended(process)
            expect(outcome.status == 0 and out == "right\n", f"status {outcome.status}, {out!r}: {outcome.stderr[-500:]}")
        finally:
            process.kill_session()
            process.finish()
        return f"{most:.0f} MiB at the most"

    def test_while_it_runs(self):
        """It begins and ends by settings; its end keeps the limit; a limit that is set ends it, and is the largest that is chosen afterwards."""
        with self.program(["--memory", "200M"], "100M", "20M") as program:
            expect(program.counters()["autopilot"] is None, "it is on")
            self.set(program, "slowdown=10%")
            program.until_limit(16, 60)
            self.set(program, "slowdown=off")
            before = program.counters()
            expect(before["autopilot"] is None, f"{before['autopilot']}")
            program.say("hot 100M")
            time.sleep(2)
            expect(program.counters()["memory_limit_bytes"] == before["memory_limit_bytes"], "the limit has moved")
            self.set(program, "slowdown=10%")
            program.until_limit(95, 200)
            self.set(program, "memory=80M")
            found = program.counters()
            expect(found["autopilot"] is None and found["memory_limit_bytes"] == 80 * MIB, f"{found['memory_limit_bytes']} {found['autopilot']}")
            self.set(program, "slowdown=10%")
            found = program.counters()
            expect(found["autopilot"]["most_bytes"] == 80 * MIB and found["memory_limit_bytes"] <= 80 * MIB, f"{found['autopilot']}")
            for bad, word in (("slowdown=0%", "more than 0"), ("slowdown=100%", "below 100%"), ("slowdown=-1", "more than 0"), ("slowdown=much", "percentage")):
                done = self.call("set", str(program.pid), bad)
                expect(done.status == 1 and word in done.err and len(done.err.splitlines()) == 1, f"{bad}: {done.status} {done.err!r}")
            expect(program.counters()["autopilot"]["target_ppm"] == 100_000, "a setting that was refused has changed it")
        return "on, off, on, ended by memory="

    def set(self, program, *settings):
        """Makes settings."""
        done = self.call("set", str(program.pid), *settings)
        expect(done.status == 0, f"set {settings}: {done.err}")

    def test_forks(self):
        """Processes that fork in all ways have their memory right, with one limit and with one for each."""
        program = self.public_program("forks")
        native = subprocess.run([program, "6", "1"], stdout=subprocess.PIPE, check=True, timeout=WATCHDOG).stdout.decode()
        for options in ([], ["--memory-per-process"]):
            done = self.call("run", "--slowdown", "20%", "--memory-max", "64M", *options, "--", program, "6", "1", timeout=WATCHDOG)
            expect((done.status, done.out) == (0, native), f"{options}: status {done.status}: {done.out} {done.err[-300:]}")

    def test_a_family(self):
        """Two children share what is chosen, one process decides, and when that one ends another does."""
        hotset = self.public_program("hotset")
        script = ("import subprocess, sys; a, b = [subprocess.Popen([sys.argv[1], '80M', '15M'], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in 'ab'];"
                  "print(a.stdout.readline(), b.stdout.readline(), a.pid, b.pid, flush=True); sys.stdin.readline();"
                  "a.communicate(b'end\\n'); print(a.returncode, flush=True); sys.stdin.readline();"
                  "out = b.communicate(b'end\\n')[0]; print(b.returncode, out, flush=True)")
        python = sys.executable
        with self.running(["--slowdown", "10%", "--swap", SWAP], [python, "-c", script, hotset], timeout=3 * WATCHDOG, stdin=subprocess.PIPE) as process:
            said = process.popen.stdout.readline().split()
            expect(said[:2] == [b"b'ready\\n'"] * 2, f"{said} {process.stderr_so_far()[-400:]}")
            one, other = int(said[2]), int(said[3])
            program = Program(self, process, one)
            parent = process.popen.pid if self.call("stat", str(process.popen.pid)).status == 0 else self.managed(process)
            program.until_limit(16, 110)
            deciding = lambda: [pid for pid in (parent, one, other) if program.counters(pid)["autopilot"]["decides"]]  # noqa: E731
            # Who has stood still for two seconds, on a busy machine, is followed by another one between two looks.
            for _ in range(8):
                if len(found := deciding()) == 1:
                    break
            expect(len(found) == 1, f"{found} decide")
            program.say("")
            expect(process.popen.stdout.readline() == b"0\n", "the first child has failed")
            program.pid = other
            changes = program.counters()["autopilot"]["changes"]
            program.until("a choice of who is left", lambda found: found["autopilot"]["changes"] > changes or found["memory_limit_bytes"] < 40 * MIB)
            program.say("")
            outcome, out = self.ended(process)
            expect(outcome.status == 0 and "0 b'right\\n'" in out, f"{outcome.status} {out!r} {outcome.stderr[-400:]}")
        return "one decides"

    def test_who_decides_is_killed(self):
        """The process that decides is killed, and the one after it: each time another one takes over, and the limit goes on following the load."""
        hotset, folder = self.public_program("hotset"), self.folder("fifos")
        inputs = [os.path.join(folder, name) for name in "ab"]
        outputs = [path + ".out" for path in inputs]
        script = "".join(f"'{hotset}' 80M 15M < '{path}' > '{out}' & " for path, out in zip(inputs, outputs)) + "wait"
        for path in inputs:
            os.mkfifo(path)
        # For reading too: nobody has to be at the other end yet.
        pipes = {path: os.open(path, os.O_RDWR) for path in inputs}
        try:
            with self.running(["--slowdown", "10%", "--swap", SWAP], ["sh", "-c", script], timeout=3 * WATCHDOG) as process:
                deadline = time.monotonic() + WATCHDOG
                while not all(os.path.exists(out) and harness.read_text(out) == "ready\n" for out in outputs):
                    expect(time.monotonic() < deadline, f"they are not ready: {process.stderr_so_far()[-400:]}")
                    time.sleep(0.05)
                input_of = lambda pid: os.readlink(f"/proc/{pid}/fd/0")  # noqa: E731
                alive = [pid for pid in harness.session_pids(process.popen.pid) if self.call("stat", str(pid)).status == 0]
                programs = {pid: Program(self, process, pid) for pid in alive}
                expect(len(programs) == 3, f"a shell and two programs: {alive}")
                programs[alive[0]].until_limit(16, 110)
                deciding = lambda: [pid for pid, it in programs.items() if it.counters()["autopilot"]["decides"]]  # noqa: E731
                killed, who = 0, deciding()
                # Until it is the last one that can be told what to do.
                while not who or any(input_of(pid) in pipes for pid in programs if pid not in who):
                    expect(time.monotonic() < deadline, f"after {killed} kills {who} decide")
                    for pid in who[:1]:
                        os.kill(pid, signal.SIGKILL)
                        del programs[pid]
                        killed += 1
                    time.sleep(0.1)
                    who = deciding()
                last = programs[who[0]]
                tell = lambda line: os.write(pipes[input_of(last.pid)], line)  # noqa: E731
                expect(killed > 0, "nobody was killed")
                tell(b"hot 75M\n")
                high = last.until_limit(73, 1_000)["memory_limit_bytes"] / MIB
                tell(b"hot 10M\n")
                low = last.until_limit(16, 45)["memory_limit_bytes"] / MIB
                out = outputs[inputs.index(input_of(last.pid))]
                tell(b"end\n")
                while not harness.read_text(out).endswith("right\n"):
                    expect(time.monotonic() < deadline + WATCHDOG, f"it does not end: {harness.read_text(out)!r}")
                    time.sleep(0.1)
        finally:
            for pipe in pipes.values():
                os.close(pipe)
        return f"{killed} kills, then {high:.0f} and {low:.0f} MiB"

    def test_any_user(self):
        """It needs no rights."""
        if os.geteuid() != 0:
            return "as this user in all other tests"
        with self.program(["--slowdown", "10%"], "100M", "20M", user=NOBODY) as program:
            found = program.until_limit(16, 60)
        return f"{found['memory_limit_bytes'] / MIB:.0f} MiB for 20"

    def test_small_programs_sleep(self):
        """A program that fits the least there may be stays as it is: no thread of Farshore's is in it."""
        with self.running(["--slowdown", "5%"], ["sleep", "600"]) as process:
            deadline = time.monotonic() + WATCHDOG
            # It is at its sleep: all that the library does at the start is behind it.
            while not (asleep := [pid for pid in harness.session_pids(process.popen.pid) if self.sleeps(pid)]):
                expect(process.alive() and time.monotonic() < deadline, f"it does not sleep: {process.stderr_so_far()[-400:]}")
                time.sleep(0.02)
            time.sleep(0.5)
            threads = [len(os.listdir(f"/proc/{pid}/task")) for pid in asleep]
            expect(threads == [1], f"threads: {threads}")
        return "1 thread"

    @staticmethod
    def sleeps(pid):
        """Whether a process is `sleep`, in the system call of that name (nanosleep, clock_nanosleep)."""
        return harness.read_text(f"/proc/{pid}/comm").strip() == "sleep" and harness.read_text(f"/proc/{pid}/syscall").split()[:1] in (["35"], ["230"])

    def test_bad_input(self):
        """What it cannot aim at is refused in one line."""
        refused = [
            (["--slowdown", "0%"], "more than 0"), (["--slowdown", "100%"], "below 100%"), (["--slowdown", "250%"], "below 100%"),
            (["--slowdown", "-5%"], "more than 0"), (["--slowdown", "fast"], "percentage"), (["--slowdown", ""], "percentage"),
            (["--slowdown", "5%", "--memory", "64M"], "--memory-max in its place"),
            (["--slowdown", "5%", "--memory-min", "64M", "--memory-max", "32M"], "more than --memory-max"),
            (["--slowdown", "5%", "--memory-min", "2M"], "at least 4M"), (["--slowdown", "5%", "--memory-max", "2M"], "at least 4M"),
            (["--memory", "64M", "--memory-min", "16M"], "--slowdown"), (["--memory-max", "64M"], "--slowdown"), ([], "--slowdown 5%"),
        ]
        for options, word in refused:
            self.refused(["run", *options, "--", "true"], (125,), word)
        done = self.call("run", "--slowdown", "5%", "--memory-max", "64M", "--", "echo", "x")
        expect(done.status == 0 and done.out == "x\n" and not done.err, f"{done.status} {done.out!r} {done.err!r}")
        return f"{len(refused)} refused"
