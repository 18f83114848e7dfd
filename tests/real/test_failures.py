"""What must go wrong in a good way: bad input, a full disk, disks that fail, hang and come back, kill -9, an ordinary user, a limit
that changes.

Each test prints one line. A full disk is tried on a small tmpfs and a small ext4 image where this is root, and by
`file:…,size=…` always; one that hangs, by freezing that image. Errors of a disk are injected by $FARSHORE_FAULTY
(crates/product/backend/src/faulty.rs).
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import harness
from command import Command, NOBODY
from harness import MIB, Failed, Unavailable, expect


class TestFailures(Command):
    """Input, disks, kills and users."""

    # ------------------------------------------------------------------------------------------ bad input

    def test_options(self):
        """Options that cannot be understood."""
        true = ["--", "true"]
        some = ["--memory", "64M"]
        bad = [
            (["run", "--bogus", *some, *true], "--bogus"), (["run", "--memory", "64Q", *true], "64Q"), (["run", "--memory", "", *true], "memory"),
            (["run", "--memory", "0", *true], "0"), (["run", "--memory", "3M", *true], "3M"), (["run", "--memory", "-5", *true], "-5"),
            (["run", "--memory", "99999999999999999999", *true], "99999999999999999999"), (["run", *true], "memory"), (["run", *some], "PROGRAM"),
            (["run", *some, "--fault", "sideways", *true], "sideways"), (["run", *some, "--evictors", "0", *true], "0"),
            (["run", *some, "--evictors", "1000000", *true], "1000000"), (["run", *some, "--policy", "nope", *true], "nope"),
            (["run", *some, "--prefetch", "nope", *true], "nope"), (["run", *some, "--config", "/nonexistent/c.toml", *true], "/nonexistent/c.toml"),
            (["run", *some, "--stats", "/nonexistent/stats.json", *true], "/nonexistent"), (["run", *some, "--threshold", "x", *true], "x"),
            (["run", *some, "--swap", "floppy:/a", *true], "floppy"), (["run", *some, "--swap", "delay:soon", *true], "soon"),
            (["frobnicate"], "frobnicate"),
        ]
        for arguments, word in bad:
            self.refused(arguments, {125}, word)
        junk = os.path.join(self.folder("config"), "junk.toml")
        with open(junk, "w", encoding="ascii") as file:
            file.write("memory = [1, 2\nwhat\n")
        self.refused(["run", "--config", junk, *true], {125}, junk)
        return f"{len(bad) + 1} bad inputs, each with one line"

    def test_swap_places(self):
        """Swap directories that are missing, no directories, not writable."""
        some, true = ["run", "--memory", "64M", "--swap"], ["--", "true"]
        closed = self.folder("closed", 0o555)
        self.refused([*some, "dir:/nonexistent/place", *true], {125}, "/nonexistent/place")
        self.refused([*some, f"dir:{self.farshore}", *true], {125}, self.farshore)
        self.refused([*some, "file:/nonexistent/place/f", *true], {125}, "/nonexistent/place")
        self.refused(["run", "--memory", "64M", *true], {125}, "/nonexistent/env", env={"FARSHORE_SWAP_DIR": "/nonexistent/env"})
        if os.geteuid() == 0:
            self.refused([*some, f"dir:{closed}", *true], {125}, closed, user=NOBODY)
            self.refused([*some, f"file:{closed}/f", *true], {125}, closed, user=NOBODY)
        return "missing, a file, not writable"

    def test_full_at_start(self):
        """A swap directory that is full already."""
        with self.tmpfs("2M") as place:
            with open(os.path.join(place, "filler"), "wb") as file, contextlib.suppress(OSError):
                file.write(bytes(4 * MIB))
            self.refused(["run", "--memory", "64M", "--swap", f"dir:{place}", "--", "true"], {125}, place)
        return "refused"

    def test_programs(self):
        """Programs that are not there or cannot run under farshore."""
        folder, run = self.folder("programs"), ["run", "--memory", "64M", "--"]

        def made(name, contents, mode=0o755):
            path = os.path.join(folder, name)
            with open(path, "wb") as file:
                file.write(contents)
            os.chmod(path, mode)
            return path

        self.refused([*run, "/nonexistent/program"], {127}, "/nonexistent/program")
        self.refused([*run, "no-such-command-here"], {127}, "no-such-command-here")
        plain = made("plain", b"\x7fELF", 0o644)
        self.refused([*run, plain], {126}, plain)
        self.refused([*run, folder], {126}, folder)
        for name, contents in (("garbage", b"\0\1\2\3 garbage"), ("empty", b""), ("cut", b"\x7fELF\x02\x01\x01"), ("script", b"#!/nonexistent/sh\n")):
            path = made(name, contents)
            self.refused([*run, path], {125, 126, 127}, path)
        elf32 = made("elf32", b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x02\0\x03\0\x01\0\0\0" + bytes(28))
        self.refused([*run, elf32], {125}, elf32)
        seen = "missing, not executable, garbage, 32-bit"
        if os.geteuid() == 0:
            owned = os.path.join(folder, "setuid")
            shutil.copy(shutil.which("true"), owned)
            os.chmod(owned, 0o4755)
            self.refused([*run, owned], {125}, owned, user=NOBODY)
            seen += ", setuid"
        return seen

    def test_stat_errors(self):
        """stat and set of what is no program of ours."""
        for arguments in (["stat", "nonsense"], ["stat", str(1 << 22)], ["stat", str(os.getpid())], ["set", str(os.getpid()), "memory=64M"],
                          ["set", str(os.getpid()), "memory"]):
            done = self.call(*arguments)
            expect(done.status not in (0, 101) and done.status < 128, f"{arguments}: status {done.status}")
            expect(len(done.err.splitlines()) == 1, f"{arguments}: not one line on stderr: {done.err!r}")
        return "one line each"

    def test_status(self):
        """The program's own end comes through."""
        run = ["run", "--memory", "16M", "--", "sh", "-c"]
        for script, status in (("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)):
            done = self.call(*run, script)
            expect(done.status == status, f"{script}: status {done.status}, not {status}: {done.err}")
            expect(done.err == "", f"{script}: {done.err!r} on stderr")
        stats = self.call("run", "--memory", "16M", "--stats", "-", "--", "true")
        try:
            counters = json.loads(stats.err)
        except ValueError:
            raise Failed(f"--stats - is not JSON: {stats.err[:200]!r}") from None
        expect(not harness.check_stats(counters, 16 * MIB), f"counters: {harness.check_stats(counters, 16 * MIB)}")
        return "exit statuses and signals"

    # ------------------------------------------------------------------------------------------- full disk

    def test_disk_enough(self):
        """A swap space that is just large enough."""
        spec = f"file:{self.folder('enough')}/f,size=32M"
        how = self.overfull(spec, "32M file", 16 * MIB, 40 * MIB)
        expect(how == "went on", f"40M in a limit of 16M and 32M of swap: {how}")
        return how

    def test_disk_full_file(self):
        """A swap file of a fixed size that is too small."""
        spec = f"file:{self.folder('small')}/f,size=16M"
        how = self.overfull(spec, "16M file", 8 * MIB, 64 * MIB)
        expect(how != "went on", "64M fit into 8M and 16M?")
        return how

    def test_disk_full_tmpfs(self):
        """A file system without direct I/O that runs full."""
        with self.tmpfs("24M") as place:
            how = self.overfull(f"dir:{place}", "tmpfs", 8 * MIB, 64 * MIB)
            expect(how != "went on", "64M fit into 8M and 24M?")
            expect(self.overfull(f"dir:{place}", "tmpfs", 16 * MIB, 30 * MIB) == "went on", "30M do not fit into 16M and 24M")
        return how

    def test_disk_full_rewritten(self):
        """A disk that is full, and has more room than the program needs: in places that were written before, not in all that were given out."""
        with self.tmpfs("40M") as place:
            done = self.call("run", "--memory", "64M", "--swap", f"dir:{place}", "--", self.public_program("rewrite"), "80M", "10", timeout=120)
        expect((done.status, done.out) == (0, "right\n"), f"status {done.status}: {done.out} {done.err[-300:]}")
        expect(" is full: " in done.err, f"it was not full: {done.err}")

    def test_disk_full_ext4(self):
        """A file system with direct I/O that runs full."""
        with self.image(32 * MIB) as place:
            how = self.overfull(f"dir:{place}", "ext4", 8 * MIB, 96 * MIB)
            expect(how != "went on", "96M fit into 8M and 32M?")
        return how

    def test_disk_filled_by_others(self):
        """Somebody else takes the rest of the disk while the program reads: pages that are out stay right."""
        size = 40 * MIB
        right = self.scan_sum(size)
        with self.tmpfs("64M") as place:
            argv = [self.farshore, "run", "--memory", str(16 * MIB), "--swap", f"dir:{place}", "--", self.public_program("scan"), str(size), "2"]
            process = harness.Process(argv, self.work, 60, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            lines = []
            for step in range(3):
                lines.append(process.popen.stdout.readline().decode().split())
                if step == 0:
                    with contextlib.suppress(OSError), open(os.path.join(place, "filler"), "wb", buffering=0) as file:
                        while file.write(bytes(1 << 16)):
                            pass
                with contextlib.suppress(BrokenPipeError):
                    process.popen.stdin.write(b"\n")
                    process.popen.stdin.flush()
            outcome = process.finish()
        expect(all(line[2] == right for line in lines if line), f"wrong data: {lines}")
        expect(outcome.status in (0, 128 + signal.SIGBUS), f"status {outcome.status}: {outcome.stderr[-300:]}")
        return "went on" if outcome.status == 0 else "ended with SIGBUS"

    # --------------------------------------------------------------------------------------- disks that fail

    def wait_for(self, process, text):
        """Waits until the program has `text` on its stderr."""
        while text not in process.stderr_so_far():
            expect(process.alive() and not process.timed_out, f"ended before it said {text!r}: {process.stderr_so_far()[-500:]}")
            time.sleep(0.01)

    def pages_out(self, process):
        """Pages that the program under farshore has written to swap spaces; 0 before it can be asked."""
        for pid in harness.session_pids(process.popen.pid):
            done = self.call("stat", str(pid), "--json") if pid != process.popen.pid else None
            if done is not None and done.status == 0:
                return json.loads(done.out)["swap"]["pages_out"]
        return 0

    def until_written(self, process, pages):
        """Waits until so many pages were written."""
        while self.pages_out(process) < pages:
            expect(process.alive() and not process.timed_out, f"ended before {pages} pages were written: {process.stderr_so_far()[-500:]}")
            time.sleep(0.02)

    def fill_up(self, place):
        """Takes all room of a file system; the file's name."""
        name = os.path.join(place, "filler")
        with contextlib.suppress(OSError), open(name, "wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        return name

    def test_sigbus_is_for_who_needs_the_page(self):
        """A page that cannot be read: SIGBUS to the thread that touches it, EFAULT to the system call; the program goes on, and tries again."""
        place, seen = self.folder("survivor"), []
        by_thread, by_call = "the thread that needs it gets SIGBUS", "the system call that needs it fails"
        for fault in self.modes():
            for how in ("jump", "return", "calls"):
                faulty = f"seed={self.seed % 1000},read_error=0.4,corrupt=0.1,short_read=0.1"
                with self.running(["--memory", "8M", "--fault", fault, "--swap", f"dir:{place}"],
                                  [self.public_program("survivor"), "2", "2500", "2", how], faulty) as process:
                    outcome, out = self.ended(process)
                expect(outcome.status == 0, f"{fault} {how}: status {outcome.status}: {outcome.stderr[-400:]}")
                word, signals, errors = out.split()
                expect(word == "right" and (int(errors) if how == "calls" else int(signals)) > 0, f"{fault} {how}: {out}")
                told = self.check_lost_pages(outcome.stderr, [by_thread, by_call])
                expect(told > 0, f"{fault} {how}: nothing on stderr")
                seen.append(f"{fault} {how} {signals}+{errors}")
            with self.running(["--memory", "8M", "--fault", fault, "--swap", f"dir:{place}"],
                              [self.public_program("scan"), "32M", "1"], "read_error=1") as process:
                outcome, _ = self.ended(process)
            expect(outcome.status == 128 + signal.SIGBUS, f"{fault}: status {outcome.status} without a handler")
            expect(self.check_lost_pages(outcome.stderr, [by_thread]) == 1 == len(outcome.stderr.splitlines()), f"{fault}: {outcome.stderr!r}")
        return "signals and errors: " + ", ".join(seen)

    def test_errors_at_random(self):
        """A verifying program on a disk that fails at random: right output, or SIGBUS with a line; never a wrong byte, never a hang."""
        place = self.folder("errors")
        storm = [self.public_program("memstorm"), "3", "24", "3", "7"]
        right = self.call_program(storm)
        kinds = ("read_error", "short_read", "corrupt", "write_error", "short_write", "full", "delay")
        ends = {"right": 0, "SIGBUS": 0, "a call that fails": 0}
        for number in range(self.options.storms):
            rates = {kind: 1 / self.random.choice((10, 30, 100, 300, 1000)) for kind in kinds if self.random.random() < 0.7}
            faulty = f"seed={self.random.randrange(1 << 30)}," + ",".join(f"{kind}={rate:.5f}" for kind, rate in rates.items())
            fault, spaces = self.modes()[number % 2], 1 + number % 3
            arguments = ["--memory", "6M", "--fault", fault, *["--swap", f"dir:{place}"] * spaces]
            with self.running(arguments, storm, faulty.rstrip(","), timeout=240) as process:
                outcome, out = self.ended(process)
            what = f"FARSHORE_FAULTY={faulty} {fault}, {spaces} spaces"
            if outcome.status == 0:
                expect(out == right.out, f"{what}: wrong output {out[-200:]!r}")
                ends["right"] += 1
            elif outcome.status == 99 and all(text in outcome.stderr for text in ("; the system call that needs it fails", "(errno 14: Bad address)")):
                # The page was in a system call's hands: the program saw the error of that, and ended by itself.
                ends["a call that fails"] += 1
            else:
                expect(outcome.status == 128 + signal.SIGBUS, f"{what}: status {outcome.status}: {out[-300:]} {outcome.stderr[-400:]}")
                expect(" cannot be had: " in outcome.stderr, f"{what}: SIGBUS without a reason: {outcome.stderr[-400:]}")
                ends["SIGBUS"] += 1
        return f"{ends['right']} right, {ends['SIGBUS']} ended by SIGBUS, {ends['a call that fails']} by a call that failed, seed {self.seed}"

    def test_each_transfer_fails(self):
        """The first transfers of a short run fail one by one, in each way."""
        place, size = self.folder("nth"), 12 * MIB
        right, count = self.scan_sum(size), 0
        for kind in ("read_error", "short_read", "corrupt", "write_error", "short_write", "full"):
            for nth in range(0, 60, 4):
                done = self.call("run", "--memory", "4M", "--swap", f"dir:{place}", "--", self.public_program("scan"), str(size), "1",
                                 env={"FARSHORE_FAULTY": f"nth={nth},{kind}=1"})
                expect(done.status == 0, f"{kind} at transfer {nth}: status {done.status}: {done.err[-300:]}")
                sums = {line.split()[2] for line in done.out.splitlines()}
                expect(sums == {right}, f"{kind} at transfer {nth}: {done.out}")
                count += 1
        return f"{count} runs"

    def test_another_space_takes_over(self):
        """Writes to one swap space fail: the other one takes the pages, and each change is told once."""
        place, size = self.folder("two"), 48 * MIB
        right, spaces = self.scan_sum(size), []
        for name in "ab":
            os.mkdir(os.path.join(place, name))
            spaces += ["--swap", f"dir:{place}/{name}"]
        for kind, word in (("write_error", "fails (I/O error (errno 5))"), ("short_write", "fails (short transfer)"), ("full", "is full")):
            with self.running(["--memory", "8M", "--stats", "-", *spaces], [self.public_program("scan"), str(size), "2"],
                              f"space=1,{kind}=1") as process:
                outcome, out = self.ended(process)
            expect(outcome.status == 0, f"{kind}: status {outcome.status}: {outcome.stderr[-300:]}")
            expect({line.split()[2] for line in out.splitlines()} == {right}, f"{kind}: wrong data")
            told, _, counters = outcome.stderr.partition("{")
            told = told.splitlines()
            expect(len(told) == 1 and f"{place}/b {word}: " in told[0], f"{kind}: {told}")
            first, second = json.loads("{" + counters)["spaces"]
            expect(first["state"] == "works" and first["write_errors"] == 0, f"{kind}: {first}")
            expect(second["state"] in ("fails", "full") and second["write_errors"] > 0, f"{kind}: {second}")
        return "write errors, short writes, no room"

    def test_disk_that_comes_back(self):
        """A swap space whose writes fail for a while is used again, and both are said."""
        place, size = self.folder("back"), 32 * MIB
        right = self.scan_sum(size)
        for spaces in (1, 2):
            with self.running(["--memory", "8M", *["--swap", f"dir:{place}"] * spaces], [self.public_program("scan"), str(size), "3"],
                              "space=0,write_error=1,until=3s", stdin=subprocess.PIPE) as process:
                self.wait_for(process, " fails (")
                lines = [process.popen.stdout.readline().decode().split()]
                # Reads change nothing: where another space works, only new pages try the first.
                if spaces == 1:
                    self.wait_for(process, " works again")
                process.popen.stdin.close()
                outcome, out = self.ended(process)
            lines += [line.split() for line in out.splitlines()]
            expect(outcome.status == 0 and {line[2] for line in lines} == {right}, f"{spaces}: {lines} {outcome.stderr}")
            expect(outcome.stderr.count(" fails (") == 1, f"{spaces}: {outcome.stderr}")
        return "alone, and beside another"

    def test_full_disk_gets_room(self):
        """A real disk runs full while the program writes, and gets room again: the program waits, and goes on."""
        size = 40 * MIB
        right = self.scan_sum(size)
        with self.image(128 * MIB) as place:
            room = os.path.join(place, "room")
            with open(room, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 64 * MIB)
            leave = os.path.join(place, "leave")
            with open(leave, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 18 * MIB)
            self.fill_up(place)
            os.unlink(leave)
            with self.running(["--memory", "8M", "--swap", f"dir:{place}"], [self.public_program("scan"), str(size), "1"]) as process:
                self.wait_for(process, f"swap space dir:{place} is full")
                os.unlink(room)
                outcome, out = self.ended(process)
        expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-400:]}")
        expect({line.split()[2] for line in out.splitlines()} == {right}, "wrong data")
        return "went on"

    def test_two_disks_one_full(self):
        """A small real disk and a large one: the large one takes what does not fit, and no page is lost."""
        size = 64 * MIB
        right, other = self.scan_sum(size), self.folder("large")
        with self.tmpfs("20M") as place:
            with self.running(["--memory", "8M", "--swap", f"dir:{place}", "--swap", f"dir:{other}"],
                              [self.public_program("scan"), str(size), "2"]) as process:
                outcome, out = self.ended(process)
        expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-400:]}")
        expect({line.split()[2] for line in out.splitlines()} == {right}, "wrong data")
        told = [line for line in outcome.stderr.splitlines() if "buffered" not in line]
        expect(len(told) == 1 and f"dir:{place} is full" in told[0], f"{told}")
        return "went on"

    def test_child_of_full_disk(self):
        """One of two disks is full when the program forks: its child takes the other, as the program does."""
        code = ("import os, sys, zlib\n"
                "kept = [os.urandom(4096) for n in range(9000)]\n"
                "print('ready', flush=True); sys.stdin.readline()\n"
                "if os.fork() == 0:\n"
                "    pages = [os.urandom(4096) for n in range(12000)]\n"
                "    sums = [zlib.crc32(page) for page in pages]\n"
                "    os._exit(0 if [zlib.crc32(page) for page in pages] == sums else 9)\n"
                "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n")
        other = self.folder("other")
        with self.tmpfs("24M") as place:
            argv = [self.farshore, "run", "--memory", "24M", "--swap", f"dir:{place}", "--swap", f"dir:{other}", "--", "/usr/bin/python3", "-c", code]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                said = process.stdout.readline()
                expect(said == "ready\n", f"it has not begun: {said!r} {process.stderr.read() if not said else ''}")
                with open(os.path.join(place, "filler"), "wb") as file, contextlib.suppress(OSError):
                    file.write(bytes(32 * MIB))
                _, told = process.communicate("go\n", timeout=120)
            finally:
                process.kill()
        expect(process.returncode == 0, f"status {process.returncode}: {told[-400:]}")
        expect("no swap space of its own" not in told, told[-400:])
        return "went on"

    def test_limit_of_file_size(self):
        """The program's limit of file sizes falls while it runs: the swap file can grow no more, and nobody dies by SIGXFSZ."""
        prlimit, size = harness.need("prlimit", "util-linux"), 64 * MIB
        # Slow writes: most are still to come when the limit falls.
        with self.running(["--memory", "8M", "--swap", f"dir:{self.folder('fsize')}"], [self.public_program("scan"), str(size), "1"],
                          "delay=1,delay_time=20ms") as process:
            self.until_written(process, 100)
            for pid in harness.session_pids(process.popen.pid):
                if pid != process.popen.pid:
                    subprocess.run([prlimit, "--pid", str(pid), f"--fsize={16 * MIB}"], check=True)
            outcome, out = self.ended(process)
        right = self.scan_sum(size)
        expect(all(line.split()[2] == right for line in out.splitlines()), f"wrong data: {out}")
        expect(outcome.status == 128 + signal.SIGBUS, f"status {outcome.status}: {outcome.stderr[-300:]}")
        expect(" is full: " in outcome.stderr and " cannot be had: " in outcome.stderr, outcome.stderr[-400:])
        return "ended with SIGBUS and a reason"

    def check_silences(self, text, space):
        """Each silence of a space is told once, and that it is over. A disk that is busy with others' work may have a silence of its own,
        beside the one that the test makes."""
        told = [line for line in text.splitlines() if f"{space} " in line]
        words = [(" has not answered for ", " answers again, after ")[number % 2] for number in range(len(told))]
        expect(told and all(f"{space}{word}" in line for word, line in zip(words, told)), f"{text}")

    def test_disk_that_hangs(self):
        """A swap space that does not answer: it is said once, a thread that needs it waits, and goes on when it answers."""
        place, size = self.folder("hangs"), 48 * MIB
        right = self.scan_sum(size)
        with self.running(["--memory", "8M", "--io-timeout", "500ms", "--swap", f"dir:{place}"], [self.public_program("scan"), str(size), "2"],
                          "hang=1,until=3s") as process:
            self.wait_for(process, " has not answered for ")
            outcome, out = self.ended(process)
        expect(outcome.status == 0 and {line.split()[2] for line in out.splitlines()} == {right}, f"status {outcome.status}: {outcome.stderr[-300:]}")
        self.check_silences(outcome.stderr, f"dir:{place}")
        return "one space"

    def test_frozen_disk(self):
        """A real disk that is frozen: another one takes the pages, and the program goes on without it."""
        freeze, other = harness.need("fsfreeze", "util-linux"), self.folder("warm")
        # Also where each evictor has more writes with the device than batches: all of its batches have one that does not end.
        for writes in ("auto", "4"):
            with self.image(128 * MIB) as place:
                arguments = ["--memory", "8M", "--io-timeout", "500ms", "--writes", writes, "--swap", f"dir:{place}", "--swap", f"dir:{other}"]
                with self.running(arguments, [self.public_program("survivor"), "1", "12000", "5", "return"]) as process:
                    self.until_written(process, 1000)
                    subprocess.run([freeze, "-f", place], check=True)
                    try:
                        self.wait_for(process, f"dir:{place} has not answered for ")
                        # What needs it waits in the kernel; the program does not.
                        self.until_written(process, self.pages_out(process) + 1000)
                    finally:
                        subprocess.run([freeze, "-u", place], check=True)
                    outcome, out = self.ended(process)
                expect(outcome.status == 0 and out.startswith("right 0 0"), f"--writes {writes}: status {outcome.status}: {out} {outcome.stderr[-300:]}")
            self.check_silences(outcome.stderr, f"dir:{place}")
        return "said once, and went on"

    def test_panic_in_our_threads(self):
        """A bug in an evictor or a fault handler ends the program with a line and SIGABRT; it does not hang it."""
        place, count = self.folder("panic"), 0
        for fault in self.modes():
            # In upcall mode a page is read by a thread of the program, where std's panic needs what may be out itself.
            for kind in ("panic_write", "panic_read")[:1 if fault == "upcall" else 2]:
                with self.running(["--memory", "8M", "--fault", fault, "--swap", f"dir:{place}"], [self.public_program("memstorm"), "3", "32", "4", "1"],
                                  f"{kind}=0.05", timeout=60) as process:
                    outcome, _ = self.ended(process)
                expect(outcome.status == 128 + signal.SIGABRT, f"{fault} {kind}: status {outcome.status}: {outcome.stderr[-300:]}")
                expect("bug: panicked at" in outcome.stderr and f"injected: {kind}" in outcome.stderr, f"{fault} {kind}: {outcome.stderr!r}")
                expect(all(line.startswith("farshore: bug: ") for line in outcome.stderr.splitlines()), f"{fault} {kind}: {outcome.stderr!r}")
                count += 1
        return f"{count} panics"

    @contextlib.contextmanager
    def memory_cgroup(self, limit):
        """A memory cgroup with a limit: its directory, and its file of processes; root only."""
        if os.geteuid() != 0:
            raise Unavailable("a memory cgroup needs root")
        if os.path.exists("/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            here, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        elif "memory" in harness.read_text("/sys/fs/cgroup/cgroup.subtree_control").split():
            here, name = "/sys/fs/cgroup", "memory.max"
        else:
            raise Unavailable("there is no memory controller in /sys/fs/cgroup")
        place = os.path.join(here, f"farshore-test-{os.getpid()}")
        try:
            os.mkdir(place)
        except OSError as error:
            raise Unavailable(f"cannot make a cgroup: {error.strerror}") from None
        try:
            with open(os.path.join(place, name), "w", encoding="ascii") as file:
                file.write(str(limit))
            yield place
        finally:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    os.rmdir(place)
                    break
                time.sleep(0.05)

    def reclaimed(self, place):
        """How often the kernel came to the cgroup's limit, and how often it killed there."""
        if os.path.exists(os.path.join(place, "memory.failcnt")):
            hits, kills = harness.read_text(os.path.join(place, "memory.failcnt")), harness.read_text(os.path.join(place, "memory.oom_control"))
            kills = [line.split()[1] for line in kills.splitlines() if line.startswith("oom_kill ")]
            return int(hits), int(kills[0]) if kills else 0
        events = dict(line.split() for line in harness.read_text(os.path.join(place, "memory.events")).splitlines())
        return int(events["max"]), int(events["oom_kill"])

    def in_cgroup(self, limit, arguments, program):
        """Runs a program under farshore in a memory cgroup: outcome, output, the cgroup's peak, limits met and kills."""
        with self.memory_cgroup(limit) as group:
            # The shell moves itself, leaves something in the cgroup that the kernel can reclaim (a file's pages, written), and becomes farshore.
            script = 'echo $$ > "$0/cgroup.procs" && dd if=/dev/zero of="$1" bs=1M count=2 conv=fsync status=none && shift && exec "$@"'
            argv = ["sh", "-c", script, group, os.path.join(self.work, "cached"), self.farshore, "run", *arguments, "--", *program]
            process = harness.Process(argv, self.work, 180, stdout=subprocess.PIPE)
            try:
                outcome, out = self.ended(process)
            finally:
                process.kill_session()
            peak = next((name for name in ("memory.max_usage_in_bytes", "memory.peak") if os.path.exists(os.path.join(group, name))), None)
            if peak is None:
                raise Unavailable("the memory controller does not tell a cgroup's peak (Linux 5.19)")
            return outcome, out, int(harness.read_text(os.path.join(group, peak))), *self.reclaimed(group)

    def test_short_of_memory(self):
        """Ever tighter cgroups, in which the kernel has to reclaim: right output, or killed by the kernel; never a hang."""
        arguments = ["--memory", "24M", "--swap", f"dir:{self.folder('tight')}"]
        storm = [self.public_program("memstorm"), "3", "48", "3", "5"]
        right, tight, ends = self.call_program(storm).out, 0, []
        outcome, out, peak, *_ = self.in_cgroup(4096 * MIB, arguments, storm)
        expect(outcome.status == 0 and out == right, f"without want: status {outcome.status}: {outcome.stderr[-300:]}")
        for less in range(0, 16):
            limit = (peak - less * MIB // 4) // harness.PAGE * harness.PAGE
            outcome, out, _, hits, kills = self.in_cgroup(limit, arguments, storm)
            if outcome.status == 0:
                expect(out == right, f"{limit} bytes: wrong output")
                tight += hits > 0
                continue
            expect(outcome.status == 128 + signal.SIGKILL and kills > 0, f"{limit} bytes: status {outcome.status}: {outcome.stderr[-300:]}")
            ends.append(limit)
            if len(ends) == 2:
                break
        expect(tight > 0, f"no run went on where the kernel had to reclaim; the peak is {peak}, killed at {ends}")
        return f"right in {tight} cgroups where the kernel had to reclaim, killed in {len(ends)}"

    # --------------------------------------------------------------------------------------------- kill -9

    def test_kill(self):
        """kill -9 at random moments: no file, no socket, no process."""
        faults = ["upcall"] + (["poll"] if harness.poll_allowed() else [])
        place, count = self.folder("killed"), 0
        for fault in faults:
            for round_number in range(self.options.kills):
                # Every other one while it starts; the others at work.
                delay = self.random.uniform(0.0, 0.08) if round_number % 2 else self.random.uniform(0.1, 1.0)
                spec = f"file:{place}/named" if round_number % 4 == 3 else f"dir:{place}"
                self.kill_once(fault, spec, place, delay)
                count += 1
        self.kill_once("upcall", f"dir:{place}", place, 0.5, signal.SIGTERM)
        return f"{count} kills, seed {self.seed}"

    def test_nothing_left(self):
        """A run that ends by itself leaves nothing either, and nobody can find its swap file while it runs."""
        place = self.folder("ended")
        done = self.call("run", "--memory", "8M", "--swap", f"dir:{place}", "--", self.public_program("memstorm"), "2", "24", "2", "1")
        expect(done.status == 0, f"status {done.status}: {done.err}")
        expect(not os.listdir(place), f"left {os.listdir(place)}")
        return "clean"

    # -------------------------------------------------------------------------------------- ordinary users

    def test_ordinary_user(self):
        """Everything works without any privilege."""
        place = self.folder("user", 0o777)
        storm = [self.public_program("memstorm"), "3", "24", "3", "1"]
        native, env = self.call_program(storm, user=NOBODY), {"TMPDIR": place, "HOME": "/"}
        done = self.call("run", "--memory", "8M", "--swap", f"dir:{place}", "--", *storm, user=NOBODY)
        expect((done.status, done.out) == (native.status, native.out), f"memstorm: status {done.status}: {done.out} {done.err[-300:]}")
        checks = [self.public_program("syscalls"), "20"]
        for section in ("files", "datagrams", "masks", "spawn"):
            native = self.call_program([*checks, section], user=NOBODY, env=env)
            done = self.call("run", "--memory", "8M", "--swap", f"dir:{place}", "--", *checks, section, user=NOBODY, env=env)
            expect((done.status, done.out) == (native.status, native.out), f"{section}: status {done.status}: {done.out[-200:]} {done.err[-300:]}")
        doctor = self.call("doctor", user=NOBODY)
        expect(doctor.status in (0, 1) and doctor.out, f"doctor: status {doctor.status}")
        expect(not os.listdir(place), f"left {os.listdir(place)}")
        return "memstorm, system calls, doctor" if os.geteuid() == 0 else "this is an ordinary user already"

    def test_strangers(self):
        """Another user cannot ask about a program of root, nor change it."""
        if os.geteuid() != 0:
            raise Unavailable("two users are needed, so root")
        place = self.folder("strange", 0o777)
        with self.talking_scan(place, "16M", 24 * MIB) as (pid, _):
            for arguments in (["stat", str(pid)], ["set", str(pid), "memory=8M"]):
                done = self.call(*arguments, user=NOBODY)
                expect(done.status != 0 and len(done.err.splitlines()) == 1, f"{arguments[0]} by a stranger: status {done.status}: {done.out[:100]} {done.err[:200]}")
            expect(self.call("stat", str(pid), "--json").status == 0, "root itself cannot ask")
        return "refused"

    # ---------------------------------------------------------------------------------------- live changes

    @contextlib.contextmanager
    def talking_scan(self, place, limit, size):
        """A scan that waits after its fill: (pid, a function that lets it go on and returns its next line)."""
        argv = [self.farshore, "run", "--memory", limit, "--swap", f"dir:{place}", "--", self.public_program("scan"), str(size), "4"]
        process = harness.Process(argv, self.work, 90, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def go_on():
            process.popen.stdin.write(b"\n")
            process.popen.stdin.flush()
            return process.popen.stdout.readline().decode().split()

        try:
            first = process.popen.stdout.readline().decode().split()
            expect(len(first) == 3, f"scan did not start: {process.stderr_so_far()[-300:]}")
            pids = [pid for pid in harness.session_pids(process.popen.pid) if pid != process.popen.pid]
            go_on.first = first[2]
            yield min(pids), go_on
        finally:
            process.kill_session()
            process.finish()

    def test_set_memory(self):
        """The limit shrinks by evicting and grows at once, while the program runs."""
        with self.talking_scan(self.folder("set"), "32M", 40 * MIB) as (pid, go_on):
            for size in ("8M", "64M", "16M", "24M"):
                done = self.call("set", str(pid), f"memory={size}")
                expect(done.status == 0, f"set memory={size}: status {done.status}: {done.err}")
                wanted = self.until_within(pid, size)
                line = go_on()
                expect(line[2] == go_on.first, f"wrong data after memory={size}: {line}")
                resident = self.resident(pid)[0]
                expect(resident <= wanted, f"memory={size}: resident {resident} after a pass")
            done = self.call("set", str(pid), "memory=0")
            expect(done.status != 0, "memory=0 was accepted")
        return "8M, 64M, 16M, 24M"
