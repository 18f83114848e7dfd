"""`farshore-load list`: a Python list of numbers is made, and gone through several times. It tells what `farshore-load` tells of any workload, as JSON lines or as a summary.

Arguments: yes or no for JSON lines, bytes, passes, seed.
"""
import json
import resource
import sys
import time

# A place in the list and the number that it names: a machine word, and what Python takes for a small number.
ELEMENT = 8 + 32
# Elements that are timed together.
STEP = 4096
# A multiple of no power of two, so that all of its multiples below 2**29 differ; and 2**29, below which a number has one digit in Python.
FACTOR, MODULUS = 0x9E3779B1, 1 << 29
STEP_SECONDS = 0.1

events, size, passes, seed = sys.argv[1] == "yes", int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
count = size // ELEMENT
phases = []


def tell(**event):
    if events:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return [time.monotonic(), usage.ru_utime, usage.ru_stime, usage.ru_minflt, usage.ru_majflt]


def end():
    if phases:
        phase = phases[-1]
        now = used()
        seconds, user, system, minor, major = (after - before for after, before in zip(now, phase.pop("began")))
        phase.update(seconds=seconds, user_seconds=user, system_seconds=system, minor_faults=minor, major_faults=major)


def begin(name):
    end()
    tell(event="phase", name=name)
    phases.append({"name": name, "began": used()})


def number(index):
    return (index + seed) * FACTOR % MODULUS


def main():
    begin("measure")
    start = time.monotonic()
    steps = []

    def done(elements):
        step = int((time.monotonic() - start) / STEP_SECONDS)
        steps.extend([0] * (step + 1 - len(steps)))
        steps[step] += elements

    numbers = []
    for first in range(0, count, STEP):
        last = min(first + STEP, count)
        numbers.extend([number(index) for index in range(first, last)])
        done(last - first)
    sums = []
    for _ in range(passes):
        total = at = 0
        for value in numbers:
            total += value
            at += 1
            if at % STEP == 0:
                done(STEP)
        done(at % STEP)
        sums.append(total)
    seconds = time.monotonic() - start
    operations = count * (1 + passes)
    phases[-1]["operations"] = operations

    begin("verify")
    wrong = []
    right = 0
    for index, value in enumerate(numbers):
        expected = number(index)
        right += expected
        if value != expected and len(wrong) < 3:
            wrong.append(f"element {index} is {value!r}, not {expected}")
    if len(numbers) != count:
        wrong.append(f"the list has {len(numbers)} elements, not {count}")
    wrong.extend(f"the sum of pass {index} is {total}, not {right}" for index, total in enumerate(sums) if total != right)
    end()

    verified = f"each of {count} elements, and the sum of each of {passes} passes"
    tell(event="outcome", workload="list", unit="element", operations=operations, seconds=seconds, data_bytes=count * ELEMENT,
         timeline={"step_seconds": STEP_SECONDS, "operations": steps, "marks": []}, phases=phases, verified=verified,
         checksum=f"{right:016x}", wrong=wrong)
    if not events:
        print(f"list: {operations / seconds:.0f} elements/s ({operations} in {seconds:.2f} s)")
        for phase in phases:
            print(f"  {phase['name']:9} {phase['seconds']:.2f} s, CPU {phase['user_seconds']:.2f} + {phase['system_seconds']:.2f} s,"
                  f" faults {phase['minor_faults']} minor {phase['major_faults']} major")
        print("  WRONG DATA" if wrong else f"  verified  {verified}")
    for what in wrong:
        print(f"farshore-load: wrong data: {what}", file=sys.stderr)
    return 1 if wrong else 0


sys.exit(main())
