#!/usr/bin/env python3
"""Farshore on the kernels and the libcs that users have, in machines that QEMU emulates (TCG, so it needs no KVM).

    tests/kernels/kernels.py                     the short form: each kind once
    tests/kernels/kernels.py --long              each kernel, libc and number of processors, and more tests in each
    tests/kernels/kernels.py --machine NAME      these machines alone (--list names them); --keep leaves consoles in the target directory

A machine is a kernel of Debian's or Ubuntu's, a Debian as its root, and a number of processors. Kernels come by apt (its lists and what it fetches lie in the target
directory), roots by mmdebstrap; both are fetched once, and stay until `target/kernels` is removed. The machine boots them from two disks: the root, of which
what is written is thrown away, and the build with the tests (made anew each time, read-only). `init` loads modules, guest.py runs the steps (`steps` below):
the project's own tests, in there. Each machine's results are in one JUnit report (--junitxml), whose tests begin with the machine's name.

A step that takes too long is described in the guest (threads, kernel stacks) and ended. If the whole guest is silent, its kernel is asked by the serial line
what its threads and processors do, and the machine is ended. Nothing stays behind.
"""

import argparse
import fcntl
import glob
import hashlib
import json
import lzma
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import namedtuple

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "real"), os.path.join(ROOT, "tests", "newcomer")]
import fresh  # noqa: E402
import harness  # noqa: E402
import test_pages  # noqa: E402
import test_threads  # noqa: E402
from harness import Unavailable  # noqa: E402

PLACE = os.path.join(os.path.abspath(harness.target_dir()), "kernels")
MIRROR = "http://deb.debian.org/debian"
# The kernels: the suite that has them, and the package. Debian's `cloud` kernels are the same sources with fewer drivers: a third of the bytes to fetch.
CLOUD, GENERIC = "linux-image-cloud-amd64", "linux-image-amd64"
KERNELS = {
    "debian12": ("bookworm", CLOUD),
    "debian12-backports": ("bookworm-backports", CLOUD),
    "debian13": ("trixie", CLOUD),
    "debian13-generic": ("trixie", GENERIC),
    "debian13-backports": ("trixie-backports", CLOUD),
    "sid": ("sid", CLOUD),
}
# Kernels of Ubuntu's, which have idle page tracking: the suite, a package that stays as it is, and its sum, since this machine's apt has no key for them. What a guest needs is not in modules.
# They are tried where somebody names an archive of Ubuntu's; nothing is asked of one otherwise.
UBUNTU = os.environ.get("FARSHORE_UBUNTU_ARCHIVE", "")
UBUNTUS = {
    "ubuntu24": ("noble", "linux-image-6.8.0-31-generic", "fd2ed023c84163e62c73d3b7b613a9b004bd31e335641c23d42bd249e489fbe6"),
}
# The roots: a Debian each, by its name.
ROOTS = {"debian12": "bookworm", "debian13": "trixie", "sid": "sid"}
# What the tests need there. No compiler: programs are built out here.
INCLUDED = "python3,python3-pytest,sqlite3,xz-utils,procps,util-linux,iproute2"
# What a root need not have.
LEFT_OUT = ("doc", "man", "locale", "info")
# MiB of a root's disk, for what it has and what tests write, and of the disk with the build.
DISK, ROOM = 1500, 64
# Modules that a guest needs, if its kernel has them as modules.
MODULES = ("virtio_pci", "virtio_balloon", "virtio_net", "virtio_blk", "ext4")
# A machine. `long`: not in the short form, of which one of those that are not refused runs, in turn. `refused`: Farshore cannot run there. `threads`: how QEMU runs the processors, `single` in turn by one thread, `multi`
# by a thread each. In turn is three times as fast on two cores, as a processor that waits for another one (a flush of TLBs) gives way, and it changes at every
# interrupt and at every wait; a thread each has them do two things at one time.
Machine = namedtuple("Machine", "name kernel root processors long refused threads", defaults=(False, False, "single"))
MACHINES = [
    Machine("too-old", "debian12", "debian12", 2, refused=True),
    Machine("debian12-8", "debian12-backports", "debian12", 8),
    Machine("debian13-1", "debian13", "debian13", 1),
    Machine("ubuntu24-2", "ubuntu24", "debian13", 2, long=True),
    Machine("debian12-1", "debian12-backports", "debian12", 1, long=True),
    Machine("debian13-8", "debian13-generic", "debian13", 8, long=True, threads="multi"),
    Machine("backports13-8", "debian13-backports", "debian13", 8, long=True),
    Machine("backports13-2", "debian13-backports", "debian13", 2, long=True, threads="multi"),
    Machine("sid-4", "sid", "sid", 4, long=True),
]
# A step: a command, and the seconds after which it hangs.
Step = namedtuple("Step", "name argv seconds")
# Real programs, in the long form; and cases of test_threads.py in the short one, of which some are for one processor: with many they take minutes, as each page
# that leaves is a flush of TLBs on all of them.
CASES = "sort,python,sqlite,forks,syscalls,memstorm-4m,fits"
SHORT, ALONE = ("jumps", "robust", "sigsys", "stacks"), ("locks", "unwind")
# How many times longer than out here a test waits before it says that a program hangs.
PATIENCE = 6
# Seconds after which a guest that says nothing is hung, beyond those of its step.
SILENCE = 240
# Programs of the tests that are built out here, beside those that the cases of test_pages.py and test_threads.py name: arguments of harness.build_program.
PROGRAMS = [("peak",), ("memstorm",), ("forks",), ("fits",), ("syscalls",), ("dormant",), ("hotset",), ("halted",), ("blocked",), ("cut_text", ("-shared", "-fPIC")), ("probed", ("-fcf-protection=none",))]
# Cases that build when they are prepared.
PREPARED = ("unwind", "panics")


