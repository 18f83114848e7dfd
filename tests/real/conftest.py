"""Options for real programs (test_programs.py), and what tests of cases (compare.py) share."""

import pytest
from compare import Both


def pytest_addoption(parser):
    group = parser.getgroup("programs")
    group.addoption("--cases", metavar="NAME[,NAME]", help="these cases alone")
    group.addoption("--size", choices=("small", "full"), default="small", help="how much data (default small)")
    group.addoption("--fraction", default="50,25", help="per cent of the natural memory (default 50,25)")
    group.addoption("--swap", action="append", default=[], metavar="SPEC", help="as for farshore run; repeat for an array (default dir: of --work)")
    group.addoption("--rows", metavar="NAME[,NAME]", default="short", help="rows of test_rows.py, `short` or `all` (default short)")
    group.addoption("--encrypt", action="store_true", help="run with --encrypt")
    group.addoption("--faults", type=int, default=2, help="how often each kind of fault comes in test_survived.py (default 2)")
    group.addoption("--cuts", default="1,3", help="for how many seconds the network is cut there (default 1,3)")
    group.addoption("--prefetch", metavar="NAME", help="as for farshore run")


def pytest_generate_tests(metafunc):
    """A test that takes a case runs for each of its module's `cases`."""
    if "case" in metafunc.fixturenames and hasattr(metafunc.module, "cases"):
        metafunc.parametrize("case", metafunc.module.cases(), ids=lambda case: case.name)


@pytest.fixture(scope="module")
def both(request, farshore, work):
    """Runs cases natively and under Farshore, in the way of the module (`BOTH`) if it has one of its own."""
    return getattr(request.module, "BOTH", Both)(farshore, work)
