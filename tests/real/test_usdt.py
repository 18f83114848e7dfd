"""The library's static probes: their notes, and what the kernel's uprobes and gdb hear by them."""

import contextlib
import json
import os
import re
import subprocess

import harness
from command import Command
from harness import Unavailable, expect

PROBES = ("fault", "fetched", "evicted", "rescued")
TRACING = "/sys/kernel/tracing"
# Only a hang comes to it.
PATIENCE = 120

# Goes through 48 MiB four times, and says before and after what it is about.
MOVER = """
import sys
data = bytearray(48 << 20)
for at in range(0, len(data), 4096):
    data[at] = 1
print("ready", flush=True)
sys.stdin.readline()
for turn in range(4):
    for at in range(0, len(data), 4096):
        data[at] += 1
print(sum(data[at] for at in range(0, len(data), 4096)), flush=True)
"""
RIGHT = str(5 * (48 << 20) // 4096)


class TestUsdt(Command):
    def library(self):
        """The library that programs of these tests load."""
        there = os.path.join(self.bin, "libfarshore.so")
        return there if os.path.exists(there) else os.environ["FARSHORE_LIBRARY"]

    def notes(self):
        """The probes by name: place, semaphore and arguments."""
        readelf = harness.need("readelf", "binutils")
        text = subprocess.run([readelf, "-nW", self.library()], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
        found = re.findall(r"Provider: farshore\n\s*Name: (\w+)\n\s*Location: 0x(\w+), Base: 0x\w+, Semaphore: 0x(\w+)\n\s*Arguments: ?(.*)", text)
        return [(name, int(place, 16), int(semaphore, 16), arguments.split()) for name, place, semaphore, arguments in found]

    def in_file(self, address):
        """Where this address of the library is in its file."""
        text = subprocess.run([harness.need("readelf", "binutils"), "-lW", self.library()], capture_output=True, text=True, check=True,
                              timeout=PATIENCE).stdout
        for line in text.splitlines():
            words = line.split()
            if words[:1] == ["LOAD"]:
                offset, start, size = int(words[1], 16), int(words[2], 16), int(words[4], 16)
                if start <= address < start + size:
                    return address - start + offset
        raise harness.Failed(f"{address:#x} does not come from the file")

    def test_notes(self):
        """Each probe has one place, one semaphore of its own, and its arguments."""
        notes = self.notes()
        expect(sorted(name for name, *_ in notes) == sorted(PROBES), f"{notes}")
        expect(len({semaphore for _, _, semaphore, _ in notes}) == len(PROBES) and all(semaphore for _, _, semaphore, _ in notes), f"{notes}")
        count = {name: len(arguments) for name, _, _, arguments in notes}
        expect(count == {"fault": 4, "fetched": 3, "evicted": 3, "rescued": 2}, f"{count}")
        for _, place, semaphore, _ in notes:
            with open(self.library(), "rb") as file:
                file.seek(self.in_file(place))
                expect(file.read(1) == b"\x90", "there is no nop")
                file.seek(self.in_file(semaphore))
                expect(file.read(2) == b"\0\0", "a semaphore is raised in the file")

    def test_place_as_perf_finds_it(self):
        """perf takes the place in the file from the section that the notes' base is in: its distance to addresses must be that of the code."""
        text = subprocess.run([harness.need("readelf", "binutils"), "-SW", self.library()], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
        found = re.search(r"\.stapsdt\.base\s+PROGBITS\s+(\w+) (\w+)", text)
        expect(found is not None, text)
        address, offset = (int(word, 16) for word in found.groups())
        for name, place, _, _ in self.notes():
            expect(place - address + offset == self.in_file(place), f"{name}: perf takes {place - address + offset:#x} for {self.in_file(place):#x}")

    @contextlib.contextmanager
    def uprobes(self):
        """Probes of the kernel at all of ours. Gives a function that says how often each was hit."""
        events = os.path.join(TRACING, "uprobe_events")
        if os.geteuid() != 0 or not os.path.exists(events):
            raise Unavailable("probes of the kernel (uprobes) are set by root, where tracefs is")
        group = f"farshore_test_{os.getpid()}"

        def write(path, text):
            # Not by open(): such a file cannot be sought in.
            file = os.open(os.path.join(TRACING, path), os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)

        made = []
        try:
            for name, place, semaphore, _ in self.notes():
                # The kernel takes a path without symbolic links.
                library = os.path.realpath(self.library())
                write("uprobe_events", f"p:{group}/{name} {library}:{self.in_file(place):#x}({self.in_file(semaphore):#x}) address=%di:x64\n")
                made.append(name)
                write(f"events/{group}/{name}/enable", "1")

            def hits():
                lines = (line.split() for line in harness.read_text(os.path.join(TRACING, "uprobe_profile"), 1 << 20).splitlines())
                counts = {words[1]: int(words[2]) for words in lines if len(words) >= 3}
                return {name: counts.get(name, 0) for name in made}

            yield hits
        finally:
            for name in made:
                with contextlib.suppress(OSError):
                    write(f"events/{group}/{name}/enable", "0")
                with contextlib.suppress(OSError):
                    write("uprobe_events", f"-:{group}/{name}\n")

    def test_kernel(self, mode):
        """The kernel's uprobes hear what the counters count, and the program has its own bytes."""
        python = harness.python_with("ctypes", "python3")
        stats = os.path.join(self.folder("stats"), "stats.json")
        argv = [self.farshore, "run", "--memory", "16M", "--prefetch", "none", "--fault", mode, "--stats", stats, "--", python, "-c", MOVER]
        with self.uprobes() as hits:
            done = subprocess.run(argv, input="\n", capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/")
            heard = hits()
        expect(done.returncode == 0 and done.stdout.split() == ["ready", RIGHT], f"{done}")
        with open(stats, encoding="ascii") as file:
            counted = json.load(file)
        faults = counted["faults"]
        expect(heard["fetched"] == faults["fetch"] > 1000, f"{heard}, counted {faults}")
        expect(heard["rescued"] == faults["rescue"], f"{heard}, counted {faults}")
        expect(0 < heard["evicted"] <= counted["evictions"]["pages"], f"{heard}, counted {counted['evictions']}")
        expect(heard["fault"] >= faults["fetch"] + faults["rescue"], f"{heard}, counted {faults}")
        # Nobody listens any more: a program that starts now tells nothing.
        with self.uprobes() as hits:
            expect(not any(hits().values()), f"{hits()}")
        return f"{heard}"

    def test_gdb(self):
        """gdb knows the probes, stops at one, reads its arguments, and leaves; the program goes on to its end."""
        gdb = harness.need("gdb", "gdb")
        python = harness.python_with("ctypes", "python3")
        argv = [self.farshore, "run", "--memory", "16M", "--", python, "-c", MOVER]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as program:
            try:
                expect(program.stdout.readline() == "ready\n", "it has ended")
                # gdb reads the line for the program when it is there: the program moves only once it is continued.
                program.stdin.write("\n")
                program.stdin.flush()
                commands = ["set pagination off", "set confirm off", "handle SIGBUS SIGSYS SIGSEGV nostop noprint pass",
                            "info probes stap farshore", "break -probe-stap farshore:fetched", "continue",
                            "printf \"at %#lx, %ld pages\\n\", $_probe_arg0, $_probe_arg1", "delete", "detach"]
                given = [word for command in commands for word in ("-ex", command)]
                look = subprocess.run([gdb, "-nx", "-batch", "-p", str(program.pid), *given], capture_output=True, text=True, timeout=PATIENCE,
                                      check=False, stdin=subprocess.DEVNULL)
                if "Operation not permitted" in look.stderr and "info probes" not in look.stdout and os.geteuid() != 0:
                    raise Unavailable("gdb may not attach here")
                out, _ = program.communicate(timeout=PATIENCE)
            finally:
                program.kill()
        shown = look.stdout + look.stderr
        for name in PROBES:
            expect(re.search(rf"^stap\s+farshore\s+{name}\s+0x\w+\s+0x\w+ ", look.stdout, re.M), f"{name}: {shown}")
        stopped = re.search(r"^at (0x\w+), (\d+) pages$", look.stdout, re.M)
        expect(stopped and int(stopped[1], 16) % 4096 == 0 and int(stopped[1], 16) > 0 and int(stopped[2]) >= 1, shown)
        expect(out.split() == [RIGHT] and program.returncode == 0, f"{out}: {program.returncode}")
