"""The machine benchmark: named splits of a machine task, a loop or a written step per instruction, in an outcome store.

A model that does not see the count is run once per machine and serves every requested count of its split; a machine
that ends by itself is asked for its own. Where the model has no stop rule, the state itself tells the end: a stop is
the first step after which the field of what comes next says END.

Looped models execute (`loopformer.evaluation.machine_model`), ordinary ones write
(`loopformer.evaluation.machine_text`): the splits, machines, outcomes and intervals are the same.

Shape legend: B machines of a split, T loops or steps, L loops of the store, q queries of a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import IGNORE
from datamodules.machine import trained_paces
from datamodules.tasks.machines.family import RECIPES, RecipeChanges, changed_recipe
from datamodules.tasks.machines.machine import Machines, Run
from datamodules.tasks.machines.renderings import MachineRendering, trained_task
from datamodules.tasks.machines.splits import LONG_DEPTHS, SPLITS, MachineSplit, split
from loopformer.evaluation.graph_benchmark import Timing
from loopformer.evaluation.machine_breakdown import Said, breakdown, by_count
from loopformer.evaluation.machine_model import MachineModel
from loopformer.evaluation.outcomes import OutcomeMetadata, OutcomeStore

TRAINED = "trained"

SLACK = 16
"""Steps beyond the largest count, in which a stop still counts as late rather than missing."""


@dataclass
class MachineOptions:
    """What to evaluate.

    Attributes:
        task: "fsm", "coloured", "registers", "jumps" or "stack", or "trained" for what its training drew. A model of
            several machines has to be told.
        splits: names of splits; None for all that suit the model. `unseen_names` needs a model that knows the names,
            which one trained from scratch does not.
        machines: machines of each split.
        longest: the longest run; longer ones of the split are left out.
        half: two loops an instruction; None as it was trained for the task.
        recipe: what differs from the recipe it was trained on for the task, or else from the task's own: the size from
            which the splits start.
        seed: seed of the machines.
        batch_size: machines of one rollout, or prompts of one batch.
        rendering: how an ordinary model writes; None as it was trained.
        worked: worked examples of trained tables before each question, for ordinary models that were not trained so.
        max_new_tokens: budget of each response of an ordinary model; None for what the reference takes, and so many
            steps more as a late stop may need.
    """

    task: str = TRAINED
    splits: list[str] | None = None
    machines: int = 200
    longest: int = LONG_DEPTHS[-1]
    half: bool | None = None
    recipe: RecipeChanges | None = None
    seed: int = 307
    batch_size: int = 100
    rendering: MachineRendering | None = None
    worked: int = 0
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        least = {"machines": 1, "longest": 1, "batch_size": 1, "seed": 0, "worked": 0, "max_new_tokens": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"machine.{name}: needs at least {low}, got {value}")


def as_trained(options: MachineOptions, provenance: Mapping[str, Any], source: str) -> MachineOptions:
    """Fill in task, pace and recipe from how a model was made.

    Args:
        options: what to evaluate; what they say wins.
        provenance: the model's: its `benchmarks` and `recipes`, or the `text_style` of one that writes. Models exported
            before these were recorded count as trained with one loop an instruction, on the task's own recipe.
        source: what the model is called in messages.

    Raises:
        ValueError: the task is not given, and the model's training had none or several.
    """
    paces = trained_paces(provenance.get("benchmarks") or [])
    written = trained_task(provenance.get("text_style"))
    tasks = [*paces] or [name for name in (written,) if name is not None]
    if options.task != TRAINED:
        task = options.task
    elif len(tasks) == 1:
        task = tasks[0]
    else:
        several = f"was trained on several machines ({', '.join(tasks)})"
        trained = several if tasks else "does not tell which machine it was trained on"
        raise ValueError(
            f"machine.task: {source} {trained}; say which to ask with --program.machine.task "
            f"{', '.join(tasks or RECIPES)}"
        )
    half = paces.get(task) == "half" if options.half is None else options.half
    recipe = (provenance.get("recipes") or {}).get(task, {}) | (options.recipe or {})
    return replace(options, task=task, half=half, recipe=recipe or None)


@dataclass
class MachineResults:
    """What an evaluation found.

    Attributes:
        store: the outcomes; a machine's split is the fact `split`.
        timing: wall seconds.
        details: by split what only the machines' own runs can tell: the numbers of every count, accuracy by opcode,
            after jumps and of the state fields.
        outputs: what an ordinary model wrote, a row for every run, plain JSON types.
        judged: [Q] whether the query has a stop to judge.
    """

    store: OutcomeStore
    timing: Timing
    details: dict[str, dict[str, Any]]
    outputs: list[dict[str, Any]]
    judged: Tensor


@dataclass
class _Part:
    """One split as the model answered it: letters [R, T] of R runs, and [q] by query."""

    name: str
    machines: Machines
    run: Run
    letters: Tensor
    row: Tensor
    instance: Tensor
    steps: Tensor
    stops: Tensor
    tokens: Tensor | None
    malformed: Tensor | None
    details: dict[str, Any]
    judged: bool
    outputs: list[dict[str, Any]] = field(default_factory=list)


def chosen_splits(options: MachineOptions, model: MachineModel) -> dict[str, MachineSplit]:
    """The splits to run, by name.

    Raises:
        ValueError: an unknown task or split, or names that the model has never seen.
    """
    recipe = changed_recipe(options.task, options.recipe, "half" if options.half else "instruction")
    found = {name: split(options.task, name, recipe) for name in options.splits or SPLITS}
    if not model.knows_every_name:
        strange = [name for name, part in found.items() if part.unseen_names]
        if strange and options.splits is not None:
            raise ValueError(
                f"machine.splits: {strange[0]} needs a pretrained model; one trained from scratch has no idea of a "
                "name that its training lacked"
            )
        found = {name: part for name, part in found.items() if name not in strange}
    shorter = {
        name: MachineSplit(part.recipe, tuple(d for d in part.depths if d <= options.longest), part.unseen_names)
        for name, part in found.items()
    }
    return {name: part for name, part in shorter.items() if part.depths}


def evaluate_machines(
    model: MachineModel, options: MachineOptions, advance: Callable[[int], None], begin: Callable[[int], None]
) -> MachineResults:
    """Run the benchmark.

    Args:
        model: the model.
        options: task and splits.
        advance: called with the number of queries finished.
        begin: called once with the number of all queries.

    Raises:
        ValueError: an option is out of range.
        RuntimeError: a machine asked alone gets other answers than in its batch.
    """
    parts = chosen_splits(options, model)
    if not parts:
        raise ValueError(f"machine.longest: no chosen split has runs of {options.longest} or less; raise it")
    begin(sum(options.machines * (1 if part.recipe.end_share else len(part.depths)) for part in parts.values()))
    answered = [_answer(model, name, part, options, advance) for name, part in parts.items()]
    checks = sum(_check(model, part) for part in answered)
    store = _join(model, options, answered)
    tokens, malformed = _all([part.tokens for part in answered]), _all([part.malformed for part in answered])
    judged = torch.cat([torch.full((len(part.row),), part.judged) for part in answered])
    numbers = by_count(store, tokens, malformed, judged, model.trajectory)
    details = {part.name: {"by_count": numbers[part.name], **part.details} for part in answered}
    outputs = [one for part in answered for one in part.outputs]
    return MachineResults(store, Timing(model.seconds, None, checks), details, outputs, judged)


def _answer(
    model: MachineModel, name: str, part: MachineSplit, options: MachineOptions, advance: Callable[[int], None]
) -> _Part:
    """Ask for every machine and count of a split."""
    machines, ends = part.draw(options.seed, name, options.machines), bool(part.recipe.end_share)
    scale = 2 if options.half else 1
    counts = sorted({int(n) for n in machines.depth}) if ends else [scale * n for n in part.depths]
    loops = max(counts) + (SLACK if model.stops_itself or ends else 0)
    shared = model.shares_runs(ends)
    asked: list[int | None] = [None] if shared else [*counts]
    said = [model.say(machines, loops, count) for count in asked]
    columns: list[tuple[Tensor, ...]] = []
    for column, count in enumerate(counts):
        mine = np.flatnonzero(machines.depth == count) if ends else np.arange(len(machines))
        run = 0 if shared else column
        rows = torch.from_numpy(mine)
        query = (rows + run * len(machines), rows, torch.full((len(mine),), count))
        columns.append((*query, model.stops(machines[mine], said[run], mine, count), *_written(said[run], rows, count)))
        advance(len(mine))
    row, instance, steps, stops, *written = (torch.cat(column) for column in zip(*columns, strict=True))
    truth = machines.run(loops)
    details: dict[str, Any] = {}
    if model.trajectory:
        own = _own(said, np.searchsorted(counts, machines.depth)) if ends and not shared else said[-1]
        details = breakdown(machines, truth, own, None if ends else counts)
    letters = torch.cat([trace.letters for trace in said])
    tokens, malformed = written or (None, None)
    outputs = [one for trace, count in zip(said, asked, strict=True) for one in _outputs(name, machines, trace, count)]
    judged, queries = model.tells_end(said[0], ends), (row, instance, steps, stops)
    return _Part(name, machines, truth, letters, *queries, tokens, malformed, details, judged, outputs)


def _own(said: Sequence[Said], column: np.ndarray) -> Said:
    """Of runs that were asked for each count, every machine's run for its own count: column [B]."""
    pick = (torch.from_numpy(column), torch.arange(len(column)))
    fields = {name: torch.stack([trace.fields[name] for trace in said])[pick] for name in said[0].fields}
    return Said(torch.stack([trace.letters for trace in said])[pick], fields)


