"""The ordered store of farshore-serve from outside: answers over UDP and TCP, under load, bad input, full disks, and how it ends.

The load is farshore-load's, which is beside farshore-serve and checks every answer. With --memory the servers run under farshore. Only 127.0.0.1, on
ports that the kernel chooses.
"""

import csv
import json
import os
import random
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import harness
from harness import Unavailable, expect
from servers import ANSWER_SECONDS, MIB, OPTIONS, TEST_SECONDS, Server, beside, number_at

GET, SCAN, MOST = 0, 1, (1 << 56) - 1
FOUND, NOT_FOUND, TOO_MANY = 0, 1, 2
# Of the server, where nothing else is said.
MAX_SCAN = 10_000
ITEMS = 60_000


def request(number, operation, key, most=0):
    """A GET or a SCAN."""
    return struct.pack("<QQQ", number, most << 8 | operation, key)


def answer(number, keys):
    """What such a request is told that finds these keys."""
    total = sum(map(number_at, keys)) & ((1 << 64) - 1)
    return struct.pack("<QQQQ", number, FOUND if keys else NOT_FOUND, len(keys), total)


def read(connection, length):
    """So many bytes, or what comes before the end."""
    got = b""
    while len(got) < length:
        piece = connection.recv(length - len(got))
        if not piece:
            break
        got += piece
    return got


