"""The servers of farshore-serve from outside: other people's clients, limits, bad input, and how they end.

The clients are pymemcache and libmemcached's tools; what they are missing for is skipped, and says so. With --prefix the servers are started by
that command, for example 'farshore run --memory 16M --'. Only 127.0.0.1, on ports that the kernel chooses.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

from harness import Unavailable, expect
from servers import ANSWER_SECONDS, MIB, OPTIONS, TEST_SECONDS, Server, ask, number_at, read_until


def client(server, **options):
    """A pymemcache client."""
    try:
        from pymemcache.client.base import Client
    except ImportError:
        raise Unavailable("no python3 has pymemcache (apt-get install python3-pymemcache)") from None
    return Client(server.tcp, connect_timeout=ANSWER_SECONDS, timeout=ANSWER_SECONDS, default_noreply=False, **options)


def tool(name):
    """Path of a tool of libmemcached's."""
    path = shutil.which(name)
    if not path:
        raise Unavailable(f"no {name}: install libmemcached-tools")
    return path


# ---------------------------------------------------------------------------------------------------- clients


def test_pymemcache():
    """All that pymemcache can say."""
    with Server("kv", "--memory", "64M") as server, contextlib.closing(client(server)) as c:
        expect(c.version() == b"1.6.18", c.version())
        expect(c.set("a", b"1", flags=77) and c.get("a") == b"1", "set, get")
        expect(not c.add("a", b"2") and c.add("b", b"2"), "add")
        expect(c.replace("a", b"3") and not c.replace("none", b"3"), "replace")
        expect(c.append("a", b"45") and c.prepend("a", b"12") and c.get("a") == b"12345", "append, prepend")
        expect(c.get_many(["a", "b", "none"]) == {"a": b"12345", "b": b"2"}, "get_many")
        value, cas = c.gets("b")
        expect(value == b"2" and c.cas("b", b"9", cas) is True and c.cas("b", b"8", cas) is False and c.cas("none", b"8", cas) is None, "cas")
        expect(c.incr("b", 5) == 14 and c.decr("b", 20) == 0 and c.incr("none", 1) is None, "incr, decr")
        expect(c.touch("b", 100) and not c.touch("none", 100), "touch")
        expect(c.set("short", b"x", expire=-1) and c.get("short") is None, "expire")
        expect(c.set_many({f"many{n}": str(n).encode() for n in range(500)}) == [], "set_many")
        expect(len(c.get_many([f"many{n}" for n in range(500)])) == 500, "get_many of many")
        expect(c.delete("a") and not c.delete("a") and c.delete_many(["b", "none"]), "delete")
        stats = c.stats()
        expect(stats[b"curr_items"] == 500 and stats[b"cmd_get"] > 500, stats)
        expect(c.stats("settings")[b"item_size_max"] == MIB, "stats settings")
        expect(c.flush_all() and c.get("many1") is None, "flush_all")
        big = random.randbytes(1000_000)
        expect(c.set("big", big) and c.get("big") == big, "a megabyte")
        try:
            c.set("big", bytes(MIB + 1))
            raise AssertionError("larger than allowed, and stored")
        except Exception as error:  # pylint: disable=broad-except
            expect("too large" in str(error), error)
        expect(c.get("big") is None, "what was there is gone")
        for wrong in ("k" * 251, "with blank"):
            try:
                c.set(wrong, b"x")
                raise AssertionError(f"{wrong!r} was stored")
            except AssertionError:
                raise
            except Exception:  # pylint: disable=broad-except
                pass


