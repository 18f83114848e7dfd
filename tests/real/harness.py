"""What the drivers share: building the C programs, finding farshore, and running a program under a watchdog.

Standard library only, and no newer than Python 3.9, so that any python3 will do.

A run goes through `peak` (tests/programs/peak.c), which measures the peak RSS of the program itself. Every run is the
leader of a new session: when its time is over, each process of that session is described (threads, kernel stacks, gdb
backtraces where gdb is installed) before the session is killed, so that a hang in a test leaves a picture of itself.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = os.path.join(ROOT, "tests", "programs")
PAGE = 4096
MIB = 1 << 20
# How many times longer than on an idle machine a run may take before it hangs: for emulated machines (tests/kernels).
PATIENCE = float(os.environ.get("FARSHORE_PATIENCE", "1"))


class Unavailable(Exception):
    """Something that is needed is not on this machine; the text says what and how to get it."""


class Failed(AssertionError):
    """A promise that was not kept."""


def expect(condition, text):
    """Raises Failed with the text unless the condition holds."""
    __tracebackhide__ = True
    if not condition:
        raise Failed(text)


def size_text(count):
    """`count` bytes as a person reads it."""
    if count is None:
        return "-"
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= factor:
            value = count / factor
            return f"{value:.0f}{unit}" if value >= 100 or value == int(value) else f"{value:.1f}{unit}"
    return str(count)


def parse_size(text):
    """Bytes of a size such as 64M, read and refused as crates/product/config/src/size.rs does."""
    number, unit = re.fullmatch(r"([0-9.]*)\s*(.*)", text.strip(), re.S).groups()
    known = re.fullmatch(r"B?|([KMGT])(B|IB)?", unit.upper())
    whole, _, fraction = number.partition(".")
    shift = 10 * ("KMGT".index(known[1]) + 1) if known and known[1] else 0
    # Exact: what is below a byte is dropped.
    bytes_of_it = (int(whole + fraction) << shift) // 10 ** len(fraction) if whole.isdigit() and "." not in fraction else 0
    why = ("it is empty" if not text.strip() else "a size cannot be negative" if text.strip()[0] == "-" else "it does not begin with a digit" if not whole else
           "its unit is not known" if not known else "its number is not complete" if number.endswith(".") or "." in fraction else
           "it is not a whole number of bytes" if fraction and shift == 0 else "it is larger than 16E - 1" if bytes_of_it >= 1 << 64 else None)
    if why:
        raise SystemExit(f"invalid size {json.dumps(text)}: {why}; write a number with K, M, G or T (powers of 1024), such as 64M, 2G or 1.5G")
    return bytes_of_it


def target_dir():
    """Where cargo puts its results; our programs go beside them."""
    return os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")


def find_farshore(given=None):
    """Path of the farshore command: the option, else $FARSHORE, else this workspace's release or debug build."""
    tried = [given] if given else []
    if not given:
        tried += [os.environ.get("FARSHORE")] + [os.path.join(target_dir(), kind, "farshore") for kind in ("release", "debug")]
    for path in tried:
        if path and os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    where = ", ".join(path for path in tried if path)
    raise SystemExit(f"no farshore command at {where}: build it with `cargo build --release`, or name it with --farshore PATH")