# ---------------------------------------------------------------------------------------------------- what is fetched


def mirror():
    """Where this machine's apt has Debian's packages."""
    for line in fresh.sources():
        uri, suite = line.split()[1:3]
        if suite == fresh.SUITE:
            return uri
    return MIRROR


def told(argv, **more):
    """What a command prints; SystemExit with all of it if it fails, Unavailable if the network is missing."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", check=False, **more)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        if fresh.UNREACHABLE.search(said):
            print(said[-2000:])
            raise Unavailable("Debian's packages cannot be reached")
        raise SystemExit(f"{' '.join(argv)}: status {done.returncode}\n{said[-3000:]}")
    return done.stdout


class Apt:
    """apt with one suite, whose state lies in a directory of ours: this machine's is left alone."""

    def __init__(self, suite, archive=None):
        self.place = os.path.join(PLACE, "apt", suite)
        for folder in ("lists/partial", "cache/archives/partial"):
            os.makedirs(os.path.join(self.place, folder), exist_ok=True)
        self.write("status", "")
        self.write("sources.list", f"deb [trusted=yes] {archive} {suite} main\n" if archive else f"deb {mirror()} {suite} main\n")
        # As an ordinary user, apt could not write into the target directory.
        settings = {"Dir::Etc::SourceList": f"{self.place}/sources.list", "Dir::Etc::SourceParts": "/dev/null", "Dir::State::Lists": f"{self.place}/lists",
                    "Dir::State::Status": f"{self.place}/status", "Dir::Cache": f"{self.place}/cache", "APT::Sandbox::User": "root", "Acquire::Languages": "none",
                    "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false"}
        self.write("apt.conf", "".join(f'{name} "{value}";\n' for name, value in settings.items()))

    def write(self, name, text):
        with open(os.path.join(self.place, name), "w", encoding="utf-8") as file:
            file.write(text)

    def run(self, *argv, cwd=None):
        """What a command of apt's prints."""
        return told(list(argv), cwd=cwd, env={**os.environ, "APT_CONFIG": os.path.join(self.place, "apt.conf"), "LC_ALL": "C"})

    def kernel_packages(self, name):
        """The packages that a kernel is made of: newer ones are in several."""
        found, waiting = [], [name]
        while waiting:
            one = waiting.pop()
            found.append(one)
            depends = re.search(r"^Depends: (.*)", self.run("apt-cache", "show", "--no-all-versions", one), re.M)
            for word in re.findall(r"(?:^|, )(linux-(?:image|binary|modules)-\S+)", depends[1] if depends else ""):
                if word not in found + waiting:
                    waiting.append(word)
        return found


