"""The first process of a guest: runs the steps that kernels.py has put beside it, and tells by the second serial line what came of each.

A line is a JSON object: `begin` with a name; `printed`, as it comes; `end` with a name, an exit status (None: its time was over, and then there is a picture of
its processes), and its JUnit report if it wrote one; `over` at the end. Nothing here knows what the steps are.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import termios
import time
import traceback

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "real"))
import harness  # noqa: E402

LINE = "/dev/ttyS1"
REPORT = "/tmp/report.xml"
PRINTED = "/tmp/printed"
# What is told of processes that hang.
KEPT = 40000
MOUNTS = [("proc", "/proc"), ("sysfs", "/sys"), ("devpts", "/dev/pts"), ("tmpfs", "/dev/shm"), ("tmpfs", "/tmp"), ("tmpfs", "/run"), ("cgroup2", "/sys/fs/cgroup"), ("tracefs", "/sys/kernel/tracing")]
RESTART = 0x01234567


def mount_all():
    """The kernel's file systems; those that this kernel lacks stay away."""
    for kind, place in MOUNTS:
        if kind == "devpts" or place == "/dev/shm":
            os.makedirs(place, exist_ok=True)
        subprocess.run(["mount", "-t", kind, kind, place], check=False)
    os.chmod("/tmp", 0o1777)
    for name, path in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        if not os.path.lexists(f"/dev/{name}"):
            os.symlink(path, f"/dev/{name}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False)


def open_line():
    """The serial line, which changes no byte."""
    line = os.open(LINE, os.O_WRONLY | os.O_NOCTTY)
    settings = termios.tcgetattr(line)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(line, termios.TCSANOW, settings)
    return line


def tell(line, **what):
    """One line to the host."""
    data = json.dumps(what).encode() + b"\n"
    while data:
        data = data[os.write(line, data):]


def blocked_tasks():
    """The kernel says on the console which threads wait, and what each processor does."""
    for letter in "wl":
        try:
            with open("/proc/sysrq-trigger", "w", encoding="ascii") as file:
                file.write(letter)
        except OSError:
            pass


def follow(process, seconds, line):
    """Tells what a step prints, until it ends: its exit status, or None if its time is over."""
    deadline, status, over = time.monotonic() + seconds, None, False
    with open(PRINTED, "rb") as file:
        while True:
            # What was printed before the end is there after it.
            over = status is not None or time.monotonic() > deadline
            text = file.read(1 << 16)
            if text:
                tell(line, printed=text.decode(errors="replace"))
            elif over:
                return status
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.3)


def run(step, line):
    """One step: (status or None, a picture if it had no end)."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
                   **step["environment"]}
    with open(PRINTED, "wb") as out:
        process = subprocess.Popen(step["argv"], cwd="/farshore", env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    status, picture = follow(process, step["seconds"], line), ""
    if status is None:
        blocked_tasks()
        # A run under the watchdog of harness.py has a session of its own.
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) > 1 and os.path.exists(f"/proc/{name}/exe")]
        pids = [pid for pid in pids if harness.read_text(f"/proc/{pid}/cmdline") and pid != os.getpid()]
        picture = "\n".join(harness.describe_process(pid) for pid in pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        process.wait()
    return status, picture


def work():
    """All steps."""
    mount_all()
    line = open_line()
    tell(line, hello=os.uname().release, libc=os.confstr("CS_GNU_LIBC_VERSION"), processors=os.cpu_count())
    with open(os.path.join(HERE, "steps.json"), encoding="utf-8") as file:
        given = json.load(file)
    for path, target in given["aliases"].items():
        # Programs find their own libraries by the paths of the machine that built them.
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)
    for step in given["steps"]:
        tell(line, begin=step["name"])
        if os.path.exists(REPORT):
            os.unlink(REPORT)
        status, picture = run(step, line)
        report = harness.read_text(REPORT, 1 << 24) if os.path.exists(REPORT) else None
        tell(line, end=step["name"], status=status, picture=picture[-KEPT:], report=report)
    with open("/dev/kmsg", "rb", buffering=0) as file:
        os.set_blocking(file.fileno(), False)
        bad = []
        while True:
            try:
                record = file.read(8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            if not record:
                break
            text = record.decode(errors="replace").partition(";")[2].split("\n")[0]
            if any(word in text for word in ("WARNING:", "BUG:", "Oops", "rcu: INFO", "blocked for more than")):
                bad.append(text)
    tell(line, over=True, kernel=bad)
    termios.tcdrain(line)


def main():
    """Process 1: all orphans are its children."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    while True:
        try:
            if os.wait()[0] == child:
                break
        except ChildProcessError:
            break
    os.sync()
    ctypes.CDLL(None).reboot(RESTART)


if __name__ == "__main__":
    main()