def free_port():
    """A port of this machine that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def find_load():
    """Path of farshore-load, which is built beside the farshore command."""
    path = os.environ.get("FARSHORE_LOAD") or os.path.join(os.path.dirname(find_farshore()), "farshore-load")
    if not os.access(path, os.X_OK):
        raise SystemExit(f"no farshore-load at {path}: build it with `cargo build --release`, or name it by FARSHORE_LOAD")
    return path


def debian_13_flags():
    """What a program is linked with to run with the libc of Debian 13 (glibc 2.41), which is fetched once."""
    root = os.path.join(target_dir(), "debian-13")
    libraries = os.path.join(root, "usr/lib/x86_64-linux-gnu")
    if not os.path.exists(os.path.join(libraries, "libc.so.6")):
        tool = need("mmdebstrap", "mmdebstrap")
        partial = f"{root}.{os.getpid()}"
        try:
            done = subprocess.run([tool, "--quiet", "--variant=extract", "--include=libc6", "trixie", partial],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False)
            if done.returncode != 0:
                raise Unavailable(f"Debian 13's libc cannot be had: {done.stdout.decode(errors='replace').strip()[-200:]}")
            try:
                os.rename(partial, root)
            except OSError:
                # Another test was faster.
                if not os.path.exists(os.path.join(libraries, "libc.so.6")):
                    raise
        except subprocess.TimeoutExpired:
            raise Unavailable("Debian 13's libc does not come within 300 s") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return (f"-Wl,--dynamic-linker={libraries}/ld-linux-x86-64.so.2", f"-Wl,-rpath={libraries}", "-Wl,--disable-new-dtags")


def build_program(name, flags=(), out_name=None, libraries=()):
    """Compiles tests/programs/NAME.c (or all files of tests/programs/NAME/, and what such programs share) and returns the path of the binary (OUT_NAME, or NAME)."""
    folder = os.path.join(PROGRAMS, name)
    if os.path.isdir(folder):
        files = [os.path.join(place, entry) for place in (folder, os.path.join(PROGRAMS, "absent")) for entry in os.listdir(place)]
        sources, headers = (sorted(path for path in files if path.endswith(ending)) for ending in (".c", ".h"))
    else:
        sources, headers = [folder + ".c"], []
    headers.append(os.path.join(PROGRAMS, "common.h"))
    out = os.path.join(target_dir(), "test-programs", out_name or name)
    newest = max(os.path.getmtime(path) for path in sources + headers)
    if os.path.exists(out) and os.path.getmtime(out) >= newest:
        return out
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler (apt-get install gcc libc6-dev)")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    partial = f"{out}.{os.getpid()}"
    command = [compiler, "-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-pthread", *flags, "-I", PROGRAMS, "-o", partial, *sources, *libraries, "-lm"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"cannot compile {name}:\n{done.stdout.decode(errors='replace')}")
    os.replace(partial, out)
    return out


def build_go(name, out_name, libc=False, flags=()):
    """Builds tests/programs/NAME.go, linked with libc or without, and returns the path of the binary."""
    tool = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if tool is None:
        raise Unavailable("no Go compiler (apt-get install golang-go)")
    out, source = os.path.join(target_dir(), "test-programs", out_name), os.path.join(PROGRAMS, f"{name}.go")
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(source):
        environment = dict(os.environ, CGO_ENABLED=str(int(libc)), GOCACHE=os.path.join(target_dir(), "go-cache"), GOFLAGS="-mod=mod", GOTOOLCHAIN="local")
        done = subprocess.run([tool, "build", *flags, "-o", out, source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
        if done.returncode != 0:
            raise Unavailable(f"go cannot build here: {done.stdout.decode(errors='replace').strip()[-200:]}")
    return out


def program_of_32_bits(path):
    """Writes a program that prints `inside`, waits for a byte or the end of its input, and ends: one that Farshore cannot enter. Unavailable where the kernel runs none."""
    text = b"inside\n"
    head, begin = 52 + 32, 0x08048000
    #          write(1, text, its length)                                        read(0, the stack, 1)                             exit(0)
    code = ("b804000000 bb01000000 b9{:08x} ba{:08x} cd80" "b803000000 31db 89e1 ba01000000 cd80" "b801000000 31db cd80")
    length = len(bytes.fromhex(code.format(0, 0)))
    words = [int.from_bytes(word.to_bytes(4, "little"), "big") for word in (begin + head + length, len(text))]
    body = bytes.fromhex(code.format(*words)) + text
    elf = b"\x7fELF\1\1\1" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, begin + head, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    size = head + len(body)
    with open(path, "wb") as file:
        file.write(elf + struct.pack("<8I", 1, 0, begin, begin, size, size, 5, 4096) + body)
    os.chmod(path, 0o755)
    try:
        subprocess.run([path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError) as why:
        raise Unavailable(f"this kernel runs no 32-bit programs ({why})") from None
    return path


def need(program, package):
    """Path of `program`, or Unavailable with the package to install."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        raise Unavailable(f"{program} is missing (apt-get install {package})")
    return path


