"""What all tests here share: where the command is and files go, deliveries of faults, and how a test says that it cannot run here.

    pytest tests/real/test_pools.py                    a file of tests
    pytest tests/real/test_pools.py -k fork            those whose name has this
    pytest tests/real/test_threads.py --mode poll      one delivery of faults alone

A test raises `harness.Unavailable` where this machine misses something: then it is skipped, with the reason. What a test returns is said beside its name.
tools/test.py runs the files, and counts what their JUnit reports say.
"""

import os
import random
import shutil
import signal
import sys
import tempfile

import pytest

sys.dont_write_bytecode = True
import harness  # noqa: E402

MODES = ("upcall", "poll")


def pytest_addoption(parser):
    group = parser.getgroup("farshore")
    group.addoption("--farshore", metavar="PATH", help="the farshore command (default: $FARSHORE, else this workspace's build)")
    group.addoption("--work", default=os.environ.get("FARSHORE_SWAP_DIR") or "/var/tmp", help="where files go (default /var/tmp)")
    group.addoption("--mode", choices=MODES, help="one delivery of faults alone")
    group.addoption("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="of what is random (default: random, shown)")
    group.addoption("--kills", type=int, default=20, help="kill -9 at random moments, for each mode (default 20)")
    group.addoption("--storms", type=int, default=8, help="runs on a disk that fails at random (default 8)")
    group.addoption("--rounds", type=int, default=3, help="how often the matrix of calls is gone through while pages leave (default 3)")


def pytest_configure():
    # What runs is ended, and what was made is removed, as by Ctrl-C. (pytest would take a SystemExit for a test that failed, and go on.)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_report_header(config):
    return f"seed {config.option.seed}"


def pytest_generate_tests(metafunc):
    """A test that takes a mode runs in each."""
    if "mode" in metafunc.fixturenames:
        marks = {"poll": [pytest.mark.poll]}
        metafunc.parametrize("mode", [pytest.param(mode, marks=marks.get(mode, [])) for mode in MODES if metafunc.config.option.mode in (None, mode)])


def pytest_runtest_setup(item):
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")
    if item.get_closest_marker("poll") and not harness.poll_allowed():
        pytest.skip("poll mode needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or rights to /dev/userfaultfd")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Calls the test. pytest's own way warns of what a test returns."""
    item = pyfuncitem
    said = item.obj(**{name: item.funcargs[name] for name in item._fixtureinfo.argnames})
    if said:
        item.user_properties.append(("said", str(said)))
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.excinfo and isinstance(call.excinfo.value, harness.Unavailable):
        report = outcome.get_result()
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1] or 0, f"Skipped: {call.excinfo.value}")


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report):
    # (A file that could not be collected has none.)
    said = dict(getattr(report, "user_properties", ())).get("said")
    if said and report.when == "call" and report.passed:
        return "passed", ".", f"PASSED ({said})"
    return None


@pytest.fixture(scope="module")
def work(request):
    """A directory for the files of these tests, which others can read."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    path = tempfile.mkdtemp(prefix=f"farshore-{name}-", dir=request.config.option.work)
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def farshore(request):
    """Path of the command."""
    return harness.find_farshore(request.config.option.farshore)