def cases(items):
    """Requests, and the keys that they find."""
    yield from (((GET, key, 0), range(key, key + 1)) for key in (0, 1, items // 2, items - 1))
    yield from (((GET, key, 0), range(0)) for key in (items, items + 1, (1 << 64) - 1))
    yield from (((SCAN, key, 0), range(key, min(key + 100, items))) for key in (0, 7, items - 101, items - 99, items - 1))
    yield from (((SCAN, key, most), range(key, min(key + most, items))) for key, most in ((3, 1), (3, 5), (items - 500, MAX_SCAN), (items - 1, 2)))
    yield (SCAN, items, 0), range(0)
    yield (SCAN, (1 << 64) - 1, MAX_SCAN), range(0)


def test_answers():
    """Each operation, over UDP and TCP: the first and last keys, none, many."""
    with Server("scan", "--items", "3000", "--value-bytes", "520", "--workers", "2") as server:
        with server.connect() as s, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            u.settimeout(ANSWER_SECONDS)
            for number, (asked, keys) in enumerate(cases(3000)):
                s.sendall(request(number, *asked))
                expect(read(s, 32) == answer(number, keys), f"TCP: {asked}")
                u.sendto(request(number, *asked), server.udp)
                expect(u.recvfrom(100)[0] == answer(number, keys), f"UDP: {asked}")


def test_all_of_it():
    """Nobody gets all of the store by one datagram, or by one request: it is refused, with how much may be asked for."""
    with Server("scan", "--items", "3000", "--value-bytes", "64", "--max-scan", "500") as server, server.connect() as s, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
        u.settimeout(ANSWER_SECONDS)
        for most in (501, 3000, MOST):
            refused = struct.pack("<QQQQ", 5, TOO_MANY, 500, 0)
            s.sendall(request(5, SCAN, 0, most))
            u.sendto(request(5, SCAN, 0, most), server.udp)
            expect((read(s, 32), u.recvfrom(100)[0]) == (refused, refused), f"{most} values")
        u.sendto(request(6, SCAN, 7, 500), server.udp)
        expect(u.recvfrom(100)[0] == answer(6, range(7, 507)), "500 values")


def test_sizes():
    """Values that share pages, and such that have several of their own."""
    for size in (8, 2008, 2048, 65536):
        with Server("scan", "--items", "300", "--value-bytes", str(size)) as server, server.connect() as s:
            s.sendall(request(1, GET, 299) + request(2, SCAN, 0, 300))
            expect(read(s, 64) == answer(1, range(299, 300)) + answer(2, range(300)), f"{size} bytes")


def test_pieces():
    """Thousands of requests at once, in pieces of any length: the answers come in order."""
    dice = random.Random(7)
    with Server("scan", "--items", "5000", "--value-bytes", "64", "--workers", "2") as server:
        keys = [dice.randrange(5000) for _ in range(5000)]
        requests = b"".join(request(number, GET, key) for number, key in enumerate(keys))
        wanted = b"".join(answer(number, range(key, key + 1)) for number, key in enumerate(keys))
        for piece in (1 << 30, 16_384, 1001, 23):
            with server.connect() as s:
                end = len(requests) if piece > 1000 else 100 * 24

                def send(s=s, piece=piece, end=end):
                    for at in range(0, end, piece):
                        s.sendall(requests[at : min(at + piece, end)])

                threading.Thread(target=send, daemon=True).start()
                expect(read(s, end // 24 * 32) == wanted[: end // 24 * 32], f"in pieces of {piece}")


def test_nonsense():
    """What is no request: a datagram is dropped, a connection ends, and others are served."""
    wrong = [b"", b"x", bytes(23), bytes(25), request(1, 2, 5), request(1, 255, 5), request(1, GET, 5, most=1), bytes(2000)]
    with Server("scan", "--items", "100", "--value-bytes", "64") as server, server.connect() as other, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
        u.settimeout(ANSWER_SECONDS)
        for bad in wrong:
            u.sendto(bad, server.udp)
        u.sendto(request(9, GET, 5), server.udp)
        expect(u.recvfrom(100)[0] == answer(9, range(5, 6)), "UDP after nonsense")
        for bad in (request(1, 2, 5), request(1, GET, 5, most=1), random.Random(3).randbytes(240)):
            with server.connect() as s:
                s.sendall(request(8, GET, 7) if bad is wrong[4] else b"")
                s.sendall(bad)
                expect(read(s, 32) in (b"", answer(8, range(7, 8))) and s.recv(1) == b"", "it does not end its connection")
        other.sendall(request(10, SCAN, 0))
        expect(read(other, 32) == answer(10, range(100)), "another connection")


def load(wait, transport, *options, server=()):
    """A minute's worth of requests in seconds, in each of which all answers are right, and there is one for each."""
    loader = beside("farshore-load")
    with tempfile.TemporaryDirectory() as place, Server("scan", "--items", str(ITEMS), "--wait", wait, "--workers", "2", *server) as server:
        told = os.path.join(place, "told.json")
        address = f"{transport}:127.0.0.1:{(server.udp if transport == 'udp' else server.tcp)[1]}"
        argv = [loader, "open", "scan", address, f"--items={ITEMS}", "--mix=get=99,scan=1", "--closed=64", "--timeout=20s", "--warmup=0", "--seconds=2",
                "--spin=0s", f"--json={told}", *options]
        done = subprocess.run(argv, capture_output=True, timeout=TEST_SECONDS, check=False)
        expect(done.returncode == 0, (done.stdout[-500:], done.stderr[-500:]))
        with open(told, encoding="utf-8") as file:
            result = json.load(file)
        expect(result["wrong"] == [] and result["duplicates"] == 0 and result["late_answers"] == 0, result["wrong"])
        for name, count in (("lost", 0), ("unsent", 0), ("misses", 0), ("answered", result["all"]["sent"])):
            expect(result["all"][name] == count, f"{name}: {result['all'][name]}")
        expect(all(operation["answered"] > 0 for operation in result["operations"]), "an operation was not asked for")
        data, resident = ITEMS * 1024, server.resident()
        # All of it is the process's memory; and with little of that, all of it is read through.
        expect(resident < data // 2 if OPTIONS.memory else OPTIONS.prefix or resident > data, f"{resident / MIB:.0f} MiB are resident")


def test_load_yield():
    """Under load: a worker that has to wait does others' work."""
    load("yield", "udp")
    load("yield", "tcp", "--keys=zipf:0.99")


def test_load_block():
    """Under load: a worker that has to wait sleeps."""
    load("block", "udp")


def test_load_busy():
    """Under load: a worker that has to wait looks for its page."""
    load("busy", "udp")


def test_load_preempted():
    """Under load: the same, and SCANs give way."""
    load("busy", "udp", server=("--slice", "5us"))


def test_load_own_replies():
    """Under load: workers send answers themselves."""
    load("yield", "udp", server=("--replies", "own"))


def test_slices():
    """A GET behind a SCAN of all goes before its end if there are slices, and behind it if there are none."""
    for wait, how, first in (("busy", "5us", 2), ("busy", "never", 1), ("yield", "5us", 2), ("yield", "never", 1)):
        options = ("--items", str(ITEMS), "--max-scan", str(ITEMS), "--wait", wait, "--slice", how, "--workers", "1")
        with Server("scan", *options, prefix=()) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            u.settimeout(ANSWER_SECONDS)
            u.sendto(request(1, SCAN, 0, ITEMS), server.udp)
            u.sendto(request(2, GET, 5), server.udp)
            got = [u.recvfrom(100)[0] for _ in range(2)]
            expect(sorted(got) == [answer(1, range(ITEMS)), answer(2, range(5, 6))], "an answer is wrong")
            expect(got[0][0] == first, f"--wait {wait} --slice {how}: {got[0][0]} came first")


def test_breakdown():
    """Of each request that was answered a line says what its time went to, and the parts add up; of too many the last ones are kept."""
    parts = ("socket_ns", "queue_ns", "run_ns", "page_ns", "other_ns", "again_ns", "gave_way_ns", "reply_ns")
    for wait, kept in (("busy", 1 << 20), ("yield", 100)):
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, "requests.csv")
            options = ("--items", "3000", "--wait", wait, "--slice", "5us", "--breakdown", path, "--breakdown-records", str(kept))
            with Server("scan", *options) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
                u.settimeout(ANSWER_SECONDS)
                for number in range(300):
                    u.sendto(request(number, SCAN, number, 100), server.udp)
                    expect(u.recvfrom(100)[0] == answer(number, range(number, number + 100)), "an answer is wrong")
                u.sendto(b"nonsense", server.udp)
            with open(path, encoding="ascii") as file:
                expect(file.readline() == f"# dropped {max(0, 300 - kept)}\n", "how many were dropped")
                rows = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
            expect(len(rows) == min(300, kept), f"{len(rows)} rows")
            for row in rows:
                waits = row["socket_ns"] + row["queue_ns"] + row["again_ns"] + row["gave_way_ns"]
                expect(sum(row[part] for part in parts) == row["total_ns"] and row["run_ns"] > 0 and row["spun_ns"] <= waits, row)
            expect([row["arrived_ns"] for row in rows] == sorted(row["arrived_ns"] for row in rows), "one came after the other")


def test_ends():
    """SIGTERM and SIGINT while long scans are under way; nothing of the file is left."""
    for how in (signal.SIGTERM, signal.SIGINT):
        with tempfile.TemporaryDirectory() as place:
            with Server("scan", "--items", str(ITEMS), "--value-bytes", "256", "--path", place, "--workers", "2", "--max-scan", str(ITEMS), ends_by=how) as server:
                expect(os.listdir(place) == [], "the file is still there")
                asking = [server.connect() for _ in range(5)]
                for s in asking:
                    s.sendall(request(1, SCAN, 0, ITEMS))
                    expect(read(s, 32) == answer(1, range(ITEMS)), "all of it")
                    s.sendall(request(2, SCAN, 0, ITEMS) * 500)
            for s in asking:
                s.close()


def test_killed():
    """SIGKILL while it still fills itself: nothing of the file is left."""
    with tempfile.TemporaryDirectory() as place:
        filling = subprocess.Popen([OPTIONS.serve, "scan", "--items", "16M", "--path", place], stderr=subprocess.PIPE)
        deadline = time.monotonic() + ANSWER_SECONDS
        while place not in harness.read_text(f"/proc/{filling.pid}/maps", 1 << 24):
            expect(filling.poll() is None and time.monotonic() < deadline, "it does not begin")
            time.sleep(0.01)
        filling.kill()
        expect(filling.communicate()[1] == b"" and os.listdir(place) == [], "it was ready already, or the file is still there")


def test_errors():
    """Wrong options, directories that cannot be used, too much: one line that says what to do."""
    for wrong in (["--slice", "5"], ["--items", "0"], ["--items", "x"], ["--value-bytes", "12"], ["--value-bytes", "0"], ["--value-bytes", "1M"], ["--wait", "never"]):
        done = subprocess.run([OPTIONS.serve, "scan", *wrong], capture_output=True, timeout=ANSWER_SECONDS, check=False)
        expect(done.returncode == 2 and wrong[0].encode() in done.stderr, (wrong, done))
    with tempfile.NamedTemporaryFile() as file:
        for wrong, says in ((["--path", "/nowhere/at/all"], b"/nowhere/at/all"), (["--path", file.name], file.name.encode()), (["--path", "/proc"], b"/proc"),
                            (["--items", "100T"], b"--items 10995"), (["--items", "1G", "--value-bytes", "65536"], b"65536")):
            done = subprocess.run([OPTIONS.serve, "scan", *wrong], capture_output=True, timeout=ANSWER_SECONDS, check=False)
            expect(done.returncode == 1 and done.stderr.count(b"\n") == 1 and says in done.stderr, (wrong, done))
            expect(b"give less" in done.stderr or b"--path" in done.stderr, done)


def test_full_disk():
    """A disk with too little room: one line, and no file is left."""
    if os.geteuid() != 0:
        raise Unavailable("mounting needs root")
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "farshore-test", place], stderr=subprocess.PIPE, check=False)
        if mounted.returncode != 0:
            raise Unavailable(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
        try:
            argv = [*OPTIONS.prefix, OPTIONS.serve, "scan", "--items", "10000", "--path", place]
            done = subprocess.run(argv, capture_output=True, timeout=TEST_SECONDS, check=False)
            said = [line for line in done.stderr.splitlines() if line.startswith(b"farshore-serve:")]
            expect(done.returncode == 1 and len(said) == 1 and place.encode() in said[0] and b"--path" in said[0], done)
            expect(b"full" in said[0], said)
            expect(os.listdir(place) == [], "the file is still there")
        finally:
            subprocess.run(["umount", "-l", place], check=False)
