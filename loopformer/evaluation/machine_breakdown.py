"""Where a model goes wrong in a machine: by opcode, after jumps, and in the fields of its state.

An error changes everything after it, so opcodes and jumps count only loops before which all was right: the question is
what the model does with an instruction when it stands in the right state.

Shape legend: B machines, T loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.tasks.machines.family import FIELDS
from datamodules.tasks.machines.machine import Machines, Run
from datamodules.tasks.machines.words import WORDS, lookup
from loopformer.evaluation.bootstrap import wilson


@dataclass
class Said:
    """What a model said of B machines: letters [B, T], labels [B, T] by field, answer states [B, T, D]."""

    letters: Tensor
    fields: dict[str, Tensor]
    answers: Tensor


def breakdown(machines: Machines, run: Run, said: Said, counts: list[int] | None) -> dict[str, Any]:
    """Summarise one split.

    Args:
        machines: the machines.
        run: what they do, T loops or more.
        said: what the model said.
        counts: requested counts of every machine; None where each is asked for its own depth.

    Returns:
        plain JSON types: `complete` (by count), `by_opcode`, `after_taken`, `after_other`, `fields`; shares with the
        number of cases and the 95% Wilson interval.
    """
    T = said.letters.shape[1]
    right = (said.letters.long() == torch.from_numpy(run.visible[:, :T])).numpy()
    within = np.arange(T) < (machines.depth[:, None] if counts is None else np.full((len(machines), 1), max(counts)))
    so_far = np.logical_and.accumulate(right, axis=1)
    before = np.concatenate([np.ones((len(right), 1), dtype=np.bool_), so_far[:, :-1]], axis=1) & within
    opcode, taken = run.opcode[:, :T], run.taken[:, :T]
    followed = np.concatenate([np.zeros((len(taken), 1), dtype=np.bool_), taken[:, :-1]], axis=1)
    result: dict[str, Any] = {
        "complete": _complete(so_far, machines, counts),
        "by_opcode": {WORDS[op]: _share(right[before & (opcode == op)]) for op in np.unique(opcode[within]).tolist()},
    }
    if taken.any():
        result["after_taken"] = _share(right[before & followed])
        result["after_other"] = _share(right[before & ~followed])
    result["fields"] = {
        name: _share((labels.numpy() == lookup(FIELDS[name])[run.state[name][:, 1 : T + 1]])[before])
        for name, labels in said.fields.items()
        if name in run.state
    }
    return result


def _complete(so_far: np.ndarray, machines: Machines, counts: list[int] | None) -> dict[str, Any]:
    if counts is None:
        own = so_far[np.arange(len(so_far)), machines.depth - 1]
        return {"own": _share(own)}
    return {str(count): _share(so_far[:, count - 1]) for count in counts}


def _share(values: np.ndarray) -> dict[str, Any]:
    """Number of cases, share and its Wilson interval; None where there is no case."""
    n, hits = int(values.size), int(values.sum())
    if n == 0:
        return {"n": 0, "share": None, "low": None, "high": None}
    interval = wilson(np.array([hits]), np.array([n]))
    return {"n": n, "share": hits / n, "low": float(interval.low[0]), "high": float(interval.high[0])}