def fetched(place, make):
    """A directory that `make` fills once, whoever else wants it at that moment; half of one is never seen."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(f"{place}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return fetched_alone(place, make)


def fetched_alone(place, make):
    """The same, for one at a time."""
    if not os.path.isdir(place):
        partial = f"{place}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        os.makedirs(partial)
        try:
            make(partial)
            os.rename(partial, place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return place


def kernel(name):
    """The directory of a kernel: `vmlinuz`, and `modules` in the order in which they are loaded."""
    suite, package, wanted = UBUNTUS[name] if name in UBUNTUS else (*KERNELS[name], None)

    def make(place):
        apt = Apt(suite, UBUNTU if wanted else None)
        apt.run("apt-get", "update", "-q")
        files = os.path.join(place, "files")
        os.makedirs(files)
        apt.run("apt-get", "download", "-q", *([package] if wanted else apt.kernel_packages(package)), cwd=files)
        for path in glob.glob(f"{files}/*.deb"):
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if wanted not in (None, found):
                raise SystemExit(f"{package} of {suite} has the sum {found}, and not {wanted}")
            told(["dpkg-deb", "-x", path, files])
            os.unlink(path)
        images = glob.glob(f"{files}/boot/vmlinuz-*") + glob.glob(f"{files}/usr/lib/modules/*/vmlinuz")
        if not images:
            raise SystemExit(f"{package} of {suite} has no kernel in it")
        shutil.copy(images[0], f"{place}/vmlinuz")
        take_modules(files, f"{place}/modules")
        shutil.rmtree(files)

    return fetched(os.path.join(PLACE, f"kernel-of-{name}"), make)


def take_modules(files, place):
    """Copies the modules that a guest needs, and those that they need, and says in `order` what is loaded first."""
    os.makedirs(place)
    paths = {}
    for folder, _, names in os.walk(files):
        for name in names:
            found = re.match(r"(.*)\.ko(\.xz)?$", name)
            if found:
                paths[found[1].replace("-", "_")] = os.path.join(folder, name)
    order = []

    def take(name):
        if name in order or name not in paths:
            return
        path = paths[name]
        with open(path, "rb") as file:
            code = lzma.decompress(file.read()) if path.endswith(".xz") else file.read()
        depends = re.search(rb"\0depends=([^\0]*)\0", code)
        for other in (depends[1].decode() if depends else "").split(","):
            if other:
                take(other.replace("-", "_"))
        with open(os.path.join(place, f"{name}.ko"), "wb") as file:
            file.write(code)
        order.append(name)

    # Sums that the kernel asks for by another name than the module's.
    for name in (*MODULES[:-1], "crc32c_generic", MODULES[-1]):
        take(name)
    with open(os.path.join(place, "order"), "w", encoding="ascii") as file:
        file.write("".join(f"{name}.ko\n" for name in order))


def busybox():
    """A static busybox, for `init`."""

    def make(place):
        apt = Apt("bookworm")
        apt.run("apt-get", "update", "-q")
        apt.run("apt-get", "download", "-q", "busybox-static", cwd=place)
        told(["dpkg-deb", "-x", *glob.glob(f"{place}/*.deb"), place])

    return os.path.join(fetched(os.path.join(PLACE, "busybox"), make), "bin", "busybox")


def root_disk(name):
    """The disk of a Debian."""
    suite = ROOTS[name]

    def make(place):
        if os.geteuid() != 0:
            raise Unavailable("mmdebstrap needs root")
        root = f"{place}/root"
        leave = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in LEFT_OUT]
        options = [f"--include={INCLUDED}", *leave, *(f"--aptopt={line}" for line in fresh.apt_options())]
        told([harness.need("mmdebstrap", "mmdebstrap"), "--quiet", "--mode=root", "--variant=minbase", *options, suite, root, f"deb {mirror()} {suite} main"])
        shutil.rmtree(f"{root}/var/cache/apt")
        shutil.rmtree(f"{root}/var/lib/apt/lists")
        os.makedirs(f"{root}/farshore")
        make_disk(f"{place}/disk", root, DISK)
        shutil.rmtree(root)

    return os.path.join(fetched(os.path.join(PLACE, f"root-{name}"), make), "disk")


def make_disk(path, folder, mib):
    """A file with an ext4 file system that has what is in a folder."""
    told([harness.need("mke2fs", "e2fsprogs"), "-q", "-t", "ext4", "-d", folder, path, f"{mib}M"])


# ---------------------------------------------------------------------------------------------------- what is brought along


def sys_tests():
    """The tests of `sys`, built; their paths."""
    argv = ["cargo", "test", "--quiet", "-p", "farshore-sys", "--tests", "--no-run", "--message-format=json"]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}: status {done.returncode}")
    found = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            found[message["target"]["name"]] = message["executable"]
    return found


class Build:
    """What guests have of ours: made once, for all of them."""

    def __init__(self, work):
        self.tests = sys_tests()
        for words in PROGRAMS:
            harness.build_program(*words)
        test_pages.cases()
        for case in test_threads.cases():
            if case.name in PREPARED:
                case.prepare(work)
        tree = os.path.join(work, "build")
        shutil.copytree(os.path.join(ROOT, "tests"), f"{tree}/tests", ignore=shutil.ignore_patterns("__pycache__", "suites"))
        # A policy in Python, and what it says which memory is hot.
        shutil.copytree(os.path.join(ROOT, "policies"), f"{tree}/policies", ignore=shutil.ignore_patterns("__pycache__"))
        release = os.path.dirname(harness.find_farshore())
        os.makedirs(f"{tree}/target/release")
        os.makedirs(f"{tree}/target/sys")
        for name in ("farshore", "libfarshore.so", "farshore-load", "farshore-call-matrix"):
            shutil.copy2(os.path.join(release, name), f"{tree}/target/release")
        # Times are kept, by which the tests see that programs need not be built again.
        shutil.copytree(os.path.join(harness.target_dir(), "test-programs"), f"{tree}/target/test-programs")
        # Where tests of crates put their files, on the root's disk.
        os.symlink("/var/tmp", f"{tree}/target/tmp")
        for name, path in self.tests.items():
            shutil.copy2(path, f"{tree}/target/sys/{name}")
        self.tree, self.work = tree, work
        self.size = sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(tree) for name in names)

    def disk(self, machine, steps):
        """The disk of a machine."""
        alias = {os.path.abspath(harness.target_dir()): "/farshore/target"}
        with open(f"{self.tree}/tests/kernels/steps.json", "w", encoding="utf-8") as file:
            json.dump({"aliases": alias, "steps": steps}, file)
        path = os.path.join(self.work, f"{machine.name}.build")
        make_disk(path, self.tree, (self.size >> 20) + ROOM)
        return path


def initramfs(path, init, files=()):
    """What a kernel boots: busybox, `init`, and files (a name in there, a path out here; no path: a folder). The format is cpio's."""
    entries = [("bin", None), ("dev", None), ("proc", None), ("root", None), ("init", init), ("bin/busybox", busybox()), *files]
    with open(path, "wb") as out:
        for number, (name, source) in enumerate([*entries, ("TRAILER!!!", None)], 1):
            data = b""
            if source:
                with open(source, "rb") as file:
                    data = file.read()
            mode = 0o100755 if source else 0o40755
            fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
            out.write(b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0")
            for part in (b"", data):
                out.write(part)
                out.write(b"\0" * (-out.tell() % 4))


def plain_guest(work, init, mib, processors_=1, programs=(), texts=(), modules=False):
    """The command line of a machine of so many MiB with Debian's kernel and nothing but a disk in RAM: `init` (a file of this folder), static programs of tests/programs, texts as files (pairs of a name and what is in it), and
    with `modules` those of the kernel in /modules. Its serial line is left to the caller."""
    files = [(f"bin/{name}", harness.build_program(name, ("-static",), out_name=f"{name}_static")) for name in programs]
    for name, text in texts:
        files.append((name, os.path.join(work, name)))
        with open(files[-1][1], "w", encoding="ascii") as file:
            file.write(f"{text}\n")
    if modules:
        place = os.path.join(kernel("debian12"), "modules")
        files += [("modules", None), *((f"modules/{name}", os.path.join(place, name)) for name in sorted(os.listdir(place)))]
    image = os.path.join(work, "initramfs")
    initramfs(image, os.path.join(HERE, init), files)
    return [qemu(), *processors(processors_, "multi"), "-m", f"{mib}M", "-nodefaults", "-display", "none", "-no-reboot",
            "-kernel", f"{kernel('debian12')}/vmlinuz", "-initrd", image, "-append", "console=ttyS0 panic=-1 quiet mitigations=off"]


# ---------------------------------------------------------------------------------------------------- a machine


class Guest:
    """A machine that runs."""

    def __init__(self, machine, work, build, steps):
        self.machine, self.steps = machine, {step.name: step for step in steps}
        name = os.path.join(work, machine.name)
        self.console, self.line, self.control = f"{name}.console", f"{name}.line", f"{name}.qmp"
        place = kernel(machine.kernel)
        modules = [(f"modules/{module}", f"{place}/modules/{module}") for module in sorted(os.listdir(f"{place}/modules"))]
        initramfs(f"{name}.initramfs", os.path.join(HERE, "init"), [("modules", None), *modules])
        disks = [(root_disk(machine.root), "snapshot=on"), (build.disk(machine, [as_dict(step) for step in steps]), "readonly=on")]
        argv = [qemu(), *processors(machine.processors, machine.threads), "-m", "1G", "-nodefaults", "-display", "none", "-no-reboot",
                "-kernel", f"{place}/vmlinuz", "-initrd", f"{name}.initramfs", "-append", "console=ttyS0 sysrq_always_enabled panic=-1 quiet mitigations=off",
                "-chardev", f"stdio,id=console,signal=off,logfile={self.console}", "-serial", "chardev:console", "-serial", f"file:{self.line}",
                "-qmp", f"unix:{self.control},server=on,wait=off"]
        for number, (path, how) in enumerate(disks):
            argv += ["-drive", f"file={path},format=raw,if=none,id=disk{number},cache=unsafe,{how}", "-device", f"virtio-blk-pci,drive=disk{number}"]
        # Whatever ends us, ends it too.
        argv = [harness.need("setpriv", "util-linux"), "--pdeathsig", "KILL", *argv]
        open(self.line, "wb").close()
        self.said = open(f"{name}.qemu", "wb")
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self.said, env={**os.environ, "TMPDIR": work})

    def follow(self):
        """What the guest tells, as it comes; what is wrong with the machine is the last of it."""
        waits, step, over = SILENCE, "the boot", False
        last = time.monotonic()
        with open(self.line, "rb") as file:
            rest = b""
            while True:
                ended = self.process.poll() is not None
                data = file.read()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    last, over = time.monotonic(), over or "over" in message
                    if "begin" in message:
                        step, waits = message["begin"], self.steps[message["begin"]].seconds + SILENCE
                    yield message
                if ended and not data:
                    break
                if time.monotonic() - last > waits:
                    yield {"wrong": f"{self.machine.name} says nothing for {waits} s, in {step}\n{self.describe()}"}
                    return
                time.sleep(0.05)
        if not over:
            yield {"wrong": f"{self.machine.name} has ended in {step}: {harness.read_text(self.said.name)}\n{self.tail(3000)}"}

    def tail(self, size):
        """The end of what the kernel said."""
        return harness.read_text(self.console, 1 << 24)[-size:]

    def describe(self):
        """Has the kernel say what its threads and processors do."""
        try:
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.settimeout(20)
                monitor.connect(self.control)
                for letter in b"lwt":
                    for command in ({"execute": "qmp_capabilities"}, {"execute": "chardev-send-break", "arguments": {"id": "console"}}):
                        monitor.sendall(json.dumps(command).encode() + b"\n")
                        time.sleep(0.3)
                    self.process.stdin.write(bytes([letter]))
                    self.process.stdin.flush()
                    time.sleep(10)
        except OSError as error:
            print(f"its monitor: {error}")
        return self.tail(60000)

    def end(self):
        """Ends it, if it has not ended."""
        self.process.kill()
        self.process.wait()
        self.said.close()


