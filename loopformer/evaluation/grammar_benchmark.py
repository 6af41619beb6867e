"""The grammar benchmark of looped models: runs of a grammar machine, one loop per move, into an outcome store.

Every instance is rolled out some loops beyond its last move, so that a late stop is told from a missing one. The number
of moves is not in the prompt: the stop rule finds the end, and the moves count whether or not it did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import IGNORE, Batch
from datamodules.grammar import ASKED
from datamodules.grammar_sources import BracketDepths, SearchRuns, permute
from datamodules.procedure_batcher import ProcedureBatcher
from datamodules.tasks.grammar.bracket_task import MOVE_LABELS, SPOILT_BY, BracketTask, strings_of
from datamodules.tasks.grammar.brackets import bracket_suite
from datamodules.tasks.grammar.lane_suites import SUITES
from datamodules.tasks.grammar.lanes import LANES
from datamodules.tasks.grammar.search_task import SEARCH_LABELS, SearchTask
from datamodules.tasks.grammar.suites import FAMILIES
from datamodules.tasks.procedure import LabelSet, Procedure
from loopformer.checkpoint import Checkpoint
from loopformer.evaluation.outcomes import OutcomeMetadata, OutcomeStore
from loopformer.evaluation.partial import PartialTensors, number_types
from loopformer.evaluation.trace import state_chunks
from loopformer.looped import LoopedTransformer
from loopformer.metrics.functional import stop_loop

TRAINED = "trained"
BRACKET_DEPTHS, SEARCH_RUNS = "bracket_depths", "search_runs"
PUZZLES = (*SUITES, BRACKET_DEPTHS, SEARCH_RUNS)
"""What an ordinary model may be asked: the suites, and what looped models are asked."""

MACHINES = {"brackets": MOVE_LABELS, "permuted_brackets": MOVE_LABELS, "search": SEARCH_LABELS}
"""Machines by name, with the labels of their moves."""

NO_MOVE = "none"
"""Name of what a model of several tasks says when it says no move of this one."""

EVALUATION_SEED = 11
"""Seed of the benchmark's strings; the validation during training uses another."""


@dataclass
class GrammarOptions:
    """What to evaluate. `depths` to `suite` are for brackets, `families` to `letterings` for the search.

    Those from `lane` on are for ordinary language models (`loopformer.evaluation.lane_benchmark`); the others apply to
    them in the puzzles "bracket_depths" and "search_runs".

    Attributes:
        machine: whose moves a looped model makes: "brackets", "permuted_brackets" (every string in an alphabet of its
            own), "search", or "trained" for what its training asked. A model of several tasks has to be told.
        depths: openers of the strings, such as "8,16,32".
        per_depth: correct strings at each depth, and as many with one wrong closer.
        suite: also run the 46 strings of the suite of brackets, written in the training alphabet.
        families: families of search puzzles, such as "recursion,nesting".
        longest: most moves of a search; all kinds of runs up to it are asked.
        letterings: letterings of each kind of search.
        slack: loops beyond the last move at which a stop still counts as late rather than missing.
        batch_size: instances of one rollout, or prompts of one batch.
        lane: how an ordinary model is asked, one lane or several apart by commas: answer, written, gym (next move, the
            state held by the gym), states (every reference state on its own), planted (a run that begins with planted
            moves); "trained" is the one it was trained for.
        puzzles: suites that an ordinary model is asked, apart by commas: original, cue_free, count_a, count_b,
            balanced, brackets, bracket_depths, search_runs; "trained" is bracket_depths or search_runs for a model
            trained on a looped model's data, cue_free for others.
        pairs: yes and no puzzles of each family and level of each suite; None for all.
        listing: say in the prompts how the machine moves; None for what a model was trained with, yes for others.
        max_new_tokens: budget of each reply; None for twice the reference's number of tokens and 64 more.
        thinking_tokens: further tokens for a thought that </think> closes, before the reply; 0 for no thought.
    """

    machine: str = TRAINED
    depths: str = "2,4,6,8,16,24,32,48,64"
    per_depth: int = 64
    suite: bool = True
    families: str = "recursion,nesting"
    longest: int = 40
    letterings: int = 4
    slack: int = 16
    batch_size: int = 32
    lane: str = TRAINED
    puzzles: str = TRAINED
    pairs: int | None = None
    listing: bool | None = None
    max_new_tokens: int | None = None
    thinking_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("per_depth", "longest", "letterings", "batch_size", "pairs", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"grammar.{name}: needs at least 1, got {value}")
        if self.machine not in (TRAINED, *MACHINES):
            raise ValueError(f"grammar.machine: {self.machine!r} is unknown; use {TRAINED}, {' or '.join(MACHINES)}")
        for name in ("slack", "thinking_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"grammar.{name}: needs at least 0, got {getattr(self, name)}")
        for name, known in (("lane", LANES), ("puzzles", PUZZLES)):
            value = getattr(self, name)
            odd = [one for one in value.split(",") if one not in known]
            if odd and value != TRAINED:
                raise ValueError(f"grammar.{name}: {odd[0]!r} is unknown; use {TRAINED}, or some of {','.join(known)}")
        if self.thinking_tokens and "planted" in self.lane.split(","):
            raise ValueError("grammar.thinking_tokens: lane planted begins the reply itself; use 0, or another lane")


@dataclass
class Questions:
    """The instances of an evaluation.

    Attributes:
        task: their task.
        instances: the instances.
        facts: extra facts by name, one integer per instance.
        fact_values: names of the codes of a fact.
    """

    task: Procedure[Any]
    instances: Sequence[Any]
    facts: dict[str, list[int]]
    fact_values: dict[str, tuple[str, ...]]


def bracket_questions(options: GrammarOptions, permuted: bool = False) -> Questions:
    """Return the bracket strings of an evaluation: by depth, and the suite; each in its own alphabet, if `permuted`.

    Raises:
        ValueError: a depth is no number or below 1.
    """
    try:
        depths = sorted({int(depth) for depth in options.depths.split(",")})
    except ValueError:
        raise ValueError(f"grammar.depths: {options.depths!r} is not of the form 8,16,32") from None
    strings = BracketDepths(depths, options.per_depth, EVALUATION_SEED, permuted=permuted).instances()
    # Both alphabets of the suite ask the same 46 questions once they are written in one alphabet.
    suite = strings_of(bracket_suite()[:46]) if options.suite else []
    suite = permute(suite, EVALUATION_SEED + 1) if permuted else suite
    in_suite = [0] * len(strings) + [1] * len(suite)
    return Questions(BracketTask(permuted=permuted), [*strings, *suite], {"suite": in_suite}, {"spoilt": SPOILT_BY})


def search_questions(options: GrammarOptions) -> Questions:
    """Return the search puzzles of an evaluation: every kind of run up to a length.

    Raises:
        ValueError: unknown families.
    """
    families = [family.strip() for family in options.families.split(",")]
    runs = SearchRuns(families, longest=options.longest, letterings=options.letterings, seed=EVALUATION_SEED)
    instances = runs.instances()
    return Questions(SearchTask(), instances, {"suite": [0] * len(instances)}, {"family": FAMILIES})


def choose_questions(checkpoint: Checkpoint, options: GrammarOptions) -> Questions:
    """Return the questions of the machine that was asked for, or trained.

    Raises:
        ValueError: the model's labels are those of no grammar machine, or lack moves of the one asked for.
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
