"""The real programs that must give the same bytes natively and under Farshore.

A case makes its input once (`prepare`), then runs in every mode (`run`). It starts programs through the context, which runs
them natively or under farshore, and hands every result to `context.same`, which compares it with the native one. A case says
what it needs by raising `Unavailable` in `prepare`. Sizes come in two presets: `small` takes a few seconds a run at a
quarter of the memory, `full` has data that is worth swapping; some have a `demo` in between, for `make demo`.

To add a program: write a class with `name`, `summary`, `prepare` and `run`, and put it into `CASES`.
"""

import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import harness
from harness import MIB, Unavailable, need


class Case:
    """A program with its input. `size` is "small" or "full"."""

    name = summary = ""
    # A limit in bytes instead of shares of the natural peak, for programs whose point is not their size.
    fixed_limit = None
    # Whether the counters of a run in a fixed limit belong to the process that uses the memory.
    evicts = True
    # Exit statuses of steps that do not end with 0, and steps whose process becomes another program, which takes the counters with it.
    statuses = {}
    uncounted = ()
    timeout = {"small": 150, "full": 3600}
    sizes = {"small": None, "full": None}

    def __init__(self, size, folder):
        self.size, self.amount, self.folder = size, self.sizes[size], folder

    def path(self, name):
        """A path for this case's input."""
        return os.path.join(self.folder, name)

    def prepare(self):
        """Finds programs and makes the input."""

    def run(self, context):
        """Runs the case in the context's mode."""
        raise NotImplementedError


# ------------------------------------------------------------------------------------------------ input