def _written(said: Said, rows: Tensor, count: int) -> tuple[Tensor, ...]:
    """Tokens and malformed texts [q] until `count` steps are written; nothing for a model that does not write."""
    if said.writing is None:
        return ()
    last = min(count, said.writing.tokens.shape[1]) - 1
    return said.writing.tokens[rows, last], said.writing.malformed[rows, last]


def _outputs(name: str, machines: Machines, said: Said, count: int | None) -> list[dict[str, Any]]:
    if said.writing is None:
        return []
    counts = machines.depth.tolist() if count is None else [count] * len(machines)
    runs = enumerate(zip(counts, said.writing.texts, strict=True))
    return [{"split": name, "machine": row, "steps": steps, "texts": texts} for row, (steps, texts) in runs]


def _check(model: MachineModel, part: _Part) -> bool:
    """Ask for the first query of a split alone.

    Raises:
        RuntimeError: it gets another answer than in its batch.
    """
    first = int(part.instance[0])
    try:
        return model.check(part.machines[slice(first, first + 1)], int(part.steps[0]), part.letters[int(part.row[0])])
    except RuntimeError as error:
        raise RuntimeError(f"split {part.name}: {error}") from error


def _all(columns: Sequence[Tensor | None]) -> Tensor | None:
    known = [column for column in columns if column is not None]
    return torch.cat(known) if known else None


