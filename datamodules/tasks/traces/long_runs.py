"""Programs of any run length: Collatz, a binary counter, nested loops. The length is counted, not guessed.

`long_run("collatz", 14_000, seed=0)` is a program whose trace has at least 14,000 line events and not many more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.traces.programs import Program


@dataclass(frozen=True)
class LongRun:
    """A family of programs.

    Attributes:
        source: the program.
        arguments: draws the arguments other than the size.
        length: number of line events with those arguments and a size.
    """

    source: str
    arguments: Callable[[random.Random], tuple[int, ...]]
    length: Callable[..., int]


COLLATZ = """def f(first, count):
    total = 0
    for start in range(first, first + count):
        n = start
        while n != 1:
            if n % 2:
                n = 3 * n + 1
            else:
                n = n // 2
            total += 1
    return total
"""


def _collatz_length(first: int, count: int) -> int:
    events = 1
    for start in range(first, first + count):
        n = start
        events += 3
        while n != 1:
            n = 3 * n + 1 if n % 2 else n // 2
            events += 4
    return events + 2


COUNTER = """def f(width, count):
    bits = [0] * width
    for step in range(count):
        place = 0
        while place < width and bits[place]:
            bits[place] = 0
            place += 1
        if place < width:
            bits[place] = 1
    return bits
"""


def _counter_length(width: int, count: int) -> int:
    events = 1
    for step in range(count):
        value = step % 2**width
        carried = 0
        while carried < width and value >> carried & 1:
            carried += 1
        events += 3 + 3 * carried + 1 + (carried < width)
    return events + 2


LOOPS = """def f(width, modulus, count):
    total = 0
    for i in range(count):
        for j in range(width):
            total = (total + i * j) % modulus
    return total
"""


def _loops_length(width: int, _: int, count: int) -> int:
    return 3 + count * (2 + 2 * width)


LONG_RUNS = {
    "collatz": LongRun(COLLATZ, lambda rng: (rng.randrange(2, 400),), _collatz_length),
    "binary_counter": LongRun(COUNTER, lambda rng: (rng.randrange(4, 13),), _counter_length),
    "nested_loops": LongRun(LOOPS, lambda rng: (rng.randrange(2, 12), rng.randrange(7, 100)), _loops_length),
}
"""Families by name. The last parameter of each is its size."""


def long_run(family: str, steps: int, seed: int = 0) -> Program:
    """Make a program with the shortest run of at least `steps` line events that its drawn arguments allow.

    Args:
        family: one of `LONG_RUNS`.
        steps: line events at least.
        seed: seed of the other arguments.

    Raises:
        ValueError: unknown family, or fewer than 1 step.
    """
    if family not in LONG_RUNS:
        raise ValueError(f"family: got {family!r}; use one of {', '.join(LONG_RUNS)}")
    if steps < 1:
        raise ValueError(f"steps: got {steps}; it must be 1 or more")
    run = LONG_RUNS[family]
    arguments = run.arguments(seeded("long_run", family, steps, seed))
    low, high = 0, 1
    while run.length(*arguments, high) < steps:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if run.length(*arguments, middle) >= steps else (middle, high)
    values = ", ".join(map(str, (*arguments, high)))
    return Program(f"{family}_{steps}_{seed}", run.source, f"f({values})")


def long_run_length(family: str, program: Program) -> int:
    """Return the number of line events of a program that `long_run` made."""
    arguments = program.call.removeprefix("f(").removesuffix(")").split(", ")
    return LONG_RUNS[family].length(*map(int, arguments))
