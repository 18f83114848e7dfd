"""Node's own tests, from Debian's source package: a unit is one file of test/parallel, which has passed if its exit status is 0.

The `node` of a machine may be of any version, and Debian's package cannot be beside another one. So Debian's is fetched as its source is, and is unpacked
without being installed. What it reads at fixed paths (three packages of JavaScript) and its libraries are installed.
"""

import os
import re
import subprocess

import sources
from suite import EXIT, SKIP, Unavailable, Unit, harness

# Debian's node has these outside of itself, at paths that are built in.
BUILT_IN = {"/usr/share/nodejs/acorn/dist/acorn.js": "node-acorn", "/usr/share/nodejs/cjs-module-lexer/lexer.js": "node-cjs-module-lexer",
            "/usr/share/nodejs/undici/undici-fetch.js": "node-undici"}
# Not run, and why.
LEFT_OUT = {
    "test-blob-buffer-too-large.js": "fills 4 GiB",
    # In `NodeTraceWriter::Flush` of this version the main thread waits for one that waits for it.
    "test-trace-events-api.js": "now and then does not end, natively as well",
    "test-tracing-no-crash.js": "now and then does not end, natively as well",
}
# The short form, without `test-` and `.js`: what memory, threads, processes, descriptors and signals are to Node.
SHORT = frozenset("""
    atomics-wake blob buffer-alloc buffer-backing-arraybuffer buffer-pool-untransferable buffer-sharedarraybuffer buffer-zero-fill
    child-process-advanced-serialization-largebuffer child-process-detached child-process-double-pipe child-process-exec-timeout-kill
    child-process-execfile child-process-fork child-process-fork-dgram child-process-fork-net-server child-process-kill child-process-spawnsync
    child-process-spawnsync-maxbuf child-process-stdio-big-write-end cluster-basic cluster-net-send cluster-worker-kill-signal crypto-pbkdf2
    crypto-scrypt dgram-send-callback-multi-buffer fs-copyfile fs-promises-file-handle-read-worker fs-read-stream fs-readfile-pipe-large fs-readv
    fs-watch fs-writev heap-prof-exit http-pipeline-flood http2-large-write-multiple-requests inspector-heapdump net-bytes-written-large net-keepalive
    net-write-fully-async-buffer pipe-file-to-http process-abort process-exit-code process-kill-pid signal-handler signal-handler-remove-on-exit
    stdin-pipe-large stream-writev stringbytes-external v8-getheapsnapshot-twice v8-serdes vm-timeout worker worker-arraybuffer-zerofill
    worker-heap-snapshot worker-memory worker-message-channel-sharedarraybuffer worker-message-port-wasm-threads worker-resource-limits
    worker-stack-overflow worker-terminate-microtask-loop zlib-brotli zlib-random-byte-pipes""".split())


class File(Unit):
    """One file."""

    timeout = 120

    def run(self, context):
        tests = context.place.shared("node-tests", make_tests)
        path = os.path.join(tests, "test", "parallel", self.name)
        # `TEST_PARALLEL` makes those fail that want a fixed port.
        env = {"NODE_TEST_DIR": context.home, "NODE_TEST_NO_INTERNET": "1", "TEST_SERIAL_ID": str(context.number), "TEST_PARALLEL": "1",
               "OPENSSL_CONF": os.path.join(tests, "openssl.cnf")}
        # Some name fixtures from the top of the source tree.
        status, out, _ = context.run([node(context.place), *flags(path), path], cwd=tests, env=env)
        results = {EXIT: str(status)}
        if re.search(r"^1\.\.0 # Skipped", harness.read_text(out), re.M):
            results["(file)"] = SKIP
        return results


def flags(path):
    """Options that a test wants, as Node's test runner takes them from its text."""
    found = re.search(r"//\s+Flags:(.*)", harness.read_text(path))
    return found[1].split() if found else []


def make_tests(path):
    """Unpacks the tests."""
    sources.unpack("nodejs", path, ("test",))
    # The certificates of the tests are weaker than what Debian's OpenSSL demands.
    with open(os.path.join(path, "openssl.cnf"), "w", encoding="ascii") as file:
        file.write("nodejs_conf = nodejs\n[nodejs]\nssl_conf = ssl\n[ssl]\nsystem_default = weak\n[weak]\nCipherString = DEFAULT@SECLEVEL=1\n")


def make_node(path):
    """Unpacks Debian's node; its library is found beside it, whatever environment a test gives to what it starts."""
    sources.unpack_packages("nodejs", path)
    program, library = os.path.join(path, "usr/bin/node"), "$ORIGIN/../lib/x86_64-linux-gnu"
    try:
        subprocess.run(["patchelf", "--set-rpath", library, program], check=True)
    except FileNotFoundError:
        raise Unavailable("patchelf is missing (apt-get install patchelf)") from None


def node(place):
    """Path of Debian's node."""
    return os.path.join(place.shared("node", make_node), "usr/bin/node")


def units(place):
    """All files, if its node runs here."""
    for path, package in BUILT_IN.items():
        if not os.path.exists(path):
            raise Unavailable(f"{path} is missing (apt-get install {package})")
    program = node(place)
    done = subprocess.run([program, "-p", "process.version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"Debian's node does not run, are its libraries installed (tests/suites/packages.txt)? {done.stdout.strip()[-200:]}")
    folder = os.path.join(place.shared("node-tests", make_tests), "test", "parallel")
    names = sorted(name for name in os.listdir(folder) if re.fullmatch(r"test-.*\.m?js", name) and name not in LEFT_OUT)
    if missing := {f"test-{name}.js" for name in SHORT}.difference(names):
        raise SystemExit(f"tests/suites/nodejs.py: the short form has names that the suite has not: {', '.join(sorted(missing))}")
    return [File("node", name, re.sub(r"^test-|\.js$", "", name) in SHORT) for name in names]
