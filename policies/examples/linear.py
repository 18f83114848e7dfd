#!/usr/bin/env python3
"""The linear prefetcher: behind each fault it asks for the pages that come next. `linear.py PID`; `farshore set PID ahead=32` changes how many."""

import sys

import farshore_policy

with farshore_policy.attach(int(sys.argv[1])) as program:
    program.register("ahead", 8)
    for event in program.events("fault"):
        program.prefetch(event.address + farshore_policy.PAGE, max(program["ahead"], 1))
