"""The vectors of farshore-serve from outside: the nearest of them, by hand and by other people's client, in little memory, and while memory nodes are killed.

The load is farshore-load's, which is beside farshore-serve: it looks at each distance, tells the recall, and what all answers come to. The index is the same
each time, so that number must be, too: in all memory, in a fifth of it, and with a dead node. With --memory the servers run under farshore. Only 127.0.0.1, on
ports that the kernel chooses.
"""

import contextlib
import functools
import random
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

from harness import Unavailable, expect
from servers import ANSWER_SECONDS, OPTIONS, TEST_SECONDS, Load, Mirror, Server, in_a_fifth, within_a_fifth

# Vectors that are made, in so many lists of which a search reads eight; their bytes, as the server stores them.
ITEMS, LISTS = 125_000, 512
WHOLE = ITEMS * 524
MADE = ("vsearch", "--items", str(ITEMS), "--lists", str(LISTS), "--workers", "2")
# All of the queries are asked by each load, and their nearest vectors are known.
QUERIES = 64
ASKED = (f"--items={ITEMS}", f"--queries={QUERIES}", f"--recall-of={QUERIES}")
# Those of the tests that need few: their numbers, and the lists.
FEW, NUMBERS, FEW_LISTS = 500, 21, 16


def vectors(count, seed):
    """Small whole numbers: their distances are exact everywhere."""
    dice = random.Random(seed)
    return [[dice.randrange(256) for _ in range(NUMBERS)] for _ in range(count)]


@contextlib.contextmanager
def written(stored, kind):
    """A file with these vectors."""
    with tempfile.NamedTemporaryFile(suffix=kind) as file:
        for vector in stored:
            file.write(struct.pack("<i", len(vector)) + (bytes(vector) if kind == ".bvecs" else struct.pack(f"<{len(vector)}f", *vector)))
        file.flush()
        yield file.name


def blob(vector):
    """A vector as a search has it."""
    return struct.pack(f"<{len(vector)}f", *vector)


def command(*words):
    """A command of Redis' protocol."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def search(vector, count, *more, probes=FEW_LISTS):
    """A search for the nearest."""
    return command("FT.SEARCH", "vectors", f"*=>[KNN {count} @v $q NPROBE {probes} AS d]", "PARAMS", 2, "q", blob(vector), "DIALECT", 2, *more)


def nearest(stored, vector, count):
    """The nearest, by looking at all of them: what is farther is behind, and what is as far and has a higher number."""
    away = sorted((sum((a - b) ** 2 for a, b in zip(one, vector)), number) for number, one in enumerate(stored))
    return away[:count]


def answer(found):
    """What a search is told that finds these."""
    parts = [b"*%d\r\n:%d\r\n" % (1 + 2 * len(found), len(found))]
    for far, number in found:
        name, far = str(number).encode(), str(far).encode()
        parts.append(b"$%d\r\n%s\r\n*2\r\n$1\r\nd\r\n$%d\r\n%s\r\n" % (len(name), name, len(far), far))
    return b"".join(parts)


def read(connection, length):
    """So many bytes, or what comes before the end."""
    got = b""
    while len(got) < length:
        piece = connection.recv(length - len(got))
        if not piece:
            break
        got += piece
    return got


def told(connection, asked):
    """The line that a command is answered by."""
    connection.sendall(asked)
    got = b""
    while not got.endswith(b"\r\n"):
        piece = connection.recv(1)
        expect(piece, f"closed after {got!r}")
        got += piece
    return got.decode().rstrip()


def stats(server):
    """What happened, by name."""
    with server.connect() as s:
        length = int(told(s, command("INFO"))[1:])
        lines = read(s, length + 2).decode().split("\r\n")
    return {name: int(value) for name, value in (line.split(":") for line in lines if ":" in line)}


def holds(server):
    """Each vector is what was stored."""
    with server.connect() as s:
        s.settimeout(TEST_SECONDS)
        said = told(s, command("VERIFY"))
        expect(said == f"+OK {ITEMS} vectors are as they were stored", said)
    expect(stats(server)["damaged"] == 0, stats(server))


def test_answers():
    """The nearest of a file's vectors, over TCP and UDP: those that one finds by looking at all of them, with their distances."""
    stored, queries = vectors(FEW, 1), vectors(10, 2)
    for kind in (".bvecs", ".fvecs"):
        with written(stored, kind) as name:
            with Server("vsearch", "--file", name, "--items", str(FEW), "--lists", str(FEW_LISTS), "--probes", str(FEW_LISTS), "--workers", "2") as server:
                with server.connect() as s, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
                    u.settimeout(ANSWER_SECONDS)
                    for query in queries + stored[:3]:
                        for count in (1, 10):
                            wanted = answer(nearest(stored, query, count))
                            s.sendall(search(query, count))
                            expect(read(s, len(wanted)) == wanted, f"TCP: {query}")
                            u.sendto(b"12345678" + search(query, count), server.udp)
                            expect(u.recvfrom(2048)[0] == b"12345678" + wanted, f"UDP: {query}")
                    wanted = answer(nearest(stored, queries[0], 100))
                    s.sendall(search(queries[0], 100, "LIMIT", 0, 100, "SORTBY", "d", "ASC", "RETURN", 1, "d"))
                    expect(read(s, len(wanted)) == wanted, "100 of them")
                    # In one list there are fewer, and they are some of all.
                    s.sendall(search(queries[0], 3, "NOCONTENT", probes=1))
                    expect(read(s, 4) == b"*4\r\n", "three of the nearest list")


