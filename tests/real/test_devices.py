"""Block devices as swap space (`--swap dev:PATH`), and room that goes back to the disk when it is not needed any more.

Devices are loop devices over files: root only, and skipped with the reason elsewhere. The programs check their own data.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness
from command import NOBODY
from harness import MIB, Unavailable, expect
from spaces import Spaces, swaps

# Fills memory, gives most of it up when it is told to, and takes it again; the rest must be as it was.
EASES = """
import sys
MIB = 1 << 20  # each by a mapping of its own
def fill(n, k): return [bytes([(i * 7 + k) % 251]) * MIB for i in range(n)]
def right(a, k): assert all(b == bytes([(i * 7 + k) % 251]) * MIB for i, b in enumerate(a)), "wrong bytes"
many, few = fill(int(sys.argv[1]), 3), fill(8, 5)
print("filled", flush=True); sys.stdin.readline()
right(many, 3); del many
print("freed", flush=True); sys.stdin.readline()
right(few, 5)
many = fill(int(sys.argv[1]), 9)
right(few, 5); right(many, 9)
print("again", flush=True); sys.stdin.readline()
"""

# Starts the program of its arguments again and again, and kills it when it is filled; the last one goes to its end.
KILLS = """
import signal, subprocess, sys
for left in (3, 2, 1, 0):
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    word = child.stdout.readline().split()[0]
    assert word == b"filled", word
    if left:
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -9
    else:
        child.stdin.write(b"rest 1\\n"); child.stdin.flush()
        answer = child.stdout.readline().strip()
        assert answer == b"right", answer
        child.stdin.close()
        assert child.wait() == 0
print("fine", flush=True)
"""


# Has another program fill its memory with markers (or, if told to, fills its own), and counts them on each block device that this process has open: how many devices, how
# many markers. (`--no-follow`: the other one runs natively, so there is only one's own.)
RELATIVE = """
import os, stat, subprocess, sys
marker = b"SECRET!!"[::-1]
marker = b"PARENTS-" + marker[::-1]
device, secret, itself = sys.argv[1], sys.argv[2], len(sys.argv) > 3
if itself:
    records = [bytearray(marker * 256) for _ in range(6000)]
