"""Options for the report."""


def pytest_addoption(parser):
    group = parser.getgroup("report")
    group.addoption("--report", metavar="PATH", help="a page, or its directory (default: one of made-up results)")
    group.addoption("--pictures", metavar="DIRECTORY", help="where to write a picture of each view")
