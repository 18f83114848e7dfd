"""The tests of Go's standard library, as Go brings them: a unit is one package, a test one test or sub-test of what its program prints.

Where a package uses C (`net`, `os/user` and what imports them), its test program is a dynamic one; all others are static, and Farshore comes to them by a
helper. The programs are built outside of the limit, natively, and kept by Go's cache in the target directory; what a test builds itself is built within it.
"""

import os
import re
import shutil
import subprocess

from suite import EXIT, FAIL, PASS, SKIP, Unavailable, Unit, harness, keep_worst

# What memory, processes, threads, signals and descriptors are to a program: they come first, since they take longest and find most.
FIRST = ("runtime", "net/http", "net", "os", "os/exec", "os/signal", "syscall", "sync", "time", "context", "runtime/debug", "runtime/pprof", "runtime/trace")
# The short form. Tests of `runtime`, `net`, `os/exec` and `syscall` build programs, those of `os` wait: minutes.
SHORT = ("sort", "strings", "strconv", "regexp", "encoding/json", "compress/flate", "container/list", "os/signal", "io/fs", "bufio", "sync",
         "sync/atomic", "context")
# The oldest Go whose test programs can be told what to say.
OLDEST = (1, 20)
# Not run, and why.
LEFT_OUT = {
    "crypto/internal/fips140test": "runs the whole of another module from the network",
}
# Tests that are not run, and why (a regular expression of Go's).
SKIPPED = {
    # A child that asks to be traced stops at Farshore's signals before it execs, while its parent waits for the exec (docs/src/reference/limits.md).
    "syscall": "^TestExecPtrace$",
}


class Package(Unit):
    """One package."""

    timeout = 300
    # Tests that build programs with a compiler, in a quarter of what the test program uses itself.
    SLOWER = 6

    def run(self, context):
        program = os.path.join(context.place.shared(f"go-{self.name.replace('/', '_')}", self.build), "tests")
        # As `go test` runs it: in the package's own directory. Some write there; none may write in Go's.
        folder = os.path.join(root(), "src", self.name)
        # What a test builds natively need not be compiled again within the limit, only linked.
        cache = context.place.shared("go-cache", open_to_all)
        status, out, _ = context.run([program, "-test.v=test2json", "-test.short", "-test.paniconexit0", f"-test.timeout={context.timeout}s",
                                      f"-test.skip={SKIPPED.get(self.name, '^$')}"], cwd=folder,
                                     env={"GOROOT": root(), "GOCACHE": cache, "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOPROXY": "off",
                                          "PATH": f"{root()}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"})
        with open(out, encoding="utf-8", errors="replace") as file:
            results = read_tests(file.read())
        return {**results, EXIT: str(status)}

    def build(self, place):
        """Builds its test program."""
        path = os.path.join(place, "tests")
        go("test", "-c", "-vet=off", "-o", path, self.name)
        os.chmod(path, 0o755)


def read_tests(text):
    """{test: result} of what a test program prints with `-test.v=test2json`: a byte 0x16 marks its own lines, wherever others end.

    >>> read_tests("\\x16=== RUN   TestA\\nhello\\x16--- PASS: TestA (0.00s)\\n    \\x16--- SKIP: TestA/b_0xc000012345 (0.10s)\\n\\x16--- FAIL: TestC (1.00s)\\nPASS: none (0s)\\n")
    {'TestA': 'pass', 'TestA/b_ADDRESS': 'skip', 'TestC': 'fail'}
    """
    results = {}
    for word, name in re.findall(r"\x16 *--- (PASS|FAIL|SKIP): (\S+) \(\d", text):
        keep_worst(results, re.sub(r"0x[0-9a-f]{6,}", "ADDRESS", name), {"PASS": PASS, "FAIL": FAIL, "SKIP": SKIP}[word])
    return results


def open_to_all(place):
    """Lets every user write a directory."""
    os.chmod(place, 0o777)


def tool():
    """Path of Go's command."""
    path = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if path is None:
        raise Unavailable("apt-get install golang-go: no Go compiler")
    return path


def go(*arguments):
    """What a command of Go's prints."""
    environment = dict(os.environ, GOCACHE=os.path.abspath(os.path.join(harness.target_dir(), "go-cache")), GOTOOLCHAIN="local", GOFLAGS="", GOPROXY="off")
    done = subprocess.run([tool(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"go {' '.join(arguments)}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def root():
    """Where Go is."""
    return go("env", "GOROOT").strip()


def units(place):
    """All packages that have tests, those first that take longest."""
    version = go("env", "GOVERSION").strip()
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise Unavailable(f"apt-get install golang-go: {version} is too old for -test.skip and -test.v=test2json (1.20)")
    listed = go("list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "std").split()
    if not listed:
        raise Unavailable(f"apt-get install golang-src: {root()} has no tests of the standard library")
    names = [name for name in FIRST if name in listed] + [name for name in listed if name not in FIRST and name not in LEFT_OUT and not name.startswith("vendor/")]
    # Before several threads want it.
    place.shared("go-cache", open_to_all)
    return [Package("go", name, name in SHORT) for name in names]
