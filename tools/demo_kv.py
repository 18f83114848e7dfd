#!/usr/bin/env python3
"""A memcached whose items do not fit, on unithreads: `farshore-serve kv` in a fifth of its data, a client that others have made, and the latency under load.

    tools/demo_kv.py [--rate N] [--seconds N] [--items N] [--out DIR]

Uses 127.0.0.1 alone. Writes latency.svg (open it in a browser) and the counters of server and load to DIR (target/demo-kv).
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Before our own modules come in: the source tree stays as it is.
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "real"))
import harness  # noqa: E402

RELEASE = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")
VALUE, MEMORY = 1024, "48M"


def tool(name):
    """The path of one of our programs."""
    path = os.path.join(RELEASE, name)
    if not os.access(path, os.X_OK):
        raise SystemExit(f"no {path}: build it with `make build`, or run `make demo-kv`")
    return path


def start(out):
    """The server under farshore: its process and port."""
    swap = f"dir:{os.environ.get('FARSHORE_SWAP_DIR', '/var/tmp')}"
    command = [tool("farshore"), "run", "--memory", MEMORY, "--swap", swap, "--stats", os.path.join(out, "server.json"), "--",
               tool("farshore-serve"), "kv", "--listen", "127.0.0.1:0", "--memory", "400M", "--workers", "1", "--no-pin"]
    print("$", " ".join(os.path.basename(word) if os.sep in word and os.access(word, os.X_OK) else word for word in command))
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        print(" ", line.rstrip())
        if found := re.search(r"tcp 127\.0\.0\.1:(\d+)", line):
            return server, int(found[1])
    raise SystemExit(f"the server has ended: status {server.wait()}")


def use_a_client(port):
    """Stores and reads by pymemcache, if it is there."""
    try:
        from pymemcache.client.base import Client
    except ImportError:
        print("pymemcache skipped: no python3 has it (apt-get install python3-pymemcache)")
        return
    client = Client(("127.0.0.1", port))
    client.set("greeting", b"hello from afar")
    client.set("visits", b"41")
    visits = client.incr("visits", 1)
    print(f"pymemcache: greeting = {client.get('greeting').decode()!r}, visits = {visits}, server {client.stats()[b'version'].decode()}")
    client.close()


def load(port, options):
    """Fills the store, then asks at a fixed rate; every value is checked."""
    command = [tool("farshore-load"), "open", "kv", f"tcp:127.0.0.1:{port}", "--fill", "--items", str(options.items), "--value-size", str(VALUE),
               "--mix", "get=95,set=5", "--keys", "zipf:0.99", "--rate", str(options.rate), "--seconds", str(options.seconds),
               "--plot", os.path.join(options.out, "latency.svg"), "--json", os.path.join(options.out, "load.json")]
    return subprocess.run(command, check=False).returncode


def main():
    """The demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=10_000, help="requests a second [10000]")
    parser.add_argument("--seconds", type=int, default=10, help="how long [10]")
    parser.add_argument("--items", type=int, default=200_000, help=f"values of {VALUE} bytes [200000]")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(RELEASE), "demo-kv"), help="where results go [target/demo-kv]")
    options = parser.parse_args()
    # Where none has it, `use_a_client` says so.
    with contextlib.suppress(harness.Unavailable):
        harness.again_with("pymemcache", "python3-pymemcache")
    os.makedirs(options.out, exist_ok=True)
    server, port = start(options.out)
    try:
        use_a_client(port)
        status = load(port, options)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()
    with open(os.path.join(options.out, "server.json"), encoding="ascii") as file:
        counters = json.load(file)
    print(f"server: {counters['faults']['fetch']} pages came from afar; at most {counters['resident_bytes_peak'] >> 20} MiB were in RAM, "
          f"of values of {options.items * VALUE >> 20} MiB and what is kept beside them")
    print(f"latency: {os.path.relpath(os.path.join(options.out, 'latency.svg'))}")
    return status or server.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