def qemu():
    """Path of QEMU."""
    return harness.need("qemu-system-x86_64", "qemu-system-x86")


def processors(count, threads):
    """QEMU's options for emulated processors; `threads` as of a machine."""
    # QEMU 7.2 loses flags at `cmpxchg16b` where each processor has a thread: a kernel that finds the instruction dies in its allocator before it has booted.
    return ["-accel", f"tcg,thread={threads}", "-cpu", "max,-cx16", "-smp", str(count)]


def as_dict(step):
    """A step as guest.py takes it."""
    environment = {"FARSHORE_PATIENCE": str(PATIENCE), "RUST_TEST_THREADS": "2", "CARGO_TARGET_DIR": "/farshore/target"}
    return {"name": step.name, "argv": step.argv, "seconds": step.seconds, "environment": environment}


# ---------------------------------------------------------------------------------------------------- steps


def pytest(name, seconds, *arguments):
    """Tests of ours, in there."""
    return Step(name, ["/usr/bin/python3", "-m", "pytest", "--junitxml", "/tmp/report.xml", "-o", "junit_logging=system-out", *arguments], seconds)


# Cases of test_threads.py that are about more than the kernel: allocators and real programs.
OTHERS = "storm or linked or python or sqlite or redis or debian13 or man or cgo"


