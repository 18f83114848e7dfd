"""Perl's core tests, from Debian's source package: a unit is one file of t/ or lib/, a test one line of what it prints (TAP).

They are run by the installed perl. They look for their modules in ../lib, so a copy of the installed library lies there, beside lib/*.t and t/lib.
"""

import os
import re
import shutil
import subprocess

import sources
from suite import EXIT, FAIL, PASS, SKIP, Unavailable, Unit

PERL = "/usr/bin/perl"
# t/run is about perl's own options and needs the build's programs; t/porting is about the source tree; t/japh, t/perf and t/benchmark are about speed.
FOLDERS = ("base", "cmd", "comp", "io", "re", "opbasic", "op", "uni", "mro", "lib")
SHORT = ("op/fork.t", "op/sort.t", "op/pack.t", "op/kill0.t", "io/dup.t", "op/threads.t", "re/pat.t", "op/hash.t", "op/sprintf.t", "op/sysio.t",
         "op/magic.t", "op/die_exit.t", "io/socket.t", "re/regexp.t", "uni/sprintf.t", "io/shm.t", "io/sem.t", "op/exec.t")


# Hashes in the same order in every run, as some tests' names and numbers follow from it.
# Watchdogs of single tests have more time, as their authors foresee for slow machines: what does not end is found by ours.
ENVIRONMENT = {"PERL_CORE": "1", "PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0", "PERL_TEST_TIME_OUT_FACTOR": "10"}


class File(Unit):
    """One test file."""

    timeout = 300

    def run(self, context):
        tree = context.place.shared("perl", make_tree)
        # Tests write files with fixed names into their directory: each run has a copy of t/ of its own, and the library in common.
        top = context.path("tree")
        os.makedirs(top)
        shutil.copytree(os.path.join(tree, "t"), os.path.join(top, "t"), symlinks=True)
        for name in os.listdir(tree):
            if name != "t":
                os.symlink(os.path.join(tree, name), os.path.join(top, name))
        os.symlink(PERL, os.path.join(top, "perl"))
        os.symlink(PERL, os.path.join(top, "t", "perl"))
        context.give_tree(top)
        path = self.name
        status, out, _ = context.run([PERL, *switches(os.path.join(top, "t", path)), path], cwd=os.path.join(top, "t"), env=ENVIRONMENT)
        with open(out, encoding="utf-8", errors="replace") as file:
            results = read_tap(file)
        shutil.rmtree(top)
        return {**results, EXIT: str(status)}


def switches(path):
    """Options on a test's first line, as t/TEST takes them from there."""
    with open(path, encoding="utf-8", errors="replace") as file:
        found = re.match(r"#!.*\bperl.*?(\s-\w.*)$", file.readline().rstrip())
    return found[1].split() if found else []


def read_tap(lines):
    """{number and name: result} of TAP. What a test that is to do says does not count as a failure, as in any reader of TAP.

    >>> read_tap(["1..3", "ok 1 - a", "not ok 2 # TODO later", "ok 3 # skip no such thing", "not ok 4 - 0x55d0c8"])
    {'1 a': 'pass', '2': 'todo', '3': 'skip', '4 ADDRESS': 'fail', '(plan)': '3'}
    """
    results, plan = {}, None
    for line in lines:
        if found := re.match(r"1\.\.(\d+)(\s*#\s*skip)?", line, re.I):
            plan = found[1]
            if found[2]:
                results["(file)"] = SKIP
        elif found := re.match(r"(not )?ok\b\s*(\d*)\s*(?:- )?([^#]*)(#\s*(\w+))?", line):
            number = found[2] or str(len(results) + 1)
            mark = (found[5] or "").lower()
            result = SKIP if mark == "skip" else "todo" if mark == "todo" else FAIL if found[1] else PASS
            results[f"{number} {steady(found[3])}".strip()] = result
    return {**results, "(plan)": plan or "none"}


def steady(name):
    """A test's name without what differs from run to run: addresses, files' names that are made of the process id, and long numbers, which
    are times and process ids.

    >>> steady("12 open(my $f, '>', tmp_UME_B): 17.25 s, 12345, 0x7ffe01, '55e3ae3298b0'")
    "12 open(my $f, '>', tmp_NAME): 17.25 s, NUMBER, ADDRESS, 'ADDRESS'"
    """
    name = re.sub(r"\btmp_[A-Z]+_[A-Z]+\b", "tmp_NAME", re.sub(r"0x[0-9a-f]{4,}|\b[0-9a-f]{12}\b", "ADDRESS", name))
    return re.sub(r"\b\d{4,}(\.\d+)?\b", "NUMBER", name).strip()[:100]


def make_tree(path):
    """Unpacks t/ and lib/*.t, and puts the installed library where the tests look for it."""
    sources.unpack("perl", path, ("t", "lib"))
    # The tree's own modules are for a perl that was built there; all that stays of lib/ is tests and what they bring.
    for folder, _, files in os.walk(os.path.join(path, "lib")):
        for name in files:
            if name.endswith((".pm", ".pod", ".PL", ".pl")) and "/t/" not in folder + "/" and name != "common.pl":
                os.unlink(os.path.join(folder, name))
    for installed in installed_library():
        shutil.copytree(installed, os.path.join(path, "lib"), symlinks=False, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def installed_library():
    """The directories of the installed perl's own modules, those that count least first."""
    text = subprocess.run([PERL, "-MConfig", "-e", "print join qq(\\n), @Config{qw(privlibexp archlibexp)}, grep m(/perl-base$), @INC"],
                          stdout=subprocess.PIPE, check=True).stdout.decode()
    return [line for line in text.splitlines() if os.path.isdir(line)]


def units(place):
    """All files, of t/ first."""
    if not os.access(PERL, os.X_OK):
        raise Unavailable("perl is missing (apt-get install perl)")
    tree = place.shared("perl", make_tree)
    found = []
    for folder in FOLDERS:
        for name in sorted(os.listdir(os.path.join(tree, "t", folder))):
            if name.endswith(".t"):
                found.append(f"{folder}/{name}")
    found += [f"../lib/{name}" for name in sorted(os.listdir(os.path.join(tree, "lib"))) if name.endswith(".t")]
    return [File("perl", name, name in SHORT) for name in found]
