"""Real programs, natively and under Farshore: the same bytes, within the memory limit.

Each case runs natively, then under farshore with a limit that is never reached, which tells how much managed memory the program really uses; then, for each
mode and fraction, with that part of it. What is looked at: run.py. Programs that are not installed are skipped.

    pytest tests/real/test_programs.py -k sort --mode poll --fraction 25
    pytest tests/real/test_programs.py --size full --swap ram:lz4,size=1G --swap dir:/var/tmp
"""

import os
import shutil

import harness
import pytest
from cases import CASES
from harness import Mode, expect, size_text
from run import Way, run_once


def pytest_generate_tests(metafunc):
    """Each case in each way: natively, with all its memory, with parts of it; or with the limit that the case itself fixes."""
    option = metafunc.config.option
    modes = [option.mode] if option.mode else ["upcall", "poll"]
    chosen = option.cases.split(",") if option.cases else [case.name for case in CASES]
    unknown = set(chosen) - {case.name for case in CASES}
    if unknown:
        raise pytest.UsageError(f"--cases: there is no case {', '.join(sorted(unknown))}")
    found = []
    for case in [case for case in CASES if case.name in chosen]:
        if case.fixed_limit:
            ways = [Mode(), *(Mode(mode, 0) for mode in modes)]
        else:
            shares = [float(part) / 100 for part in option.fraction.split(",")]
            ways = [Mode(), *(Mode(mode) for mode in modes), *(Mode(mode, share) for mode in modes for share in shares)]
        found += [pytest.param(case, mode, id=f"{case.name}-{str(mode).replace(' ', '-')}", marks=[pytest.mark.poll] if mode.fault == "poll" else [])
                  for mode in ways]
    metafunc.parametrize("case,way", found, indirect=["case"])


class Ran:
    """A case, its native run, and what it uses."""

    def __init__(self, case, way, work):
        self.case, self.way, self.work, self.roomy = case, way, work, None
        self.native = self.run(Mode())

    def run(self, mode, peaks=None):
        """One run."""
        return run_once(self.way, self.case, mode, self.work, getattr(self, "native", None), peaks)

    def peaks(self):
        """The memory that each of its programs uses. It is a matter of the program: one delivery is enough to learn it, which is `poll`, since a process with
        `upcall` stays dormant where everything fits, and counts nothing."""
        self.roomy = self.roomy or self.run(Mode("poll"))
        expect(not self.roomy.problems, "poll all: " + "\n".join(self.roomy.problems[:12]))
        return {step.name: harness.natural_peak(step.stats) if step.stats else step.peak_rss or 0 for step in self.roomy.steps}


@pytest.fixture(scope="module")
def case(request, farshore, work, pytestconfig):
    """The case, prepared, and run natively."""
    option = pytestconfig.option
    folder = os.path.join(work, f"input-{request.param.name}")
    os.makedirs(folder)
    one = request.param(option.size, folder)
    one.prepare()
    ran = Ran(one, Way(farshore, option.swap or [f"dir:{work}"], None, option.encrypt, option.prefetch), work)
    expect(not ran.native.problems, "natively: " + "\n".join(ran.native.problems[:12]))
    yield ran
    shutil.rmtree(folder, ignore_errors=True)


def test_program(case, way):
    """As natively, and within its limit."""
    if way.native:
        return f"{case.native.seconds:.2f} s"
    if way.share:
        ran = case.run(way, case.peaks())
    elif way.share is None and way.fault == "poll":
        case.peaks()
        ran = case.roomy
    else:
        ran = case.run(way)
    expect(not ran.problems, "\n".join(ran.problems[:12]))
    limits = [step.limit for step in ran.steps if step.limit and step.limit != harness.ROOMY]
    limit = f" in {size_text(max(limits))}" if limits else ""
    times = f", {ran.seconds / case.native.seconds:.1f} x native" if case.native.seconds else ""
    return f"{ran.seconds:.2f} s{limit}{times}; {ran.total('swap', 'pages_in')} pages in, {ran.total('swap', 'pages_out')} out"