def test_other_peoples_client():
    """redis-cli asks for the nearest, with the query's bytes, as for anything else of a Redis."""
    stored, query = vectors(FEW, 1), vectors(1, 3)[0]
    with written(stored, ".bvecs") as name, Server("vsearch", "--file", name, "--items", str(FEW), "--lists", str(FEW_LISTS)) as server:

        def client(*words, given=b""):
            try:
                return subprocess.run(["redis-cli", "-p", str(server.tcp[1]), *words], input=given, capture_output=True, timeout=ANSWER_SECONDS, check=True).stdout.decode()
            except FileNotFoundError as error:
                raise Unavailable("redis-cli is not installed") from error

        expect(client("PING") == "PONG\n", "ping")
        asked = ("FT.SEARCH", "vectors", f"*=>[KNN 5 @v $q NPROBE {FEW_LISTS} AS d]", "PARAMS", "2", "q", "BLOB", "DIALECT", "2")
        said = client("-X", "BLOB", *asked, given=blob(query)).split()
        found = nearest(stored, query, 5)
        expect(said == ["5", *(word for far, number in found for word in (str(number), "d", str(far)))], said)
        expect("searches:1" in client("INFO").split(), "what it counts")
        expect(client("NONSENSE").startswith("ERR unknown command"), "an error")


@functools.cache
def with_all_memory():
    """What a server says that has all memory: the recall, and what the answers come to."""
    with Server(*MADE, prefix=[]) as server:
        quality = asked(server, "tcp", 2)["quality"]
        holds(server)
    expect(quality["of"] == QUERIES and quality["queries"] == QUERIES and quality["nearest"] == 10, quality)
    return quality["recall"], quality["answers"]


def same_answers(result):
    """Each query was answered as it is with all memory."""
    quality = result["quality"]
    expect(quality["queries"] == QUERIES and (quality["recall"], quality["answers"]) == with_all_memory(), (quality, with_all_memory()))


def asked(server, by, seconds):
    """All queries, asked for so long, or for longer on a machine that does not come to each of them in that time."""
    while True:
        result = Load(server, "vsearch", by, *ASKED, "--closed=16", f"--seconds={seconds}").done(seconds)
        if result["quality"]["queries"] == QUERIES or seconds > 30:
            return result
        seconds *= 2


def test_recall():
    """What is found in eight lists of many, and in more of them."""
    recall, answers = with_all_memory()
    expect(0.8 < recall < 1, f"recall@10 is {recall}: it tells nothing, or too few are found")
    with Server(*MADE) as server:
        same_answers(asked(server, "udp", 2))
        more = Load(server, "vsearch", "tcp", *ASKED, "--closed=16", "--seconds=2", "--probes=64").done(2)["quality"]
        expect(recall < more["recall"] <= 1 and more["answers"] != answers, more)
        few = Load(server, "vsearch", "tcp", *ASKED, "--closed=16", "--seconds=2", "--probes=1").done(2)["quality"]
        expect(few["recall"] < recall, few)
        holds(server)
    return f"recall@10 {few['recall']:.3f} in 1 list of {LISTS}, {recall:.3f} in 8, {more['recall']:.3f} in 64"


def waits(wait):
    """A way to wait for pages, in a fifth of the data: the answers are those with all memory."""
    with Server(*MADE, "--wait", wait, prefix=OPTIONS.prefix or in_a_fifth(WHOLE)) as server:
        same_answers(asked(server, "tcp", 4))
        same_answers(asked(server, "udp", 2))
        holds(server)
        within_a_fifth(server, WHOLE)
    return f"recall@10 {with_all_memory()[0]:.3f}"


