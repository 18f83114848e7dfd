"""What one looks at while programs run: `farshore top` on a screen and printed, `farshore metrics` as Prometheus reads it, `farshore plan` of programs whose
pattern is known. The programs are in states that are known: more than their limit, dormant, stopped, a family, another user's.
"""

import collections
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time
import urllib.error
import urllib.request

import harness
import pytest
from command import Command, NOBODY
from harness import MIB, Unavailable, expect
from managed import MOVER

# Only a hang comes to it.
PATIENCE = 120
# Whose programs these are, where we are root: so that no other program is among them.
OURS, OTHERS = NOBODY - 701, NOBODY - 702
LINES, COLUMNS = 24, 132

# A program that has written so many MiB, says so, and ends at the end of its input.
HOLDER = """
import sys
data = bytearray(int(sys.argv[1]) << 20)
for at in range(0, len(data), 4096):
    data[at] = 1 + at % 255
print("ready", flush=True)
sys.stdin.read()
"""

# A parent and a child that hold memory of one limit. (A child can be asked from its first fault on.)
FAMILY = """
import os, sys
data = bytearray(24 << 20)
for at in range(0, len(data), 4096):
    data[at] = 1
child = os.fork()
if child == 0:
    for at in range(0, len(data), 4096):
        data[at] = 2
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
os.waitpid(child, 0)
"""

# Reads OpenMetrics as Prometheus does, and prints each sample: name, labels, value; then type, unit and help of each family.
PARSER = """
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
samples, families = [], {}
for family in text_string_to_metric_families(sys.stdin.read()):
    families[family.name] = [family.type, family.unit, family.documentation]
    samples += [[sample.name, sample.labels, sample.value] for sample in family.samples]
json.dump([samples, families], sys.stdout)
"""


def until(what, seen):
    """Waits until `seen` gives something true, and returns it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := seen():
            return found
        time.sleep(0.05)
    raise harness.Failed(f"it has not come to be in {PATIENCE} s: {what}")


def pyte():
    """The terminal that the screen is drawn on."""
    try:
        import pyte as module
    except ImportError:
        raise Unavailable("no python3 has pyte (apt-get install python3-pyte)") from None
    return module


class Screen:
    """`farshore top` on a terminal of its own."""

    def __init__(self, argv):
        module = pyte()
        self.screen = module.Screen(COLUMNS, LINES)
        self.stream, self.raw = module.ByteStream(self.screen), b""
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(argv, stdin=self.slave, stdout=self.slave, stderr=self.slave, env=dict(os.environ, TERM="xterm-256color"), start_new_session=True)

    def read(self):
        """Takes what was drawn."""
        while select.select([self.master], [], [], 0.05)[0]:
            drawn = os.read(self.master, 1 << 16)
            self.raw += drawn
            # The size is asked for by escapes that pyte does not know.
            self.stream.feed(drawn)

    def lines(self):
        """What is on it."""
        self.read()
        return [line.rstrip() for line in self.screen.display]

    def rows(self):
        """The rows of programs by their process, in order; each as a list of words. One that is not there, or not yet drawn as a whole, has dashes."""
        found = ((line.split() + ["-"] * COLUMNS)[:COLUMNS] for line in self.lines()[2:-1])
        return collections.defaultdict(lambda: ["-"] * COLUMNS, {int(words[0]): words for words in found if words[0].isdigit()})

    def press(self, keys):
        """Types."""
        os.write(self.master, keys)

    def wait(self, what, seen):
        """Waits until the screen shows something."""
        try:
            return until(what, seen)
        except harness.Failed as why:
            raise harness.Failed(str(why) + "\n" + "\n".join(self.lines())) from None

    def end(self):
        """Its status, once it has ended."""
        until("it ends", lambda: (self.read(), self.process.poll() is not None)[1])
        self.read()
        return self.process.returncode

    def close(self):
        """Ends it in any case."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture(autouse=True)
