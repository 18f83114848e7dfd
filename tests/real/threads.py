#!/usr/bin/env python3
"""Threads, signals, limits, filters and allocators: each program natively and under Farshore, with pages that leave all the time.

    tests/real/threads.py                        everything
    tests/real/threads.py --only storm,unwind    these alone
    tests/real/threads.py --mode poll            one delivery of faults alone

What a program prints, and how it ends, must be the same. `tests/programs/threads` has most of it, a section a run; beside it are a
program in C++ (exceptions), one in Rust (panics), and a storm of allocations under several allocators, which real programs use as well. What is
refused under Farshore (REFUSED) says so in a line on stderr; nothing else does.

A run that hangs is described (threads, kernel stacks, backtraces) before it is killed. The last line is `N passed, N failed, N skipped`.
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MIB, Unavailable  # noqa: E402

# Memory of the small programs, and MiB of ballast: more than twice of it.
LIMIT, BALLAST = 5 * MIB, "12"
SECONDS = 60
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


# The status of a test program that has found something wrong (`common.h`). It must not do that natively.
CHECK_FAILED = 99


class Case:
    """A program and its arguments, run natively and under each delivery of faults."""

    def __init__(self, name, prepare, limit=LIMIT, env=None, stdin=None, refused=None):
        self.name, self.prepare, self.limit, self.env, self.stdin, self.refused = name, prepare, limit, env or {}, stdin, refused


class Runner:
    """Runs cases and compares."""

    def __init__(self, options):
        self.options, self.farshore = options, harness.find_farshore(options.farshore)

    def run(self, argv, env, stdin, folder):
        """One run: (stdout, status, the outcome)."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FARSHORE") and key != "LD_PRELOAD"}
        environment.update(env, TMPDIR=folder, PYTHONHASHSEED="0", LC_ALL="C")
        out = tempfile.TemporaryFile(dir=folder)
        given = tempfile.TemporaryFile(dir=folder)
        given.write((stdin or "").encode())
        given.seek(0)
        with out, given:
            outcome = harness.run(argv, folder, SECONDS, stdin=given, stdout=out, env=environment, cwd=folder)
            out.seek(0)
            return out.read().decode(errors="replace"), outcome

    def case(self, case, modes):
        """Runs one case; lines about it, whether it was good in each mode."""
        if case.name == "probed":
            return probed(self, modes)
        folder = tempfile.mkdtemp(prefix="case-", dir=self.options.work)
        try:
            argv = case.prepare()
            native, outcome = self.run(argv, case.env, case.stdin, folder)
            if outcome.timed_out:
                return [(mode, f"natively: no end after {SECONDS} s\n{outcome.picture}") for mode in modes]
            if outcome.status == CHECK_FAILED:
                return [(mode, f"natively: {outcome.stderr[-500:]}") for mode in modes]
            return [(mode, self.under_farshore(case, argv, mode, native, outcome.status, folder)) for mode in modes]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def under_farshore(self, case, argv, mode, native, status, folder):
        """What was wrong in one mode, or None."""
        command = harness.farshore_argv(self.farshore, argv, case.limit, mode, swap=[f"dir:{folder}"])
        printed, outcome = self.run(command, case.env, case.stdin, folder)
        if outcome.timed_out:
            return f"no end after {SECONDS} s\n{outcome.picture}"
        wanted, said = case.refused or (None, None)
        wanted, wanted_status = (native, status) if wanted is None else (wanted, 0)
        ours = [line for line in outcome.stderr.splitlines() if line.startswith("farshore")]
        if printed != wanted or outcome.status != wanted_status:
            return (f"status {outcome.status}, natively {wanted_status}\n--- printed\n{printed[-3000:]}\n--- instead of\n{wanted[-3000:]}\n"
                    f"--- stderr\n{outcome.stderr[-3000:]}")
        if said is None and ours:
            return f"a line on stderr: {ours[0]}"
        if said is not None and not any(said in line for line in ours):
            return f"no line with {said!r} on stderr"
        return None


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