def test_yield_in_a_fifth():
    """A worker that has to wait does others' work."""
    return waits("yield")


def test_block_in_a_fifth():
    """A worker that has to wait sleeps."""
    return waits("block")


def test_busy_in_a_fifth():
    """A worker that has to wait looks for its page."""
    return waits("busy")


def test_nodes_are_killed(request):
    """In a fifth of its data, on a mirror of two memory nodes, which are killed in turn under load: each answer is that with all memory."""
    recall = with_all_memory()[0]
    answered = 0
    with Mirror() as mirror, Server(*MADE, prefix=in_a_fifth(WHOLE, mirror.swap)) as server:

        def under_load(kill):
            nonlocal answered
            before = stats(server)["searches"]
            load = Load(server, "vsearch", "tcp", *ASKED, "--closed=16", "--seconds=10")
            # It finds the nearest of its queries first.
            deadline = time.monotonic() + TEST_SECONDS
            while stats(server)["searches"] < before + 20:
                expect(load.process.poll() is None and time.monotonic() < deadline, "the load does not begin")
                time.sleep(0.05)
            kill()
            expect(load.process.poll() is None, "it was over before the node was known to be down")
            result = load.done(10)
            same_answers(result)
            answered += result["all"]["answered"]
            holds(server)

        turns = mirror.each_is_killed(server, request.config.option.killed_seconds, under_load)
        within_a_fifth(server, WHOLE)
    return f"{turns} kills, {answered} searches, recall@10 {recall:.3f} each time"


def test_nonsense():
    """What is no command: a line that says what is wrong. What cannot be read on ends its connection; as a datagram it is dropped. Others are served."""
    stored, query = vectors(FEW, 1), vectors(1, 4)[0]
    right = answer(nearest(stored, query, 3))
    good = search(query, 3)
    with written(stored, ".bvecs") as name, Server("vsearch", "--file", name, "--items", str(FEW), "--lists", str(FEW_LISTS), "--probes", str(FEW_LISTS - 1)) as server:
        with server.connect() as s, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            u.settimeout(ANSWER_SECONDS)
            lines = [command("NONSENSE"), command("FT.SEARCH"), command("FT.SEARCH", "vectors"), search(query[:-1], 3), search(query + [1], 3), search([float("nan")] * NUMBERS, 3),
                     search([float("inf")] * NUMBERS, 3), search(query, 0), search(query, 101), search(query, 3, probes=0), search(query, 3, probes=FEW_LISTS + 1),
                     search(query, 3, "WITHSCORES"), search(query, 3, "SORTBY", "d", "DESC"), search(query, 3).replace(b"vectors", b"another"), command("SELECT", 1)]
            for bad in lines:
                said = told(s, bad)
                expect(said.startswith("-ERR "), (bad, said))
            s.sendall(good)
            expect(read(s, len(right)) == right, "the same connection goes on")
            for bad in (b"*x\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$3\r\nABCDE", b"*100\r\n", b"x" * 2000, b"*1\r\n$999999999\r\n" + bytes(20_000)):
                with server.connect() as other:
                    other.sendall(bad)
                    got = b""
                    with contextlib.suppress(ConnectionResetError):
                        while piece := other.recv(65536):
                            got += piece
                    # What it did not read makes it a reset, which may overtake the line.
                    expect(not got or got.startswith(b"-ERR Protocol error"), (bad[:40], got))
            with server.connect() as other:
                # Some of it are lines, others end the connection.
                other.sendall(random.Random(3).randbytes(9000))
                other.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while other.recv(65536):
                        pass
            for bad in (b"", b"1234567", b"12345678", b"12345678PING\r\n", b"12345678" + command("VERIFY"), b"12345678" + good[:-1], b"12345678" + good + b"x", bytes(2000),
                        random.Random(5).randbytes(100)):
                u.sendto(bad, server.udp)
            # One datagram of somebody else is no long work either.
            u.sendto(b"abcdefgh" + good, server.udp)
            expect(u.recvfrom(2048)[0].startswith(b"abcdefgh-ERR NPROBE: over UDP"), "more lists than the server reads by itself")
            u.sendto(b"abcdefgh" + search(query, 3, probes=FEW_LISTS - 1), server.udp)
            expect(u.recvfrom(2048)[0].startswith(b"abcdefgh*7\r\n"), "UDP after nonsense")
            # One datagram of somebody else is no long answer.
            u.sendto(b"abcdefgh" + search(query, 100, "LIMIT", 0, 100), server.udp)
            expect(u.recvfrom(2048)[0].startswith(b"abcdefgh-ERR the answer is too long for UDP"), "a long answer")
            s.sendall(good)
            expect(read(s, len(right)) == right, "another connection goes on")
            expect(stats(server)["searches"] == 3, stats(server))


