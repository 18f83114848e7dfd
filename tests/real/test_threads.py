"""Threads, signals, limits, filters and allocators: each program natively and under Farshore, with pages that leave all the time.

What a program prints, and how it ends, must be the same. `tests/programs/threads` has most of it, a section a run; beside it are a
program in C++ (exceptions), one in Rust (panics), and a storm of allocations under several allocators, which real programs use as well. What is
refused under Farshore (REFUSED) says so in a line on stderr; nothing else does.

A run that hangs is described (threads, kernel stacks, backtraces) before it is killed.
"""

import os
import shutil
import subprocess
import tempfile

import harness
from compare import Case
from harness import MIB, Unavailable, expect

# Memory of the small programs, and MiB of ballast: more than twice of it.
LIMIT, BALLAST = 5 * MIB, "12"
# Sections that a program natively may do and Farshore refuses: what they print then (None: the same), and the line on stderr.
REFUSED = {
    "strict": ("strict: refused: Invalid argument\nstrict: done\n", "the strict mode is refused"),
    "allowlist": ("allowlist: refused: Invalid argument\nallowlist: done\n", "a filter is refused"),
}
ALLOCATORS = {
    "glibc": None,
    "jemalloc": ("libjemalloc.so.2", "libjemalloc2"),
    "mimalloc": ("libmimalloc.so.2", "libmimalloc2.0"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
}
LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")

# A program that puts itself in a sandbox, and goes on without one.
MANUAL = """.TH X 1
.SH NAME
x \\- y
.SH TEXT
some text, \\fBbold\\fR too
"""

PYTHON = """
import collections, hashlib, random, threading
random.seed(5)
table = {i: bytes([i % 251]) * random.randrange(10, 400) for i in range(30000)}
def work(n):
    rows = [[j * n for j in range(50)] for _ in range(4000)]
    out[n] = sum(map(sum, rows))
out = {}
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
order = collections.OrderedDict(sorted(table.items(), key=lambda item: (len(item[1]), item[0])))
print(sorted(out.items()), hashlib.sha256(b"".join(order.values())).hexdigest())
"""

SQL = """
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)
INSERT INTO t SELECT i, printf('%032d', i * 7919 % 40009), i * 0.5 FROM n;
CREATE INDEX by_b ON t(b);
SELECT count(*), sum(c), min(b), max(b) FROM t;
SELECT count(*) FROM t AS x JOIN t AS y ON x.b = y.b WHERE x.a % 3 = 0;
SELECT group_concat(b) FROM (SELECT b FROM t ORDER BY b LIMIT 20);
"""


def compiled(name, source, compiler, package, *flags):
    """A program of one file in another language; its path."""
    path = os.path.join(harness.PROGRAMS, "threads", source)
    out = os.path.join(harness.target_dir(), "test-programs", name)
    if os.path.exists(out) and os.path.getmtime(out) >= os.path.getmtime(path):
        return out
    tool = shutil.which(compiler)
    if tool is None:
        raise Unavailable(f"no {compiler} ({package})")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    partial = f"{out}.{os.getpid()}"
    done = subprocess.run([tool, *flags, "-o", partial, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"cannot compile {source}:\n{done.stdout.decode(errors='replace')}")
    os.replace(partial, out)
    return out


def library(name):
    """Path of an allocator's library; None for libc's own."""
    if ALLOCATORS[name] is None:
        return None
    file, package = ALLOCATORS[name]
    for directory in LIBRARY_DIRECTORIES:
        path = os.path.join(directory, file)
        if os.path.exists(path):
            return path
    raise Unavailable(f"no {file} (apt-get install {package})")


def redis(folder):
    """A server that fills itself, saves and ends: one command line."""
    server = harness.need("redis-server", "redis-server")
    client = harness.need("redis-cli", "redis-tools")
    script = os.path.join(folder, "redis.sh")
    with open(script, "w", encoding="utf-8") as file:
        file.write(f"""set -e
socket=$TMPDIR/redis.$$
"{server}" --port 0 --unixsocket "$socket" --save '' --appendonly no --dir "$TMPDIR" --loglevel warning >/dev/null &
for i in $(seq 200); do [ -S "$socket" ] && break; sleep 0.05; done
call() {{ env -u LD_PRELOAD "{client}" -s "$socket" "$@"; }}
call debug populate 30000 key 300
call eval 'local n = 0 for i = 0, 29999, 7 do n = n + #redis.call("get", "key:" .. i) end return n' 0
call eval 'for i = 0, 20000 do redis.call("hset", "hash:" .. i % 500, "field" .. i, string.rep("x", i % 200)) end return redis.call("dbsize")' 0
call eval 'local n = 0 for i = 0, 499 do n = n + redis.call("hlen", "hash:" .. i) end return n' 0
call bgsave
for i in $(seq 400); do [ "$(call info persistence | grep -c rdb_bgsave_in_progress:0)" = 1 ] && break; sleep 0.05; done
call info persistence | grep rdb_last_bgsave_status
call shutdown nosave || true
wait
""")
    return ["/bin/sh", script]


def manual(folder):
    """man, which filters its own calls, on a page of ours."""
    man = harness.need("man", "man-db")
    harness.need("groff", "groff-base")
    page = os.path.join(folder, "x.1")
    with open(page, "w", encoding="utf-8") as file:
        file.write(MANUAL)
    return [man, "-l", page]


def cgo():
    """A Go program that is linked with libc."""
    harness.need("gcc", "gcc")
    return [harness.build_go("cgo", "cgo", libc=True)]


def with_debian_13():
    """A program that runs with the libc of Debian 13 (glibc 2.41)."""
    return [harness.build_program("cancelled", harness.debian_13_flags(), "cancelled-debian-13")]


class Probes:
    """Probes of the kernel's on the functions of a program, as perf and eBPF agents set them; how often each was hit."""

    TRACING = "/sys/kernel/tracing"

    def __init__(self, program):
        self.program, self.mounted, self.events = program, False, []
        if os.geteuid() != 0:
            raise Unavailable("probes need root")
        if not os.path.exists(f"{self.TRACING}/uprobe_events"):
            self.mounted = subprocess.run(["mount", "-t", "tracefs", "nodev", self.TRACING], stderr=subprocess.DEVNULL, check=False).returncode == 0
        if not os.path.exists(f"{self.TRACING}/uprobe_events"):
            self.end()
            raise Unavailable("this kernel has no probes of programs (tracefs, CONFIG_UPROBE_EVENTS)")

    def write(self, path, text):
        # Not by Python's own: it looks for the end of a file that has none.
        file = os.open(f"{self.TRACING}/{path}", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)

    def set(self, kind, function):
        """A probe of the entry (p) or the return (r) of a function."""
        listed = subprocess.run(["nm", self.program], stdout=subprocess.PIPE, check=True).stdout.decode()
        address = next(int(line.split()[0], 16) for line in listed.splitlines() if line.split()[-1] == function)
        # In a program that can be loaded anywhere, addresses of the text are offsets in the file, as linkers lay it out today.
        name = f"farshore{os.getpid()}{kind}"
        self.write("uprobe_events", f"{kind}:{name} {self.program}:0x{address:x}\n")
        self.events.append(name)
        self.write(f"events/uprobes/{name}/enable", "1\n")

    def hits(self):
        with open(f"{self.TRACING}/uprobe_profile", encoding="utf-8") as file:
            counts = dict(line.split()[-2:] for line in file if line.strip())
        return [int(counts.get(name, 0)) for name in self.events]

    def end(self):
        for name in self.events:
            try:
                self.write(f"events/uprobes/{name}/enable", "0\n")
                self.write("uprobe_events", f"-:{name}\n")
            except OSError as why:
                print(f"the probe {name} stays: {why}")
        self.events = []
        if self.mounted:
            subprocess.run(["umount", self.TRACING], check=False)


def cases():
    """All of them."""
    plugin = harness.build_program("threads_plugin", ("-shared", "-fPIC"))
    program = harness.build_program("threads")
    listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    found = [Case(section, lambda _, section=section: [program, BALLAST, section], LIMIT, {"THREADS_PLUGIN": plugin}, refused=REFUSED.get(section)) for section in listed]
    harness.build_program("allocators")
    found.append(Case("unwind", lambda _: [compiled("unwind", "unwind.cc", "g++", "apt-get install g++", "-O2", "-g", "-std=c++17", "-pthread"), BALLAST], LIMIT))
    found.append(Case("panics", lambda _: [compiled("panics", "panics.rs", "rustc", "rustup", "--edition", "2021", "-O"), BALLAST], LIMIT))
    found.append(Case("cgo", lambda _: cgo(), 24 * MIB))
    found.append(Case("debian13", lambda _: with_debian_13(), 16 * MIB))
    found.append(Case("man", manual, 16 * MIB, refused=(None, "a filter is refused")))
    for name in ALLOCATORS:
        try:
            preload = library(name)
        except Unavailable as why:
            found.append(Case(f"{name}-storm", lambda _, why=why: (_ for _ in ()).throw(why), LIMIT))
            continue
        env = {"LD_PRELOAD": preload} if preload else {}
        found.append(Case(f"{name}-storm", lambda _: [harness.build_program("allocators"), "4", "2500"], 12 * MIB, env))
        if preload:
            linked = f"-l:{os.path.basename(preload)}"
            program_of = (lambda _, name=name, linked=linked: [harness.build_program("allocators", out_name=f"allocators-{name}", libraries=(linked,)), "4", "1500"])
            found.append(Case(f"{name}-linked", program_of, 12 * MIB))
            found.append(Case(f"{name}-python", lambda _: [harness.need("python3", "python3"), "-c", PYTHON], 12 * MIB, env))
            found.append(Case(f"{name}-sqlite", lambda _: [harness.need("sqlite3", "sqlite3"), "-batch", ":memory:"], 6 * MIB, env, stdin=SQL))
            found.append(Case(f"{name}-redis", redis, 12 * MIB, env))
    return found


def test_threads(case, both, mode):
    """Each program prints and ends as natively."""
    both.same(case, mode)


def test_probed(both, work, mode):
    """A program with probes of the kernel's on it: they are hit as often as natively."""
    program = shutil.copy(harness.build_program("probed", ("-fcf-protection=none",)), os.path.join(work, f"probed-{mode}"))
    probes, case = Probes(program), Case("probed", lambda _: [program], LIMIT)
    folder = tempfile.mkdtemp(prefix="case-", dir=work)
    try:
        probes.set("p", "entered")
        probes.set("r", "returned")
        native, outcome = both.run([program], {}, None, folder)
        each = probes.hits()
        both.under_farshore(case, [program], mode, native, outcome.status, folder)
        hits = [now - then for now, then in zip(probes.hits(), each)]
        expect(hits == each, f"probes were hit {hits} times, natively {each}")
    finally:
        probes.end()
