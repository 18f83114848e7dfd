"""tools/density.py, which packs guests into a budget until they answer too late: a short run, for its sake and for the guests' data."""

import json
import os
import sys

import harness
import pytest
from harness import expect
from machine import Machine
from test_vm import LONG

TOOL = os.path.join(harness.ROOT, "tools", "density.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and swap need root")
class TestDensity(Machine):
    """One guest more than a budget has room for."""

    @pytest.fixture(autouse=True, scope="class")
    def with_manager(self, made_ready):
        """What `farshore vm` needs beside the command."""
        self.beside("farshore-manager", "farshore-view", "libfarshore_agent.so")

    def test_short(self):
        """Guests answer, one manager is killed, and all data are as they were left; the same in a cgroup."""
        out = self.folder("density")
        words = ["--budget", "256", "--most", "3", "--seconds", "2", "--rate", "2", "--p99", "60000", "--targets", "farshore,linux-swap", "--farshore", self.farshore, "--out", out]
        done = self.call_program([sys.executable, TOOL, *words], timeout=LONG)
        expect(done.status == 0, f"status {done.status}: {done.out} {done.err}")
        with open(os.path.join(out, "results.json"), encoding="ascii") as file:
            targets = json.load(file)["targets"]
        expect([(found["name"], found["rows"][-1]["guests"], found["end"]) for found in targets] == [(name, 3, "no more were asked for") for name in ("farshore", "linux-swap")], f"{targets}")
        expect(all(row["answers"] >= 3 for found in targets for row in found["rows"]), f"{targets}")
        expect(done.out.count("3 guests have their data as they left them") == 2, done.out)
        return f"{targets[0]['rows'][-1]['p99_ms']:.0f} ms"

    def test_refused(self):
        """A target that there is not."""
        done = self.call_program([sys.executable, TOOL, "--targets", "farshore,magic"])
        expect(done.status == 1 and "no such target: magic" in done.err, f"status {done.status}: {done.err}")
