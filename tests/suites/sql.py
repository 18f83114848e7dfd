"""sqlite3 with a corpus of SQL: a unit is one script, a test one numbered case of it, its result a sum of what was printed.

The corpus is made here, so that it is the same everywhere: from seeds (sqlgen.py: random tables, and queries over them), and workloads written down
(sqlwork.py: joins, windows, full text, JSON, recursion, transactions, vacuum, integrity checks). The native run's answers are the reference.
sqlite's page cache is made large and databases lie in memory as well as in files, so that most of what a script touches is managed memory.
"""

import hashlib
import os

import sqlgen
import sqlwork
from suite import EXIT, Unit, harness

SHORT_SEEDS = (1,)
SEEDS = range(1, 25)
MARK = "=== case "


class Script(Unit):
    """One script for the sqlite3 command."""

    timeout = 300
    # A working set that goes round and round in a quarter of its memory: each page comes from disk.
    SLOWER = 10

    def __init__(self, name, make, short):
        super().__init__("sqlite", name, short)
        self.make = make

    def run(self, context):
        script = context.path("script.sql")
        with open(script, "w", encoding="utf-8") as file:
            for number, (title, text) in enumerate(self.make(), 1):
                file.write(f".print {MARK}{number} {title}\n{text}\n")
        context.give(script)
        with open(script, "rb") as stdin:
            status, out, err = context.run([harness.need("sqlite3", "sqlite3"), "-batch", "-init", os.devnull, "-nullvalue", "NULL", context.path("home/main.db")], stdin=stdin)
        errors = harness.read_text(err)
        if context.mode.native and (errors or status != 0):
            raise ValueError(f"the corpus is wrong: natively status {status}, {errors[:300]!r}")
        return {**read_cases(out), "(errors)": digest(errors), EXIT: str(status)}


def digest(text):
    """What stands for an output."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_cases(path):
    """{case: sum of its output} of what a script printed."""
    results, name, lines = {}, "(before)", []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(MARK):
                results[name] = digest("".join(lines))
                name, lines = line[len(MARK):].strip(), []
            else:
                lines.append(line)
    results[name] = digest("".join(lines))
    return results


def units(_place):
    """Scripts of seeds, then the workloads."""
    harness.need("sqlite3", "sqlite3")
    made = [Script(f"seed-{seed}", lambda seed=seed: sqlgen.script(seed), seed in SHORT_SEEDS) for seed in SEEDS]
    return made + [Script(name, make, name in sqlwork.SHORT) for name, make in sqlwork.WORKLOADS.items()]