def python_with(module, package):
    """Path of a python3 that can import a module, Debian's own first: which `python3` comes first in PATH is the user's affair, and Debian's packages are for
    Debian's. Unavailable if there is none."""
    for python in dict.fromkeys(("/usr/bin/python3", shutil.which("python3"), sys.executable)):
        if python and os.access(python, os.X_OK):
            done = subprocess.run([python, "-c", f"import {module}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            if done.returncode == 0:
                return python
    raise Unavailable(f"no python3 has {module} (apt-get install {package})")


def again_with(module, package):
    """Runs the script that calls this by a python3 that has a module, if its own has it not. Unavailable if none has."""
    if importlib.util.find_spec(module) is None and (python := python_with(module, package)) != sys.executable:
        sys.stdout.flush()
        os.execv(python, [python, *sys.argv])


def hash_file(path):
    """SHA-256 of a file's bytes, in hex."""
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            sha.update(block)
    return sha.hexdigest()


def read_text(path, limit=1 << 20):
    """The file's text, or what went wrong, for reports."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode(errors="replace")
    except OSError as error:
        return f"({error.strerror})"


# ---------------------------------------------------------------------------------------------------- processes


def session_pids(session):
    """All live processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != b"Z":
            found.append(int(entry))
    return found


def describe_process(pid, with_gdb=True):
    """Threads, kernel stacks and (where gdb is there) backtraces of one process, as text."""
    lines = [f"--- process {pid}: {read_text(f'/proc/{pid}/cmdline').replace(chr(0), ' ')[:300]}"]
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return "\n".join(lines + ["(gone)"])
    for thread in threads[:64]:
        base = f"/proc/{pid}/task/{thread}"
        name, wchan, call = (read_text(f"{base}/{what}").strip() for what in ("comm", "wchan", "syscall"))
        lines.append(f"thread {thread} {name}: wchan {wchan}, syscall {call}")
        lines += ["    " + frame for frame in read_text(f"{base}/stack").splitlines()[:12]]
    gdb = shutil.which("gdb") if with_gdb else None
    if gdb:
        command = [gdb, "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off", "-ex", "thread apply all bt 16"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False)
            lines += ["gdb:"] + done.stdout.decode(errors="replace").splitlines()[-200:]
        except subprocess.TimeoutExpired:
            lines.append("gdb: did not answer in 30 s")
    return "\n".join(lines)


class Outcome:
    """How a run ended. `status` is the exit status, or 128+n after signal n, as a shell says it."""

    def __init__(self, status, seconds, peak_rss, stderr, timed_out, picture):
        self.status, self.seconds, self.peak_rss = status, seconds, peak_rss
        self.stderr, self.timed_out, self.picture = stderr, timed_out, picture


class Process:
    """A program that runs under the watchdog."""

    def __init__(self, argv, work, timeout, stdin=None, stdout=None, env=None, cwd=None):
        self.argv, self.timeout = list(argv), timeout * PATIENCE
        self._report = tempfile.mktemp(prefix="peak-", dir=work)
        self._stderr_path = tempfile.mktemp(prefix="stderr-", dir=work)
        self._picture, self._lock, self._done = "", threading.Lock(), False
        peak = build_program("peak")
        with open(self._stderr_path, "wb") as stderr:
            self.started = time.monotonic()
            self.popen = subprocess.Popen(
                [peak, self._report, *self.argv],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.DEVNULL if stdout is None else stdout,
                stderr=stderr, env=env, cwd=cwd, start_new_session=True,
            )
        self.timed_out = False
        self._timer = threading.Timer(self.timeout, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self):
        with self._lock:
            if self._done:
                return
            self.timed_out = True
            pids = session_pids(self.popen.pid)
            self._picture = "\n".join(describe_process(pid) for pid in pids if pid != self.popen.pid)
            self.kill_session()

    def kill_session(self):
        """Kills what still runs in the session of this run, and nothing else."""
        for pid in session_pids(self.popen.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def alive(self):
        """Whether the program still runs."""
        return self.popen.poll() is None

    def stderr_so_far(self):
        """What the program has written to stderr until now."""
        return read_text(self._stderr_path)

    def finish(self):
        """Waits for the end and returns the outcome."""
        self.popen.wait()
        with self._lock:
            self._done = True
        self._timer.cancel()
        seconds, peak, status = time.monotonic() - self.started, None, self.popen.returncode
        fields = read_text(self._report).split()
        if len(fields) == 6 and fields[0].isdigit():
            status, peak, seconds = int(fields[0]), int(fields[1]) * 1024, float(fields[4])
        elif status < 0:
            status = 128 - status
        outcome = Outcome(status, seconds, peak, read_text(self._stderr_path), self.timed_out, self._picture)
        for path in (self._report, self._stderr_path):
            if os.path.exists(path):
                os.unlink(path)
        return outcome


def run(argv, work, timeout, **options):
    """Runs a program to its end. An interruption of ours ends the program as well."""
    process = Process(argv, work, timeout, **options)
    try:
        return process.finish()
    except BaseException:
        process.kill_session()
        process.popen.wait()
        raise


# ------------------------------------------------------------------------------------------------- farshore


class Mode:
    """How a case is run: natively, or under farshore with a delivery and a share of the natural memory.

    A share of None is a limit that is never reached; a share of 0 stands for the limit that the case itself fixes.
    """

    def __init__(self, fault=None, share=None):
        self.fault, self.share = fault, share

    @property
    def native(self):
        """Without farshore."""
        return self.fault is None

    def __str__(self):
        if self.native:
            return "native"
        return f"{self.fault} " + ("all" if self.share is None else f"{self.share:.0%}" if self.share else "fixed")


# A limit that no test program reaches: the run that finds the natural peak of managed memory.
ROOMY = 64 << 30
# What `--memory` accepts at least.
SMALLEST_LIMIT = 4 * MIB


# Options for what must say nothing on stderr on any disk. (ext4 that is mounted with `discard` waits for a discard when a block of the extent tree becomes free,
# with the file locked: seconds, on some virtual disks.)
PATIENT = ("--io-timeout", "60s")


def farshore_argv(farshore, argv, limit, fault="upcall", swap=(), stats=None, extra=()):
    """The command line that runs `argv` under farshore."""
    command = [farshore, "run", "--memory", str(limit), "--fault", fault]
    for spec in swap:
        command += ["--swap", spec]
    if stats:
        command += ["--stats", stats]
    return [*command, *extra, "--", *argv]


def anonymous_bytes(pid):
    """Anonymous memory of a process that is in RAM."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))


def poll_allowed():
    """Whether this user may have kernel accesses served, as poll mode needs."""
    status = read_text("/proc/self/status")
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    sys_ptrace = 19
    return bool(effective >> sys_ptrace & 1) or read_text("/proc/sys/vm/unprivileged_userfaultfd").strip() == "1" or os.access("/dev/userfaultfd", os.R_OK | os.W_OK)


def natural_peak(stats):
    """Bytes of managed memory a program really used, from a run whose limit was never reached.

    `managed_bytes_peak` may count address space that was mapped and never touched; what was resident without a limit was used.
    """
    return min(stats["managed_bytes_peak"], stats["resident_bytes_peak"]) or stats["managed_bytes_peak"]


def load_stats(path):
    """The `--stats` file as a dict, or None when it is missing or not JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def check_stats(stats, limit):
    """What is wrong with the counters of a run, as a list of sentences."""
    if stats is None:
        return ["no --stats file, or not JSON"]
    wrong = []
    if stats.get("memory_limit_bytes") != limit:
        wrong.append(f"memory_limit_bytes is {stats.get('memory_limit_bytes')}, not {limit}")
    if stats["resident_bytes_peak"] > stats["memory_limit_bytes"]:
        wrong.append(f"resident_bytes_peak {stats['resident_bytes_peak']} is over the limit {stats['memory_limit_bytes']}")
    if stats["evictions"]["synchronous"] != 0:
        wrong.append(f"evictions.synchronous is {stats['evictions']['synchronous']}")
    if stats["swap"]["errors"] != 0:
        wrong.append(f"swap.errors is {stats['swap']['errors']}, the last: {stats['swap'].get('last_error')}")
    return wrong


def tidy_on_sigterm():
    """Lets SIGTERM (from `timeout`, from a CI system) unwind like Ctrl-C, so that what runs is ended and what was made is removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def table(header, rows, right=()):
    """Lines of a table; columns named in `right` are aligned to the right."""
    cells = [list(header)] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        parts = [cell.rjust(width) if name in right else cell.ljust(width) for cell, width, name in zip(row, widths, header)]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines
