"""The whole product in some minutes on two CPU cores: train, fit the timer, evaluate, for one or several seeds.

    python -m loopformer.quickstart --seed 0 --output runs/quickstart
    python -m loopformer.quickstart --seed 0 1 2

It runs the very commands a user would type and prints them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
EXECUTOR = ("configs/arch4_executor.yaml", "configs/backbone/tiny.yaml", "configs/recipe/curriculum.yaml")
SHARES = ("forced_final", "complete", "exact_stop", "end_to_end", "strict")


def run(*command: str) -> float:
    """Run one of the project's commands from its root and return its wall seconds.

    Raises:
        SystemExit: the command failed.
    """
    print(f"\n$ python {shlex.join(command)}", flush=True)
    begin = time.perf_counter()
    code = subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode  # noqa: S603
    if code:
        raise SystemExit(code)
    return time.perf_counter() - begin


def run_seed(seed: int, folder: Path) -> dict[str, float]:
    """Train, fit and evaluate one seed; returns the shares and the wall seconds of each part."""
    configs = [argument for path in EXECUTOR for argument in ("--config", path)]
    seconds = {
        "train": run(
            "train.py", *configs, "--seed_everything", str(seed), "--data.init_args.seed", str(seed),
            "--output", str(folder / "executor"),
        ),
        "timer": run(
            "train.py", "--config", "configs/arch5_timer.yaml",
            "--model.init_args.executor", str(folder / "executor" / "model"), "--output", str(folder / "timer"),
        ),
        "evaluate": run(
            "evaluate.py", "--checkpoint", str(folder / "timer" / "model"), "--benchmark", "graph",
            "--output", str(folder / "evaluation"),
        ),
    }  # fmt: skip
    summary = json.loads((folder / "evaluation" / "summary.json").read_text())
    return {name: summary[name] for name in SHARES} | seconds


def main() -> None:
    """Run the seeds and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="training seeds")
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), help="folder of the runs")
    arguments = parser.parse_args()
    base = arguments.output  # relative to the project's root, where the commands run
    os.chdir(ROOT)
    taken = [base / f"seed{seed}" for seed in arguments.seed if (base / f"seed{seed}").exists()]
    if taken:
        sys.exit(f"error: --output: {taken[0]} exists; choose another folder (make quickstart OUT=...) or remove it")
    rows = {seed: run_seed(seed, base / f"seed{seed}") for seed in arguments.seed}
    table = Table(title="345,600 queries: percent right, and seconds spent")
    for head in ("seed", *(name.replace("_", " ") for name in SHARES), "train s", "timer s", "evaluate s"):
        table.add_column(head, justify="right")
    for seed, row in rows.items():
        shares = [f"{100 * row[name]:.2f}" for name in SHARES]
        table.add_row(str(seed), *shares, *(f"{row[part]:.0f}" for part in ("train", "timer", "evaluate")))
    console = Console()
    console.print(table)
    for seed in arguments.seed:
        console.print(f"open {base / f'seed{seed}' / 'evaluation' / 'report.html'}", soft_wrap=True)


if __name__ == "__main__":
    main()
