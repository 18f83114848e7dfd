"""TPC-C of farshore-serve from outside: its transactions, its consistency conditions, in little memory, and while memory nodes are killed.

The load is farshore-load's, which is beside farshore-serve and checks what each answer says. With --memory the servers run under farshore. Only
127.0.0.1, on ports that the kernel chooses.
"""

import contextlib
import random
import signal
import socket
import struct
import subprocess
import threading
import time

from harness import expect
from servers import ANSWER_SECONDS, MIB, OPTIONS, TEST_SECONDS, Load, Mirror, Server, ask, in_a_fifth, read_until, within_a_fifth

# Bytes of one warehouse and the items, at least.
WAREHOUSE = 100 * MIB
LINES = " ".join(f"{item}:1:{item % 10 + 1}" for item in range(1, 8))


def tell(connection, line):
    """The answer to a line."""
    return ask(connection, line.encode() + b"\r\n").decode().rstrip()


def stats(connection):
    """What happened, by name."""
    words = tell(connection, "stats").split()
    expect(words[0] == "OK", words)
    return {name: int(value) for name, value in (word.split("=") for word in words[1:])}


def holds(connection):
    """All conditions hold."""
    connection.settimeout(TEST_SECONDS)
    said = tell(connection, "check")
    expect(said.startswith("OK 16 conditions hold, "), said)