def _join(model: MachineModel, options: MachineOptions, parts: Sequence[_Part]) -> OutcomeStore:
    """One store for all splits; traces of short splits repeat their last letter, which no query reads."""
    loops = max(part.letters.shape[1] for part in parts)
    letters, reference, rows, instances, facts = [], [], [], [], []
    traces = machines = 0
    for number, part in enumerate(parts):
        kept = torch.arange(loops).clamp(max=part.letters.shape[1] - 1)
        letters.append(part.letters[:, kept])
        visible = torch.full((len(part.machines), loops), IGNORE, dtype=torch.int16)
        visible[:, : part.letters.shape[1]] = torch.from_numpy(part.run.visible.astype(np.int16))
        reference.append(visible.repeat(len(part.letters) // len(part.machines), 1))
        rows.append(part.row + traces)
        instances.append(part.instance + machines)
        facts.append({"split": np.full(len(part.machines), number), **part.machines.facts()})
        traces += len(part.letters)
        machines += len(part.machines)
    columns = {name: torch.from_numpy(np.concatenate([f[name] for f in facts]).astype(np.int32)) for name in facts[0]}
    words = hashlib.sha256(b"".join(part.machines.prompt().words.tobytes() for part in parts)).hexdigest()
    return OutcomeStore(
        metadata=OutcomeMetadata(
            benchmark=f"machine-{options.task}",
            labels=model.labels,
            loops=loops,
            cap=loops,
            digests={**model.digests(), "machines": words},
            trained_steps=model.trained_counts,
            fact_values={"split": tuple(part.name for part in parts)},
        ),
        letters=torch.cat(letters),
        reference=torch.cat(reference),
        row=torch.cat(rows).int(),
        instance=torch.cat(instances).int(),
        steps=torch.cat([part.steps for part in parts]).int(),
        stops=torch.cat([part.stops for part in parts]).int(),
        stratum=columns["split"].short(),
        facts=columns,
    )
