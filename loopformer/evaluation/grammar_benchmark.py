"""The grammar benchmark of looped models: runs of a grammar machine, one loop per move, into an outcome store.

Every instance is rolled out some loops beyond its last move, so that a late stop is told from a missing one. The number
of moves is not in the prompt: the stop rule finds the end, and the moves count whether or not it did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import IGNORE, Batch
from datamodules.grammar import ASKED
from datamodules.procedure_batcher import ProcedureBatcher
from datamodules.tasks.procedure import LabelSet
from loopformer.checkpoint import Checkpoint
from loopformer.evaluation.grammar_questions import (
    MACHINES,
    TRAINED,
    GrammarOptions,
    Questions,
    bracket_questions,
    search_questions,
)
from loopformer.evaluation.idle_options import refuse_other_machines_options
from loopformer.evaluation.native import check_alone
from loopformer.evaluation.outcomes import OutcomeMetadata, OutcomeStore
from loopformer.evaluation.partial import PartialTensors, number_types
from loopformer.evaluation.trace import state_chunks
from loopformer.looped import LoopedTransformer
from loopformer.metrics.functional import stop_loop

NO_MOVE = "none"
"""Name of what a model of several tasks says when it says no move of this one."""


def choose_questions(checkpoint: Checkpoint, options: GrammarOptions) -> Questions:
    """Return the questions of the machine that was asked for, or trained.

    Raises:
        ValueError: the model's labels are those of no grammar machine, or lack moves of the one asked for; or an option
            is for another machine.
    """
    labels = checkpoint.network.labels
    able = [name for name, moves in MACHINES.items() if set(moves.texts) <= set(labels)]
    machine = trained_machine(checkpoint) if options.machine == TRAINED else options.machine
    if machine not in able:
        ask = f"say which with --grammar.machine, {' or '.join(able)}"
        fix = ask if able else "train with configs/grammar_brackets.yaml"
        raise ValueError(
            f"checkpoint: its {len(labels)} labels are not the moves of {machine or 'a grammar machine'}; {fix}"
        )
    refuse_other_machines_options(options, machine)
    return search_questions(options) if machine == "search" else bracket_questions(options, machine != "brackets")


def trained_machine(checkpoint: Checkpoint) -> str | None:
    """The machine that a model alone was trained on: as its provenance says, or the one whose moves its labels are."""
    told = checkpoint.config.get("provenance", {}).get("benchmarks") or []
    if len(told) == 1 and str(told[0]).startswith(ASKED):
        return str(told[0]).removeprefix(ASKED)
    same = [name for name, moves in MACHINES.items() if checkpoint.network.labels == list(moves.texts)]
    return same[0] if same else None


def evaluate_grammar(
    checkpoint: Checkpoint,
    options: GrammarOptions,
    advance: Callable[[int], None] = lambda _: None,
    begin: Callable[[int], None] = lambda _: None,
    partial_results: Path | None = None,
) -> OutcomeStore:
    """Run the benchmark.

    Args:
        checkpoint: the model.
        options: what to evaluate.
        advance: called with the number of instances finished.
        begin: called once with the number of all instances.
        partial_results: folder for finished batches, from which a killed evaluation goes on; None to keep nothing.

    Raises:
        ValueError: an option is out of range, or the model's labels are not the moves.
        RuntimeError: the first instance of a batch, run alone, gets other moves.
    """
    network = checkpoint.network
    questions = choose_questions(checkpoint, options)
    batcher = ProcedureBatcher(questions.task, network.backbone.tokenizer)
    steps = np.array([questions.task.steps(instance) for instance in questions.instances])
    size, loops = len(steps), int(steps.max()) + options.slack
    begin(size)
    digests = _digests(checkpoint, questions)
    identity = {"digests": digests, "batch_size": options.batch_size, "slack": options.slack}
    identity |= number_types(network.label_ids.device.type)
    kept = PartialTensors(partial_results, identity)
    names = tuple(batcher.labels.names)
    letters = torch.zeros(size, loops, dtype=torch.int16)
    reference = torch.full((size, loops), IGNORE, dtype=torch.int16)
    stops = torch.zeros(size, dtype=torch.int32)
    facts = {name: torch.tensor(values, dtype=torch.int32) for name, values in questions.facts.items()}
    numbers = _move_numbers(network, batcher.labels)
    for number, (rows, batch) in enumerate(_batches(questions, batcher, steps, options.batch_size)):
        count = batch.labels.shape[1] + options.slack
        part, _ = kept.get(number, partial(_run, network, batch, count))
        check_alone(network, batcher.batch([questions.instances[int(rows[0])]]), part["moves"][0])
        read = numbers[part["moves"].long()]
        letters[rows, :count] = read
        letters[rows, count:] = read[:, -1:]  # never counted: these loops lie beyond the slack
        reference[rows, : batch.labels.shape[1]] = batch.labels.to(torch.int16)
        stops[rows] = part["stops"]
        for name, values in batch.facts.items():
            facts.setdefault(name, torch.zeros(size, dtype=torch.int32))[rows] = values.to(torch.int32)
        advance(len(rows))
    metadata = OutcomeMetadata(
        benchmark="grammar",
        labels=names if len(names) == len(network.labels) else (*names, NO_MOVE),
        loops=loops,
        cap=loops,
        digests=digests,
        trained_steps=tuple(checkpoint.config.get("provenance", {}).get("trained_counts", ())),
        fact_values=questions.fact_values,
    )
    return _store(metadata, letters, reference, stops, torch.from_numpy(steps.astype(np.int32)), facts)


def _move_numbers(network: LoopedTransformer, labels: LabelSet) -> Tensor:
    """By the model's labels, the task's move, and one number more for every label that is none."""
    moves = {text: number for number, text in enumerate(labels.texts)}
    return torch.tensor([moves.get(text, len(moves)) for text in network.labels], dtype=torch.int16)


def _store(
    metadata: OutcomeMetadata,
    letters: Tensor,
    reference: Tensor,
    stops: Tensor,
    steps: Tensor,
    facts: dict[str, Tensor],
) -> OutcomeStore:
    """Every instance is asked once, for all its moves."""
    each = torch.arange(len(steps), dtype=torch.int32)
    return OutcomeStore(
        metadata=metadata,
        letters=letters,
        reference=reference,
        row=each,
        instance=each.clone(),
        steps=steps,
        stops=stops,
        stratum=(2 * facts["depth"] + facts["accept"]).to(torch.int16),
        facts=facts,
    )


def _batches(
    questions: Questions, batcher: ProcedureBatcher[Any], steps: np.ndarray, size: int
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield batches of runs of like lengths with their rows."""
    order = np.argsort(steps, kind="stable")
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        yield torch.from_numpy(rows), batcher.batch([questions.instances[row] for row in rows])


@torch.inference_mode()
def _run(network: LoopedTransformer, batch: Batch, loops: int) -> dict[str, Tensor]:
    """Return the `moves` [B, T] int16 and the `stops` [B] int32 of a rollout; it holds few states at a time."""
    batch = batch.to(network.label_ids.device)
    start = network.start(batch)
    moves, answers = [], []
    for chunk in state_chunks(network, start, loops):
        if network.halting is not None:
            answers += [network.recurrence.answer(state, start.memory).clone() for state in chunk]
        moves.append(network.read(chunk, start).argmax(-1).to("cpu", torch.int16))
    stops = torch.zeros(len(batch), dtype=torch.int32)
    if network.halting is not None:
        stops = stop_loop(network.halt(network.halting_inputs(batch), list(answers))[0]).to("cpu", torch.int32)
    return {"moves": torch.cat(moves, 1), "stops": stops}


def _digests(checkpoint: Checkpoint, questions: Questions) -> dict[str, str]:
    view = questions.task.views[0]
    texts = "\n".join(questions.task.prompt(instance, view) for instance in questions.instances)
    return {**checkpoint.digests(), "instances": hashlib.sha256(texts.encode()).hexdigest()}