def test_transactions():
    """Each transaction, and what it leaves for the others to see."""
    with Server("tpcc", "--workers", "2") as server, server.connect() as s:
        placed = tell(s, f"neworder 1 2 3 {LINES}").split()
        expect(placed[:2] == ["OK", "3001"] and len(placed) == 8 + 7, placed)
        parts = [part.split(":") for part in placed[8:]]
        sums = [int(price) * (item % 10 + 1) for item, (_, price, _, _) in enumerate(parts, 1)]
        expect([int(part[2]) for part in parts] == sums, placed)
        total, discount, w_tax, d_tax = map(int, placed[2:6])
        expect(total == sum(sums) * (10_000 - discount) * (10_000 + w_tax + d_tax) // 10**8, placed)
        status = tell(s, "orderstatus 1 2 3").split()
        expect(status[:4] == ["OK", "3", "-1000", "3001"] and status[5] == "0", status)
        expect([line.split(":")[:4] for line in status[6:]] == [[str(item), "1", str(item % 10 + 1), str(cents)] for item, cents in enumerate(sums, 1)], status)
        expect(tell(s, f"neworder 1 2 3 {LINES} 100001:1:1").startswith("ROLLBACK "), "an item that there is not")
        expect(tell(s, "orderstatus 1 2 3").split() == status, "something is left of what was rolled back")
        for delivered in range(2101, 3002):
            expect(tell(s, "delivery 1 7").split()[2] == str(delivered), "the oldest order of the district goes first")
        expect(tell(s, "delivery 1 7") == "OK" + " 0" * 10, "nothing is left to deliver")
        status = tell(s, "orderstatus 1 2 3").split()
        expect(status[3] == "3001" and status[5] == "7" and all(int(line.split(":")[4]) > 0 for line in status[6:]), status)
        # Of the orders of this customer, the first one may have been among those that were delivered.
        paid = tell(s, "payment 1 5 1 2 3 4321").split()
        expect(paid[1] == "3" and int(paid[2]) == int(status[2]) - 4321, (status, paid))
        named = tell(s, "payment 1 5 1 2 BARBAROUGHT 100").split()
        expect(named[0] == "OK" and tell(s, f"orderstatus 1 2 {named[1]}").split()[2] == named[2], named)
        expect(tell(s, "stocklevel 1 2 100").split()[0] == "OK", "stocklevel")
        holds(s)
        counted = stats(s)
        wanted = {"neworder": 1, "rollback": 1, "payment": 2, "orderstatus": 4, "delivery": 902, "stocklevel": 1, "refused": 0, "alone": 0}
        expect({name: counted[name] for name in wanted} == wanted, counted)


def test_load():
    """The mix of the specification over TCP and UDP, with two warehouses: each answer is right, and afterwards the conditions hold."""
    with Server("tpcc", "--warehouses", "2", "--workers", "2") as server, server.connect() as s:
        before = stats(s)
        for transport in ("tcp", "udp"):
            Load(server, "tpcc", transport, "--items=2", "--closed=48", "--seconds=3").done(3)
            holds(s)
        after = stats(s)
        expect(after["refused"] == 0 and after["neworder"] > before["neworder"] and after["rollback"] > 0, after)
        if OPTIONS.memory:
            within_a_fifth(server, WAREHOUSE)


def waits(wait):
    """A way to wait for pages, in a fifth of the data."""
    with Server("tpcc", "--workers", "2", "--wait", wait, prefix=OPTIONS.prefix or in_a_fifth(WAREHOUSE)) as server, server.connect() as s:
        Load(server, "tpcc", "tcp", "--items=1", "--closed=32", "--seconds=3").done(3)
        holds(s)
        within_a_fifth(server, WAREHOUSE)


def test_yield_in_a_fifth():
    """A worker that has to wait does others' work."""
    waits("yield")


def test_block_in_a_fifth():
    """A worker that has to wait sleeps."""
    waits("block")


def test_busy_in_a_fifth():
    """A worker that has to wait looks for its page."""
    waits("busy")


def test_nodes_are_killed(request):
    """In a fifth of its data, on a mirror of two memory nodes, which are killed in turn under load: the conditions hold each time."""
    with Mirror() as mirror, Server("tpcc", "--workers", "2", prefix=in_a_fifth(WAREHOUSE, mirror.swap)) as server, server.connect() as s:

        def under_load(kill):
            load = Load(server, "tpcc", "tcp", "--items=1", "--rate=800", "--seconds=5")
            time.sleep(1.5)
            kill()
            load.done(5)
            holds(s)

        turns = mirror.each_is_killed(server, request.config.option.killed_seconds, under_load)
        holds(s)
        expect(stats(s)["refused"] == 0, stats(s))
        within_a_fifth(server, WAREHOUSE)
        return f"{turns} kills, {stats(s)['neworder']} orders"


def test_nonsense():
    """What is no request: a line that says what is wanted, and the next one is served. As a datagram it is dropped."""
    wrong = ["", "hello", "NEWORDER 1 1 1", "neworder", f"neworder 2 1 1 {LINES}", f"neworder 1 11 1 {LINES}", f"neworder 1 1 3001 {LINES}",
             "neworder 1 1 1 1:1:1", f"neworder 1 1 1 {LINES} {LINES} {LINES}", f"neworder 1 1 1 {LINES} 1:2:1", f"neworder 1 1 1 {LINES} 1:1:11",
             f"neworder 1 1 1 {LINES} 0:1:1", f"neworder -1 1 1 {LINES}", "payment 1 1 1 1 1 0", "payment 1 1 1 1 1 500001", "payment 1 1 1 1 SMITH 5",
             "payment 1 1 1 1 1 1 1", "orderstatus 1 1 BARBARBAR\x01", "delivery 1 0", "delivery 1 99999999999999999999", "stocklevel 1 1 x", "check 1", "\xff\xfe"]
    with Server("tpcc") as server, server.connect() as s, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
        u.settimeout(ANSWER_SECONDS)
        for bad in wrong:
            s.sendall(bad.encode("latin-1") + b"\r\n")
            said = read_until(s, b"\r\n")
            expect(said.startswith(b"ERROR ") and said.count(b"\n") == 1, (bad, said))
        for bad in [b"", b"1234567", b"12345678", b"12345678hello", b"12345678check", b"12345678stats", b"12345678quit", bytes(2000), random.Random(3).randbytes(100)]:
            u.sendto(bad, server.udp)
        u.sendto(struct.pack("<Q", 77) + b"stocklevel 1 1 15", server.udp)
        got = u.recvfrom(2048)[0]
        expect(got[:8] == struct.pack("<Q", 77) and got[8:].startswith(b"OK "), got)
        # Customers with a name that nobody has are no nonsense, but there are none.
        expect(stats(s)["refused"] == len(wrong), stats(s))
        expect(stats(s)["neworder"] == 0 and stats(s)["payment"] == 0, "nonsense was done")
        with server.connect() as long:
            long.sendall(b"x" * 100_000)
            expect(read_until(long, b"\r\n").startswith(b"ERROR the line is longer"), "a line without an end")
        holds(s)


def test_pieces():
    """Many requests at once, in pieces of any length: the answers come in order."""
    with Server("tpcc", "--workers", "2") as server:
        requests = "".join(f"orderstatus 1 {n % 10 + 1} {n % 3000 + 1}\r\n" for n in range(3000)).encode()
        for piece in (1 << 30, 4001, 7):
            end = len(requests) if piece > 1000 else requests.index(b"\n", 3000) + 1
            with server.connect() as s:

                def send(s=s, piece=piece, end=end):
                    for at in range(0, end, piece):
                        s.sendall(requests[at : min(at + piece, end)])

                threading.Thread(target=send, daemon=True).start()
                rest = b""
                for n in range(requests[:end].count(b"\n")):
                    while b"\n" not in rest:
                        rest += s.recv(65536)
                    line, rest = rest.split(b"\n", 1)
                    expect(line.split()[:2] == [b"OK", str(n % 3000 + 1).encode()], (n, line))


def test_hostile_clients():
    """Clients that do not read, that go away in the midst, that ask for checks without end, and too many of them."""
    with Server("tpcc", "--workers", "2", "--max-connections", "80") as server, server.connect() as s:
        deaf = [server.connect() for _ in range(3)]
        for one in deaf:
            one.settimeout(2)
            # More than all buffers hold: it is not read from any more.
            with contextlib.suppress(TimeoutError):
                one.sendall(b"orderstatus 1 1 1\r\n" * 2_000_000)
        for n in range(60):
            with server.connect() as gone:
                gone.sendall(f"neworder 1 1 {n + 1} {LINES}\r\npayment 1 1 1 1 {n + 1} 100\r\n".encode() * 5)
                if n % 2:
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        checkers = [server.connect() for _ in range(3)]
        for one in checkers:
            one.settimeout(TEST_SECONDS)
            one.sendall(b"check\r\n")
        answers = [read_until(one, b"\r\n") for one in checkers]
        expect(all(answer.startswith((b"OK 16 ", b"ERROR a check is under way")) for answer in answers), answers)
        expect(any(answer.startswith(b"OK 16 ") for answer in answers), answers)
        for one in checkers + deaf:
            one.close()
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            with contextlib.suppress(AssertionError, OSError), server.connect() as again:
                if tell(again, "stocklevel 1 1 15").startswith("OK"):
                    break
            expect(time.monotonic() < deadline, "nobody is served any more")
        many = [server.connect() for _ in range(90)]
        expect(any(one.recv(100) == b"ERROR too many connections\r\n" for one in many[85:]), "one too many is told")
        for one in many:
            one.close()
        holds(s)


def test_full():
    """There is no room for more orders of a district: it is said, and what was there stays."""
    with Server("tpcc", "--orders", "4096") as server, server.connect() as s:
        for o in range(3001, 4097):
            expect(tell(s, f"neworder 1 1 1 {LINES}").split()[1] == str(o), o)
        expect(tell(s, f"neworder 1 1 1 {LINES}").startswith("ERROR there is no room for more orders"), "full")
        expect(tell(s, f"neworder 1 2 1 {LINES}").split()[1] == "3001", "another district")
        holds(s)


def test_ends():
    """SIGTERM and SIGINT under load."""
    for how in (signal.SIGTERM, signal.SIGINT):
        with Server("tpcc", "--workers", "2", ends_by=how) as server:
            asking = [server.connect() for _ in range(8)]
            for s in asking:
                s.sendall(f"neworder 1 1 1 {LINES}\r\ndelivery 1 1\r\n".encode() * 300 + b"check\r\n")
            read_until(asking[0], b"\r\n")
        for s in asking:
            s.close()


def test_errors():
    """Wrong options: one line that says what to do."""
    for wrong in (["--warehouses", "0"], ["--warehouses", "10001"], ["--orders", "3000"], ["--orders", "1G"], ["--wait", "never"]):
        done = subprocess.run([OPTIONS.serve, "tpcc", *wrong], capture_output=True, timeout=ANSWER_SECONDS, check=False)
        expect(done.returncode == 2 and wrong[0].encode() in done.stderr, (wrong, done))
    limited = ["sh", "-c", 'ulimit -v 2000000; exec "$@"', "sh", OPTIONS.serve, "tpcc", "--warehouses", "10"]
    done = subprocess.run(limited, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    expect(done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"--warehouses 10 --orders 1048576" in done.stderr, done)
