#!/usr/bin/env python3
"""A newcomer's first steps in a fresh Debian 12: the set-up, the build, both demos (with little data), the installation.

    tests/newcomer/fresh.py [--dir DIR]

The Debian is made by mmdebstrap in a file system in RAM (on the disk where there is little), from where this machine's apt has its packages, with git and make alone. Of this machine it sees
the Rust (the homes of rustup and cargo, under an overlay that keeps what is written), and how to reach the network. In it, a clone of the last commit is
built and run by the words of the README. A package that our lists lack is missing there; a demo that skips a program has failed there.

Mounts and processes are in namespaces of their own, which end with this program however it ends; the directory goes at the end. It needs root and
the network, and is skipped where one is missing. The last line counts steps: N passed, N failed, N skipped.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# Before our own modules come in: the source tree stays as it is.
sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "real"))
import harness  # noqa: E402
from harness import Unavailable  # noqa: E402

SUITE = "bookworm"
# A file system in RAM is taken down in a moment, and packages unpack in it without waiting for a disk; this much must be available, of which less than half is used.
ROOMY = 8 << 30
# What a newcomer must have: the README says so.
INCLUDED = "ca-certificates,git,make"
STEPS = [
    "make build",
    "make demo ARGS='--size small'",
    "make demo-kv ARGS='--seconds 2 --rate 4000'",
    "make setup",
    "make front",
    "make install",
    "farshore run --memory 64M -- sort --version",
    "farshore bench canonical --list",
]
# How it is built there. What is tried is whether our lists have all that the build needs and the demos run; the build that ships is that of every other test.
QUICK = {f"CARGO_PROFILE_RELEASE_{key}": value for key, value in {"LTO": "off", "OPT_LEVEL": "1", "CODEGEN_UNITS": "64", "DEBUG": "0"}.items()}
# What a step may not say, whatever its exit status.
BAD = re.compile(r"skipped: |packages could not be installed|is missing")
# What mmdebstrap says when the packages cannot be had.
UNREACHABLE = re.compile(r"Could not resolve|Could not connect|Failed to fetch|Temporary failure|Unable to connect|Connection (failed|timed out|refused)")
# Of the environment: how to reach the network, and which Rust.
KEPT = re.compile(r"(?i)(https?|ftp|all|no)_proxy$|CARGO_(HTTP|NET|REGISTRIES|REGISTRY|SOURCE)|RUSTUP_(TOOLCHAIN|AUTO_INSTALL)$")


def homes():
    """The directories of this machine's Rust, by their places in a home."""
    found = {".cargo": os.environ.get("CARGO_HOME"), ".rustup": os.environ.get("RUSTUP_HOME")}
    found = {place: path or os.path.expanduser(f"~/{place}") for place, path in found.items()}
    for path in (os.path.join(found[".cargo"], "bin", "cargo"), os.path.join(found[".rustup"], "toolchains")):
        if not os.path.exists(path):
            raise Unavailable(f"no Rust of rustup's to lend: {path} is missing")
    return found


