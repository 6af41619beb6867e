"""Runs one job: skips what is finished, resumes what was interrupted, and leaves nothing running behind."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from loopformer.cells.matrix import Job

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds that an interrupted run gets to end by itself."""


class JobError(RuntimeError):
    """A job that failed; the others go on."""


def train(job: Job, overrides: Sequence[str]) -> None:
    """Train a job to its end, from wherever it stands.

    Raises:
        JobError: train.py failed, the model it needs is missing, or the folder holds a run of another command.
    """
    command = job.train_command(overrides)
    _refuse_others(job, "train", command)
    if (job.model / "config.yaml").is_file():
        print(f"{job.name}: trained already", flush=True)
        return
    for needed, cell in ((job.executor, job.cell.executor), (job.initial, job.cell.initial)):
        if needed is not None and not needed.is_dir():
            raise JobError(f"needs {needed}; run cell {cell} with this seed first")
    resume: list[str] = []
    if (job.folder / "checkpoints" / "last.ckpt").is_file():
        resume = ["--resume=true"]
    elif (job.folder / "config.yaml").exists():
        _set_aside(job)
    _note(job, "train", command)
    _run([*command, *resume])
    if not (job.model / "config.yaml").is_file():
        raise JobError(f"train.py ended without an exported model in {job.model}")


def evaluate(job: Job, options: Sequence[str]) -> None:
    """Evaluate a trained job unless it has been.

    Raises:
        JobError: evaluate.py failed, or the folder holds another evaluation.
    """
    command = job.evaluate_command(options)
    _refuse_others(job, "evaluate", command)
    if job.summary.is_file():
        print(f"{job.name}: evaluated already", flush=True)
        return
    _note(job, "evaluate", command)
    _run(command)


def _noted(job: Job) -> dict[str, list[str]]:
    """Return the commands that made what is in the job's folder: "train" and "evaluate"."""
    path = job.folder / "cell.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _refuse_others(job: Job, part: str, command: list[str]) -> None:
    """Raise JobError where the folder holds results of another command: a table must not mix them."""
    noted = _noted(job).get(part, command)
    if noted != command:
        raise JobError(
            f"{job.folder} holds results of another command ({shlex.join(['python', *noted])}); "
            "choose another --output, or remove the folder"
        )


def _note(job: Job, part: str, command: list[str]) -> None:
    """Write down which command makes the results."""
    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.folder / "cell.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({**_noted(job), part: command}, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def _set_aside(job: Job) -> None:
    """Move a run that ended before its first checkpoint out of the way: it can be neither resumed nor overwritten."""
    number = 1
    while (aside := job.folder.with_name(f"{job.folder.name}-stopped{number}")).exists():
        number += 1
    job.folder.rename(aside)
    print(f"{job.name}: stopped before its first checkpoint; moved to {aside}, starting anew", flush=True)


def _run(command: list[str]) -> None:
    """Run one of the project's commands from its root.

    The command gets a session of its own, so that Ctrl-C reaches it once and through us: Lightning takes a first
    interrupt as a request to end in order.

    Raises:
        JobError: it failed.
        KeyboardInterrupt: this process was interrupted; the command has ended.
    """
    print(f"\n$ python {shlex.join(command)}", flush=True)
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, *command], cwd=ROOT, start_new_session=True, stdin=subprocess.DEVNULL
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=PATIENCE)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        raise
    if code:
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        raise JobError(f"{command[0]} ended with {reason}")
