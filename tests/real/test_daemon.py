"""`farshore daemon` and `farshore vm list|stat|set|policy`: the API at a socket and at a port, who may ask, what is refused, the web page in a headless browser; virtual
machines (a stand-in, tests/programs/monitor.py) that are started, steered and ended.
"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import harness
import pytest
from browser import Browser
from command import Command, NOBODY
from harness import MIB, expect
from managed import MOVER

# Only a hang comes to it.
PATIENCE = 120
# Whose programs these are, where we are root.
OURS, OTHERS = NOBODY - 704, NOBODY - 705
TOKEN = "0123456789abcdef0123456789abcdef"
# More clients than wait at the door.
CROWD = 300

# Listens as a program under Farshore does, and then calls itself the manager of the process that it is given: `X --one {} PID`, over all of its own command line.
IMPOSTOR = """
import ctypes, os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"\\0farshore-{os.getuid()}-{os.getpid()}")
listener.listen(8)
with open("/proc/self/stat") as file:
    first, last = map(int, file.read().rsplit(")", 1)[1].split()[45:47])
rest = f"\\0--one\\0{{}}\\0{sys.argv[1]}\\0".encode()
line = b"x" * (last - first - len(rest)) + rest
ctypes.memmove(first, line, len(line))
print("ready", flush=True)
while True:
    client = listener.accept()[0]
    client.recv(4096)
    client.sendall(b'{"error":"not you"}\\n')
    client.close()
"""

# Whether answers are as the API describes itself, and whether the description is one, by the OpenAPI Initiative's schema (openapi-3.1.json, of 2022-10-07, Apache-2.0): [description, its schema, [[name of a shape, answer]…]].
CHECK = """
import json, sys
from jsonschema import Draft202012Validator
description, meta, answers = json.load(sys.stdin)
def check(schema, it, name):
    errors = sorted(Draft202012Validator(schema).iter_errors(it), key=str)
    if errors:
        sys.exit(f"{name}: {list(errors[0].absolute_path)}: {errors[0].message[:300]}")
check(meta, description, "the description")
for shape, answer in answers:
    check({"$ref": f"#/components/schemas/{shape}", "components": description["components"]}, answer, shape)
print(len(answers))
"""


def until(what, seen):
    """Waits until `seen` gives something true, and returns it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := seen():
            return found
        time.sleep(0.05)
    raise harness.Failed(f"it has not come to be in {PATIENCE} s: {what}")