def steps(machine, tests, long):
    """What is done in a machine."""
    if machine.refused:
        return [pytest("doctor", 300, "tests/kernels/test_kernel.py", "--refused")]
    found = [pytest("doctor", 600, "tests/kernels/test_kernel.py")]
    for name in sorted(tests) if long else ("conformance", "uffd", "vm", "dispatch", "idle"):
        found.append(Step(f"sys {name}", [f"/farshore/target/sys/{name}", "--show-output"], 1200))
    if not long:
        names = " or ".join(f"{name}-upcall" for name in (SHORT + ALONE if machine.processors == 1 else SHORT))
        return [*found, pytest("threads", 900, "tests/real/test_threads.py", "-k", names)]
    for mode in ("upcall", "poll"):
        found.append(pytest(f"threads {mode}", 3600, "tests/real/test_threads.py", "--mode", mode, "-k", f"not ({OTHERS})"))
        found.append(pytest(f"programs {mode}", 3600, "tests/real/test_programs.py", "--mode", mode, "--fraction", "50,25", "--cases", CASES))
    found.append(pytest("calls", 3600, "tests/real/test_calls.py", "-k", "matrix or blocked", "--rounds", "1"))
    found.append(pytest("pages", 3600, "tests/real/test_pages.py"))
    found.append(pytest("dormant", 3600, "tests/real/test_dormant.py"))
    return found