def sources():
    """Lines of a sources.list for the suite, from where this machine's apt has its packages; none if it is another Debian."""
    said = subprocess.run(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(RELEASE)|$(REPO_URI)|$(COMPONENT)|$(CREATED_BY)"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    lines = {}
    for line in said.splitlines():
        origin, release, uri, component, created_by = line.split("|")
        if origin == "Debian" and created_by == "Packages" and re.fullmatch(rf"{SUITE}(-updates|-security)?", release):
            lines[f"deb {uri} {release} {component}\n"] = None
    return list(lines)


def apt_options():
    """How this machine's apt reaches its packages."""
    said = subprocess.run(["apt-config", "dump", "Acquire"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    return [line for line in said.splitlines() if re.match(r"Acquire::(https?::|Check-|Retries|ForceIPv)", line)]


def run(argv, **more):
    """Runs a command that must go well."""
    done = subprocess.run(argv, check=False, **more)
    if done.returncode != 0:
        raise SystemExit(f"status {done.returncode}: {' '.join(argv)}")


def make_root(root, included=INCLUDED):
    """Debian's smallest, and these packages."""
    options = [f"--include={included}", *(f"--aptopt={line}" for line in apt_options())]
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", *options, SUITE, root]
    lines = sources()
    if lines:
        argv.append("-")
    done = subprocess.run(argv, input="".join(lines), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr)
        if UNREACHABLE.search(done.stderr):
            raise Unavailable("Debian's packages cannot be reached")
        raise SystemExit(f"mmdebstrap: status {done.returncode}")


def make_place(work, root):
    """Where the system will be. Cold pages go to the disk in any case, as they would."""
    os.makedirs(root)
    available = next(int(line.split()[1]) << 10 for line in harness.read_text("/proc/meminfo").splitlines() if line.startswith("MemAvailable:"))
    if available >= ROOMY:
        run(["mount", "-t", "tmpfs", "-o", "mode=755,size=100%", "tmpfs", root])
    os.makedirs(f"{work}/cold")
    os.chmod(f"{work}/cold", 0o1777)


def lend(work, root):
    """What the fresh system has of this machine: the kernel's file systems, names and certificates of the network."""
    run(["mount", "-t", "proc", "proc", f"{root}/proc"])
    for place in ("sys", "dev"):
        run(["mount", "--rbind", f"/{place}", f"{root}/{place}"])
    run(["mount", "--bind", f"{work}/cold", f"{root}/var/tmp"])
    for path in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):
        if os.path.exists(path):
            shutil.copy(path, root + path)
    # Services do not start when their packages are installed: their ports are this machine's.
    with open(f"{root}/usr/sbin/policy-rc.d", "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nexit 101\n")
    os.chmod(f"{root}/usr/sbin/policy-rc.d", 0o755)


def lend_rust(work, root):
    """Rust, of which this machine's stays as it is."""
    kept = os.path.join(work, "kept")
    os.makedirs(kept)
    run(["mount", "-t", "tmpfs", "tmpfs", kept])
    for place, path in homes().items():
        upper, scratch, target = f"{kept}/upper{place}", f"{kept}/work{place}", f"{root}/root/{place}"
        for folder in (upper, scratch, target):
            os.makedirs(folder)
        run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={os.path.realpath(path)},upperdir={upper},workdir={scratch}", target])


def step(root, words):
    """One command in the fresh system, in the clone; whether it went well."""
    environment = {key: value for key, value in os.environ.items() if KEPT.match(key)}
    environment.update(QUICK, HOME="/root", PATH="/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", TERM="dumb", CARGO_TERM_COLOR="never")
    started, bad = time.monotonic(), []
    print(f"$ {words}", flush=True)
    process = subprocess.Popen(["chroot", root, "sh", "-c", f"cd /root/farshore && {words}"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    for line in process.stdout:
        print(line, end="", flush=True)
        if BAD.search(line):
            bad.append(line.strip())
    status = process.wait()
    well = status == 0 and not bad
    print(f"fresh: {words}: {'ok' if well else 'FAILED'}, {time.monotonic() - started:.0f} s" + ("" if well else f": status {status}; {'; '.join(bad[:3])}"), flush=True)
    return well


def inside(work):
    """All of it; in namespaces of our own."""
    root, started = os.path.join(work, "root"), time.monotonic()
    make_place(work, root)
    make_root(root)
    print(f"fresh: {SUITE}: {time.monotonic() - started:.0f} s", flush=True)
    run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, f"{root}/root/farshore"])
    lend(work, root)
    lend_rust(work, root)
    came = []
    for words in STEPS:
        # After a step that failed, the others would tell of nothing new.
        came.append(False not in came and step(root, words))
    print(f"{came.count(True)} passed, {came.count(False)} failed, 0 skipped")
    return 1 if False in came else 0


def outside(place):
    """Looks whether it can be done, and has it done in namespaces of its own."""
    homes()
    if not os.path.exists(os.path.join(ROOT, ".git")):
        raise Unavailable("this is no git repository, so there is nothing to clone")
    return apart(os.path.abspath(__file__), place)


def apart(program, place):
    """Runs `program --inside DIR` in namespaces of its own, where DIR is a new directory in `place`; its exit status."""
    if os.geteuid() != 0:
        raise Unavailable("chroot and mounts need root")
    harness.need("mmdebstrap", "mmdebstrap")
    unshare = harness.need("unshare", "util-linux")
    if subprocess.run([unshare, "--mount", "--pid", "--fork", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Unavailable("this system does not allow new namespaces")
    work = tempfile.mkdtemp(prefix="farshore-fresh-", dir=place)
    # Whatever ends us, ends all in there: the first process of a pid namespace takes the others with it, and the mounts go with the last of them.
    process = subprocess.Popen([unshare, "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", sys.executable, program, "--inside", work])
    try:
        return process.wait()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(work)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where cold pages go, and the system where there is little RAM; 4 GiB (default /var/tmp)")
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    harness.tidy_on_sigterm()
    try:
        return inside(options.inside) if options.inside else outside(options.dir)
    except Unavailable as reason:
        print(f"skipped: {reason}\n0 passed, 0 failed, 1 skipped")
        return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
