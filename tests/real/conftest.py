"""Options for real programs (test_programs.py)."""


def pytest_addoption(parser):
    group = parser.getgroup("programs")
    group.addoption("--cases", metavar="NAME[,NAME]", help="these cases alone")
    group.addoption("--size", choices=("small", "full"), default="small", help="how much data (default small)")
    group.addoption("--fraction", default="50,25", help="per cent of the natural memory (default 50,25)")
    group.addoption("--swap", action="append", default=[], metavar="SPEC", help="as for farshore run; repeat for an array (default dir: of --work)")
    group.addoption("--encrypt", action="store_true", help="run with --encrypt")
    group.addoption("--prefetch", metavar="NAME", help="as for farshore run")
