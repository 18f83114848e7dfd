"""Differences that are known: known.toml, what it explains, and the page that is made from it (docs/src/reference/suites.md)."""

import os
import re
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "known.toml")
DOCS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs", "src", "reference", "suites.md")

HEAD = """# Other people's test suites

`tests/suites/run.py` runs the suites of CPython, Redis, sqlite3 (a corpus of SQL of our own), Perl, Go's standard library and Node natively and under Farshore, with a
quarter of the memory that each unit uses and with 16 MiB, and compares every test. This page is made from `tests/suites/known.toml` by `tests/suites/run.py --docs`.

What differs, and why:

"""


class Known:
    """One entry: tests that end otherwise under Farshore, and the reason."""

    def __init__(self, entry):
        for key in ("suite", "unit", "test", "reason"):
            if not entry.get(key):
                raise SystemExit(f"{LIST}: an entry has no {key!r}: {entry}")
        self.suite, self.unit, self.test, self.reason = entry["suite"], entry["unit"], entry["test"], " ".join(entry["reason"].split())
        self.mode = entry.get("mode", "")

    def explains(self, unit, mode, test):
        """Whether it is about this test. `unit` and `test` are regular expressions for the whole name."""
        return (self.suite == unit.suite and self.mode in ("", str(mode)) and re.fullmatch(self.unit, unit.name) is not None
                and re.fullmatch(self.test, test) is not None)

    def __str__(self):
        return f"{self.suite} {self.unit}: {self.test}"


def load():
    """All entries of known.toml."""
    with open(LIST, "rb") as file:
        return [Known(entry) for entry in tomllib.load(file).get("difference", [])]


def reason(listed, unit, mode, test):
    """Why this test differs, or None if nobody knows."""
    return next((entry.reason for entry in listed if entry.explains(unit, mode, test)), None)


def unseen(listed, verdicts):
    """Entries whose tests were run, and ended as natively each time."""
    seen, ran = set(), set()
    for verdict in verdicts:
        for mode, found in verdict.found.items():
            seen.update(entry for entry in listed for test in found if entry.explains(verdict.unit, mode, test))
        if verdict.native:
            ran.update(entry for entry in listed for test in verdict.native.results for mode in verdict.found if entry.explains(verdict.unit, mode, test))
    return [entry for entry in listed if entry in ran - seen]


def page(listed):
    """The text of docs/src/reference/suites.md."""
    if not listed:
        return HEAD + "Nothing.\n"
    rows = [f"| {entry.suite} | `{cell(entry.unit)}` | `{cell(entry.test)}` | {entry.mode or 'all'} | {cell(entry.reason)} |" for entry in listed]
    return HEAD + "| suite | unit | tests (a regular expression) | local memory | why |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def cell(text):
    """A text in a cell of a table."""
    return text.replace("|", "\\|")


def docs_are_fresh(listed):
    """Whether the page says what the list says."""
    try:
        with open(DOCS, encoding="utf-8") as file:
            return file.read() == page(listed)
    except OSError:
        return False


def write_docs(listed):
    """Writes the page."""
    with open(DOCS, "w", encoding="utf-8") as file:
        file.write(page(listed))
