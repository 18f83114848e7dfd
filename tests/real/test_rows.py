"""The table of programs: each natively, and in half and a quarter of its own memory.

What a program prints is the same, and of what should go of its memory at least nine tenths go. **Saved** is (native peak - peak under Farshore) / (native peak -
limit). A peak is the most memory of no file that the program's processes had in RAM at a time (memory.py): Farshore's own counts, text and libraries do not. The limit
is that part of the native peak.

    pytest tests/real/test_rows.py                              the rows that continuous integration runs
    pytest tests/real/test_rows.py --rows all                   all of them
    pytest tests/real/test_rows.py --rows perl,ruby,go          these

What was measured goes to `rows.md` in the target directory, as a table for the book.
"""

import os
import platform
import shutil

import harness
import pytest
from harness import MIB, Mode, expect
from rows import ROWS
from run import Way, run_once

SHARES = (0.5, 0.25)
# A program smaller than this says nothing: fixed costs decide.
SMALLEST = 150 * MIB


def pytest_generate_tests(metafunc):
    """Each row that is wanted."""
    wanted = metafunc.config.option.rows
    names = [row.name for row in ROWS if row.short or wanted == "all"] if wanted in ("short", "all") else wanted.split(",")
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        raise pytest.UsageError(f"--rows: there is no row {', '.join(sorted(unknown))}")
    metafunc.parametrize("row", [row for row in ROWS if row.name in names], ids=lambda row: row.name)


def machine():
    """This machine, in a line."""
    model = next((line.partition(":")[2].strip() for line in harness.read_text("/proc/cpuinfo").splitlines() if line.startswith("model name")), "unknown processor")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    return f"{os.cpu_count()} × {model}, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}"


@pytest.fixture(scope="module")
def table():
    """Lines of the table, which is written when all rows have run."""
    lines = []
    yield lines
    head = ["| program | natively | half: peak | saved | time | a quarter: peak | saved | time |", "|---|---|---|---|---|---|---|---|"]
    path = os.path.join(harness.target_dir(), "rows.md")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([f"{machine()}. Memory in MB; in brackets what lies in RAM of files.", "", *head, *lines, ""]))


def test_row(row, farshore, work, table):
    """As natively, with nine tenths of what should go gone."""
    way = Way(farshore, [f"dir:{work}"], watched=True)
    row.folder = os.path.join(work, f"input-{row.name}")
    os.makedirs(row.folder)
    try:
        row.prepare()
        native = run_once(way, row, Mode(), work)
        expect(not native.problems, "natively: " + "\n".join(native.problems[:12]))
        peak, files = native.steps[0].watch.memory, native.steps[0].watch.files
        expect(peak > SMALLEST, f"{peak / 1e6:.0f} MB natively say nothing")
        cells, wrong, said = [f"{row.summary}", f"{peak / 1e6:.0f} ({files / 1e6:.0f}), {native.seconds:.1f} s"], [], []
        for share in SHARES:
            ran = run_once(way, row, Mode("upcall", share), work, native, {"program": peak})
            limit, under = ran.limit_of("program"), ran.steps[0].watch.memory
            saved = (peak - under) / (peak - limit)
            wrong += [f"{share:.0%}: {problem}" for problem in ran.problems[:6]]
            if saved < row.least:
                wrong.append(f"{share:.0%}: {saved:.1%} of what should go went: {under / 1e6:.1f} MB of {peak / 1e6:.1f} MB, with a limit of {limit / 1e6:.1f} MB")
            cells += [f"{under / 1e6:.0f}", f"{saved:.0%}", f"{ran.seconds:.1f} s"]
            said.append(f"{share:.0%}: {saved:.1%} in {ran.seconds:.1f} s")
    finally:
        shutil.rmtree(row.folder, ignore_errors=True)
    table.append(f"| {' | '.join(cells)} |")
    expect(not wrong, "\n".join(wrong))
    return f"{peak / 1e6:.0f} MB in {native.seconds:.1f} s; " + "; ".join(said)