# ---------------------------------------------------------------------------------------------------- results


class Results:
    """Tests of all machines, as one JUnit report."""

    def __init__(self):
        self.suite = xml.etree.ElementTree.Element("testsuite", name="kernels")
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def add(self, name, outcome, text="", seconds=0.0):
        """One test: `outcome` is passed, failed or skipped."""
        case = xml.etree.ElementTree.SubElement(self.suite, "testcase", name=name, time=f"{seconds:.3f}")
        if outcome != "passed":
            first = text.strip().splitlines()[0] if text.strip() else outcome
            kind = {"failed": "failure", "skipped": "skipped"}[outcome]
            xml.etree.ElementTree.SubElement(case, kind, message=clean(first)).text = clean(text)
        self.counts[outcome] += 1
        print(f"{name} {outcome.upper() if outcome == 'failed' else outcome}{f' {seconds:.1f} s' if seconds else ''}{': ' if text else ''}{text.strip()}", flush=True)

    def take_junit(self, machine, step, text):
        """The tests of a report."""
        for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
            name = re.sub(r"\[(.*)\]$", r" \1", case.get("name", "?").removeprefix("test_"))
            wrong, skipped = case.findall("failure") + case.findall("error"), case.findall("skipped")
            outcome = "failed" if wrong else "skipped" if skipped else "passed"
            text = (wrong[0].text or wrong[0].get("message") or "")[-6000:] if wrong else skipped[0].get("message", "") if skipped else ""
            self.add(f"{machine}: {name}", outcome, text, float(case.get("time", 0)))

    def take_libtest(self, machine, step, text):
        """The tests of a program of Rust's."""
        for name, outcome, said in libtest(text):
            self.add(f"{machine}: {step}::{name}", outcome, said)

    def write(self, path):
        """The report."""
        root = xml.etree.ElementTree.Element("testsuites")
        root.append(self.suite)
        xml.etree.ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def libtest(text):
    """The tests that a program of Rust's names when it shows their output: (name, outcome, why).

    >>> text = "test a::b ... ok\\ntest c ... FAILED\\ntest d ... ok\\n\\nsuccesses:\\n\\n---- d stdout ----\\nskipped: no KSM\\n\\n\\nfailures:\\n\\n---- c stdout ----\\npanicked\\n\\nfailures:\\n    c\\n"
    >>> libtest(text)
    [('a::b', 'passed', ''), ('c', 'failed', 'panicked'), ('d', 'skipped', 'no KSM')]
    """
    shown = re.findall(r"^---- (\S+) stdout ----$(.*?)(?=^---- |^successes:|^failures:|\Z)", text, re.M | re.S)
    said, found = {name: told.strip() for name, told in shown}, []
    for name, ended in re.findall(r"^test (\S+) \.\.\. .*?(ok|FAILED)$", text, re.M):
        why = re.search(r"^skipped: (.*)", said.get(name, ""), re.M)
        if ended == "FAILED":
            found.append((name, "failed", said.get(name, "")[-4000:]))
        else:
            found.append((name, "skipped" if why else "passed", why[1] if why else ""))
    return found