def as_from_a_shell():
    """Signals end programs here, also where nohup or a shell in the background has had them ignored for the tests."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


class TestSeeing(Command):
    def view(self):
        """The other program, beside the copy of the command."""
        there = os.path.join(self.bin, "farshore-view")
        if not os.path.exists(there):
            built = os.path.join(os.path.dirname(harness.find_farshore(self.options.farshore)), "farshore-view")
            expect(os.path.exists(built), f"farshore-view is not built: there is no {built}")
            shutil.copy(built, there)
        return self.farshore

    @staticmethod
    def as_user(user):
        """Words that make a command another user's, if we may."""
        if os.geteuid() != 0:
            return []
        return [harness.need("setpriv", "util-linux"), "--reuid", str(user), "--regid", str(user), "--clear-groups"]

    @contextlib.contextmanager
    def program(self, script, *words, memory="16M", user=OURS, said=True):
        """A program under Farshore that has come to its state; and its process."""
        python = harness.python_with("ctypes", "python3")
        argv = [*self.as_user(user), self.farshore, "run", "--memory", memory, "--", python, "-c", script, *map(str, words)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/") as process:
            try:
                if said:
                    process.line = process.stdout.readline().decode().strip()
                    expect(process.line, f"it has ended: {process.stderr.read()[-500:] if not process.line else str()}")
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                process.stdin.close()
                process.stdin = None
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()

    def top(self, *words, user=OURS):
        """The rows of `top --once` by process, each as a dictionary."""
        self.view()
        done = self.call("top", "--once", "--interval", "0.5", *words, user=user)
        expect(done.status == 0 and not done.err, f"top --once: status {done.status}: {done.err}")
        head, *lines = done.out.splitlines()
        heads = head.split()
        expect(heads == ["PID", "NAME", "LIMIT", "RESIDENT", "OUT", "FAULTS/S", "EVICT/S", "STALL", "SLOWED", "FAMILY"], f"the head is {head}")
        rows = [dict(zip(heads, line.split(None, len(heads) - 1))) for line in lines]
        return {int(row["PID"]): row for row in rows}

    @staticmethod
    def bytes(text):
        """What a size in the table says."""
        number, unit = re.fullmatch(r"([\d.]+)([KMGT]?)", text).groups()
        return float(number) * 1024 ** " KMGT".index(unit or " ")

    def test_table(self):
        """Each program in its state has its row, the user's own alone; root sees all."""
        self.view()
        with (self.program(HOLDER, 40) as holder, self.program(MOVER, 40) as mover, self.program(HOLDER, 4, memory="1G") as fits,
              self.program(FAMILY, memory="32M") as parent, self.program(HOLDER, 20, user=OTHERS) as other):
            child = int(parent.line)
            ours = {holder.pid, mover.pid, fits.pid, parent.pid, child}
            nothing = ("-", "0", "0%")

            def look(*words):
                """A look in which all have answered: on a busy machine one may be late."""
                return until("all answer", lambda: (rows := self.top(*words)) and ours <= set(rows) and not any(rows[pid]["FAMILY"].startswith("no answer") for pid in ours) and rows)

            def both():
                """The one moves, the other does not: the interpreter of the holder may do something still, and the mover wait for the disk."""
                rows = look()
                moves = [rows[mover.pid][what] not in nothing for what in ("FAULTS/S", "EVICT/S", "STALL")]
                return rows if all(moves) and rows[holder.pid]["FAULTS/S"] == "0" else None

            rows = until("the one moves, the other does not", both)
            held, moved, small = rows[holder.pid], rows[mover.pid], rows[fits.pid]
            expect(held["NAME"].startswith("python3") and held["LIMIT"] == "16M", f"the holder: {held}")
            expect(8 * MIB <= self.bytes(held["RESIDENT"]) <= 16.6 * MIB, f"the holder, resident: {held}")
            expect(self.bytes(held["OUT"]) >= 20 * MIB, f"40 MiB in 16, and out are {held}")
            expect((held["FAULTS/S"], held["STALL"], held["FAMILY"]) == ("0", "0%", "-"), f"it does nothing: {held}")
            expect(float(moved["FAULTS/S"]) > 0 and float(moved["EVICT/S"]) > 0 and moved["STALL"] != "0%", f"it works: {moved}")
            expect((small["LIMIT"], small["RESIDENT"], small["STALL"], small["FAMILY"]) == ("1.0G", "-", "-", "dormant"), f"it fits: {small}")
            for pid in (parent.pid, child):
                expect(rows[pid]["LIMIT"] == "32M" and rows[pid]["FAMILY"].endswith("of 2"), f"a family of two: {rows[pid]}")
            # Still dormant, although somebody has looked.
            expect(look()[fits.pid]["FAMILY"] == "dormant", "it was woken")
            by = [pid for pid in self.top("--sort", "pid") if pid in rows]
            expect(by == sorted(by), f"by number: {by}")
            until("by faults the mover, which has most, is before the holder", lambda: (by := list(look("--sort", "faults"))).index(mover.pid) < by.index(holder.pid))
            seen = len(rows)
            if os.geteuid() == 0:
                expect(other.pid not in rows and set(rows) == ours, f"user {OURS} sees {sorted(rows)}, and {other.pid} is another's")
                expect({holder.pid, other.pid} <= set(self.top(user=None)), "root does not see all")
        return f"{seen} rows"

    def test_stopped(self):
        """A stopped program has its row, and the others have theirs; when it goes on, it has its numbers again."""
        self.view()
        with self.program(HOLDER, 40) as stopped, self.program(HOLDER, 40) as other:
            os.kill(stopped.pid, signal.SIGSTOP)
            # On a busy machine one that is not stopped may be late, but not each time.
            rows = until("the other answers", lambda: (rows := self.top()) and rows[other.pid]["STALL"] != "-" and rows)
            expect(rows[stopped.pid]["FAMILY"].startswith("no answer"), f"stopped: {rows[stopped.pid]}")
            os.kill(stopped.pid, signal.SIGCONT)
            until("it goes on", lambda: self.top()[stopped.pid]["LIMIT"] == "16M")
        return "2 programs"

    @contextlib.contextmanager
    def screen(self, *words):
        """`farshore top` on a terminal."""
        screen = Screen([*self.as_user(OURS), self.view(), "top", "--interval", "0.2", *words])
        try:
            yield screen
        finally:
            screen.close()

    def test_screen(self):
        """The screen shows programs as they come, stop and go, and obeys keys; the terminal is as before at the end."""
        with self.screen("--sort", "pid") as screen:
            # (Who is not root may have programs of his own.)
            screen.wait("it is drawn", lambda: screen.lines()[0].startswith(" farshore top:"))
            if os.geteuid() == 0:
                screen.wait("nothing runs", lambda: "No program runs under Farshore" in "\n".join(screen.lines()))
            with self.program(MOVER, 40) as mover, self.program(HOLDER, 40) as holder:
                screen.wait("both are there with rates", lambda: all("-" not in screen.rows().get(pid, ["-"])[5:7] for pid in (mover.pid, holder.pid)))
                screen.wait("the mover has bars of more than one height", lambda: len(set(screen.rows()[mover.pid][6]) & set("▁▂▃▄▅▆▇█")) > 1)
                screen.wait("the holder has none", lambda: screen.rows()[holder.pid][5] == "0" and screen.rows()[holder.pid][6].endswith("▁"))
                screen.wait("the holder's limit", lambda: screen.rows()[holder.pid][2] == "16M")
                expect("PID▼" in screen.lines()[1], screen.lines()[1])

                def order():
                    return [pid for pid in screen.rows() if pid in (mover.pid, holder.pid)]

                expect(order() == sorted(order()), f"by number: {order()}")
                screen.press(b"r")
                screen.wait("the other way round", lambda: order() == sorted(order(), reverse=True) and "PID▲" in screen.lines()[1])
                # Five columns to the right: limit, resident, out, faults.
                screen.press(b"\x1b[C" * 5)
                screen.wait("by faults", lambda: order() == [mover.pid, holder.pid] and "FAULTS/S▼" in screen.lines()[1])
                screen.press(b"\x1b[D")
                screen.wait("by what is out", lambda: "OUT▼" in screen.lines()[1])
                os.kill(holder.pid, signal.SIGSTOP)
                screen.wait("it is stopped", lambda: "no answer for" in "\n".join(screen.lines()) and "1 without an answer" in screen.lines()[0])
                screen.wait("the other goes on", lambda: screen.rows()[mover.pid][5] not in ("-", "0"))
                os.kill(holder.pid, signal.SIGCONT)
                screen.wait("it answers", lambda: "no answer" not in "\n".join(screen.lines()))
                screen.press(b"p")
                screen.wait("the screen stands", lambda: screen.lines()[0].endswith("[stopped]"))
                # The first line is drawn first.
                stood = screen.wait("all of it is drawn", lambda: (lines := screen.lines()) == (time.sleep(0.3), screen.lines())[1] and lines)
                time.sleep(1)
                expect(screen.lines() == stood, "it has changed")
                screen.press(b" ")
                screen.wait("it goes on", lambda: not screen.lines()[0].endswith("[stopped]"))
            screen.wait("both are gone", lambda: not {mover.pid, holder.pid} & set(screen.rows()))
            screen.press(b"q")
            expect(screen.end() == 0, f"q: status {screen.process.returncode}")
            expect(screen.raw.rstrip().endswith(b"\x1b[?25h") and screen.raw.count(b"\x1b[?1049h") == screen.raw.count(b"\x1b[?1049l") == 1, f"at the end: {screen.raw[-60:]}")
            expect(termios.tcgetattr(screen.slave) == screen.before, "the terminal is not as before")
        for ends, status in ((b"\x03", 0), (signal.SIGTERM, -signal.SIGTERM)):
            with self.screen() as screen:
                screen.wait("it is drawn", lambda: screen.lines()[0].startswith(" farshore top:"))
                if isinstance(ends, bytes):
                    screen.press(ends)
                else:
                    screen.process.send_signal(ends)
                ended = screen.end()
                expect(ended in (status, 128 - status), f"{ends}: status {ended}")
                expect(termios.tcgetattr(screen.slave) == screen.before, f"{ends}: the terminal is not as before")
        return "5 keys, 3 ends"

    # ------------------------------------------------------------------------------------------ metrics

    @contextlib.contextmanager
    def serving(self, address, *words):
        """`farshore metrics` at an address, and what it says of where it is."""
        argv = [*self.as_user(OURS), self.view(), "metrics", "--listen", address, *words]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/") as process:
            try:
                said = process.stderr.readline().decode().strip()
                expect(said.startswith("farshore: metrics are at "), f"it says {said!r}")
                yield process, said.removeprefix("farshore: metrics are at ")
            finally:
                if process.poll() is None:
                    process.kill()

    @staticmethod
    def get(url, method="GET"):
        """Status, type and text of an answer."""
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=PATIENCE) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    def parsed(self, text):
        """Samples (name, labels, value) and families (type, unit, help), as Prometheus' own library reads them."""
        python = harness.python_with("prometheus_client", "python3-prometheus-client")
        done = subprocess.run([python, "-c", PARSER], input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        expect(done.returncode == 0, f"it is not OpenMetrics: {done.stderr.decode()[-500:]}\n{text[:500]}")
        return json.loads(done.stdout)

    def check_of(self, pid, samples, families, stats):
        """Each number that `stat` tells of a program is a sample of it."""
        mine = {name: value for name, labels, value in samples if labels.get("pid") == str(pid) and "space" not in labels}
        checked = 0

        def look(path, value):
            nonlocal checked
            if isinstance(value, dict):
                for name, inside in value.items():
                    look([*path, name], inside)
            elif isinstance(value, (bool, int)) and path[0] not in ("schema", "pid", "kinds"):
                unit = "seconds" if "ns" in "_".join(path).split("_") else "bytes" if "bytes" in "_".join(path).split("_") else ""
                words = [word for word in "_".join(path).split("_") if word not in ("ns", "bytes")]
                names = ["farshore_" + "_".join([*words, *([unit] if unit else []), *ending]) for ending in ([], ["total"])]
                names += ["farshore_" + "_".join([*words[:-1], unit, "total"])] if words[-1] == "total" else []
                found = [name for name in names if name in mine]
                expect(len(found) == 1, f"{'.'.join(path)} should be one of {names}, of which are there {found}")
                wanted = value / 1e9 if unit == "seconds" else value
                # The program is asleep, but for the question itself.
                if path[0] not in ("uptime_ns", "processor_ns", "overhead_bytes", "overhead_bytes_peak", "frames"):
                    expect(abs(mine[found[0]] - wanted) <= 1e-6 * abs(wanted), f"{found[0]} is {mine[found[0]]}, and stat says {wanted}")
                family = families[found[0].removesuffix("_total")]
                expect(family[1] == unit and family[2] and family[0] == ("counter" if found[0].endswith("_total") else "gauge"), f"{found[0]}: {family}")
                checked += 1

        look([], stats)
        return checked

    def test_metrics(self):
        """Prometheus' own library reads what is served, each number of `stat` is there, and a stopped program keeps nobody waiting."""
        with (self.program(HOLDER, 40) as holder, self.program(HOLDER, 40) as stopped, self.program(HOLDER, 4, memory="1G") as fits,
              self.program(HOLDER, 20, user=OTHERS) as other, self.serving("127.0.0.1:0") as (server, url)):
            expect(re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url), f"it is at {url}")
            os.kill(stopped.pid, signal.SIGSTOP)
            for _ in range(2):
                status, kind, text = self.get(url)
                expect(status == 200 and kind.startswith("application/openmetrics-text; version=1.0.0"), f"{status} {kind}")
                samples, families = self.parsed(text)
            up = {int(labels["pid"]): value for name, labels, value in samples if name == "farshore_up"}
            expect(up.get(holder.pid) == 1 and up.get(stopped.pid) == 0, f"up: {up}")
            dormant = [int(labels["pid"]) for name, labels, _ in samples if name == "farshore_dormant"]
            expect(fits.pid in dormant, f"dormant: {dormant}")
            if os.geteuid() == 0:
                expect(other.pid not in up, f"another user's program {other.pid} is among {up}")
            expect(all(labels["name"] for _, labels, _ in samples), "a sample has no name")
            done = self.call("stat", "--json", str(holder.pid), user=OURS)
            checked = self.check_of(holder.pid, samples, families, json.loads(done.out))
            spaces = [(labels, value) for name, labels, value in samples if name == "farshore_spaces_used_bytes" and labels["pid"] == str(holder.pid)]
            expect(len(spaces) == 1 and spaces[0][0]["space"].startswith("dir:") and spaces[0][1] >= 20 * MIB, f"its swap space: {spaces}")
            # Once on standard output, with what only the kernel knows.
            done = self.call("metrics", "--kinds", user=OURS)
            kinds = [value for name, labels, value in self.parsed(done.out)[0] if name == "farshore_kinds_managed_bytes" and labels["pid"] == str(holder.pid)]
            expect(kinds and 8 * MIB <= kinds[0] <= 17 * MIB, f"managed and in RAM: {kinds}")
            # Clients that say nothing, or do not listen, keep nobody waiting.
            place = ("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            with contextlib.ExitStack() as stack:
                for said in (b"", b"GET /metrics HTTP/1.1\r\nHo", b"GET /metrics HTTP/1.1\r\n\r\n"):
                    client = stack.enter_context(socket.create_connection(place))
                    client.sendall(said)
                expect(self.get(url)[0] == 200, "others keep it from answering")
            # Many of them do not either.
            with contextlib.ExitStack() as stack:
                for number in range(300):
                    client = stack.enter_context(socket.create_connection(place))
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        client.sendall(b"GET /metrics HTTP/1.1\r\nHo" if number % 2 else b"")
                for _ in range(5):
                    expect(self.get(url)[0] == 200, "many others keep it from answering")
            root = url.removesuffix("/metrics")
            answers = [self.get(root + "/")[0], self.get(root + "/other")[0], self.get(url, "POST")[0], self.get(url, "HEAD")]
            expect(answers[:3] == [200, 404, 405] and answers[3][0] == 200 and not answers[3][2], f"{answers}")
            self.refused(["metrics", "--listen", url[7:].split("/")[0]], (1,), "cannot listen at", user=OURS)
            server.send_signal(signal.SIGTERM)
            expect(server.wait(PATIENCE) == 143, f"SIGTERM: status {server.returncode}")
        return f"{checked} numbers"

    def test_path(self):
        """A socket with a path is for its user alone, goes at the end, and replaces one that was left behind; nothing else."""
        folder = self.folder("socket", 0o777)
        path = os.path.join(folder, "metrics")

        def ask():
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PATIENCE)
                client.connect(path)
                client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                answer = b""
                while piece := client.recv(1 << 16):
                    answer += piece
                return answer

        with self.serving(f"unix:{path}") as (server, said):
            expect(said == f"unix:{path}" and os.stat(path).st_mode & 0o777 == 0o600, f"{said}: {os.stat(path)}")
            answer = ask()
            expect(answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"# EOF\n"), f"{answer[:200]}")
            self.refused(["metrics", "--listen", f"unix:{path}"], (1,), "is there already", user=OURS)
            server.send_signal(signal.SIGINT)
            expect(server.wait(PATIENCE) == 130 and not os.path.exists(path), f"SIGINT: status {server.returncode}")
        with self.serving(f"unix:{path}") as (server, _):
            server.kill()
            server.wait(PATIENCE)
        expect(os.path.exists(path), "kill -9 leaves it")
        with self.serving(f"unix:{path}"):
            expect(ask().endswith(b"# EOF\n"), "it does not answer")
        os.unlink(path)
        with open(path, "w", encoding="ascii") as file:
            file.write("mine")
        self.refused(["metrics", "--listen", f"unix:{path}"], (1,), "is there already", user=OURS)
        self.refused(["metrics", "--listen", f"unix:{folder}/no/such"], (1,), "cannot listen at", user=OURS)
        expect(harness.read_text(path) == "mine", "the file is another")
        return "5 starts"

    def test_without_threads(self):
        """A server that gets no thread for a client goes on, and answers those that come later."""
        path = os.path.join(self.folder("short", 0o777), "metrics")
        with self.serving(f"unix:{path}") as (server, _), contextlib.ExitStack() as stack:
            # Room for no thread's stack; what a limit of its control group would do, too.
            size = 1024 * int(re.search(r"VmSize:\s+(\d+)", harness.read_text(f"/proc/{server.pid}/status"))[1])
            subprocess.run([*self.as_user(OURS), "prlimit", "--pid", str(server.pid), f"--as={size + 200 * 1024}:"], check=True)
            for n in range(5):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(PATIENCE)
                client.connect(path)
                # One may have the stack of a thread before, and keeps it: its request has no end.
                client.sendall(b"GET /metrics HTTP/1.1\r\n" + (b"\r\n" if n else b""))
                expect(n == 0 or client.recv(1) == b"", "a client without a thread is not closed")
            subprocess.run([*self.as_user(OURS), "prlimit", "--pid", str(server.pid), "--as=unlimited:"], check=True)
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(PATIENCE)
            client.connect(path)
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            expect(client.recv(15) == b"HTTP/1.1 200 OK", "it does not answer")
        return "5 clients"

    # ------------------------------------------------------------------------------------------ plan

    def plan(self, *words, status=0):
        """What `farshore plan` says of a program: the JSON, what is printed, and what the program has printed."""
        self.view()
        path = os.path.join(self.folder("plan"), "plan.json")
        done = self.call("plan", "--json", path, *words, timeout=240)
        expect(done.status == status, f"status {done.status}: {done.err[-800:]}")
        with open(path, encoding="utf-8") as file:
            return json.load(file), done.err, done.out

    def planned(self, pattern, knee, used, *options):
        """The plan of a pattern, whose knee must be there, in MiB."""
        argv = [self.public_program("patterns"), *pattern]
        native = self.call_program(argv, timeout=120)
        told, text, out = self.plan(*options, "--", *argv)
        expect(out == native.out and native.status == 0, f"it prints {out!r}, natively {native.out!r}")
        expect(told["schema"] == 1 and told["outcome"] == "planned" and told["exit_status"] == 0, f"{told}")
        plan = told["plan"]
        where = f"knee at {plan['knee_bytes'] / MIB:.0f} MiB, used {told['used_bytes'] / MIB:.0f}, from {plan['measured_from_bytes'] / MIB:.0f}, {plan['events_lost']} lost, unseen {plan['unseen']:.2f}"
        # A limit has room for staging memory and free frames too: in a small one up to three sixteenths of it.
        expect(0.97 * knee <= plan["knee_bytes"] / MIB <= 1.28 * knee, f"{where}; it must be at {knee}\n{text}")
        expect(0.9 * used <= told["used_bytes"] / MIB <= 1.1 * used + 2, f"{where}; it uses {used}")
        rows = plan["curve"]
        expect(rows[-1]["memory_bytes"] == plan["whole_bytes"] and rows[-1]["misses"] == 0 and rows[-1]["slowdown"] == 1, f"all of it: {rows[-1]}")
        for less, more in zip(rows, rows[1:]):
            expect(less["memory_bytes"] < more["memory_bytes"] and less["misses"] >= more["misses"] and less["seconds"] >= more["seconds"] >= more["ideal_seconds"], f"{less}\n{more}")
            expect(less["measured"] == (less["memory_bytes"] >= plan["measured_from_bytes"]), f"{less}")
        expect(plan["advice"] in text and "more or less" in text, text)
        return where

    def test_plan_loop(self):
        """A loop over 96 MiB: all misses are there until all of it fits, and half of them as a part of it stays."""
        return self.planned(["loop", "96M", "6"], 96, 96)

    def test_plan_hot(self):
        """A hot set of 60 MiB in 96, with a limit in between: the knee is the hot set."""
        return self.planned(["hot", "96M", "60M", "150000"], 60, 96, "--memory", "40M")

    def test_plan_phases(self):
        """All of 128 MiB once, then 80 of them again and again."""
        # In the first rounds pages that were used once still leave, behind others that were used later: these seem to need more than they do.
        return self.planned(["phases", "128M", "80M", "16"], 80, 128)

    def test_plan_device(self):
        """Another device is asked about: its time and its rate bound the program's."""
        argv = [self.public_program("patterns"), "random", "64M", "60000"]
        told, text, _ = self.plan("--device", "read_us=100000,iops=1000", "--memory", "32M", "--", *argv)
        plan = told["plan"]
        least = next(row for row in plan["curve"] if row["memory_bytes"] == plan["measured_from_bytes"])
        expect((plan["device"], plan["device_read_us"], plan["device_iops"]) == ("read_us=100000,iops=1000", 100000, 1000), f"{plan}")
        expect(least["misses"] > 1000 and least["seconds"] >= least["misses"] * 0.001, f"{least}")
        expect(least["reads_per_second"] + least["writes_per_second"] <= 1001, f"{least}")
        return text.splitlines()[-2]

    def test_plan_fits(self):
        """A program that never needs more than its memory is told so."""
        code = "import time\ndata = bytearray(b'x') * (40 << 20)\ntime.sleep(2)\n"
        told, text, _ = self.plan("--memory", "256M", "--", harness.python_with("ctypes", "python3"), "-c", code)
        expect(told["outcome"] == "fits" and told["plan"] is None and "never needed more than" in text, f"{told}: {text}")
        expect(40 <= told["used_bytes"] / MIB < 80, f"{told}")
        return text.strip()

    def test_plan_ends(self):
        """The exit status is the program's, also by a signal and where there is no plan; mistakes are told before it runs."""
        self.view()
        for words, status, part in [
            (["--", "sh", "-c", "exit 7"], 7, "there is no plan"),
            (["--", "sh", "-c", "kill -9 $$"], 137, "there is no plan"),
            (["--", "/does/not/exist"], 127, "does not exist"),
            (["--", "/etc/passwd"], 126, "/etc/passwd"),
            (["--memory", "1K", "--", "true"], 125, "at least"),
            (["--json", "/does/not/exist", "--", "true"], 125, "--json: cannot write '/does/not/exist'"),
            ([], 125, "no PROGRAM given"),
            (["--pid", "1"], 1, "process 1"),
            (["--device", "read_us=0", "--", "true"], 125, 'read_us="0" is not from'),
            (["--device", "read_us=1,iops=1e10", "--", "true"], 125, 'iops="1e10" is not from'),
        ]:
            done = self.call("plan", *words)
            expect(done.status == status and part in done.err, f"{words}: status {done.status}: {done.err}")
        # In the middle of its work, by a signal that is for the command.
        python = harness.python_with("ctypes", "python3")
        code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\ndata = bytearray(40 << 20)\nrounds = 0\nwhile True:\n" \
               "    for at in range(0, len(data), 4096):\n        data[at] = 1\n    rounds += 1\n    if rounds == 8:\n        print('ready', flush=True)\n"
        with subprocess.Popen([self.farshore, "plan", "--memory", "16M", "--json", "-", "--", python, "-c", code], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            expect(process.stdout.readline() == b"ready\n", "it does not run")
            process.terminate()
            out, err = process.communicate(timeout=PATIENCE)
            told = json.loads(out)
            expect(process.returncode == 9 == told["exit_status"] and told["outcome"] == "planned", f"status {process.returncode}: {told}, {err}")
        return "11 ends"

    def test_plan_family(self):
        """A script whose child has the memory is not said to fit, and neither is a program that is not there."""
        code = "import time\ndata = bytearray(b'x') * (60 << 20)\ntime.sleep(1)\n"
        told, text, _ = self.plan("--", "sh", "-c", '"$@"; true', "sh", harness.python_with("ctypes", "python3"), "-c", code)
        expect(told["outcome"] in ("unseen", "planned") and told["other_processes"] and "other processes" in text and "is enough" not in text, f"{told}: {text}")
        told, _, _ = self.plan("--", "/does/not/exist", status=127)
        expect((told["outcome"], told["plan"], told["used_bytes"]) == ("unseen", None, 0), f"{told}")
        return text.strip().splitlines()[-1]

    def test_plan_signals(self):
        """A program that is planned for finds its signals as `run` gives them to it, also those that were ignored or blocked. (What is caught depends on whether
        it was awake by then.)"""
        self.view()
        masks = "import os, signal, sys\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n" \
                "for name in sys.argv[1].split():\n    signal.signal(getattr(signal, 'SIG' + name), signal.SIG_IGN)\n" \
                "for name in ['PIPE', 'XFSZ']:\n    if name not in sys.argv[1]:\n        signal.signal(getattr(signal, 'SIG' + name), signal.SIG_DFL)\n" \
                "os.execv(sys.argv[2], sys.argv[2:])\n"
        python = harness.need("python3", "python3")
        seen = []
        for ignored in ["", "HUP", "INT QUIT", "TERM CHLD PIPE"]:
            masked = [self.call_program([python, "-c", masks, ignored, self.farshore, how, "--memory", "64M", "--", "grep", "Sig[BI]", "/proc/self/status"]) for how in ("run", "plan")]
            run, plan = (done.out for done in masked)
            expect(run == plan and run.count("Sig") == 2, f"{ignored}: run has\n{run}, plan\n{plan}: {masked[1].err}")
            seen += [line.split()[1] for line in plan.splitlines() if line.startswith("SigIgn")]
        expect(len(set(seen)) == 4, f"what is ignored differs: {seen}")
        return " ".join(seen)

    def test_plan_passes_signals_on(self):
        """What is sent to the command alone by somebody comes to the program, and Ctrl-C of a terminal once."""
        self.view()
        python = harness.need("python3", "python3")
        code = "import signal, sys, time\ncount = 0\ndef came(number, _):\n    print(number, flush=True)\n" \
               "for number in (1, 2, 3, 15):\n    signal.signal(number, came)\nprint('ready', flush=True)\nsys.stdin.read()\n"
        argv = [self.farshore, "plan", "--memory", "64M", "--", python, "-c", code]
        with subprocess.Popen(argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            expect(process.stdout.readline() == b"ready\n", "it does not run")
            for number in (1, 2, 3, 15):
                process.send_signal(number)
                expect(select.select([process.stdout], [], [], PATIENCE)[0], f"signal {number} does not come")
                expect(process.stdout.readline() == b"%d\n" % number, f"signal {number}")
            out, err = process.communicate(timeout=PATIENCE)
            expect((process.returncode, out) == (0, b""), f"status {process.returncode}: {out}, {err}")
        master, slave = pty.openpty()
        ready = lambda: select.select([master], [], [], PATIENCE)[0] and os.read(master, 1 << 16)
        terminal = lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=subprocess.PIPE, preexec_fn=terminal) as process:
            drawn = ready()
            expect(b"ready" in drawn, f"it does not run: {drawn}")
            os.write(master, b"\x03")
            time.sleep(1)
            os.write(master, b"\x04")
            _, err = process.communicate(timeout=PATIENCE)
            expect(process.returncode == 0, f"status {process.returncode}: {err}")
        drawn = os.read(master, 1 << 16)
        os.close(slave)
        os.close(master)
        expect(drawn.replace(b"^C", b"").split() == [b"2"], f"Ctrl-C: {drawn}")
        return "4 signals, and Ctrl-C once"

    def test_plan_leaves_nothing(self):
        """A program that gives up its user says what it says natively, and a plan that is killed leaves no file."""
        self.view()
        place = self.folder("temporary", 0o777)
        env = {"TMPDIR": place}
        python = harness.python_with("ctypes", "python3")
        if os.geteuid() == 0:
            code = f"import os, sys\ndata = bytearray(b'x') * (24 << 20)\nos.setgid({OURS})\nos.setuid({OURS})\nprint('done', file=sys.stderr)\n"
            done = self.call("plan", "--memory", "16M", "--", python, "-c", code, env=env)
            said = done.err.splitlines()
            expect(done.status == 0 and said[0] == "done" and len(said) > 1 and said[1].startswith("farshore: '"), f"status {done.status}: {done.err}")
        argv = [self.farshore, "plan", "--memory", "16M", "--", python, "-c", HOLDER, "24"]
        with subprocess.Popen(argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, **env)) as process:
            expect(process.stdout.readline() == b"ready\n", "it does not run")
            process.kill()
            _, err = process.communicate(timeout=PATIENCE)
            expect(err == b"", f"{err}")
        expect(not os.listdir(place), f"left behind: {os.listdir(place)}")
        return "nothing"

    def test_plan_of_a_running_program(self):
        """A program that runs is watched until Ctrl-C, and goes on."""
        self.view()
        with self.program(MOVER, 40) as mover:
            with subprocess.Popen([*self.as_user(OURS), self.farshore, "plan", "--json", "-", "--pid", str(mover.pid)], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
                expect(b"watching process" in watching.stderr.readline(), "it does not watch")
                # Over its 40 MiB twice at least: within five seconds on an idle machine, later on a busy one.
                fetched = lambda: json.loads(self.call("stat", "--json", str(mover.pid), user=OURS).out)["faults"]["fetch"]
                before = fetched()
                time.sleep(5)
                until("it has gone over its memory", lambda: fetched() - before >= 2 * 40 * MIB // 4096)
                watching.send_signal(signal.SIGINT)
                out, err = watching.communicate(timeout=PATIENCE)
                expect(watching.returncode == 0, f"status {watching.returncode}: {err}")
            told = json.loads(out)
            expect(told["outcome"] == "planned" and 14 <= told["plan"]["measured_from_bytes"] / MIB <= 18, f"{told}")
            expect(39 <= told["plan"]["knee_bytes"] / MIB <= 1.28 * 42, f"the knee: {told['plan']['knee_bytes'] / MIB:.0f} MiB, {told['plan']}")
            expect(mover.poll() is None, "it has ended")
        return f"knee at {told['plan']['knee_bytes'] / MIB:.0f} MiB"

    def test_any_name(self):
        """A program whose name is no text is asked, set, watched and recorded as any other: the kernel cuts a name after 15 bytes, also in the middle of a letter."""
        self.view()
        script = "import ctypes\nctypes.CDLL(None).prctl(15, b'name\\xd0', 0, 0, 0)\n" + MOVER
        with self.program(script, 24, memory="1G") as dormant:
            done = self.call("stat", str(dormant.pid), user=OURS)
            expect(done.status == 0 and "limit" in done.out, f"dormant: status {done.status}: {done.err}")
        seen = []
        with self.program(script, 40) as mover:
            pid = str(mover.pid)
            with open(f"/proc/{pid}/comm", "rb") as file:
                expect(file.read() == b"name\xd0\n", "it has another name")
            for words in (["stat", pid], ["set", pid, "memory=20M"]):
                done = self.call(*words, user=OURS)
                expect(done.status == 0, f"{words}: status {done.status}: {done.err}")
            recording = os.path.join(self.folder("record", 0o777), "name.rec")
            for words in (["plan", "--pid", pid], ["record", "-o", recording, pid]):
                with subprocess.Popen([*self.as_user(OURS), self.farshore, *words], bufsize=0, stderr=subprocess.PIPE) as watching:
                    begun = watching.stderr.readline()
                    expect(f"process {pid}".encode() in begun, f"{words}: {begun}")
                    # It is no more than a look whether the program is over that the name can be in the way of.
                    time.sleep(2)
                    if watching.poll() is not None:
                        raise harness.Failed(f"{words}: it takes the program for over: {watching.stderr.read()}")
                    watching.send_signal(signal.SIGINT)
                    _, err = watching.communicate(timeout=PATIENCE)
                    expect(watching.returncode == 0, f"{words}: status {watching.returncode}: {err}")
                    seen.append(err.decode().splitlines()[0])
            expect(mover.poll() is None, "it has ended")
        return "; ".join(seen)
