"""Speed of the tracer: events per second of the worker's processor time, and states per second of wall-clock time.

python -m benchmarks.tracing
python -m benchmarks.tracing --events 200000
"""

from __future__ import annotations

import time

from jsonargparse import auto_cli

from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.corpus import corpus
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.long_runs import LONG_RUNS, long_run
from datamodules.tasks.traces.outcome import LEVELS
from datamodules.tasks.traces.programs import trace_each


def main(events: int = 50_000, programs: int = 100) -> None:
    """Measure.

    Args:
        events: line events of each long run.
        programs: programs of the generated corpus.
    """
    limits = Limits(seconds=600.0, cpu_seconds=600, memory=2**31, events=30 * events, states=2**29)
    with Tracer(limits) as tracer:
        for family in LONG_RUNS:
            program = long_run(family, events)
            for level in LEVELS:
                trace = tracer.trace(program.source, program.call, level=level)
                rate = len(trace.events) / trace.seconds
                print(f"{family}: {len(trace.events)} {level} events, {rate:,.0f} per second in the worker")
            begin = time.perf_counter()
            trace = tracer.trace(program.source, program.call, states=True)
            seconds = time.perf_counter() - begin
            print(f"{family}: {len(trace.states or ())} states in {seconds:.1f} s")
        begin = time.perf_counter()
        found = sum(1 for _ in trace_each(corpus(0, programs), tracer))
        print(f"generated: {found} programs with states in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