def cgo(options):
    """A Go program that is linked with libc."""
    tool = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if tool is None:
        raise Unavailable("no Go compiler (apt-get install golang-go)")
    harness.need("gcc", "gcc")
    out, source = os.path.join(harness.target_dir(), "test-programs", "cgo"), os.path.join(harness.PROGRAMS, "cgo.go")
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(source):
        environment = dict(os.environ, CGO_ENABLED="1", GOCACHE=os.path.join(harness.target_dir(), "go-cache"), GOFLAGS="-mod=mod", GOTOOLCHAIN="local")
        done = subprocess.run([tool, "build", "-o", out, source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
        if done.returncode != 0:
            raise Unavailable(f"go cannot build here: {done.stdout.decode(errors='replace').strip()[-200:]}")
    return [out]


def with_debian_13():
    """A program that runs with the libc of Debian 13 (glibc 2.41), which is fetched once."""
    root = os.path.join(harness.target_dir(), "debian-13")
    libraries = os.path.join(root, "usr/lib/x86_64-linux-gnu")
    if not os.path.exists(os.path.join(libraries, "libc.so.6")):
        tool = harness.need("mmdebstrap", "mmdebstrap")
        partial = f"{root}.{os.getpid()}"
        try:
            done = subprocess.run([tool, "--quiet", "--variant=extract", "--include=libc6", "trixie", partial],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False)
            if done.returncode != 0:
                raise Unavailable(f"Debian 13's libc cannot be had: {done.stdout.decode(errors='replace').strip()[-200:]}")
            os.rename(partial, root)
        except subprocess.TimeoutExpired:
            raise Unavailable("Debian 13's libc does not come within 300 s") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    flags = (f"-Wl,--dynamic-linker={libraries}/ld-linux-x86-64.so.2", f"-Wl,-rpath={libraries}", "-Wl,--disable-new-dtags")
    return [harness.build_program("cancelled", flags, "cancelled-debian-13")]


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


def probed(runner, modes):
    """A program with probes of the kernel's on it: what is wrong in each mode."""
    program = harness.build_program("probed", ("-fcf-protection=none",))
    shutil.copy(program, os.path.join(runner.options.work, "probed"))
    program = os.path.join(runner.options.work, "probed")
    probes = Probes(program)
    folder = tempfile.mkdtemp(prefix="case-", dir=runner.options.work)
    case, found = Case("probed", lambda: [program]), []
    try:
        probes.set("p", "entered")
        probes.set("r", "returned")
        native, outcome = runner.run([program], {}, None, folder)
        each = probes.hits()
        for mode in modes:
            before = probes.hits()
            wrong = runner.under_farshore(case, [program], mode, native, outcome.status, folder)
            hits = [now - then for now, then in zip(probes.hits(), before)]
            found.append((mode, wrong or (f"probes were hit {hits} times, natively {each}" if hits != each else None)))
        return found
    finally:
        probes.end()


def cases(options):
    """All of them."""
    plugin = harness.build_program("threads_plugin", ("-shared", "-fPIC"))
    program = harness.build_program("threads")
    listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    found = [Case(section, lambda section=section: [program, BALLAST, section], env={"THREADS_PLUGIN": plugin}, refused=REFUSED.get(section)) for section in listed]
    harness.build_program("allocators")
    found.append(Case("unwind", lambda: [compiled("unwind", "unwind.cc", "g++", "apt-get install g++", "-O2", "-g", "-std=c++17", "-pthread"), BALLAST]))
    found.append(Case("panics", lambda: [compiled("panics", "panics.rs", "rustc", "rustup", "--edition", "2021", "-O"), BALLAST]))
    found.append(Case("cgo", lambda: cgo(options), 24 * MIB))
    found.append(Case("probed", None))
    found.append(Case("debian13", with_debian_13, 16 * MIB))
    found.append(Case("man", lambda: manual(options.work), 16 * MIB, refused=(None, "a filter is refused")))
    for name in ALLOCATORS:
        preload = (lambda name=name: library(name))
        try:
            env = {"LD_PRELOAD": preload()} if preload() else {}
        except Unavailable as why:
            found.append(Case(f"{name}-storm", lambda why=why: (_ for _ in ()).throw(why)))
            continue
        found.append(Case(f"{name}-storm", lambda: [harness.build_program("allocators"), "4", "2500"], 12 * MIB, env))
        if preload():
            linked = f"-l:{os.path.basename(preload())}"
            found.append(Case(f"{name}-linked", lambda name=name, linked=linked: [harness.build_program("allocators", out_name=f"allocators-{name}", libraries=(linked,)), "4", "1500"], 12 * MIB))
            found.append(Case(f"{name}-python", lambda: [harness.need("python3", "python3"), "-c", PYTHON], 12 * MIB, env))
            found.append(Case(f"{name}-sqlite", lambda: [harness.need("sqlite3", "sqlite3"), "-batch", ":memory:"], 6 * MIB, env, stdin=SQL))
            found.append(Case(f"{name}-redis", lambda: redis(options.work), 12 * MIB, env))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME[,NAME]", help="these cases alone")
    parser.add_argument("--mode", choices=("upcall", "poll"), help="one delivery of faults alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time (default: one a processor)")
    parser.add_argument("--farshore", help="the farshore command (default: $FARSHORE, else this workspace's build)")
    parser.add_argument("--work", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where files go (default /var/tmp)")
    options = parser.parse_args()
    harness.tidy_on_sigterm()
    options.work = tempfile.mkdtemp(prefix="farshore-threads-", dir=options.work)
    os.chmod(options.work, 0o755)
    modes = [options.mode] if options.mode else ["upcall"] + (["poll"] if harness.poll_allowed() else [])
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    try:
        harness.build_program("peak")
        everything = cases(options)
        wanted = options.only.split(",") if options.only else [case.name for case in everything]
        unknown = set(wanted) - {case.name for case in everything}
        if unknown:
            parser.error(f"there is no case {', '.join(sorted(unknown))}")
        runner = Runner(options)
        with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
            running = [(case, pool.submit(runner.case, case, modes)) for case in everything if case.name in wanted]
            for case, future in running:
                try:
                    results = future.result()
                except Unavailable as why:
                    counts["skipped"] += 1
                    print(f"{case.name:18} skipped: {why}", flush=True)
                    continue
                for mode, wrong in results:
                    counts["failed" if wrong else "passed"] += 1
                    print(f"{case.name:18} {mode:7} {'FAILED: ' + wrong if wrong else 'ok'}", flush=True)
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