def test_pieces():
    """Many commands at once, in pieces of any length: the answers come in order."""
    stored, queries = vectors(FEW, 1), vectors(300, 6)
    requests = b"".join(search(query, 2) for query in queries)
    wanted = [answer(nearest(stored, query, 2)) for query in queries]
    with written(stored, ".fvecs") as name, Server("vsearch", "--file", name, "--items", str(FEW), "--lists", str(FEW_LISTS), "--workers", "2") as server:
        each = len(requests) // len(queries)
        for piece, count in ((1 << 30, 300), (4001, 300), (7, 20)):
            with server.connect() as s:

                def send(s=s, piece=piece, end=each * count):
                    for at in range(0, end, piece):
                        s.sendall(requests[at : min(at + piece, end)])

                threading.Thread(target=send, daemon=True).start()
                right = b"".join(wanted[:count])
                expect(read(s, len(right)) == right, f"in pieces of {piece}")


def test_hostile_clients():
    """Clients that do not read, that go away in the midst, that let all vectors be looked at without end, and too many of them."""
    stored, query = vectors(FEW, 1), vectors(1, 7)[0]
    right, good = answer(nearest(stored, query, 3)), search(query, 3)
    with written(stored, ".bvecs") as name, Server("vsearch", "--file", name, "--items", str(FEW), "--lists", str(FEW_LISTS), "--max-connections", "60") as server:
        deaf = [server.connect() for _ in range(3)]
        for one in deaf:
            one.settimeout(2)
            # More than all buffers hold: it is not read from any more.
            with contextlib.suppress(TimeoutError):
                one.sendall(good * 100_000)
        for n in range(50):
            with server.connect() as gone:
                gone.sendall(good * 20)
                if n % 2:
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lookers = [server.connect() for _ in range(3)]
        for one in lookers:
            one.sendall(command("VERIFY") * 1000)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            with contextlib.suppress(OSError), server.connect() as again:
                again.settimeout(ANSWER_SECONDS)
                again.sendall(good)
                if read(again, len(right)) == right:
                    break
            expect(time.monotonic() < deadline, "nobody is served any more")
        many = [server.connect() for _ in range(70)]
        expect(any(one.recv(100) == b"-ERR max number of clients reached\r\n" for one in many[65:]), "one too many is told")
        for one in many + lookers + deaf:
            one.close()


def test_ends():
    """SIGTERM and SIGINT under load, also while it looks at all vectors."""
    for how in (signal.SIGTERM, signal.SIGINT):
        with Server("vsearch", "--items", "20000", "--workers", "2", ends_by=how) as server:
            asking = [server.connect() for _ in range(8)]
            for s in asking:
                s.sendall((search([1] * 128, 100, probes=100) + command("VERIFY")) * 10)
            read(asking[0], 4)
        for s in asking:
            s.close()


def test_errors():
    """Wrong options, and files that are none: one line that says what to do."""
    for wrong in (["--items", "0"], ["--items", "5G"], ["--dimensions", "0"], ["--dimensions", "1025"], ["--lists", "0"], ["--lists", "11", "--items", "10"],
                  ["--probes", "0"], ["--probes", "11", "--lists", "10"], ["--wait", "never"], ["--max-udp-answer", "2041"], ["--dimensions", "3", "--file", "x.bvecs"]):
        done = subprocess.run([OPTIONS.serve, "vsearch", *wrong], capture_output=True, timeout=ANSWER_SECONDS, check=False)
        expect(done.returncode == 2 and wrong[0].encode() in done.stderr, (wrong, done))
    with written(vectors(FEW, 1), ".bvecs") as name, tempfile.NamedTemporaryFile(suffix=".fvecs") as empty:
        for wrong, says in ((["--file", name, "--items", "501"], b"500 vectors"), (["--file", "/nowhere.fvecs"], b"/nowhere.fvecs"), (["--file", empty.name], empty.name.encode()),
                            (["--file", "/etc/passwd"], b".fvecs or .bvecs")):
            done = subprocess.run([OPTIONS.serve, "vsearch", *wrong], capture_output=True, timeout=ANSWER_SECONDS, check=False)
            expect(done.returncode == 1 and done.stderr.count(b"\n") == 1 and says in done.stderr, (wrong, done))