def clean(text):
    """Without what XML cannot have."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", text)


def run(machine, work, build, results, todo, verbose):
    """Boots a machine, and takes what it tells."""
    guest = Guest(machine, work, build, todo)
    started, done, printed = time.monotonic(), set(), ""
    try:
        for message in guest.follow():
            if "hello" in message:
                print(f"{machine.name}: Linux {message['hello']}, {message['libc']}, {message['processors']} processors, {time.monotonic() - started:.0f} s", flush=True)
            elif "begin" in message:
                printed = ""
            elif "printed" in message:
                printed += message["printed"]
                if verbose:
                    print(message["printed"], end="", flush=True)
            elif "end" in message:
                name = message["end"]
                done.add(name)
                before = sum(results.counts.values())
                if name == "command":
                    results.add(f"{machine.name}: status {message['status']}", "passed" if message["status"] == 0 else "failed", f"\n{printed}{message['picture']}")
                elif message["report"]:
                    results.take_junit(machine.name, name, message["report"])
                else:
                    results.take_libtest(machine.name, name, printed)
                failed = sum(results.counts.values()) == before or message["status"] is None
                if failed or (message["status"] != 0 and not results.counts["failed"]):
                    results.add(f"{machine.name}: {name}", "failed", f"status {message['status']}\n{printed[-6000:]}\n{message['picture']}")
                print(f"{machine.name}: {name}: {time.monotonic() - started:.0f} s", flush=True)
            elif message.get("kernel"):
                results.add(f"{machine.name}: kernel", "failed", "the kernel complains: " + "\n".join(message["kernel"]))
            elif "wrong" in message:
                results.add(f"{machine.name}: machine", "failed", f"{message['wrong']}\n--- the step had printed\n{printed[-6000:]}")
        missing = [step.name for step in todo if step.name not in done]
        if missing:
            results.add(f"{machine.name}: steps", "failed", f"did not run: {', '.join(missing)}")
    finally:
        guest.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="all machines, and more tests in each")
    parser.add_argument("--turn", type=int, help="of the machines on which Farshore runs one alone, by this number")
    parser.add_argument("--machine", action="append", choices=[machine.name for machine in MACHINES], help="these alone")
    parser.add_argument("--list", action="store_true", help="name the machines and end")
    parser.add_argument("--junitxml", metavar="FILE", help="write a report")
    parser.add_argument("--only", metavar="NAME", help="steps that have this in their name")
    parser.add_argument("--command", metavar="WORDS", help="instead of tests, this in a shell of theirs, with what it prints")
    parser.add_argument("--verbose", action="store_true", help="show what steps print, as it comes")
    parser.add_argument("--keep", action="store_true", help="keep what the kernels said, in the target directory")
    options = parser.parse_args()
    if options.list:
        for machine in MACHINES:
            print(f"{machine.name:14} kernel of {machine.kernel}, root of {machine.root}, {machine.processors} processors{', long' if machine.long else ''}")
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    harness.tidy_on_sigterm()
    chosen = [machine for machine in MACHINES if (machine.name in options.machine if options.machine else options.long or not machine.long)]
    unnamed = [machine.name for machine in chosen if machine.kernel in UBUNTUS and not UBUNTU]
    if unnamed:
        print(f"left out: {', '.join(unnamed)} (FARSHORE_UBUNTU_ARCHIVE names no archive of Ubuntu's)", flush=True)
        chosen = [machine for machine in chosen if machine.name not in unnamed]
    if options.turn is not None:
        runs = [machine for machine in chosen if not machine.refused]
        chosen = [machine for machine in chosen if machine.refused or machine is runs[options.turn % len(runs)]]
    results, work = Results(), tempfile.mkdtemp(prefix="farshore-kernels-", dir=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"))
    try:
        qemu()
        os.makedirs(PLACE, exist_ok=True)
        build = Build(work)
        for machine in chosen:
            todo = [Step("command", ["/bin/sh", "-c", options.command], 3600)] if options.command else steps(machine, build.tests, options.long)
            todo = [step for step in todo if options.only is None or options.only in step.name]
            run(machine, work, build, results, todo, options.verbose)
    except Unavailable as why:
        results.add("all", "skipped", str(why))
    finally:
        if options.keep:
            for path in glob.glob(f"{work}/*.console") + glob.glob(f"{work}/*.line"):
                shutil.copy(path, PLACE)
        shutil.rmtree(work, ignore_errors=True)
        if options.junitxml:
            results.write(options.junitxml)
    print(", ".join(f"{results.counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")))
    return 1 if results.counts["failed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
