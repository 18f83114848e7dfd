"""Redis' own Tcl suite, from Debian's source package, with the installed servers: a unit is one file of it, a test what it calls a test.

The suite starts `src/redis-server`: a stand-in (tests/programs/standin.c) that becomes the installed server, natively through the program that measures
it, or under farshore. Every server of a unit is managed; the suite's own clients (Tcl) and redis-cli, redis-benchmark and redis-check-aof are not.
"""

import glob
import os
import re
import shutil

import sources
from suite import EXIT, FAIL, PASS, SKIP, Unavailable, Unit, harness, keep_worst

SERVER = "/usr/bin/redis-server"
TOOLS = ("redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb")
# Not run, and why.
LEFT_OUT = {
    "unit/tls": "needs the certificates of a build",
    "unit/printver": "prints the version, and tests nothing",
}
SHORT = ("unit/dump", "unit/type/incr", "unit/bitops", "unit/keyspace", "integration/rdb")
# Ports of a unit: servers, and 10000 above them the buses of clusters.
FIRST_PORT, PORTS = 21000, 400


class File(Unit):
    """One file of the suite."""

    timeout = 900
    SLOWER = 3

    def run(self, context):
        top = context.path("t")
        shutil.copytree(context.place.shared("redis", make_tree), top, symlinks=True)
        context.give_tree(top)
        measured = context.path("peaks")
        os.makedirs(measured)
        context.give(measured)
        # Several units at a time, each with ports of its own.
        port = FIRST_PORT + PORTS * (context.number % 20)
        command = [os.path.join(top, "src", "measured"), SERVER] if context.mode.native else [*context.farshore(), SERVER]
        argv = ["tclsh", "tests/test_helper.tcl", "--single", self.name, "--clients", "1", "--baseport", str(port), "--portcount", str(PORTS), "--dont-clean",
                "--timeout", str(int(context.timeout * 0.9))]
        env = {"STANDIN_COMMAND": "\n".join(command), "PEAKS": measured}
        status, out, _ = context.run(argv, cwd=top, env=env, wrapped=False)
        context.peak = max((peak_of(path) for path in glob.glob(os.path.join(measured, "[0-9]*[0-9]"))), default=0)
        keep_logs(top, context.path("servers"))
        with open(out, encoding="utf-8", errors="replace") as file:
            results = read_results(file)
        return {**results, EXIT: str(status)}


def peak_of(path):
    """Bytes that one measured server used."""
    fields = harness.read_text(path).split()
    return int(fields[1]) << 10 if len(fields) == 3 and fields[0] == "VmHWM:" else 0


def keep_logs(top, folder):
    """What servers printed is all that tells why one ended; the rest of the tree goes."""
    os.makedirs(folder)
    for path in glob.glob(os.path.join(top, "tests", "tmp", "*", "std*")):
        if os.path.getsize(path):
            shutil.copy(path, os.path.join(folder, path.rsplit(os.sep, 2)[1] + "-" + os.path.basename(path)))
    shutil.rmtree(top)


def read_results(lines):
    """{test: result} of the suite's output. Names that come twice are numbered.

    >>> read_results(["[ok]: A (5 ms)", "[err]: B in tests/unit/x.tcl", "[ok]: A (0 ms)", "[skip]: C", "[ignore]: D: not this one", "[exception]: Executing test client: x"])
    {'A': 'pass', 'B': 'fail', 'A #2': 'pass', 'C': 'skip', 'D': 'skip', '(exception)': 'fail'}
    >>> read_results(["[ok]: PSYNC2: Set #1 to replicate from #0", "[err]: PSYNC2: Set #4 to replicate from #2", "[ok]: PSYNC2: Set #3 to replicate from #1"])
    {'PSYNC2: Set #N to replicate from #N': 'fail'}
    """
    results = {}
    for line in lines:
        line = re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip())
        if found := re.match(r"\[(ok|err|skip|ignore)\]: (.*)", line):
            word, name = found.groups()
            name = re.sub(r" \(\d+ ms\)$| in tests/\S+\.tcl.*$", "", name)
            if word in ("skip", "ignore"):
                name = name.partition(": ")[0]
            name, result = steady(name), {"ok": PASS, "err": FAIL}.get(word, SKIP)
            if RANDOM.match(name):
                # As many of them as there is time for, in an order of chance: they are one, which passes if all do.
                keep_worst(results, re.sub(r"#\d+", "#N", name), result)
            else:
                results[numbered(name, results)] = result
        elif line.startswith("[exception]"):
            results["(exception)"] = FAIL
        elif line.startswith("[TIMEOUT]"):
            results["(timeout)"] = FAIL
    return results


# Tests of random layouts of servers.
RANDOM = re.compile(r"PSYNC2\b")


def steady(name):
    """A test's name without seeds, times and counts of a random run."""
    return re.sub(r"\b\d{4,}\b", "NUMBER", name)


def numbered(name, taken):
    """The name, with a number if it is taken."""
    if name not in taken:
        return name
    number = 2
    while f"{name} #{number}" in taken:
        number += 1
    return f"{name} #{number}"


def make_tree(path):
    """The suite, and the installed programs where it looks for them."""
    sources.unpack("redis", path, ("tests", "redis.conf", "utils/gen-test-certs.sh", "src/commands", "src/valgrind.sup"))
    be_patient(path)
    src = os.path.join(path, "src")
    shutil.copy(harness.build_program("standin"), os.path.join(src, "redis-server"))
    for tool in TOOLS:
        os.symlink(harness.need(tool, "redis-tools"), os.path.join(src, tool))
    with open(os.path.join(src, "measured"), "w", encoding="utf-8") as file:
        # The server is to be the process that the suite has started, and to have no children but its own.
        file.write('#!/bin/sh\n# Becomes the server; its peak is noted while it runs, by a process that is nobody\'s child.\nme=$$\n'
                   '( ( while sleep 0.2 && grep -s VmHWM /proc/$me/status >"$PEAKS/$me.new"; do mv "$PEAKS/$me.new" "$PEAKS/$me"; done ) '
                   '</dev/null >/dev/null 2>&1 & )\nexec "$@"\n')
    os.chmod(os.path.join(src, "measured"), 0o755)


def be_patient(path):
    """The suite kills a server that has not ended 10 s after it was told to, while it saves its data. In a quarter of its memory, on a busy disk, saving takes longer:
    each server has the two minutes that the suite gives to those that are slow, under valgrind."""
    name = os.path.join(path, "tests", "support", "server.tcl")
    text = harness.read_text(name)
    if text.count("set max_wait 10000\n") != 1:
        raise Unavailable("tests/support/server.tcl does not say how long it waits for a server's end")
    with open(name, "w", encoding="utf-8") as file:
        file.write(text.replace("set max_wait 10000\n", "set max_wait 120000\n"))


def units(place):
    """All files of the suite, in its own order."""
    harness.need("redis-server", "redis-server")
    harness.need("tclsh", "tcl")
    tree = place.shared("redis", make_tree)
    text = harness.read_text(os.path.join(tree, "tests", "test_helper.tcl"))
    listed = re.search(r"set ::all_tests \{(.*?)\}", text, re.S)
    if not listed:
        raise Unavailable("the suite's list of tests was not found in tests/test_helper.tcl")
    return [File("redis", name, name in SHORT) for name in listed[1].split() if name not in LEFT_OUT]
