"""Command line of `python -m loopformer.cells`; see the package for what it does.

Arguments after a lone -- go to train.py, for every cell: `-- --trainer.max_steps 100`.
Exit status: 0 all well, 1 a cell failed (the others ran), 2 a mistake in the command, 130 interrupted.

For a SLURM array, either let each task run its share, which also resumes after a requeue,
    python -m loopformer.cells --seeds $SLURM_ARRAY_TASK_ID --evaluate
or take its line of the plain commands:
    python -m loopformer.cells --seeds 0 1 2 --print | sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" | bash
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from loopformer.cells.matrix import Cell, Job, load_matrix
from loopformer.cells.run import ROOT, JobError, evaluate, train
from loopformer.cells.table import SHARES, markdown_table, rich_table
from loopformer.errors import one_line_errors
from loopformer.files import write_text


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the overrides that follow a lone --."""
    own, overrides = list(words), []
    if "--" in own:
        at = own.index("--")
        own, overrides = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m loopformer.cells",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--matrix", type=Path, default=Path("configs/ablations/matrix.yaml"), help="the matrix file")
    parser.add_argument("--cells", nargs="+", metavar="NAME", help="cells to run; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="training seeds")
    parser.add_argument("--output", type=Path, default=Path("runs/ablations"), help="folder of all runs")
    parser.add_argument("--config", action="append", default=[], help="file for every cell, below its overlays")
    parser.add_argument("--evaluate", action="store_true", help="evaluate each trained cell, into its folder")
    parser.add_argument(
        "--evaluation", nargs="+", default=[], metavar="NAME=VALUE", help="options of evaluate.py: graph.counts=1-64"
    )
    parser.add_argument("--shares", nargs="+", default=["complete", "exact_stop"], choices=SHARES, help="in the table")
    show = parser.add_mutually_exclusive_group()
    show.add_argument("--list", action="store_true", help="list the cells and their files, run nothing")
    show.add_argument("--print", action="store_true", help="print the plain command of each run, run nothing")
    return parser.parse_args(own), overrides


def choose(cells: dict[str, Cell], names: list[str] | None) -> list[Cell]:
    """Return some cells in the matrix's order, so that a cell comes before those that need its model.

    Raises:
        ValueError: a name is unknown.
    """
    if unknown := [name for name in names or [] if name not in cells]:
        raise ValueError(f"--cells: {', '.join(unknown)} unknown; use some of {', '.join(cells)}")
    return [cell for cell in cells.values() if names is None or cell.name in names]


def main(words: Sequence[str] | None = None) -> int:
    """Run, list or print the chosen cells; returns the exit status."""
    options, overrides = parse(sys.argv[1:] if words is None else words)
    os.chdir(ROOT)  # the commands and the files they name are relative to the project's root
    cells = choose(load_matrix(options.matrix, ROOT, options.config), options.cells)
    jobs = [Job(cell, seed, options.output) for seed in options.seeds for cell in cells]
    checks = [f"--{option}" for option in options.evaluation]
    if options.list:
        for cell in cells:
            over = f" over {cell.executor}" if cell.executor else ""
            start = f" from {cell.initial}" if cell.initial else ""
            print(f"{cell.name}{over}{start}: {' '.join(cell.configs)} {dict(cell.overrides) or ''}".rstrip())
        return 0
    if options.print:
        for job in jobs:
            commands = [job.train_command(overrides)] + ([job.evaluate_command(checks)] if options.evaluate else [])
            print(" && ".join(shlex.join(["python", *command]) for command in commands))
        return 0
    return run_all(jobs, overrides, checks if options.evaluate else None, options.shares)


def run_all(jobs: list[Job], overrides: Sequence[str], checks: Sequence[str] | None, shares: Sequence[str]) -> int:
    """Run the jobs in order, whatever becomes of the others, then print what failed and the table.

    Args:
        jobs: what to run.
        overrides: further arguments of train.py.
        checks: options of evaluate.py, None not to evaluate.
        shares: shares in the table.
    """
    failed = {}
    for stop in (signal.SIGTERM, signal.SIGHUP):  # a batch system's way to interrupt
        if signal.getsignal(stop) == signal.SIG_DFL:
            signal.signal(stop, _interrupt)
    try:
        for job in jobs:
            try:
                train(job, overrides)
                if checks is not None:
                    evaluate(job, checks)
            except JobError as error:
                failed[job.name] = str(error)
                print(f"{job.name}: failed: {error}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    if any(job.summary.is_file() for job in jobs):
        Console().print(rich_table(jobs, shares))
        path = jobs[0].root / "cells.md"
        write_text(path, markdown_table(jobs, shares), overwrite=True)
        print(f"the table is in {path}")
    print(f"{len(jobs) - len(failed)} of {len(jobs)} runs well")
    for name, reason in failed.items():
        print(f"error: {name}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    with one_line_errors():
        status = main()
    raise SystemExit(status)
