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
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.metrics.functional import RATES

FINAL = ("forced_final", "exact_stop", "end_to_end")
WHOLE = ("complete", "strict")
"""Shares that the last step and the stop decide, and those that need every step."""

STOPPED = ("exact_stop", "end_to_end", "strict")
"""Those that the stop decides."""

LABELS = {"forced_final": "final"}


@dataclass
class Writing:
    """What an ordinary model wrote about B machines.

    Attributes:
        texts: its responses, word for word, machine by machine: one, or one for each step it was asked for.
        tokens: [B, T] int64 new tokens until each step is written; [B, 1] where all steps are one response.
        malformed: bool, of the same shape, whether something until then was not of the asked form.
        stops: [B] int32 step after which it stopped by itself, 0 for never; None where it is called step by step.
    """

    texts: list[list[str]]
    tokens: Tensor
    malformed: Tensor
    stops: Tensor | None = None


@dataclass
class Said:
    """What a model said of B machines.

    Attributes:
        letters: [B, T] labels of the visible states.
        fields: [B, T] labels by field; a value that is no label where nothing was said.
        answers: [B, T, D] answer states of a looped model.
        writing: what an ordinary model wrote, from which the rest was read.
    """

    letters: Tensor
    fields: dict[str, Tensor]
    answers: Tensor | None = None
    writing: Writing | None = None


def breakdown(machines: Machines, run: Run, said: Said, counts: list[int] | None) -> dict[str, Any]:
    """Summarise one split.

    Args:
        machines: the machines.
        run: what they do, T loops or more.
        said: what the model said.
        counts: requested counts of every machine; None where each is asked for its own depth.

    Returns:
        plain JSON types: `by_opcode`, `after_taken`, `after_other`, `fields`; shares with the number of cases and the
        95% Wilson interval.
    """
    T = said.letters.shape[1]
    right = (said.letters.long() == torch.from_numpy(run.visible[:, :T])).numpy()
    within = np.arange(T) < (machines.depth[:, None] if counts is None else np.full((len(machines), 1), max(counts)))
    so_far = np.logical_and.accumulate(right, axis=1)
    before = np.concatenate([np.ones((len(right), 1), dtype=np.bool_), so_far[:, :-1]], axis=1) & within
    opcode, taken = run.opcode[:, :T], run.taken[:, :T]
    followed = np.concatenate([np.zeros((len(taken), 1), dtype=np.bool_), taken[:, :-1]], axis=1)
    result: dict[str, Any] = {
        "by_opcode": {WORDS[op]: share(right[before & (opcode == op)]) for op in np.unique(opcode[within]).tolist()},
    }
    if taken.any():
        result["after_taken"] = share(right[before & followed])
        result["after_other"] = share(right[before & ~followed])
    result["fields"] = {
        name: share((labels.numpy() == lookup(FIELDS[name])[run.state[name][:, 1 : T + 1]])[before])
        for name, labels in said.fields.items()
        if name in run.state
    }
    return result


def by_count(
    store: OutcomeStore, tokens: Tensor | None, malformed: Tensor | None, judged: Tensor, trajectory: bool
) -> dict[str, dict[str, Any]]:
    """The numbers of every split and requested count, the same for models that execute and models that write.

    Args:
        store: the outcomes.
        tokens: [Q] new tokens until the requested step; None for a model that writes none.
        malformed: [Q] whether what was written is not of the asked form.
        judged: [Q] whether there is a stop to judge, the same in a whole split.
        trajectory: whether every step was said; otherwise only the last one and the stop are judged.

    Returns:
        by split and count ("own" for machines that end by themselves), plain JSON types: n; final, complete,
        exact_stop, end_to_end, strict and malformed as shares with 95% Wilson intervals; correct_prefix, the mean
        number of right steps before the first error; first_error, the median step of the first error where there is
        one; tokens, the mean. None for what the model does not say.
    """
    splits = store.metadata.fact_values["split"]
    number, ends = (store.facts[name][store.instance.long()] for name in ("split", "ends"))
    outcomes = [outcome for _, outcome in store.outcomes()]
    rates = {name: torch.cat([RATES[name](outcome) for outcome in outcomes]).numpy() for name in (*FINAL, *WHOLE)}
    first = torch.cat([outcome.first_error for outcome in outcomes]).numpy()
    found: dict[str, dict[str, Any]] = {name: {} for name in splits}
    for split in range(len(splits)):
        mine = (number == split).numpy()
        own = bool(ends.numpy()[mine].any())
        for count in [0] if own else np.unique(store.steps.numpy()[mine]).tolist():
            rows = mine if own else mine & (store.steps == count).numpy()
            steps, error = store.steps.numpy()[rows], first[rows]
            wrong = error[error <= steps]
            cell: dict[str, Any] = {"n": int(rows.sum())}
            for name, flags in rates.items():
                told = (trajectory or name in FINAL) and (name not in STOPPED or bool(judged.numpy()[rows].all()))
                cell[LABELS.get(name, name)] = share(flags[rows]) if told else None
            cell["correct_prefix"] = float((np.minimum(error, steps + 1) - 1).mean()) if trajectory else None
            cell["first_error"] = float(np.median(wrong)) if trajectory and len(wrong) else None
            cell["malformed"] = None if malformed is None else share(malformed.numpy()[rows])
            cell["tokens"] = None if tokens is None else float(tokens.double().numpy()[rows].mean())
            found[splits[split]]["own" if own else str(count)] = cell
    return found


def share(values: np.ndarray) -> dict[str, Any]:
    """Number of cases, share and its Wilson interval; None where there is no case."""
    n, hits = int(values.size), int(values.sum())
    if n == 0:
        return {"n": 0, "share": None, "low": None, "high": None}
    interval = wilson(np.array([hits]), np.array([n]))
    return {"n": n, "share": hits / n, "low": float(interval.low[0]), "high": float(interval.high[0])}