else:
    other = subprocess.Popen([secret, str(24 << 20)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"filled\\n"
found = devices = 0
for name in os.listdir("/proc/self/fd"):
    try:
        path = "/proc/self/fd/" + name
        if not stat.S_ISBLK(os.stat(path).st_mode):
            continue
        devices += 1
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                found += piece.count(marker)
    except FileNotFoundError:
        pass
if not itself:
    other.stdin.write(b"\\n")
    other.stdin.close()
    assert other.stdout.readline() == b"right\\n" and other.wait() == 0
print(devices, found)
"""


def allocated(path):
    """Bytes that a file has on its disk."""
    return os.stat(path).st_blocks * 512


class TestDevices(Spaces):
    @contextlib.contextmanager
    def loop(self, size, *options):
        """A loop device of this size: its path and its file's."""
        if os.geteuid() != 0:
            raise Unavailable("loop devices need root")
        if not os.path.exists("/dev/loop-control"):
            raise Unavailable("there are no loop devices (/dev/loop-control)")
        losetup = harness.need("losetup", "mount")
        place = tempfile.mkdtemp(prefix="device-", dir=self.work)
        file = os.path.join(place, "file")
        with open(file, "wb") as disk:
            disk.truncate(size)
        done = subprocess.run([losetup, "--find", "--show", *options, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise Unavailable(f"losetup: {done.stderr.decode().strip()}")
        device = done.stdout.decode().strip()
        try:
            yield device, file
        finally:
            self.is_free(device)
            subprocess.run([losetup, "--detach", device], check=False)
            shutil.rmtree(place)

    @staticmethod
    def is_free(device):
        """Waits until nobody has a device for himself (rings of programs that have ended are taken down a little later). Whether that came."""
        for _ in range(200):
            with contextlib.suppress(OSError):
                os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
                return True
            time.sleep(0.05)
        return False

    def run_on(self, spec, argv, *options, memory="16M", status=0):
        """A run to its end, which must be as said; what it printed."""
        done = self.call("run", "--memory", memory, "--swap", spec, *options, "--", *argv, timeout=150)
        expect(done.status == status, f"{spec} {argv}: status {done.status}: {done.err[-500:]}")
        return done

    def test_data(self):
        """Programs whose data must be right: in each mode, encrypted, behind a pool, on two devices, beside a file."""
        storm = [self.public_program("memstorm"), "3", "48", "6", "11"]
        right, runs = self.call_program(storm).out, 0
        with self.loop(200 * MIB) as (one, _), self.loop(150 * MIB) as (other, _):
            folder = self.folders("beside")[0]
            for swap, options in (([f"dev:{one}"], ()), ([f"dev:{one}"], ("--fault", "poll")), ([f"dev:{one},force"], ("--encrypt",)),
                                  ([f"dev:{one},size=150M,force", f"dev:{other},force"], ()), (["ram:lz4,size=4M", f"dev:{one},force"], ()),
                                  ([f"dev:{one},force", folder], ())):
                done = self.call("run", "--memory", "8M", *swaps(swap), *options, "--stats", "-", "--", *storm, timeout=150)
                expect(done.status == 0 and done.out == right, f"{swap} {options}: status {done.status}: {done.out!r} {done.err[-400:]}")
                now = json.loads(done.err[done.err.index("{"):])
                expect(now["swap"]["pages_out"] > 1000 and now["swap"]["errors"] == 0 and now["evictions"]["synchronous"] == 0, f"{swap}: {now['swap']}")
                runs += 1
        return f"{runs} runs"

    def test_refused(self):
        """What is no block device, small, mounted, swapped to, in use, read-only or bears something: one line each. `force` overrides the last alone."""
        true, count = ["--", "true"], 0

        def refused(spec, *words, **more):
            nonlocal count
            count += 1
            for word in words:
                self.refused(["run", "--memory", "16M", "--swap", spec, *true], {125}, word, **more)

        with self.loop(64 * MIB) as (device, file):
            refused(f"dev:{file}", "not a block device")
            refused("dev:/nonexistent/x", "/nonexistent/x")
            refused(f"dev:{device},size=1M", "too small")
            refused(f"file:{device}", "dev:")
            os.chmod(device, 0o600)
            refused(f"dev:{device}", device, user=NOBODY)
            link = os.path.join(self.folder("link", 0o755), "disk")
            os.symlink(device, link)
            with self.program("16M", [f"dev:{device}"], ["sleep", "100"], status=137) as program:
                refused(f"dev:{device}", "in use")
                refused(f"dev:{link},force", "in use")
                os.kill(program.pid, signal.SIGKILL)
            signatures = [([harness.need("mkfs.ext4", "e2fsprogs"), "-q", device], "ext4"), ([harness.need("mkswap", "util-linux"), device], "swap space")]
            for name, argv, word in (("sfdisk", ["sfdisk", "-q", device], "partition table"), ("mkfs.xfs", ["mkfs.xfs", "-q", "-f", device], "XFS"),
                                     ("mkfs.vfat", ["mkfs.vfat", device], "FAT"), ("mkfs.btrfs", ["mkfs.btrfs", "-q", "-f", device], "Btrfs"),
                                     ("pvcreate", ["pvcreate", "-qq", device], "LVM"), ("cryptsetup", ["cryptsetup", "-q", "luksFormat", device, "/dev/zero"], "LUKS")):
                if shutil.which(name):
                    signatures.append((argv, word))
            for argv, word in signatures:
                expect(self.is_free(device), f"{device} stays busy")
                with open(file, "r+b") as disk:
                    disk.truncate(0)
                    disk.truncate(64 * MIB)
                subprocess.run(["blockdev", "--flushbufs", device], check=True)
                made = subprocess.run(argv, input=b"label: gpt\n", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
                if made.returncode != 0:
                    continue
                refused(f"dev:{device}", word, "force")
                done = self.run_on(f"dev:{device},force", ["true"])
                expect(word in done.err and len(done.err.splitlines()) == 1, f"{word}: {done.err!r}")
            subprocess.run(signatures[1][0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=self.is_free(device))
            if subprocess.run(["swapon", device], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                try:
                    refused(f"dev:{link},force", "swapoff")
                finally:
                    subprocess.run(["swapoff", device], check=True)
            subprocess.run([*signatures[0][0][:2], "-F", device], stdout=subprocess.DEVNULL, check=True)
            place = self.folder("mounted")
            subprocess.run(["mount", device, place], check=True)
            try:
                refused(f"dev:{device}", "mounted", place)
                refused(f"dev:{link},force", "mounted", place)
            finally:
                subprocess.run(["umount", place], check=True)
        with self.loop(64 * MIB, "--read-only") as (device, _):
            refused(f"dev:{device},force", "read-only")
        return f"{count} bad inputs, each with one line; {len(signatures)} kinds of content"

    def test_forks(self):
        """Children and grandchildren have parts of the device of their own; programs that are started, too."""
        forks = [self.public_program("forks"), "8", "7", "both", "generations", "workers"]
        right = self.call_program(forks, timeout=150)
        expect(right.status == 0, right.err)
        storm = [self.public_program("memstorm"), "2", "24", "4", "5"]
        stormed = self.call_program(storm).out
        with self.loop(1024 * MIB) as (device, _):
            for mode in self.modes():
                done = self.run_on(f"dev:{device},force", forks, "--fault", mode, memory="6M")
                expect(done.out == right.out, f"{done.out!r} natively {right.out!r}")
            # Three at a time, each in a process that another program has started, and the one that starts them becomes one itself.
            line = " ".join(storm)
            done = self.run_on(f"dev:{device},force", ["sh", "-c", f"{line} & {line} & wait; exec {line}"], memory="24M")
            expect(sorted(done.out.splitlines()) == sorted(stormed.splitlines() * 3), f"{done.out!r} {done.err[-300:]}")
            expect("without Farshore" not in done.err and "no swap space" not in done.err, done.err)
        return f"{len(self.modes()) + 1} families"

    def test_kill(self):
        """What a killed process of a family had is free for the next; and so is the device when all are killed."""
        with self.loop(64 * MIB) as (device, _):
            lost = [self.public_program("lost"), str(44 * MIB // 4096)]
            done = self.run_on(f"dev:{device},force", [sys.executable, "-c", KILLS, *lost], memory="24M")
            expect(done.out == "fine\n", f"{done.out!r} {done.err}")
            for _ in range(5):
                with self.lost("8M", [f"dev:{device},force"], 8000, status=137) as program:
                    os.kill(program.pid, signal.SIGKILL)
                self.run_on(f"dev:{device},force", lost[:1] + ["6000"], memory="8M")
        return "three killed one by one, five at once"

    def test_full(self):
        """A device that is too small for a program, and one that is too small for a child: an end with a reason, and no wrong byte."""
        with self.loop(16 * MIB) as (device, _):
            how = self.overfull(f"dev:{device},force", "device", 8 * MIB, 96 * MIB)
        with self.loop(64 * MIB) as (device, _):
            with self.lost("12M", [f"dev:{device},force"], 44 * MIB // 4096) as program:
                lost = [self.public_program("lost"), str(44 * MIB // 4096)]
                # The family is one by its ledger alone: another is refused at once.
                self.refused(["run", "--memory", "16M", "--swap", f"dev:{device},force", "--", *lost], {125}, "in use")
                expect(program.tell("rest 1") == ["right"], "wrong")
        return how

    def test_ordinary_user(self):
        """Who may open the device may use it, whoever he is."""
        storm = [self.public_program("memstorm"), "2", "24", "4", "5"]
        right = self.call_program(storm).out
        with self.loop(128 * MIB) as (device, _):
            mode = os.stat(device).st_mode & 0o777
            os.chmod(device, 0o666)
            try:
                done = self.call("run", "--memory", "8M", "--swap", f"dev:{device}", "--", *storm, user=NOBODY, timeout=100)
            finally:
                os.chmod(device, mode)
            expect(done.status == 0 and done.out == right and not done.err, f"status {done.status}: {done.out!r} {done.err}")
        return "went well"

    def test_come_and_go(self):
        """A device comes while a program runs, takes all that a file held, and goes again: nobody has it any more."""
        (rest,) = self.folders("rest")
        with self.loop(200 * MIB) as (device, _):
            with self.program("20M", [rest], self.load("64M")) as program:
                # Its pages would be plain there, for the programs that it starts.
                program.fails(f"swap+=dev:{device},force", "--encrypt")
            with self.program("20M", [rest], self.load("64M"), ["--encrypt"]) as program:
                for _ in range(2):
                    program.change(f"swap+=dev:{device},force")
                    program.change(f"swap-={rest}")
                    expect(program.spaces() == {f"dev:{device},force": "works"}, f"{program.spaces()}")
                    done = program.set(f"swap+=dev:{device},force")
                    expect(done.status == 1 and "already" in done.err, done.err)
                    program.change(f"swap+={rest}")
                    program.change(f"swap-=dev:{device},force")
                    expect(self.is_free(device), "somebody has the device still")
                program.fails(f"swap+=dev:{rest[4:]}", "not a block device")
        return "two turns"

    def test_relatives(self):
        """Programs of a family have the whole device open: none finds there what another one has put out."""
        secret = self.public_program("secret")
        seen = {}
        for options, plain in ((["--no-follow"], True), ([], False)):
            with self.loop(200 * MIB) as (device, _):
                argv = [self.farshore, "run", "--memory", "8M", "--swap", f"dev:{device},force", *options, "--", sys.executable, "-c", RELATIVE]
                done = self.call_program([*argv, device, secret] if not plain else [*argv, device, secret, "itself"], timeout=100)
                expect(done.status == 0 and not done.err, f"{options}: status {done.status}: {done.out[-300:]} {done.err[-300:]}")
                devices, seen[plain] = map(int, done.out.split())
                expect(devices >= 1, f"{options}: the device was not open in the relative")
                expect(self.is_free(device), "somebody has the device still")
        expect(seen[True] > 1000, f"what is plain is seen only {seen[True]} times: the test sees nothing")
        expect(seen[False] == 0, f"{seen[False]} records of a relative can be read on the device as they are")
        return f"{seen[True]} records without it, none with it"

    def eases(self, spec, measure, *options):
        """Room of a program that frees most of its memory, and takes it again: `measure(pid)` before and after, the counter of bytes given back."""
        program = [sys.executable, "-c", EASES, "240"]
        with self.program("24M", [spec], program, options) as running:
            expect(running.answer() == ["filled"], "not filled")
            before = measure(running)
            running.process.popen.stdin.write(b"\n")
            running.process.popen.stdin.flush()
            expect(running.answer() == ["freed"], "not freed")
            deadline = time.monotonic() + (8 if options else 120)
            while (after := measure(running)) > before // 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            given = running.stat()["swap"]["bytes_given_back"]
            running.process.popen.stdin.write(b"\n")
            running.process.popen.stdin.flush()
            expect(running.answer() == ["again"], "not filled again")
            running.process.popen.stdin.write(b"\n")
        return before, after, given

    @staticmethod
    def file_room(running):
        """What the swap file of a program has on its disk."""
        place = f"/proc/{running.pid}/fd"
        files = [f"{place}/{number}" for number in os.listdir(place) if "(deleted)" in os.readlink(f"{place}/{number}")]
        return max(allocated(file) for file in files if "memfd" not in os.readlink(file))

    def test_trim_file(self):
        """A swap file gets holes where a program has freed its memory, and is filled again; --no-trim leaves it as it is."""
        folder = self.folders("trim")[0]
        probe = os.path.join(folder[4:], "probe")
        with open(probe, "wb") as file:
            file.write(b"x" * MIB)
        if subprocess.run([harness.need("fallocate", "util-linux"), "--punch-hole", "--length", str(MIB), probe], stderr=subprocess.DEVNULL,
                          check=False).returncode != 0:
            raise Unavailable(f"the file system of {folder[4:]} has no holes")
        before, after, given = self.eases(folder, self.file_room)
        expect(before > 150 * MIB and after <= before // 2 and given >= before - after - 4 * MIB, f"{before} ▸ {after} bytes, {given} given back")
        kept = self.eases(folder, self.file_room, "--no-trim")
        expect(kept[1] >= kept[0] and kept[2] == 0, f"--no-trim: {kept}")
        return f"{before // MIB} ▸ {after // MIB} MiB"

    def test_trim_device(self):
        """The same on a device: it is told, and the file behind a loop device gets holes."""
        with self.loop(512 * MIB) as (device, file):
            before, after, given = self.eases(f"dev:{device}", lambda _: allocated(file))
        expect(before > 150 * MIB and after <= before // 2 and given > 0, f"{before} ▸ {after} bytes, {given} given back")
        return f"{before // MIB} ▸ {after // MIB} MiB"