class Connection(http.client.HTTPConnection):
    """HTTP at a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self.path)


class Daemon:
    """`farshore daemon` at work."""

    def __init__(self, process, where):
        self.process, self.where = process, where

    def raw(self, method, target, body=None, headers=()):
        """Status, headers and text of an answer."""
        connection = Connection(self.where) if self.where.startswith("/") else http.client.HTTPConnection(self.where, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, target, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def ask(self, method, target, body=None, status=200, **headers):
        """The answer, which has this status."""
        text = json.dumps(body) if body is not None and not isinstance(body, str) else body
        found, _, said = self.raw(method, target, text, {"Content-Type": "application/json", **headers} if text is not None else headers)
        expect(found == status, f"{method} {target}: {found}, not {status}: {said[:500]}")
        return json.loads(said)

    def vm(self, pid):
        """What is told of one; nothing if it is not known."""
        status, _, text = self.raw("GET", f"/v1/vms/{pid}")
        return json.loads(text) if status == 200 else None

    def wrong(self, method, target, body, status, part):
        """A request that is refused with a line that names what is wrong."""
        said = self.ask(method, target, body, status)
        expect(set(said) == {"error"} and part in said["error"] and "\n" not in said["error"], f"{method} {target} {body}: {said}, without {part!r}")


class TestDaemon(Command):
    """The daemon of an ordinary user, and that of the one who runs the tests."""

    @pytest.fixture(autouse=True, scope="class")
    def with_daemon(self, made_ready):
        """What it needs beside the command."""
        self.beside("farshore-daemon", "farshore-manager", "farshore-view", "libfarshore_agent.so")

    @pytest.fixture(autouse=True)
    def without_monitors(self):
        """Whatever comes of a test, none of its virtual machines runs on: they do not end with the daemon."""
        yield
        mine = os.path.join(self.bin, "monitor.py").encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mine in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2]:
                    os.kill(int(pid), signal.SIGKILL)

    @staticmethod
    def as_user(user):
        """Words that make a command another user's, if we may."""
        if user is None or os.geteuid() != 0:
            return []
        return [harness.need("setpriv", "util-linux"), "--reuid", str(user), "--regid", str(user), "--clear-groups"]

    @contextlib.contextmanager
    def daemon(self, *words, user=OURS, where=None, path=None):
        """A daemon that listens: at a path of its own, unless words say more."""
        path = path or os.path.join(self.folder("daemon", 0o777), "socket")
        argv = [*self.as_user(user), self.farshore, "daemon", "--listen", f"unix:{path}", *words]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", start_new_session=True) as process:
            try:
                count = 1 + words.count("--listen")
                said = [process.stderr.readline().decode().strip() for _ in range(count)]
                expect(all(line.startswith("farshore: daemon listens at ") for line in said), f"it says {said}")
                daemon = Daemon(process, where or path)
                daemon.ports = [line.split("//")[1].rstrip("/") for line in said if "http://" in line]
                yield daemon
                expect(process.poll() is None, f"the daemon has ended: {process.poll()}")
            finally:
                process.kill()

    def token(self, user=OURS, mode=0o600):
        """A file with a token, of that user."""
        path = os.path.join(self.folder("token", 0o777), "token")
        pathlib.Path(path).write_text(TOKEN + "\n", encoding="ascii")
        os.chmod(path, mode)
        if os.geteuid() == 0 and user is not None:
            os.chown(path, user, user)
        return path

    @contextlib.contextmanager
    def program(self, *words, memory="16M", user=OURS):
        """A program that goes through its memory."""
        python = harness.python_with("ctypes", "python3")
        argv = [*self.as_user(user), self.farshore, "run", "--memory", memory, "--", python, "-c", MOVER, *map(str, words)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as process:
            try:
                expect(process.stdout.readline(), "it has ended")
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

    def monitor(self):
        """The stand-in, where every user can run it."""
        there = os.path.join(self.bin, "monitor.py")
        if not os.path.exists(there):
            shutil.copy(pathlib.Path(harness.__file__).resolve().parent.parent / "programs" / "monitor.py", there)
        return there

    # ------------------------------------------------------------------------------------------ programs, over the socket

    def test_programs(self):
        """Programs are told of with their rates, minutes and memory, and are set; answers are as the API describes them."""
        with self.daemon() as daemon, self.program(40) as mover, self.program(4, memory="1G") as fits, self.program(20, user=OTHERS) as other:
            vm = until("it is seen with rates", lambda: (vm := daemon.vm(mover.pid)) and vm["faults_per_second"] and vm)
            expect(vm["kind"] == "program" and vm["level"] == "fixed" and vm["limit_bytes"] == 16 * MIB and vm["out_bytes"] > 16 * MIB, f"{vm}")
            all_of_them = daemon.ask("GET", "/v1/vms")
            pids = {vm["pid"] for vm in all_of_them}
            expect({mover.pid, fits.pid} <= pids and (os.geteuid() != 0 or pids == {mover.pid, fits.pid}), f"{pids}, not {other.pid}")
            expect(daemon.vm(fits.pid)["state"] == "dormant", f"{daemon.vm(fits.pid)}")
            daemon.wrong("GET", f"/v1/vms/{fits.pid}/counters", None, 409, "it has no counters yet")
            counters = daemon.ask("GET", f"/v1/vms/{mover.pid}/counters")
            expect(counters["pid"] == mover.pid and counters["faults"]["fetch"] > 0, f"{counters['faults']}")
            # What the page does: a setting, and what comes of it.
            made = daemon.ask("POST", f"/v1/vms/{mover.pid}/set", {"key": "memory", "value": "24M"})
            expect(made == {"change": None}, f"{made}")
            told = json.loads(self.call("stat", "--json", str(mover.pid), user=OURS).out)
            expect(told["memory_limit_bytes"] == 24 * MIB, f"the limit is {told['memory_limit_bytes']}")
            space = self.folder("more", 0o777)
            change = daemon.ask("POST", f"/v1/vms/{mover.pid}/set", {"key": "swap+", "value": f"dir:{space}"})["change"]
            state = until("the space is there", lambda: (now := daemon.ask("GET", f"/v1/vms/{mover.pid}/changes/{change}"))["done"] and now) if change else {"done": True, "percent": 100}
            daemon.ask("POST", f"/v1/vms/{mover.pid}/set", {"key": "policy", "value": "fifo"})
            until("it has another policy", lambda: daemon.vm(mover.pid)["policy"] == "fifo")
            for key, value, part in [("memory", "lots", "memory=lots"), ("memroy", "1G", "memroy=1G"), ("policy", "best", "policy=best"), ("slowdown", "0", "slowdown=0")]:
                daemon.wrong("POST", f"/v1/vms/{mover.pid}/set", {"key": key, "value": value}, 409, part)
            past = until("it has a history", lambda: len((now := daemon.ask("GET", f"/v1/vms/{mover.pid}/history?seconds=60"))["samples"]) >= 3 and now)
            ages = [sample["age_ms"] for sample in past["samples"]]
            expect(ages == sorted(ages, reverse=True) and past["samples"][-1]["limit_bytes"] == 24 * MIB, f"{past['samples'][-1]}")
            heat = until("its memory is looked at", lambda: len((now := daemon.ask("GET", f"/v1/vms/{mover.pid}/heat"))["looks"]) >= 3 and now)
            last = heat["looks"][-1]
            resident = sum(last["resident"])
            expect(10 * MIB <= resident * 4096 <= 26 * MIB and sum(piece["bytes"] for piece in heat["pieces"]) >= 40 * MIB, f"{resident} pages are in RAM, {heat['pieces']}")
            expect(sum(last["came"]) > 0 and all(count <= piece["pages"] for count, piece in zip(last["resident"], heat["pieces"])), f"{last}")
            host = daemon.ask("GET", "/v1/host")
            expect(host["memory_bytes"] > host["available_bytes"] > 0 and host["user"] == (OURS if os.geteuid() == 0 else os.geteuid()), f"{host}")
            # One that is stopped is told so at once, and keeps nobody waiting. Who asks before it is seen is told the same, later.
            os.kill(mover.pid, signal.SIGSTOP)
            daemon.wrong("POST", f"/v1/vms/{mover.pid}/set", {"key": "memory", "value": "24M"}, 504, "is it stopped?")
            until("it is silent", lambda: daemon.vm(mover.pid)["state"] == "silent")
            daemon.wrong("POST", f"/v1/vms/{mover.pid}/set", {"key": "memory", "value": "32M"}, 504, "is it stopped?")
            os.kill(mover.pid, signal.SIGCONT)
            until("it goes on", lambda: daemon.vm(mover.pid)["state"] == "running")
            daemon.wrong("DELETE", f"/v1/vms/{mover.pid}", None, 409, "is a program")
            answers = [("Vm", vm) for vm in all_of_them] + [("Stats", counters), ("Made", made), ("Change", state), ("History", past), ("Heat", heat), ("Host", host)]
            checked = self.as_described(daemon.ask("GET", "/v1/openapi.json"), answers)
        return f"{checked} answers are as described"

    @staticmethod
    def as_described(description, answers):
        """Checks the description by OpenAPI's own schema, and answers by it."""
        python = harness.python_with("jsonschema", "python3-jsonschema")
        meta = json.loads(pathlib.Path(__file__).with_name("openapi-3.1.json").read_text(encoding="utf-8"))
        done = subprocess.run([python, "-c", CHECK], input=json.dumps([description, meta, answers]).encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        expect(done.returncode == 0, done.stderr.decode()[-800:])
        # The check itself: it sees what is wrong.
        for wrong in ([{**description, "openapi": 3}, meta, []], [description, meta, [["Made", {"change": "x"}]]]):
            bad = subprocess.run([python, "-c", CHECK], input=json.dumps(wrong).encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            expect(bad.returncode == 1, "what is not as described passes")
        return int(done.stdout)

    def test_others(self):
        """The socket is its user's and root's: another user cannot open it, and is told so if he can."""
        with self.daemon() as daemon:
            expect(os.stat(daemon.where).st_mode & 0o777 == 0o600, f"{os.stat(daemon.where)}")
            expect(daemon.ask("GET", "/v1/vms") == [], "there is something")
            if os.geteuid() != 0:
                raise harness.Unavailable("another user needs root")
            code = f"import http.client, socket\nc = http.client.HTTPConnection('localhost')\nc.sock = socket.socket(socket.AF_UNIX)\nc.sock.connect({daemon.where!r})\n" \
                "c.request('GET', '/v1/vms')\na = c.getresponse()\nprint(a.status, a.read().decode())"
            done = self.call_program([sys.executable, "-c", code], user=OTHERS)
            expect(done.status != 0 and "PermissionError" in done.err, f"{done.status}: {done.err[-300:]}")
            os.chmod(daemon.where, 0o666)
            done = self.call_program([sys.executable, "-c", code], user=OTHERS)
            expect(done.out.startswith("403 ") and f"user {OTHERS} may not ask a daemon of user {OURS}" in done.out, f"{done.out} {done.err}")
            done = self.call_program([sys.executable, "-c", code], user=OURS)
            expect(done.out == "200 []\n\n", f"{done.out} {done.err}")
        return "3 users"

    def test_impostor(self):
        """Somebody else's process that calls itself the manager of a process is not believed: neither is shown as a virtual machine, and the process is not ended."""
        if os.geteuid() != 0:
            raise harness.Unavailable("another user needs root")
        python = harness.python_with("ctypes", "python3")
        with self.daemon(user=None) as daemon, subprocess.Popen([*self.as_user(OURS), "sleep", "600"], stdin=subprocess.DEVNULL) as victim:
            try:
                argv = [*self.as_user(OTHERS), python, "-c", IMPOSTOR, str(victim.pid)]
                with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd="/") as impostor:
                    try:
                        expect(impostor.stdout.readline(), "it has ended")
                        words = pathlib.Path(f"/proc/{impostor.pid}/cmdline").read_bytes().split(b"\0")
                        expect(words[1:] == [b"--one", b"{}", str(victim.pid).encode(), b""], f"it is called {words}")
                        vm = until("it is seen", lambda: daemon.vm(impostor.pid))
                        expect(vm["pid"] == impostor.pid and vm["kind"] == "program" and vm["manager"] is None, f"{vm}")
                        daemon.wrong("DELETE", f"/v1/vms/{victim.pid}", None, 404, f"process {victim.pid}")
                        daemon.wrong("DELETE", f"/v1/vms/{impostor.pid}", None, 409, "is a program")
                        listed = json.loads(self.call("vm", "list", "--json").out)
                        expect(impostor.pid not in [it["manager"] for it in listed], f"{listed}")
                        expect(victim.poll() is None, "it was ended")
                    finally:
                        impostor.kill()
            finally:
                victim.kill()
        return "2 users"

    @contextlib.contextmanager
    def wedged(self, *words):
        """Another user's program whose memory nobody can look at (tests/programs/wedged.py)."""
        if os.geteuid() != 0:
            raise harness.Unavailable("another user needs root")
        script = pathlib.Path(harness.__file__).resolve().parent.parent / "programs" / "wedged.py"
        argv = [harness.python_with("ctypes", "python3"), str(script), str(OTHERS), *words]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/") as process:
            try:
                if not process.stdout.readline():
                    raise harness.Unavailable(f"no file system in user space can be mounted: {process.stderr.read().decode()[-200:]}")
                look = ["timeout", "1", "cat", f"/proc/{process.pid}/cmdline"]
                until("nobody can look at it", lambda: subprocess.run(look, stdout=subprocess.DEVNULL, check=False).returncode == 124)
                yield process
            finally:
                process.stdin.close()
                process.stdin = None

    def test_wedged(self):
        """Another user's programs, of which the kernel can tell nothing that takes their lock, stop neither root's daemon nor `top`, `metrics`, `vm list`, `stat` and `set`."""
        with self.program(40) as mover, self.wedged("listens") as listens, self.wedged("dormant") as dormant, self.daemon(user=None) as daemon:
            vm = until("it is seen with rates", lambda: (vm := daemon.vm(mover.pid)) and vm["faults_per_second"] and vm)
            expect(vm["state"] == "running", f"{vm}")
            silent = until("the other one is seen", lambda: daemon.vm(listens.pid))
            expect(silent["state"] == "silent" and silent["kind"] == "program", f"{silent}")
            expect(daemon.vm(dormant.pid) is None, "what is not known to run under Farshore is told of")
            until("looks go on", lambda: len(daemon.ask("GET", f"/v1/vms/{mover.pid}/history?seconds=60")["samples"]) >= 5)
            daemon.ask("POST", f"/v1/vms/{mover.pid}/set", {"key": "memory", "value": "24M"})
            daemon.wrong("POST", f"/v1/vms/{listens.pid}/set", {"key": "memory", "value": "24M"}, 504, "is it stopped?")
            heat = until("memory is looked at", lambda: len((now := daemon.ask("GET", f"/v1/vms/{mover.pid}/heat"))["looks"]) >= 2 and now)
            for words, part in [(["top", "--once"], str(mover.pid)), (["metrics", "--kinds"], f'pid="{mover.pid}"'), (["vm", "list"], "PID"), (["stat", str(mover.pid)], "managed")]:
                begun = time.monotonic()
                done = self.call(*words, timeout=PATIENCE)
                expect(done.status == 0 and part in done.out, f"{words}: {done.status}: {done.out[-300:]} {done.err[-300:]}")
                expect(time.monotonic() - begun < 30, f"{words} took {time.monotonic() - begun:.0f} s")
            for pid, part in [(listens.pid, "did not answer"), (dormant.pid, "cannot be looked at")]:
                done = self.call("stat", str(pid), timeout=PATIENCE)
                expect(done.status == 1 and part in done.err, f"{pid}: {done.status} {done.err}")
        return f"{len(heat['looks'])} looks"

    def test_no_descriptors(self):
        """Looks for which the daemon has no descriptors make it forget nothing, and it says why they have seen nothing."""
        with self.program(40, user=None) as mover, self.program(4, memory="1G", user=None) as fits, self.daemon(user=None) as daemon:
            until("there is a history", lambda: daemon.vm(mover.pid) and len(daemon.ask("GET", f"/v1/vms/{mover.pid}/history?seconds=60")["samples"]) >= 3)
            pid = daemon.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            there = set(map(int, os.listdir(f"/proc/{pid}/fd")))
            begun = time.monotonic()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (next(number for number in range(1 << 16) if number not in there), before[1]))
            time.sleep(3)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            expect({mover.pid, fits.pid} <= {vm["pid"] for vm in daemon.ask("GET", "/v1/vms")}, "it has forgotten them")
            until("it is seen again", lambda: daemon.vm(mover.pid)["state"] == "running" and daemon.vm(fits.pid)["state"] == "dormant")
            ages = [sample["age_ms"] for sample in daemon.ask("GET", f"/v1/vms/{mover.pid}/history?seconds=60")["samples"]]
            expect(ages[0] / 1000 > time.monotonic() - begun, f"what was seen before is forgotten: {ages}")
            expect(select.select([daemon.process.stderr], [], [], PATIENCE)[0], "it does not say why")
            line = daemon.process.stderr.readline().decode()
            expect("Too many open files" in line and "raise the limits of open files" in line, f"it says {line!r}")
        return f"{len(ages)} samples"

    def test_bad_input(self):
        """Bytes that are no request, requests that are none of the API's, clients that say nothing or do not read."""
        with self.daemon() as daemon:
            def raw(text):
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(PATIENCE)
                    client.connect(daemon.where)
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        client.sendall(text)
                    answer = b""
                    with contextlib.suppress(ConnectionResetError):
                        while piece := client.recv(1 << 16):
                            answer += piece
                    return answer.decode()

            head = b"POST /v1/vms HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            for text, status in [(b"\x00\xff\r\n\r\n", 400), (b"GET / HTTP/9\r\n\r\n", 400), (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 431),
                                 (head + b"Content-Length: 70000\r\n\r\n", 413), (head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
                                 (head + b"Content-Length: x\r\n\r\n", 400), (head.replace(b"application/json", b"text/plain") + b"Content-Length: 2\r\n\r\n{}", 415)]:
                answer = raw(text)
                expect(answer.startswith(f"HTTP/1.1 {status} "), f"{text[:80]}: {answer[:200]}, not {status}")
                expect("\r\nContent-Type: application/json\r\n" in answer and set(json.loads(answer.split("\r\n\r\n", 1)[1])) == {"error"}, f"{text[:80]}: {answer[-300:]}")
            fixed = {"level": "fixed", "memory": "64M"}
            for method, target, body, status, part in [
                ("GET", "/v1/", None, 404, "there is nothing at /v1/"), ("PUT", "/v1/vms", None, 405, "use GET or POST"), ("GET", "/v1/vms/1", None, 404, "process 1"),
                ("GET", "/v1/vms/99999999999", None, 400, "pid is \"99999999999\""), ("POST", "/v1/vms", "{", 400, "the body cannot be read"),
                ("POST", "/v1/vms", {"command": [], "service": fixed}, 400, "command is empty"),
                ("POST", "/v1/vms", {"command": ["--memory"], "service": fixed}, 400, "command[0] is \"--memory\""),
                ("POST", "/v1/vms", {"command": ["qemu"], "service": {"level": "fixed", "memory": "x"}}, 400, "service.memory: invalid size \"x\""),
                ("POST", "/v1/vms", {"command": ["qemu"], "service": {"level": "gold"}}, 400, "gold"),
                ("POST", "/v1/vms", {"command": ["qemu"], "service": fixed, "swap": ["dir:x"]}, 400, "swap[0] is \"dir:x\", a relative path"),
                ("POST", "/v1/vms", {"command": ["qemu", "-daemonize"], "service": fixed}, 400, "command[1] is \"-daemonize\": leave it out"),
                ("POST", "/v1/vms", {"command": ["/no/such/qemu"], "service": fixed}, 400, "'/no/such/qemu' was not found"),
                ("POST", "/v1/vms", {"command": ["qemu"], "service": {"level": "fixed", "memory": "1M"}}, 400, "1M"),
            ]:
                daemon.wrong(method, target, body, status, part)
            with contextlib.ExitStack() as stack:
                for number in range(CROWD):
                    client = stack.enter_context(socket.socket(socket.AF_UNIX))
                    client.connect(daemon.where)
                    with contextlib.suppress(BrokenPipeError):
                        client.sendall([b"", b"GET /v1/vms HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\n\r\n"][number % 3])
                began = time.monotonic()
                for _ in range(5):
                    daemon.ask("GET", "/v1/vms")
                took = time.monotonic() - began
        return f"5 answers in {took:.1f} s beside {CROWD} others"

    def test_many_starts(self):
        """Those that start many virtual machines, and wait for them, keep nobody else waiting. (A start is waited for three seconds here, since no guest's memory is handed over.)"""
        idle = os.path.join(self.bin, "idle")
        pathlib.Path(idle).write_text("#!/bin/sh\nexec sleep 600\n", encoding="ascii")
        os.chmod(idle, 0o755)
        create = {"command": [idle, "-m", "64M"], "service": {"level": "fixed", "memory": "64M"}}
        with self.daemon(user=None) as daemon:
            pids = []
            threads = [threading.Thread(target=lambda: pids.append(daemon.ask("POST", "/v1/vms", create, 201)["pid"])) for _ in range(20)]
            try:
                for thread in threads:
                    thread.start()
                time.sleep(0.5)
                began = time.monotonic()
                daemon.ask("GET", "/v1/vms")
                took = time.monotonic() - began
            finally:
                for thread in threads:
                    thread.join()
                for pid in pids:
                    daemon.ask("DELETE", f"/v1/vms/{pid}?force=1", None, 202)
            expect(len(pids) == 20, f"{len(pids)} were started")
            expect(took < 1.5, f"an answer took {took:.1f} s")
        return f"an answer in {took:.2f} s beside 20 starts"

    def test_few_descriptors(self):
        """Clients at the port who say nothing, and have no token, do not take the descriptors that others need."""
        limits = (64, 64)
        path = os.path.join(self.folder("few", 0o777), "socket")
        argv = [self.farshore, "daemon", "--listen", f"unix:{path}", "--listen", "127.0.0.1:0", "--token-file", self.token(user=None)]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)) as process:
            try:
                port = int([process.stderr.readline() for _ in range(2)][1].decode().rsplit(":", 1)[1].strip("/\n"))
                with contextlib.ExitStack() as stack:
                    for _ in range(CROWD):
                        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    for _ in range(20):
                        expect(Daemon(process, path).raw("GET", "/v1/vms")[0] == 200, "it does not answer")
                expect(process.poll() is None, f"it has ended: {process.poll()}")
            finally:
                process.kill()
        return f"20 answers beside {CROWD} others, with {limits[0]} descriptors"

    # ------------------------------------------------------------------------------------------ a port

    def test_port(self):
        """At a port a token is wanted, and a name of this machine; the page is there without, and may ask nobody else."""
        self.refused(["daemon", "--listen", "127.0.0.1:0"], (125,), "give --token-file", user=OURS)
        self.refused(["daemon", "--listen", "127.0.0.1:0", "--token-file", self.token(mode=0o644)], (125,), "chmod 600", user=OURS)
        with self.daemon("--listen", "127.0.0.1:0", "--token-file", self.token()) as daemon:
            daemon.where = daemon.ports[0]
            mine = {"Authorization": f"Bearer {TOKEN}"}
            expect(daemon.ask("GET", "/v1/vms", **mine) == [], "there is something")
            for headers, status in [({}, 401), ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401), ({"Authorization": f"Basic {TOKEN}"}, 401),
                                    ({**mine, "Host": "evil.example"}, 421), ({**mine, "Host": f"localhost:{daemon.where.split(':')[1]}"}, 200)]:
                found, answer, text = daemon.raw("GET", "/v1/vms", None, headers)
                expect(found == status, f"{headers}: {found}, not {status}: {text}")
                expect("Access-Control-Allow-Origin" not in answer and answer["Cache-Control"] == "no-store", f"{answer}")
            for path in ("/", "/page.js", "/page.css"):
                status, headers, text = daemon.raw("GET", path)
                policy = headers["Content-Security-Policy"]
                expect(status == 200 and "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy, f"{path}: {status} {policy}")
                expect(not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), f"{path} names another place")
                expect(daemon.raw("GET", path, None, {"Host": "evil.example"})[0] == 421, f"{path} is given to a page that was made to lead here")
        return "5 askers"

    def test_handed_on(self):
        """A socket that a service manager has made is served (LISTEN_FDS), and its file stays."""
        path = os.path.join(self.folder("handed", 0o777), "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(8)
            # As systemd does it: the descriptor is 3, and the number is that of the process which becomes the daemon.
            argv = ["sh", "-c", 'exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" daemon', self.farshore]
            with subprocess.Popen(argv, stdin=listener.fileno(), stderr=subprocess.PIPE, cwd="/") as process:
                try:
                    said = process.stderr.readline().decode().strip()
                    expect(said == f"farshore: daemon listens at unix:{path}", f"it says {said!r}")
                    expect(isinstance(Daemon(process, path).ask("GET", "/v1/vms"), list), "it does not answer")
                    process.send_signal(signal.SIGTERM)
                    expect(process.wait(PATIENCE) == 143 and os.path.exists(path), f"SIGTERM: {process.returncode}")
                finally:
                    process.kill()
            # A port besides, as the guide has it for a unit of systemd's.
            more = [*argv[:2], argv[2] + ' --listen 127.0.0.1:0 --token-file "$1"', *argv[3:], self.token(user=None)]
            with subprocess.Popen(more, stdin=listener.fileno(), stderr=subprocess.PIPE, cwd="/") as process:
                try:
                    said = [process.stderr.readline().decode().strip() for _ in range(2)]
                    expect(said[0].endswith(f" unix:{path}") and " http://127.0.0.1:" in said[1], f"it says {said}")
                    expect(Daemon(process, path).raw("GET", "/v1/vms")[0] == 200, "it does not answer at the socket")
                    expect(Daemon(process, said[1].split("//")[1].rstrip("/")).raw("GET", "/v1/vms")[0] == 401, "it does not answer at the port")
                finally:
                    process.kill()
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
            expect(done.returncode == 1 and b"is no socket that listens" in done.stderr, f"{done.returncode}: {done.stderr}")
        return "a socket, and none"

    def test_ends(self):
        """Each signal ends it with its status, and takes its socket away; a socket that was left is replaced, another daemon's is not."""
        path = os.path.join(self.folder("ends", 0o777), "socket")
        for number in (signal.SIGINT, signal.SIGTERM):
            argv = [*self.as_user(OURS), self.farshore, "daemon", "--listen", f"unix:{path}"]
            with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/") as process:
                process.stderr.readline()
                self.refused(["daemon", "--listen", f"unix:{path}"], (1,), "is there already", user=OURS)
                process.send_signal(number)
                expect(process.wait(PATIENCE) == 128 + number and not os.path.exists(path), f"{number}: status {process.returncode}")
        with self.daemon(path=path) as daemon:
            daemon.process.kill()
            daemon.process.wait(PATIENCE)
            with self.daemon(path=path) as next_one:
                expect(next_one.ask("GET", "/v1/vms") == [], "it does not answer")
            # So that what is above finds a daemon that runs.
            daemon.process.poll = lambda: None
        return "2 signals"

    # ------------------------------------------------------------------------------------------ virtual machines

    def created(self, daemon, name, service, mib=64, *more):
        """A stand-in that the daemon has started, whose memory is managed."""
        swap = f"dir:{self.folder('swap', 0o777)}"
        vm = daemon.ask("POST", "/v1/vms", {"command": [self.monitor(), "-m", f"{mib}M", "-name", name, *more], "service": service, "swap": [swap]}, 201)
        expect(vm["created"] and vm["name"] == name and vm["kind"] == "vm", f"{vm}")
        return until(f"{name} is managed", lambda: (now := daemon.vm(vm["pid"])) and now["state"] == "running" and now["faults_per_second"] is not None and now)

    def ended(self, daemon, pid, *force):
        """Ends one, and waits for that."""
        daemon.ask("DELETE", f"/v1/vms/{pid}{''.join(force)}", None, 202)
        return until("it ends", lambda: (now := daemon.vm(pid)) and now["state"] == "ended" and now)

    def needs_kernel_faults(self):
        """Memory of other processes is managed where faults of the kernel may be served."""
        if not harness.poll_allowed():
            raise harness.Unavailable("needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or rights to /dev/userfaultfd")

    def test_vms(self):
        """Virtual machines with each service level are started, steered by the API and by `farshore vm`, go on without the daemon, and end."""
        self.needs_kernel_faults()
        with self.daemon(user=None) as daemon:
            one = self.created(daemon, "one", {"level": "fixed", "memory": "24M"})
            expect(one["limit_bytes"] == 24 * MIB and one["level"] == "fixed" and one["manager"] and one["managed_bytes"] == 64 * MIB, f"{one}")
            two = self.created(daemon, "two", {"level": "slowdown", "slowdown": "5%"})
            expect(two["level"] == "slowdown" and two["slowdown"]["target_ppm"] == 50_000, f"{two}")
            budget = f"guests{os.getpid()}"
            three = self.created(daemon, "three", {"level": "budget", "budget": f"{budget}=64M"}, 32)
            expect(three["level"] == "budget" and three["budget"]["name"] == budget and three["budget"]["size_bytes"] == 64 * MIB, f"{three}")
            expect(budget in [it["name"] for it in daemon.ask("GET", "/v1/host")["budgets"]], "the budget is not told")
            # By name, number and manager's number, without the daemon.
            listed = json.loads(self.call("vm", "list", "--json").out)
            mine = {it["name"]: it for it in listed if it["pid"] in (one["pid"], two["pid"], three["pid"])}
            expect(set(mine) == {"one", "two", "three"} and mine["one"]["limit_bytes"] == 24 * MIB and mine["two"]["level"].startswith("slowdown "), f"{mine}")
            table = self.call("vm", "list").out.splitlines()
            expect(table[0].split() == ["PID", "NAME", "MANAGER", "LEVEL", "LIMIT", "RESIDENT", "MEMORY", "OUT"], f"{table[0]}")
            row = next(line for line in table if line.split()[0] == str(one["pid"]))
            expect(re.search(r"one +\d+ +fixed +24\.0 MiB ", row), row)
            done = self.call("vm", "set", str(one["pid"]), "memory=32M")
            expect(done.status == 0 and not done.err, done.err)
            done = self.call("vm", "policy", str(one["manager"]), "fifo")
            expect(done.status == 0 and not done.err, done.err)
            told = json.loads(self.call("vm", "stat", "--json", str(one["pid"])).out)
            expect(told["memory_limit_bytes"] == 32 * MIB and told["policy"] == "fifo" and told["pid"] == one["manager"], f"{told['memory_limit_bytes']} {told['policy']}")
            self.refused(["vm", "stat", "no-such-guest"], (1,), "'no-such-guest'")
            self.refused(["vm", "set", str(one["pid"]), "memory=lots"], (1,), "memory=lots")
            self.refused(["vm", "policy", str(one["pid"]), "best"], (1,), "policy=best")
            until("the daemon sees it", lambda: (now := daemon.vm(one["manager"]))["limit_bytes"] == 32 * MIB and now["policy"] == "fifo")
            heat = until("its memory is looked at", lambda: len((now := daemon.ask("GET", f"/v1/vms/{one['pid']}/heat"))["looks"]) >= 3 and now)
            resident = sum(heat["looks"][-1]["resident"]) * 4096
            expect(sum(piece["bytes"] for piece in heat["pieces"]) == 64 * MIB and 8 * MIB < resident <= 32 * MIB, f"{resident} bytes in RAM of {heat['pieces'][:3]}")
            # The hot quarter is at the front.
            front = sum(heat["looks"][-1]["resident"][: len(heat["pieces"]) // 4]) * 4096
            until("what it writes is told", lambda: "its guest runs" in daemon.ask("GET", f"/v1/vms/{one['pid']}/output")["text"])
            daemon.wrong("POST", "/v1/vms", {"command": [self.monitor(), "-m", "64M", "-fail"], "service": {"level": "fixed", "memory": "24M"}}, 400,
                         "it ended with status 3: monitor: the disk is not there")
            self.ended(daemon, two["pid"])
            gone = self.ended(daemon, three["pid"], "?force=1")
            expect(gone["why"] == "signal 9 ended it", f"{gone}")
            daemon.wrong("DELETE", f"/v1/vms/{two['pid']}", None, 409, "has ended already")
            self.as_described(daemon.ask("GET", "/v1/openapi.json"), [("Vm", vm) for vm in daemon.ask("GET", "/v1/vms")] + [("Output", daemon.ask("GET", f"/v1/vms/{two['pid']}/output"))])
            daemon.process.send_signal(signal.SIGTERM)
            expect(daemon.process.wait(PATIENCE) == 143, f"status {daemon.process.returncode}")
            with self.daemon(user=None) as other:
                until("another daemon finds it", lambda: (now := other.vm(one["pid"])) and now["state"] == "running" and now["name"] == "one" and not now["created"])
                expect(other.ask("DELETE", f"/v1/vms/{one['pid']}", None, 202) == {"signal": "SIGTERM"}, "it is told something else")
                until("it ends", lambda: other.vm(one["pid"]) is None)
            daemon.process.poll = lambda: None
        return f"3 levels; of {resident // MIB} MiB in RAM {front // MIB} are in the hot quarter"

    def test_qemu(self):
        """An unmodified QEMU, without a disk, is started, has its limit, and ends by SIGTERM as it does natively; one with a wrong option says so."""
        self.needs_kernel_faults()
        qemu, name = harness.need("qemu-system-x86_64", "qemu-system-x86"), f"bare{os.getpid()}"
        words = [qemu, "-accel", "tcg", "-m", "128M", "-display", "none", "-net", "none", "-name", f"guest={name},debug-threads=on"]
        fixed = {"level": "fixed", "memory": "64M"}
        with self.daemon(user=None) as daemon:
            pid = daemon.ask("POST", "/v1/vms", {"command": words, "service": fixed, "swap": [f"dir:{self.folder('swap', 0o777)}"]}, 201)["pid"]
            try:
                vm = until("it is managed", lambda: (now := daemon.vm(pid)) and now["state"] == "running" and now)
                expect(vm["name"] == name and vm["managed_bytes"] == 128 * MIB and vm["limit_bytes"] == 64 * MIB, f"{vm}")
                until("its memory is looked at", lambda: daemon.ask("GET", f"/v1/vms/{pid}/heat")["looks"])
                done = self.call("vm", "set", name, "memory=32M")
                expect(done.status == 0 and not done.err, done.err)
                ended = self.ended(daemon, pid)
                expect(ended["why"] == "it ended with status 0", f"{ended}")
            finally:
                if daemon.vm(pid)["state"] != "ended":
                    daemon.raw("DELETE", f"/v1/vms/{pid}?force=1")
            said = daemon.ask("POST", "/v1/vms", {"command": [*words, "-no-such-option"], "service": fixed}, 400)["error"]
            expect("status 1" in said and "no-such-option" in said, said)
        return "128 MiB"

    def test_emulator(self):
        """`farshore-qemu` runs a QEMU by `farshore vm run` with the options of a file, as libvirt starts one; what libvirt asks of a QEMU goes to QEMU itself."""
        script = os.path.join(self.bin, "farshore-qemu")
        shutil.copy(pathlib.Path(harness.__file__).resolve().parents[2] / "crates" / "product" / "daemon" / "farshore-qemu", script)
        options, swap = self.folder("options"), self.folder("swap", 0o777)
        env = {"FARSHORE_VM_OPTIONS": options, "FARSHORE_QEMU": "/bin/echo", "PATH": f"{self.bin}:{os.environ['PATH']}"}
        for words in (["-S", "-no-user-config", "-machine", "none,accel=kvm:tcg", "-qmp", "x"], ["-version"], ["-M", "none"]):
            done = self.call_program([script, *words], env=env)
            expect(done.out.split() == words or words == ["-version"] and done.status == 0, f"{words}: {done.out} {done.err}")
        done = self.call_program([script, "-name", "guest=one,debug-threads=on", "-m", "64M"], env=env)
        expect(done.status == 125 and f"write '{options}/one' or '{options}/default'" in done.err, f"{done.status}: {done.err}")
        pathlib.Path(options, "one").write_text("--memory lots\n", encoding="ascii")
        done = self.call_program([script, "-name", "guest=one,debug-threads=on"], env=env)
        expect(done.status == 125 and '--memory: invalid size "lots"' in done.err, f"{done.status}: {done.err}")
        self.needs_kernel_faults()
        pathlib.Path(options, "one").write_text(f"--memory 24M\n--swap dir:{swap}\n", encoding="ascii")
        backend = '{"qom-type":"memory-backend-memfd","id":"pc.ram","share":true,"x-use-canonical-path-for-ramblock-id":false,"size":67108864}'
        words = ["-name", "guest=one,debug-threads=on", "-machine", "pc-i440fx-7.2,usb=off,memory-backend=pc.ram", "-m", "64M", "-object", backend]
        with subprocess.Popen([script, *words], env={**os.environ, **env, "FARSHORE_QEMU": self.monitor()}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              cwd="/", start_new_session=True) as process:
            try:
                expect(b"its guest runs" in process.stdout.readline(), "it does not run")
                mine = [it for it in json.loads(self.call("vm", "list", "--json").out) if it["pid"] == process.pid]
                expect(len(mine) == 1 and mine[0]["name"] == "one" and mine[0]["limit_bytes"] == 24 * MIB, f"{mine}")
            finally:
                process.kill()
        return "3 questions, 2 mistakes, a guest"

    # ------------------------------------------------------------------------------------------ the page

    def test_page(self):
        """In a browser: a virtual machine is created, watched and given another limit, its heat map is seen; bad input is told; nothing else is asked for."""
        self.needs_kernel_faults()
        with self.daemon("--listen", "127.0.0.1:0", "--token-file", self.token(user=None), user=None) as daemon, Browser() as browser:
            url = f"http://{daemon.ports[0]}/"

            def seen(text):
                return browser.script(f"return {text};")

            def shown(what):
                """A picture for people, if they want some."""
                if folder := os.environ.get("FARSHORE_PICTURES"):
                    pathlib.Path(folder, f"daemon-{what}.png").write_bytes(base64.b64decode(browser.picture()))

            browser.log("performance")
            browser.show(url, "light", 1280)
            until("it asks for a token", lambda: seen("!document.getElementById('login').hidden && document.getElementById('main').hidden"))
            browser.script("document.getElementById('token').value = 'x'.repeat(32); document.querySelector('#login button').click();")
            until("a wrong one is told", lambda: "does not know this token" in seen("document.getElementById('problem').textContent"))
            browser.script("sessionStorage.clear();")
            # A console has a line for each answer that is an error; from here on there is none.
            browser.log("browser")
            browser.show("about:blank", "light", 1280)
            browser.show(f"{url}#token={TOKEN}", "light", 1280)
            until("it is there", lambda: seen("!document.getElementById('main').hidden"))
            expect(seen("document.getElementById('login').offsetParent === null"), "a token is still asked for")
            expect(seen("location.hash") == "" and TOKEN not in seen("location.href"), "the token stays in the address")
            # Created.
            create = """document.getElementById('command').value = arguments[0]; document.getElementById('amount').value = arguments[1];
                document.querySelector('#create button').click();"""
            browser.script(create, f"'{self.monitor()}' -m 64M -name \"<b>page</b>\"", "24M")
            until("it is chosen", lambda: "<b>page</b> (virtual machine" in seen("document.getElementById('title').textContent"))
            expect(seen("document.querySelectorAll('b').length") == 0, "a name is taken for HTML")
            pid = int(re.search(r"process (\d+)", seen("document.getElementById('title').textContent"))[1])
            try:
                row = f"document.querySelector('#vms tr[data-pid=\"{pid}\"]').innerText"
                until("its row has numbers", lambda: re.search(r"fixed\s+24\.0 MiB\s.*running", seen(row)))
                # What is pressed when new numbers come is there when the finger is lifted.
                browser.script("window.pressed = document.querySelector(`#vms tr[data-pid='${arguments[0]}']`);", pid)
                before = seen("document.getElementById('host').textContent")
                until("new numbers have come", lambda: seen("document.getElementById('host').textContent") != before)
                expect(seen("window.pressed.isConnected"), "a row is another one with each look")
                # A token in the address of the page that is open goes from there, too.
                browser.script("location.hash = 'token=' + arguments[0];", TOKEN)
                until("it is taken", lambda: seen("location.hash") == "")
                # Watched.
                until("lines are drawn", lambda: seen("[...document.querySelectorAll('svg')].map((it) => it.querySelectorAll('polyline').length).join()") == "3,2")
                ink = """const heat = document.getElementById('heat'); const image = heat.getContext('2d').getImageData(0, 0, heat.width, heat.height).data;
                    let ink = 0; for (let at = 3; at < image.length; at += 4) ink += image[at] > 0; return [Number(heat.dataset.looks), Number(heat.dataset.pieces), ink];"""
                looks, pieces, pixels = until("the heat map is drawn", lambda: (now := browser.script(ink)) and now[0] >= 4 and now[2] > 1000 and now)
                browser.script("document.querySelector('input[value=came]').click();")
                until("what came is drawn", lambda: (now := browser.script(ink)) and 0 < now[2] and now)
                browser.script("document.querySelector('input[value=resident]').click();")
                # Another limit, by the slider.
                browser.script("""const slider = document.getElementById('slider'); slider.value = Math.log2(40 * 1048576);
                    slider.dispatchEvent(new Event('input', { bubbles: true })); document.getElementById('set').click();""")
                limit = until("the limit is another", lambda: (now := daemon.vm(pid)["limit_bytes"]) != 24 * MIB and now)
                expect(38 * MIB <= limit <= 42 * MIB, f"the limit is {limit / MIB:.1f} MiB")
                until("the page shows it", lambda: f"{limit / MIB:.1f} MiB" in seen(row) and f"{limit / MIB:.1f} MiB" in seen("document.getElementById('wanted').textContent"))
                # A policy, and what is refused.
                setting = """document.getElementById('key').value = arguments[0]; document.getElementById('value').value = arguments[1];
                    document.querySelector('#setting button').click();"""
                browser.script(setting, "policy", "fifo")
                until("the policy is another", lambda: daemon.vm(pid)["policy"] == "fifo")
                # (That pixels are read back is this test's doing.)
                console = [line for line in browser.log("browser") if line["source"] != "rendering"]
                expect(not console, f"on the console: {console}")
                browser.script(setting, "policy", "<i>best</i>")
                until("it is refused", lambda: "policy=<i>best</i>" in seen("document.getElementById('said').textContent"))
                browser.script(create, "/no/such/qemu", "24M")
                until("a start that fails is told", lambda: "was not found" in seen("document.getElementById('create-said').textContent"))
                shown("light")
                wide = {}
                for scheme in ("light", "dark"):
                    for width in (1280, 400):
                        browser.show("about:blank", scheme, width)
                        browser.show(url, scheme, width)
                        until("it is there", lambda: seen("!document.getElementById('main').hidden") and seen(f"!!document.querySelector('#vms tr[data-pid=\"{pid}\"]')"))
                        browser.script(f"document.querySelector('#vms tr[data-pid=\"{pid}\"] button').click();")
                        until("it is drawn", lambda: browser.script(ink)[2] > 1000 and seen("document.querySelectorAll('#chart-memory polyline').length") == 3)
                        wide[scheme, width] = seen("document.documentElement.scrollWidth")
                        shown(f"{scheme}-{width}")
                        paper = seen("getComputedStyle(document.body).backgroundColor")
                        expect((paper == "rgb(255, 255, 255)") == (scheme == "light"), f"{scheme}: the paper is {paper}")
                expect(all(found <= width for (_, width), found in wide.items()), f"the page is wider than the window: {wide}")
                # Stopped.
                browser.script("document.getElementById('stop').click();")
                until("it has ended", lambda: (now := daemon.vm(pid)) is None or now["state"] == "ended")
                until("the page shows it", lambda: "ended" in seen(row))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            sent = [json.loads(event["message"])["message"] for event in browser.log("performance")]
            asked = {it["params"]["request"]["url"].split("#")[0] for it in sent if it["method"] == "Network.requestWillBeSent"}
            others = [at for at in asked if not at.startswith((url, "data:", "chrome", "about:"))]
            expect(f"{url}v1/vms" in asked and not others, f"asked for {others}")
        return f"{pieces} pieces, {looks} looks, {pixels} points, limit {limit // MIB} MiB"