def write_words(path, size, seed):
    """A text of about `size` bytes that compresses like prose: a few thousand words, the frequent ones more often."""
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(rng.choices(letters, range(26, 0, -1), k=rng.randint(2, 11))) for _ in range(6000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    with open(path, "w", encoding="ascii") as file:
        written = 0
        while written < size:
            piece = rng.choices(words, weights, k=20000)
            lines = "\n".join(" ".join(piece[at:at + 12]) for at in range(0, len(piece), 12)) + "\n"
            lines = lines[:max(0, size - written)]
            written += file.write(lines)


def write_lines(path, size, seed):
    """Lines with random keys, some of them equal, for sorting."""
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii") as file:
        written = 0
        while written < size:
            digits = rng.randbytes(24 * 5000).hex()
            lines = [f"{digits[at:at + 6 + at % 20]} {digits[at + 20:at + 48]} {at}" for at in range(0, len(digits), 48)]
            written += file.write("\n".join(lines) + "\n")


def write_c_file(path, functions, seed):
    """A C file without includes: many functions with loops, tables and switches, which keep an optimiser busy."""
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii") as file:
        file.write("typedef unsigned long u64;\nextern u64 out[];\n")
        for number in range(functions):
            table = ", ".join(str(rng.randrange(1 << 30)) for _ in range(24))
            cases = "".join(f"        case {k}: x = (x ^ t{number}[{rng.randrange(24)}]) * {rng.randrange(3, 9999)}u + i; break;\n"
                            for k in range(rng.randrange(6, 14)))
            callee = f"f{rng.randrange(number)}(x & 7, y)" if number else "y"
            file.write(f"static const u64 t{number}[24] = {{ {table} }};\n"
                       f"u64 f{number}(u64 x, u64 y)\n{{\n    u64 a[16];\n"
                       f"    for (u64 i = 0; i < 16; i++) a[i] = x * i + t{number}[i] + (y >> (i & 31));\n"
                       f"    for (u64 i = 0; i < {rng.randrange(5, 60)}; i++) {{\n        switch ((x + i) % {rng.randrange(7, 17)}) {{\n{cases}"
                       f"        default: y += a[i & 15];\n        }}\n        a[(i + 3) & 15] ^= x + y;\n    }}\n"
                       f"    if (x > y) return {callee};\n"
                       f"    for (u64 i = 0; i < 16; i++) out[i] += a[i] * {rng.randrange(1, 99)}u;\n    return x ^ a[y & 15];\n}}\n")


# --------------------------------------------------------------------------------------- batch programs


class Sort(Case):
    name, summary = "sort", "GNU sort with a buffer (-S) larger than the limit"
    sizes = {"small": 12 * MIB, "demo": 120 * MIB, "full": 400 * MIB}

    def prepare(self):
        self.sort = need("sort", "coreutils")
        write_lines(self.path("lines"), self.amount, 11)

    def run(self, context):
        argv = [self.sort, "-S", str(self.amount * 8), "--parallel=2", "-T", context.folder, self.path("lines")]
        context.same_output("sorted", context.run("sort", argv))


class Xz(Case):
    name, summary = "xz", "xz -9, there and back"
    # Small is small in bytes, not in memory: -9 scatters each position of its input over 64 MiB of hash table.
    sizes = {"small": 220 * 1024, "full": 6 * MIB}

    def prepare(self):
        self.xz = need("xz", "xz-utils")
        write_words(self.path("text"), self.amount, 12)

    def run(self, context):
        packed = context.run("pack", [self.xz, "-9", "-T1", "-c", self.path("text")])
        context.same_output("packed", packed)
        context.same_file("text", context.run("unpack", [self.xz, "-d", "-c", packed]), self.path("text"))


class Zstd(Case):
    name, summary = "zstd", "zstd -T2 --ultra -20 --long=27, there and back"
    sizes = {"small": 400 * 1024, "full": 24 * MIB}

    def prepare(self):
        self.zstd = need("zstd", "zstd")
        write_words(self.path("text"), self.amount, 13)

    def run(self, context):
        argv = [self.zstd, "-q", "-T2", "--ultra", "-20", "--long=27", "-c"]
        packed = context.run("pack", argv, stdin=self.path("text"))
        context.same_output("packed", packed)
        context.same_file("text", context.run("unpack", [self.zstd, "-q", "-d", "--long=27", "-c", packed]), self.path("text"))


class ZstdThreads(Case):
    # Not a higher level: four search tables that do not fit are touched at random for each byte, which no swap can serve in a test's time.
    name, summary = "zstd-t4", "zstd -T4"
    sizes = {"small": 24 * MIB, "demo": 64 * MIB, "full": 512 * MIB}

    def prepare(self):
        self.zstd = need("zstd", "zstd")
        write_words(self.path("text"), self.amount, 14)

    def run(self, context):
        context.same_output("packed", context.run("pack", [self.zstd, "-q", "-T4", "-c", self.path("text")]))


class Pigz(Case):
    name, summary = "pigz", "pigz -p4 with large blocks, unpacked again"
    sizes = {"small": 32 * MIB, "full": 512 * MIB}

    def prepare(self):
        self.pigz = need("pigz", "pigz")
        write_words(self.path("text"), self.amount, 15)

    def run(self, context):
        packed = context.run("pack", [self.pigz, "-p", "4", "-b", "4096", "-n", "-c"], stdin=self.path("text"))
        context.same_output("packed", packed)
        context.same_file("text", context.run("unpack", [self.pigz, "-d", "-c"], stdin=packed), self.path("text"))


class Gcc(Case):
    name, summary = "gcc", "the compiler proper (cc1 -O2) on a large file"
    sizes = {"small": 120, "full": 2500}

    def prepare(self):
        gcc = need("gcc", "gcc")
        self.cc1 = subprocess.run([gcc, "-print-prog-name=cc1"], stdout=subprocess.PIPE, check=True).stdout.decode().strip()
        if not os.path.isabs(self.cc1):
            raise Unavailable("gcc has no cc1 (apt-get install gcc)")
        write_c_file(self.path("large.c"), self.amount, 16)

    def run(self, context):
        # The driver gcc only starts cc1; cc1 itself is what needs the memory, so it is what runs in the limit.
        out = os.path.join(context.folder, "large.s")
        context.run("compile", [self.cc1, "-quiet", "-O2", "-fno-ident", self.path("large.c"), "-o", out])
        context.same_output("assembly", out)


class GccChain(Case):
    name, summary = "gcc-chain", "gcc with its children: cc1, as and ld"
    sizes = {"small": 30, "full": 300}
    fixed_limit = 16 * MIB
    evicts = False

    def prepare(self):
        self.gcc = need("gcc", "gcc")
        write_c_file(self.path("part.c"), self.amount, 17)
        with open(self.path("main.c"), "w", encoding="ascii") as file:
            file.write("#include <stdio.h>\nunsigned long out[16];\nunsigned long f3(unsigned long, unsigned long);\n"
                       'int main(void) { printf("%lx %lx\\n", f3(5, 6), out[3]); return 0; }\n')

    def run(self, context):
        binary = os.path.join(context.folder, "made")
        # No -g: debug information would name the folder, which differs from run to run.
        context.run("make", [self.gcc, "-O1", "-Wl,--build-id=none", self.path("part.c"), self.path("main.c"), "-o", binary])
        context.same_output("answer", context.run("answer", [binary]))


class Sqlite(Case):
    name, summary = "sqlite", "sqlite3 :memory: with a join and an index"
    sizes = {"small": 120000, "demo": 900000, "full": 4000000}

    def prepare(self):
        self.sqlite = need("sqlite3", "sqlite3")
        rows = self.amount
        with open(self.path("script.sql"), "w", encoding="ascii") as file:
            file.write(f"""
create table item(id integer primary key, owner integer, weight integer, label text);
create table owner(id integer primary key, name text, region integer);
with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})
insert into item select i, (i * 7919) % {rows // 10} + 1, (i * 2654435761) % 1000003, printf('item-%d-%x', i, (i * 40503) % 65536) from n;
with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows // 10})
insert into owner select i, printf('owner %08x', (i * 2654435761) % 4294967296), i % 37 from n;
create index item_owner on item(owner, weight);
create index item_label on item(label);
select count(*), sum(weight) from item;
select region, count(*), sum(weight), max(label) from owner join item on item.owner = owner.id group by region order by region;
select label, weight from item where owner between 100 and 110 order by weight, label limit 50;
select count(*) from item a join item b on b.label = a.label;
update item set weight = weight + 1 where id % 3 = 0;
delete from item where id % 11 = 0;
select sum(weight), count(distinct owner) from item;
""")

    def run(self, context):
        context.same_output("rows", context.run("query", [self.sqlite, ":memory:"], stdin=self.path("script.sql")))


PYTHON_SCRIPT = """
import sys, zlib
count = int(sys.argv[1])
numbers = [(i * 2654435761) % 4294967291 for i in range(count)]
table = {"key %d" % number: (number, str(number) * 3) for number in numbers}
assert len(table) == len(set(numbers))
order = sorted(range(count), key=numbers.__getitem__)
assert all(numbers[a] <= numbers[b] for a, b in zip(order, order[1:]))
crc = 0
for index in range(0, count, 3):
    number, text = table["key %d" % numbers[index]]
    assert number == numbers[index] and text == str(number) * 3
    crc = zlib.crc32(text.encode(), crc)
for number in numbers[::5]:
    del table["key %d" % number]
rows = [[i, i * i, [i] * 4] for i in range(count // 4)]
rows.reverse()
print(len(table), crc, sum(row[1] for row in rows), sum(numbers), order[:5], numbers[order[-1]])
"""


class Python(Case):
    name, summary = "python", "python3 with a large dict and large lists"
    sizes = {"small": 90000, "demo": 500000, "full": 2500000}

    def prepare(self):
        self.python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        with open(self.path("build.py"), "w", encoding="ascii") as file:
            file.write(PYTHON_SCRIPT)

    def run(self, context):
        argv = [self.python, "-S", "-E", self.path("build.py"), str(self.amount)]
        context.same_output("sums", context.run("build", argv, env={"PYTHONHASHSEED": "0"}))


NUMPY_SCRIPT = """
import hashlib, sys
import numpy as np
count, side = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(5)
a = rng.integers(0, 1 << 40, count, dtype=np.int64)
b = a[::-1].copy()
a.sort()
c = a * 3 + b
# Small whole numbers: every order of summation gives the same float.
m = rng.integers(-8, 8, (side, side)).astype(np.float64)
n = rng.integers(-8, 8, (side, side)).astype(np.float64)
p = m @ n
q = (p.T + m).sum(axis=0)
unique = np.unique(c >> 20)
print(int(a.sum()), int(c.sum()), len(unique), int(q.sum()))
for array in (a, c, p, q, unique):
    print(hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest())
"""


class Numpy(Case):
    name, summary = "numpy", "NumPy: sort, sum, unique, matrix product"
    sizes = {"small": (700000, 400), "demo": (6000000, 800), "full": (24000000, 3000)}

    def prepare(self):
        self.python = harness.python_with("numpy", "python3-numpy")
        with open(self.path("arrays.py"), "w", encoding="ascii") as file:
            file.write(NUMPY_SCRIPT)

    def run(self, context):
        argv = [self.python, self.path("arrays.py"), *map(str, self.amount)]
        env = {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "0"}
        context.same_output("arrays", context.run("arrays", argv, env=env))


# ---------------------------------------------------------------------------------------------- servers


class Values:
    """Values that follow from their number, of 60 to 3000 bytes, cut from one random block."""

    def __init__(self, seed):
        self.block = random.Random(seed).randbytes(1 << 20)

    def of(self, number, version=0):
        """The value of a key."""
        step = number * 7919 + version * 104729
        length = 60 + step * 31 % 2940
        at = step * 613 % ((1 << 20) - 4096)
        return b"%d.%d:" % (number, version) + self.block[at:at + length]


class Connection:
    """A client's socket with what a line protocol needs."""

    def __init__(self, path, process, seconds):
        deadline = time.monotonic() + seconds
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(seconds)
            try:
                self.socket.connect(path)
                break
            except OSError as error:
                self.socket.close()
                if not process.alive() or time.monotonic() > deadline:
                    raise ConnectionError(f"the server does not answer: {error.strerror}") from None
                time.sleep(0.02)
        self.file = self.socket.makefile("rb", 1 << 16)

    def send(self, data):
        """Sends all bytes."""
        self.socket.sendall(data)

    def line(self):
        """One line without its end; an end of the connection is an error."""
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        return line[:-2]

    def exactly(self, count):
        """That many bytes."""
        data = self.file.read(count)
        if len(data) != count:
            raise ConnectionError("the server closed the connection")
        return data

    def close(self):
        """Ends the connection."""
        self.file.close()
        self.socket.close()


class Redis(Connection):
    """As much of RESP as is needed here."""

    def reply(self):
        """One reply: bytes, int, None or a list of these; errors raise."""
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.exactly(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        raise ConnectionError(f"redis says {line!r}")

    def many(self, commands):
        """Sends commands in one go and returns their replies."""
        parts = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
        self.send(b"".join(parts))
        return [self.reply() for _ in commands]


def batches(numbers, size):
    """A range in pieces."""
    for at in range(0, len(numbers), size):
        yield numbers[at:at + size]


class RedisServer(Case):
    name, summary = "redis", "redis-server without saving, filled and read back"
    sizes = {"small": 14000, "demo": 60000, "full": 400000}

    def prepare(self):
        self.server = need("redis-server", "redis-server")
        self.benchmark = shutil.which("redis-benchmark")

    def run(self, context):
        with tempfile.TemporaryDirectory(prefix="fs-", dir="/tmp") as short:
            path = os.path.join(short, "s")
            argv = [self.server, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", context.folder,
                    "--maxmemory", "0", "--loglevel", "warning", "--io-threads", "1"]
            server = context.serve("server", argv)
            try:
                self.drive(context, path, server)
            except (OSError, ConnectionError) as error:
                context.problem(f"client: {error}")
                server.kill_session()
            context.finish(server)

    def drive(self, context, path, server):
        client, values, sha = Redis(path, server, context.timeout), Values(21), hashlib.sha256()
        keys = range(self.amount)
        for part in batches(keys, 200):
            client.many([[b"SET", b"key:%d" % k, values.of(k)] for k in part])
            client.many([[b"ZADD", b"ranking", b"%d" % (k * 7919 % 100003), b"member:%d" % k] for k in part if k % 4 == 0])
            client.many([[b"HSET", b"hash:%d" % (k % 50), b"field:%d" % k, values.of(k)[:100]] for k in part if k % 5 == 0])
            client.many([[b"RPUSH", b"list", b"%d" % k] for k in part])
        for part in batches(range(0, self.amount, 3), 200):
            client.many([[b"SET", b"key:%d" % k, values.of(k, 1)] for k in part])
        for part in batches(range(0, self.amount, 7), 200):
            client.many([[b"DEL", b"key:%d" % k] for k in part])
        wrong = 0
        for part in batches(keys, 200):
            replies = client.many([[b"GET", b"key:%d" % k] for k in part])
            for k, reply in zip(part, replies):
                expected = None if k % 7 == 0 else values.of(k, 1 if k % 3 == 0 else 0)
                wrong += reply != expected
                sha.update(reply or b"-")
        for command in ([b"ZRANGE", b"ranking", b"0", b"-1", b"WITHSCORES"], [b"LRANGE", b"list", b"0", b"-1"], [b"HGETALL", b"hash:7"], [b"DBSIZE"]):
            reply = client.many([command])[0]
            # A hash has no order of its own.
            sha.update(repr(sorted(reply) if command[0] == b"HGETALL" else reply).encode())
        if wrong:
            context.problem(f"{wrong} values are not what was stored")
        context.same("values", sha.hexdigest())
        if self.benchmark:
            argv = [self.benchmark, "-s", path, "-q", "-n", str(self.amount // 2), "-r", str(self.amount), "-d", "400", "-c", "20", "-t", "set,get,lpush,lrange_100"]
            done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=context.timeout, check=False)
            if done.returncode != 0:
                context.problem(f"redis-benchmark ended with {done.returncode}: {done.stderr[-200:]!r}")
        client.send(b"SHUTDOWN NOSAVE\r\n")
        client.close()


class Memcached(Case):
    name, summary = "memcached", "memcached, filled and read back"
    sizes = {"small": 14000, "full": 400000}

    def prepare(self):
        self.server = need("memcached", "memcached")

    def run(self, context):
        with tempfile.TemporaryDirectory(prefix="fs-", dir="/tmp") as short:
            path = os.path.join(short, "s")
            # As root it wants to be told a user to become; the same user keeps all rights that the test has.
            user = ["-u", "root"] if os.geteuid() == 0 else []
            server = context.serve("server", [self.server, "-s", path, "-m", "4096", "-t", "4", "-A", "-c", "64", *user])
            try:
                self.drive(context, path, server)
            except (OSError, ConnectionError) as error:
                context.problem(f"client: {error}")
                server.kill_session()
            context.finish(server)

    def drive(self, context, path, server):
        clients, values, sha = [Connection(path, server, context.timeout) for _ in range(4)], Values(22), hashlib.sha256()

        def store(numbers, version):
            for at, part in enumerate(batches(numbers, 100)):
                data = b"".join(b"set key:%d %d 0 %d noreply\r\n%b\r\n" % (k, k % 65536, len(values.of(k, version)), values.of(k, version)) for k in part)
                clients[at % 4].send(data)
            for client in clients:
                client.send(b"version\r\n")
                client.line()

        store(range(self.amount), 0)
        store(range(0, self.amount, 3), 1)
        clients[0].send(b"".join(b"delete key:%d noreply\r\n" % k for k in range(0, self.amount, 7)) + b"version\r\n")
        clients[0].line()
        wrong = 0
        for at, part in enumerate(batches(range(self.amount), 50)):
            client = clients[at % 4]
            client.send(b"get " + b" ".join(b"key:%d" % k for k in part) + b"\r\n")
            found = {}
            while (line := client.line()) != b"END":
                _, key, flags, length = line.split()
                found[key] = (int(flags), client.exactly(int(length) + 2)[:-2])
            for k in part:
                expected = None if k % 7 == 0 else (k % 65536, values.of(k, 1 if k % 3 == 0 else 0))
                reply = found.get(b"key:%d" % k)
                wrong += reply != expected
                sha.update(repr(reply).encode())
        if wrong:
            context.problem(f"{wrong} values are not what was stored")
        context.same("values", sha.hexdigest())
        clients[0].send(b"shutdown\r\n")
        for client in clients:
            client.close()


# ------------------------------------------------------------------------------------ our own C programs


class MemStorm(Case):
    name, summary = "memstorm", "threads that write, check and move their memory"
    sizes = {"small": (4, 32, 6), "full": (8, 512, 40)}

    def prepare(self):
        self.program = harness.build_program("memstorm")

    def run(self, context):
        for seed in (1, 2):
            argv = [self.program, *map(str, self.amount), str(seed)]
            context.same_output(f"seed {seed}", context.run(f"seed {seed}", argv))


class MemStormSmall(Case):
    name, summary = "memstorm-4m", "the same in the smallest limit that there is"
    sizes = {"small": (6, 24, 4), "full": (16, 64, 20)}
    fixed_limit = harness.SMALLEST_LIMIT

    def prepare(self):
        self.program = harness.build_program("memstorm")

    def run(self, context):
        context.same_output("seed 3", context.run("seed 3", [self.program, *map(str, self.amount), "3"]))


class Forks(Case):
    name, summary = "forks", "processes that fork in all ways, write, and check that each sees its own memory"
    sizes = {"small": 12, "full": 128}
    # Other processes than the first have most of the evictions.
    fixed_limit = 8 * MIB
    evicts = False

    def prepare(self):
        self.program = harness.build_program("forks")

    def run(self, context):
        context.same_output("sections", context.run("sections", [self.program, str(self.amount), "1"]))


POOL = """
import hashlib, multiprocessing, os
multiprocessing.set_start_method("fork")
data = [bytes([i %% 256]) * 900 + str(i).encode() for i in range(%d)]

def digest(k):
    part = [x + b"y" for x in data[k::4]]
    return hashlib.sha256(b"".join(part[::3])).hexdigest()

def put(queue, k):
    queue.put((k, sum(len(x) for x in data[k::3])))

with multiprocessing.Pool(4) as pool:
    print(*pool.map(digest, range(8)), sep="\\n")
queue = multiprocessing.Queue()
processes = [multiprocessing.Process(target=put, args=(queue, k)) for k in range(3)]
for process in processes: process.start()
print(sorted(queue.get() for _ in processes))
for process in processes: process.join()
print([process.exitcode for process in processes])
child = os.fork()
if child == 0:
    data[:] = [x[::-1] for x in data]
    os._exit(hashlib.sha256(b"".join(data)).digest()[0])
print(hashlib.sha256(b"".join(data)).hexdigest(), os.waitpid(child, 0)[1])
"""


class PythonPool(Case):
    name, summary = "python-pool", "Python's multiprocessing by fork, over shared data"
    sizes = {"small": 30000, "full": 600000}

    def prepare(self):
        self.python = need("python3", "python3")

    def run(self, context):
        context.same_output("digests", context.run("pool", [self.python, "-c", POOL % self.amount], env={"PYTHONHASHSEED": "0"}))


class Nginx(Case):
    name, summary = "nginx", "nginx with four workers, which it forks"
    sizes = {"small": 60, "full": 600}
    fixed_limit = 8 * MIB
    evicts = False

    def prepare(self):
        self.server = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
        if not self.server:
            raise Unavailable("nginx is not installed (package nginx-light)")
        os.makedirs(self.path("www"), exist_ok=True)
        for number in range(8):
            with open(self.path(f"www/{number}"), "wb") as file:
                file.write(random.Random(number).randbytes(300_000 * (number + 1)))

    def run(self, context):
        with tempfile.TemporaryDirectory(prefix="fs-", dir="/tmp") as short:
            path = os.path.join(short, "s")
            config = self.path("nginx.conf")
            with open(config, "w", encoding="ascii") as file:
                # The workers must be able to read our folder.
                file.write("user root;\n" if os.getuid() == 0 else "")
                file.write(f"daemon off; worker_processes 4; pid {short}/pid; error_log {short}/log; events {{}}\n"
                           f"http {{ access_log off; gzip on; gzip_types *; gzip_min_length 1; sendfile off; output_buffers 2 256k;\n"
                           f"server {{ listen unix:{path}; root {self.path('www')}; }} }}\n")
            for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
                os.makedirs(os.path.join(short, name), exist_ok=True)
            server = context.serve("server", [self.server, "-p", short, "-c", config])
            sha = hashlib.sha256()
            try:
                for number in range(self.amount):
                    sha.update(self.fetch(path, number % 8, server))
            except (OSError, ConnectionError) as error:
                context.problem(f"client: {error}")
            os.kill(self.master(short), 15)
            context.finish(server)
            context.same("answers", sha.hexdigest())

    @staticmethod
    def master(short):
        with open(os.path.join(short, "pid"), encoding="ascii") as file:
            return int(file.read())

    @staticmethod
    def fetch(path, number, server):
        """The body of one file, compressed by a worker, without what names the time."""
        deadline = time.monotonic() + 60
        while True:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                try:
                    client.connect(path)
                except OSError:
                    if time.monotonic() > deadline or not server.alive():
                        raise
                    time.sleep(0.05)
                    continue
                client.sendall(b"GET /%d HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n" % number)
                parts = []
                while part := client.recv(1 << 16):
                    parts.append(part)
            head, _, body = b"".join(parts).partition(b"\r\n\r\n")
            if b" 200 " not in head.split(b"\r\n")[0] or len(body) < 1000:
                raise ConnectionError(f"answer {head[:100]!r}")
            return body


class Workload(Case):
    """A workload of the comparisons, which checks its own data."""
    arguments = ()

    def prepare(self):
        self.program = harness.find_load()

    def run(self, context):
        out = context.run(self.name, [self.program, "--events", *self.arguments, f"--size={self.amount}"])
        outcome = json.loads(harness.read_text(out).splitlines()[-1] or "{}")
        context.same("right", outcome.get("wrong") == [])
        context.same("checksum", outcome.get("checksum"))


class LoadRandom(Workload):
    name, summary = "load-random", "random updates by eight threads, sums checked"
    sizes = {"small": "24M", "full": "512M"}
    arguments = ("random", "--threads=8", "--seconds=1.5", "--warmup=0.1")


class LoadRuns(Workload):
    name, summary = "load-runs", "random reads of 64 pages at a time"
    sizes = {"small": "24M", "full": "512M"}
    arguments = ("random", "--threads=2", "--seconds=1", "--warmup=0.1", "--mode=read", "--run-length=64")


class LoadMove(Workload):
    name, summary = "load-move", "Zipf updates whose hot set moves"
    sizes = {"small": "24M", "full": "512M"}
    arguments = ("gups-move", "--threads=3", "--seconds=1.5", "--warmup=0.1")


class LoadPhase(Workload):
    name, summary = "load-phase", "map and reduce over different regions, keys counted"
    sizes = {"small": "24M", "full": "512M"}
    arguments = ("phase", "--threads=3")


class LoadPagerank(Workload):
    name, summary = "load-pagerank", "the ranks of a Kronecker graph, checked"
    sizes = {"small": "24M", "full": "512M"}

    def prepare(self):
        super().prepare()
        self.arguments = ("pagerank", "--threads=2", "--iterations=3", f"--graph={self.path('graph')}")
        # Making a graph goes through it at random, many times: that is not what is looked at here.
        subprocess.run([self.program, *self.arguments, f"--size={self.amount}", "--only-graph"], check=True, stdout=subprocess.DEVNULL)


class LoadStress(Workload):
    name, summary = "load-stress", "every thread writes memory of its own and reads it back"
    sizes = {"small": "24M", "full": "512M"}
    arguments = ("stress", "--threads=4", "--passes=2")


class LoadGrid(Workload):
    name, summary = "load-grid", "look-ups of cross sections on a unionised grid"
    sizes = {"small": "24M", "full": "512M"}
    arguments = ("grid", "--threads=2", "--seconds=1", "--warmup=0.1")


class LoadTree(Workload):
    name, summary = "load-tree", "look-ups of random keys in maps of Rust's"
    sizes = {"small": "24M", "full": "512M"}
    arguments = ("tree", "--threads=2", "--seconds=1", "--warmup=0.1")


class Fits(Case):
    name, summary = "fits", "compute-bound passes and small system calls, in a limit that they fit"
    sizes = {"small": ("16M", 1), "full": ("256M", 3)}
    fixed_limit = 512 * MIB
    evicts = False

    def prepare(self):
        self.program = harness.build_program("fits")

    def run(self, context):
        size, passes = self.amount
        out = context.run("passes", [self.program, size, str(passes)])
        context.same("digest", (harness.load_stats(out) or {}).get("digest"))


class Passes(Case):
    """The program `scan`, which waits after each pass until it is told to go on, so that counters can be read there."""

    def prepare(self):
        self.program = harness.build_program("scan")

    def talk(self, context, counter):
        """Runs it to its end; what `counter(process)` said after each pass, if there are counters."""
        size, passes = self.amount
        process = context.serve(self.name, [self.program, str(size), str(passes)], talk=True)
        lines, counts = [], []
        for _ in range(passes + 1):
            line = process.popen.stdout.readline()
            if not line:
                break
            lines.append(line.decode().strip())
            if context.counters_wanted:
                counts.append(counter(process))
            process.popen.stdin.write(b"\n")
            process.popen.stdin.flush()
        context.finish(process)
        context.same("lines", lines)
        if context.counters_wanted and (None in counts or len(counts) <= passes):
            context.problem(f"counters are missing: {counts}")
            return []
        return counts


class Scan(Passes):
    name, summary = "scan", "read-only passes: clean pages are not written again"
    sizes = {"small": (24 * MIB, 3), "full": (512 * MIB, 3)}

    def run(self, context):
        written = self.talk(context, lambda process: self.settled_pages_out(context, process))
        if not written:
            return
        # Only the filling makes pages dirty. So each is written once in the whole run, but for those that were wanted again before their write had ended:
        # each such rescue leaves one dirty, and may cost one write more. A build that writes clean pages writes most of them again in each pass.
        pages, rescued = self.amount[0] // harness.PAGE, context.total("faults", "rescue")
        most = pages + min(rescued, pages // 16) + 64
        if written[-1] > most:
            context.problem(f"{written[-1]} pages were written in a run that dirties {pages} once, of which {rescued} were rescued: {most} at most")

    @staticmethod
    def settled_pages_out(context, process):
        """`swap.pages_out` once the evictors have come to rest."""
        before, same = None, 0
        for _ in range(600):
            stats = context.live_counters(process)
            if stats is None:
                context.problem("farshore stat does not answer")
                return None
            # Not after one look: on a crowded machine evictors may not have had a processor since the last.
            same = same + 1 if stats["swap"]["pages_out"] == before else 0
            if same == 3:
                return before
            before = stats["swap"]["pages_out"]
            time.sleep(0.1)
        context.problem("evictors write for a minute")
        return None


class Loop(Passes):
    name, summary = "loop", "passes over twice the limit: a part stays, and is not read again"
    sizes = {"small": (96 * MIB, 9), "full": (512 * MIB, 9)}

    def prepare(self):
        super().prepare()
        self.fixed_limit = self.amount[0] // 2

    def run(self, context):
        read = self.talk(context, lambda process: (context.live_counters(process) or {"swap": {"pages_in": None}})["swap"]["pages_in"])
        pages = self.amount[0] // harness.PAGE
        # Pages that leave in the order in which they came would be read again one and all, in each pass. Seen as a loop from the third on.
        if read and read[-1] - read[-5] > 0.95 * 4 * pages:
            context.problem(f"{read[-1] - read[-5]} pages were read in four passes over {pages}")


class Syscalls(Case):
    name, summary = "syscalls", "every kind of system call on absent memory"
    # MiB of ballast: more than twice the limit.
    sizes = {"small": 12, "full": 40}
    fixed_limit = 5 * MIB
    # The last section becomes another program, which ends with 7.
    statuses = {"exec": 7}
    uncounted = ("exec",)

    def prepare(self):
        self.program = harness.build_program("syscalls")
        self.sections = subprocess.run([self.program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()

    def run(self, context):
        for section in self.sections:
            out = context.run(section, [self.program, str(self.amount), section], env={"TMPDIR": context.folder, "HOME": "/"})
            context.same_output(section, out)
            if section == "forkabsent":
                self.check_message(context, context.steps[-1].stderr)

    @staticmethod
    def check_message(context, stderr):
        """A child that was stopped says why, in a line of its own."""
        marker = [line for line in stderr.splitlines() if line.startswith("marker forkabsent: ")]
        said = [line for line in stderr.splitlines() if line.startswith("farshore")]
        if marker and "verdict s" in marker[0] and not said:
            context.problem("forkabsent: the child was stopped without a message")


CASES = [Sort, Xz, Zstd, ZstdThreads, Pigz, Gcc, GccChain, Sqlite, Python, Numpy, RedisServer, Memcached, MemStorm, MemStormSmall, Forks, PythonPool, Nginx, LoadRandom, LoadRuns, LoadMove, LoadPhase, LoadPagerank, LoadStress, LoadGrid, LoadTree, Fits, Scan, Loop, Syscalls]