def test_pymemcache_pool():
    """Eight threads with a pool of connections, on the same keys: what comes back was put there."""
    errors = []

    def work(seed, pooled):
        try:
            dice = random.Random(seed)
            for _ in range(1500):
                key = f"k{dice.randrange(300)}"
                if dice.random() < 0.3:
                    pooled.set(key, (key + ":").encode() * dice.randrange(1, 400), noreply=dice.random() < 0.5)
                else:
                    value = pooled.get(key)
                    expect(value is None or value == (key + ":").encode() * (len(value) // (len(key) + 1)), f"{key}: {value}")
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    with Server("kv", "--memory", "16M", "--workers", "2") as server:
        client(server).close()
        from pymemcache.client.base import PooledClient

        pooled = PooledClient(server.tcp, max_pool_size=8, connect_timeout=ANSWER_SECONDS, timeout=ANSWER_SECONDS)
        threads = [threading.Thread(target=work, args=(seed, pooled)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TEST_SECONDS)
        pooled.close()
        expect(not errors, errors[:1])


def test_libmemcached_tools():
    """memccp, memccat, memcexist, memcrm, memcstat, memcping, memctouch, memcflush."""
    with Server("kv", "--memory", "64M") as server, tempfile.TemporaryDirectory() as place:
        where = f"--servers=127.0.0.1:{server.tcp[1]}"

        def run(name, *arguments):
            done = subprocess.run([tool(name), where, *arguments], cwd=place, capture_output=True, timeout=ANSWER_SECONDS, check=False)
            return done.returncode, done.stdout

        for name, length in (("one", 10), ("two", 100_000)):
            with open(os.path.join(place, name), "wb") as file:
                file.write(bytes(random.choices(b"abcdefgh\n", k=length)))
        expect(run("memcping")[0] == 0, "memcping")
        expect(run("memccp", "one", "two")[0] == 0, "memccp")
        for name in ("one", "two"):
            with open(os.path.join(place, name), "rb") as file:
                expect(run("memccat", name)[1].rstrip(b"\n") == file.read().rstrip(b"\n"), f"memccat {name}")
        expect(run("memcexist", "one")[0] == 0 and run("memcexist", "none")[0] != 0, "memcexist")
        expect(run("memctouch", "--expire=100", "one")[0] == 0, "memctouch")
        expect(run("memcrm", "one")[0] == 0 and run("memccat", "one")[0] != 0, "memcrm")
        expect(b"curr_items: " in run("memcstat")[1], "memcstat")
        expect(run("memcflush")[0] == 0 and run("memccat", "two")[0] != 0, "memcflush")


def test_libmemcached_capable():
    """memccapable: libmemcached's own tests of a server's text protocol."""
    with Server("kv", "--memory", "64M") as server:
        argv = [tool("memccapable"), "-h", "127.0.0.1", "-p", str(server.tcp[1]), "-a", "-t", "5"]
        done = subprocess.run(argv, capture_output=True, timeout=TEST_SECONDS, check=False)
        failed = [line for line in (done.stdout + done.stderr).decode().splitlines() if "FAIL" in line]
        expect(done.returncode == 0 and not failed, failed or done.stderr[-300:])
        expect(b"All tests passed" in done.stdout + done.stderr, done.stdout[-300:])


def test_libmemcached_slap():
    """memcslap: many connections set and get."""
    with Server("kv", "--memory", "64M", "--workers", "2") as server:
        for kind in ("set", "get", "mget"):
            argv = [tool("memcslap"), f"--servers=127.0.0.1:{server.tcp[1]}", "--concurrency=20", "--execute-number=200", f"--test={kind}"]
            done = subprocess.run(argv, capture_output=True, timeout=TEST_SECONDS, check=False)
            expect(done.returncode == 0, (kind, done.stderr[-300:]))


# ---------------------------------------------------------------------------------------------------- sockets


TOO_LONG = b"SERVER_ERROR the answer is too long for UDP: ask by TCP\r\n"


def test_udp():
    """Requests and answers in datagrams: in one, in many if they may be so long, and what is none."""
    datagrams()
    datagrams("--max-udp-answer", "64K")


def datagrams(*options):
    """The same with a server that has these options."""
    with Server("kv", "--memory", "16M", *options) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(ANSWER_SECONDS)

        def request(number, text):
            s.sendto(struct.pack(">HHHH", number, 0, 1, 0) + text, server.udp)
            pieces = {}
            while True:
                datagram, _ = s.recvfrom(65536)
                expect(len(datagram) <= 1400, f"a datagram of {len(datagram)} bytes")
                have, at, count, zero = struct.unpack(">HHHH", datagram[:8])
                expect((have, zero) == (number, 0) and at < count, (have, at, count, zero))
                pieces[at] = datagram[8:]
                if len(pieces) == count:
                    return b"".join(pieces[at] for at in range(count))

        expect(request(1, b"set a 5 0 3\r\nabc\r\n") == b"STORED\r\n", "set")
        expect(request(65535, b"get a\r\n") == b"VALUE a 5 3\r\nabc\r\nEND\r\n", "get")
        expect(request(7, b"get none\r\nversion\r\n") == b"END\r\nVERSION 1.6.18\r\n", "two commands")
        value = random.randbytes(50_000)
        with server.connect() as tcp:
            expect(ask(tcp, b"set big 0 0 50000\r\n" + value + b"\r\n") == b"STORED\r\n", "set by TCP")
            wanted = b"VALUE big 0 50000\r\n" + value + b"\r\nEND\r\n" if len(options) else TOO_LONG
            expect(request(9, b"get big\r\n") == wanted, "an answer of many datagrams")
            value = value[:1300]
            expect(ask(tcp, b"set fits 0 0 1300\r\n" + value + b"\r\n") == b"STORED\r\n", "set by TCP")
            expect(request(10, b"get fits\r\n") == b"VALUE fits 0 1300\r\n" + value + b"\r\nEND\r\n", "an answer of one datagram")
        for nonsense in (b"", b"\0", b"\0\1\0\0\0\1\0", b"\0\1\0\0\0\2\0\0get a\r\n", b"\0\1\0\0\0\1\0\0", b"\0\1\0\0\0\1\0\0get a", random.randbytes(3000)):
            s.sendto(nonsense, server.udp)
        expect(request(3, b"mn\r\n") == b"MN\r\n", "after nonsense")


def test_forged():
    """What a forged sender gets: an answer is not answered, and neither is what is no command; one datagram asks for one."""
    with Server("kv", "--memory", "16M") as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(ANSWER_SECONDS)

        def send(number, text):
            s.sendto(struct.pack(">HHHH", number, 0, 1, 0) + text, server.udp)

        def next_number():
            datagram, _ = s.recvfrom(65536)
            return struct.unpack(">H", datagram[:2])[0]

        with server.connect() as tcp:
            expect(ask(tcp, b"set k 0 0 9\r\nget k\r\nmn\r\n") == b"STORED\r\n", "a value that looks like commands")
            for n in range(12):
                expect(ask(tcp, b"set big%d 0 0 90000\r\n" % n + bytes(90_000) + b"\r\n") == b"STORED\r\n", "set")
        answers = [b"ERROR\r\n", b"CLIENT_ERROR bad data chunk\r\n", TOO_LONG, b"END\r\n", b"STORED\r\n", b"VALUE k 0 9\r\nget k\r\nmn\r\nEND\r\n", b"MN\r\n", b"HD s5\r\n",
                   b"7\r\n", b"STAT a b\r\nEND\r\n", b"VERSION 1.6.18\r\n", b"EN\r\n", b"get\r\n", b"get " + b"k" * 251 + b"\r\n", b"ms k 0 X5\r\n", b"\r\n", b"x" * 1300 + b"\r\n"]
        for number, answer in enumerate(answers):
            send(100 + number, answer)
            send(number, b"mn\r\n")
            expect(next_number() == number, f"{answer[:50]} is answered")
        # What comes before nonsense is answered.
        send(50, b"mn\r\nERROR\r\nmn\r\n")
        datagram, _ = s.recvfrom(65536)
        expect(datagram[8:] == b"MN\r\n", datagram)
        for number in range(60, 90):
            send(number, b"get " + b" ".join(b"big%d" % n for n in range(12)) + b"\r\n")
            datagram, _ = s.recvfrom(65536)
            expect(datagram == struct.pack(">HHHH", number, 0, 1, 0) + TOO_LONG, f"{len(datagram)} bytes of many")


def test_pipelined():
    """Ten thousand commands at once: the answers come in order."""
    with Server("kv", "--memory", "64M") as server, server.connect() as s:
        commands = b"".join(b"set k%d 0 0 5\r\n%05d\r\nget k%d\r\n" % (n, n, n) for n in range(10_000))
        threading.Thread(target=s.sendall, args=(commands,), daemon=True).start()
        wanted = b"".join(b"STORED\r\nVALUE k%d 0 5\r\n%05d\r\nEND\r\n" % (n, n) for n in range(10_000))
        got = b""
        while len(got) < len(wanted):
            got += s.recv(MIB)
        expect(got == wanted, "other answers")


def test_long_gets():
    """Gets of thousands of keys, in one piece and in many: lines that fit into no buffer."""
    with Server("kv", "--memory", "16M") as server, server.connect() as s:
        for n in range(0, 9000, 900):
            expect(ask(s, b"set key%d 0 0 3\r\n%03d\r\n" % (n, n // 900)) == b"STORED\r\n", "set")
        keys = b"".join(b" key%d" % n for n in range(9000))
        wanted = b"".join(b"VALUE key%d 0 3\r\n%03d\r\n" % (n, n // 900) for n in range(0, 9000, 900)) + b"END\r\n"
        expect(ask(s, b"get" + keys + b"\r\n", b"END\r\n") == wanted, "in one piece")
        line = b"get" + keys + b"\r\nmn\r\nget" + keys + b"\r\n" + b"set a 0 0 20000\r\n" + bytes(20_000) + b"\r\n"
        for piece in (700, 16_384, 50_001):
            for at in range(0, len(line), piece):
                s.sendall(line[at : at + piece])
                time.sleep(0.001)
            expect(read_until(s, b"STORED\r\n") == wanted + b"MN\r\n" + wanted + b"STORED\r\n", f"in pieces of {piece}")


def test_who_does_not_read():
    """Clients that ask and do not read: the server's memory does not grow, and others are served."""
    with Server("kv", "--memory", "64M") as server, contextlib.ExitStack() as stack:
        other = stack.enter_context(server.connect())
        expect(ask(other, b"set big 0 0 1000000\r\n" + bytes(1000_000) + b"\r\n") == b"STORED\r\n", "set")
        before = server.resident()
        for _ in range(20):
            s = stack.enter_context(server.connect())
            s.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                for _ in range(200):
                    s.sendall(b"get big\r\n" * 1000)
        expect(server.resident() - before < 16 * MIB, f"it grew by {(server.resident() - before) >> 20} MiB")
        expect(ask(other, b"delete big\r\n") == b"DELETED\r\n" and ask(other, b"get big\r\n") == b"END\r\n", "others are served")


def test_limits():
    """One connection too many; an idle one; a line, a value and a key too long."""
    with Server("kv", "--memory", "16M", "--max-connections", "5", "--max-item", "4K", "--max-line", "10K") as server, contextlib.ExitStack() as stack:
        five = [stack.enter_context(server.connect()) for _ in range(5)]
        for s in five:
            expect(ask(s, b"mn\r\n") == b"MN\r\n", "one of five")
        with server.connect() as sixth:
            expect(read_until(sixth, b"\n") == b"ERROR Too many open connections\r\n" and sixth.recv(1) == b"", "the sixth")
        five.pop().close()
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            with server.connect() as again:
                if ask(again, b"mn\r\n").startswith(b"MN"):
                    break
            expect(time.monotonic() < until, "a place that was left is not given away")
        s = five[0]
        expect(ask(s, b"set a 0 0 4096\r\n" + bytes(4096) + b"\r\n") == b"SERVER_ERROR object too large for cache\r\n", "a value too long")
        expect(ask(s, b"set a 0 0 4000\r\n" + bytes(4000) + b"\r\n") == b"STORED\r\n", "a value that fits")
        expect(ask(s, b"get " + b"k" * 251 + b"\r\n") == b"CLIENT_ERROR bad command line format\r\n", "a key too long")
        expect(ask(s, b"get " + b"k " * 5000 + b"\r\n", b"END\r\n") == b"END\r\n", "a long get")
        for line in (b"set " + b"k" * 3000, b"get " + b"k " * 20_000):
            with contextlib.suppress(ConnectionError):
                s.sendall(line)
                expect(s.recv(1) == b"", "a line too long ends its connection")
            s = five.pop()
    with Server("kv", "--memory", "16M", "--idle-timeout", "1") as server, server.connect() as s:
        expect(ask(s, b"mn\r\n") == b"MN\r\n" and s.recv(1) == b"", "an idle connection is closed")


def test_evicts():
    """More than fits: the server keeps to its memory, forgets old items, and every value is right."""
    with Server("kv", "--memory", "16M") as server, server.connect() as s:
        dice = random.Random(5)
        for start in range(0, 60_000, 500):
            commands = b""
            for n in range(start, start + 500):
                value = b"%d." % n * dice.randrange(5, 200)
                commands += b"set k%d 0 0 %d noreply\r\n%s\r\n" % (n, len(value), value)
            expect(ask(s, commands + b"mn\r\n") == b"MN\r\n", "set")
        expect(server.resident() < 64 * MIB, f"{server.resident() >> 20} MiB are resident")
        found = 0
        for n in range(0, 60_000, 7):
            answer = ask(s, b"get k%d\r\n" % n, b"END\r\n")
            if answer != b"END\r\n":
                found += 1
                value = answer.split(b"\r\n")[1]
                expect(value == b"%d." % n * (len(value) // len(b"%d." % n)), f"k{n}: {value[:50]}")
        expect(500 < found < 8000, f"{found} were found")
        expect(ask(s, b"get k59999\r\n", b"END\r\n") != b"END\r\n", "the last one")


def test_nonsense():
    """Random bytes and half commands, then the connection goes: the server stays."""
    dice = random.Random(11)
    words = [b"get", b"set", b"k", b"0", b"5", b"-1", b"\r\n", b" ", b"ms", b"mg", b"noreply", b"99999999999999999999", b"\xff", b"\n", b"S3", b"T", b"b"]
    with Server("kv", "--memory", "16M") as server:
        for _ in range(300):
            with contextlib.suppress(ConnectionError), server.connect() as s:
                s.sendall(b" ".join(dice.choices(words, k=40)) if dice.random() < 0.7 else dice.randbytes(3000))
        with server.connect() as s:
            expect(ask(s, b"mn\r\n") == b"MN\r\n", "it does not answer")


def test_ends():
    """SIGTERM and SIGINT in the midst of it; a port in use; wrong options."""
    for how in (signal.SIGTERM, signal.SIGINT):
        with Server("kv", "--memory", "16M", "--workers", "2", ends_by=how) as server:
            idle, half, deaf = server.connect(), server.connect(), server.connect()
            ask(idle, b"mn\r\n")
            half.sendall(b"set k 0 0 100\r\nhalf")
            expect(ask(idle, b"set big 0 0 1000000\r\n" + bytes(1000_000) + b"\r\n") == b"STORED\r\n", "set")
            deaf.sendall(b"get big\r\n" * 100)
        idle.close(), half.close(), deaf.close()
    with Server("kv", "--memory", "16M") as server:
        taken = [OPTIONS.serve, "kv", "--memory", "16M", "--listen", f"127.0.0.1:{server.tcp[1]}"]
        done = subprocess.run(taken, capture_output=True, timeout=ANSWER_SECONDS, check=False)
        expect(done.returncode == 1 and b"in use" in done.stderr and done.stderr.count(b"\n") == 1, done)
    for wrong in (["kv", "--memory", "x"], ["kv", "--memory", "1M"], ["kv", "--max-item", "8M", "--memory", "9M"], ["kv", "--memory", "1T"], ["kv", "--wait", "never"], ["array", "--item-bytes", "65"], ["kv", "--max-item", "1"], []):
        done = subprocess.run([OPTIONS.serve, *wrong], capture_output=True, timeout=ANSWER_SECONDS, check=False)
        expect(done.returncode == 2, (wrong, done))


# ---------------------------------------------------------------------------------------------------- array


def test_array():
    """The array: each value is the function of its index; what is no request ends the connection."""
    dice = random.Random(3)
    with Server("array", "--items", "20000", "--item-bytes", "520", "--workers", "2") as server:
        with server.connect() as s, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            u.settimeout(ANSWER_SECONDS)
            indexes = [dice.randrange(20_000) for _ in range(5000)]
            wanted = b"".join(struct.pack("<QQ", number, number_at(index)) for number, index in enumerate(indexes))
            requests = b"".join(struct.pack("<QQ", number, index) for number, index in enumerate(indexes))
            threading.Thread(target=s.sendall, args=(requests,), daemon=True).start()
            got = b""
            while len(got) < len(wanted):
                got += s.recv(MIB)
            expect(got == wanted, "TCP")
            for number, index in enumerate(indexes[:500]):
                u.sendto(struct.pack("<QQ", number, index), server.udp)
                expect(u.recvfrom(100)[0] == wanted[number * 16 : number * 16 + 16], "UDP")
            for nonsense_sent in (b"", b"x", bytes(17), struct.pack("<QQ", 1, 20_000)):
                u.sendto(nonsense_sent, server.udp)
            u.sendto(requests[:16], server.udp)
            expect(u.recvfrom(100)[0] == wanted[:16], "UDP after nonsense")
            s.sendall(struct.pack("<QQ", 1, 20_000))
            expect(s.recv(16) == b"", "an index that there is not ends the connection")
