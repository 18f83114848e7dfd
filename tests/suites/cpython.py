"""CPython's regression tests, from Debian's libpython3.11-testsuite: a unit is one module, a test one test case of its JUnit report.

All modules that the interpreter lists: natively they take 9 minutes on two cores. What is left out, and why, is in `LEFT_OUT`. No resources are switched
on (`-u`), so what needs the network, a display, much processor time or large files skips itself, both ways.
"""

import os
import re
import subprocess
import xml.etree.ElementTree

from suite import EXIT, FAIL, PASS, SKIP, Unavailable, Unit, keep_worst

PYTHON = "/usr/bin/python3.11"
TESTS = "/usr/lib/python3.11/test"

# Not run, and why.
LEFT_OUT = {
    "test_ensurepip": "Debian's interpreter has it switched off",
    "test_cppext": "builds an extension with packages from the network",
    "test_regrtest": "tests the driver of these tests, by running it hundreds of times",
}
# What memory, processes, threads, signals and descriptors are to a program: they come first, since they take longest and find most.
FIRST = ("test_concurrent_futures", "test_multiprocessing_fork", "test_multiprocessing_spawn", "test_multiprocessing_forkserver", "test_asyncio", "test_signal",
         "test_ssl", "test_io", "test_socket", "test_subprocess", "test_threading", "test_mmap", "test_logging", "test_faulthandler", "test_largefile")
# The short form: ten seconds natively, for what a fast change breaks first.
SHORT = ("test_mmap", "test_fork1", "test_thread", "test_memoryview", "test_bytes", "test_struct", "test_select",
         "test_os", "test_posix", "test_fcntl", "test_dict", "test_list")


class Module(Unit):
    """One test module."""

    timeout = 400
    # Modules that start hundreds of interpreters, which share a quarter of what one of them uses.
    SLOWER = 10

    def run(self, context):
        report = context.path("junit.xml")
        os.close(os.open(report, os.O_CREAT | os.O_WRONLY, 0o644))
        context.give(report)
        status, out, _ = context.run([PYTHON, "-m", "test", "--junit-xml", report, "-v", self.name])
        results = read_report(report)
        if not results:
            with open(out, encoding="utf-8", errors="replace") as file:
                results = module_alone(self.name, file.read())
        return {**results, EXIT: str(status)}


def read_report(path):
    """{test: result} of a JUnit report; empty if there is none."""
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return {}
    results = {}
    for case in root.iter("testcase"):
        kinds = {child.tag for child in case}
        ran = case.get("result") == "completed" and case.get("status") == "run"
        result = FAIL if kinds & {"failure", "error"} else PASS if ran and "skipped" not in kinds else SKIP
        # Sub-tests have one line each.
        keep_worst(results, steady_name(case.get("name")), result)
    return results


def steady_name(name):
    """The name without what differs from run to run: addresses and numbers of processes in sub-tests' parameters.

    >>> steady_name("test.test_x.T.test_a (f=<function f at 0x7f32>)")
    'test.test_x.T.test_a (f=<function f at ADDRESS>)'
    """
    return re.sub(r"0x[0-9a-f]{4,}", "ADDRESS", name or "(no name)")


def module_alone(name, text):
    """A module that ended without a report: skipped as a whole, or dead."""
    if re.search(rf"^{name} skipped", text, re.M):
        return {"(module)": SKIP}
    return {"(module)": FAIL}


def units(_place):
    """All modules, those first that take longest."""
    if not os.path.isdir(TESTS) or not os.access(PYTHON, os.X_OK):
        raise Unavailable("libpython3.11-testsuite is missing (apt-get install python3.11 libpython3.11-testsuite)")
    listed = subprocess.run([PYTHON, "-m", "test", "--list-tests"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout.decode().split()
    names = [name for name in FIRST if name in listed] + [name for name in listed if name not in FIRST and name not in LEFT_OUT]
    return [Module("cpython", name, name in SHORT) for name in names]
