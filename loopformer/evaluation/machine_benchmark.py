"""The machine benchmark: named splits of a machine task, one loop per instruction, into an outcome store.

An executor that does not see the count is rolled out once per machine and serves every requested count of its split; a
machine that ends by itself is asked for its own. Where the model has no stop rule, the state itself tells the end: a
stop is the first loop after which the field of what comes next says END.

Shape legend: B machines of a split, T loops, K labels, L loops of the store.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import IGNORE
from datamodules.machine_batcher import MachineBatcher
from datamodules.tasks.machines.family import FIELDS, at_pace, find_recipe
from datamodules.tasks.machines.machine import Machines, Run
from datamodules.tasks.machines.splits import LONG_DEPTHS, SPLITS, MachineSplit, split
from datamodules.tasks.machines.words import END, STATES
from loopformer.checkpoint import CONFIG, WEIGHTS, Checkpoint
from loopformer.evaluation.graph_benchmark import Timing
from loopformer.evaluation.machine_breakdown import Said, breakdown
from loopformer.evaluation.native import LOGIT_TOLERANCE
from loopformer.evaluation.outcomes import OutcomeMetadata, OutcomeStore
from loopformer.looped import LoopedTransformer
from loopformer.metrics import stop_loop

READ_EVERY = 32
SLACK = 16
"""Loops beyond the largest count, in which a stop still counts as late rather than missing."""


@dataclass
class MachineOptions:
    """What to evaluate.

    Attributes:
        task: "fsm", "coloured", "registers", "jumps" or "stack".
        splits: names of splits; None for all that suit the model. `unseen_names` needs a model that knows the names,
            which one trained from scratch does not.
        machines: machines of each split.
        longest: the longest run; longer ones of the split are left out.
        half: two loops an instruction, for models trained so.
        seed: seed of the machines.
        batch_size: machines of one rollout.
    """

    task: str = "fsm"
    splits: list[str] | None = None
    machines: int = 200
    longest: int = LONG_DEPTHS[-1]
    half: bool = False
    seed: int = 307
    batch_size: int = 100

    def __post_init__(self) -> None:
        for name in ("machines", "longest", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"machine.{name}: needs at least 1, got {getattr(self, name)}")


@dataclass
class _Part:
    """One split as the model answered it: letters [B, T], stops and queries by row."""

    name: str
    machines: Machines
    run: Run
    letters: Tensor
    row: Tensor
    instance: Tensor
    steps: Tensor
    stops: Tensor
    details: dict


def chosen_splits(options: MachineOptions, checkpoint: Checkpoint) -> dict[str, MachineSplit]:
    """The splits to run, by name.

    Raises:
        ValueError: an unknown task or split, or names that the model has never seen.
    """
    recipe = at_pace(find_recipe(options.task), "half" if options.half else "instruction")
    found = {name: split(options.task, name, recipe) for name in options.splits or SPLITS}
    if checkpoint.network.backbone.reference is None:
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
    checkpoint: Checkpoint, options: MachineOptions, advance: Callable[[int], None], begin: Callable[[int], None]
) -> tuple[OutcomeStore, Timing, dict[str, dict]]:
    """Run the benchmark.

    Args:
        checkpoint: the model.
        options: task and splits.
        advance: called with the number of queries finished.
        begin: called once with the number of all queries.

    Returns:
        the outcomes (a machine's split is the fact `split`), wall seconds, and by split what only the machines' own
        runs can tell: complete trajectories by count, accuracy by opcode, after jumps and of the state fields.

    Raises:
        ValueError: an option is out of range, or the model's labels are not the letters.
        RuntimeError: a machine asked alone gets other answers than in its batch.
    """
    network = checkpoint.network
    batcher = MachineBatcher(network.backbone.tokenizer)
    if network.labels != list(batcher.labels.texts):
        raise ValueError(f"checkpoint: its labels {network.labels[:3]}... are not the machines' letters")
    parts = chosen_splits(options, checkpoint)
    if not parts:
        raise ValueError(f"machine.longest: no chosen split has runs of {options.longest} or less; raise it")
    begin(sum(options.machines * (1 if part.recipe.end_share else len(part.depths)) for part in parts.values()))
    clock = time.perf_counter()
    answered = [_answer(network, batcher, name, part, options, advance) for name, part in parts.items()]
    seconds = time.perf_counter() - clock
    for part in answered:
        _check_native(network, batcher, part)
    store = _join(checkpoint, options, answered)
    return store, Timing(seconds, None, len(answered)), {part.name: part.details for part in answered}


def _answer(
    network: LoopedTransformer,
    batcher: MachineBatcher,
    name: str,
    part: MachineSplit,
    options: MachineOptions,
    advance: Callable[[int], None],
) -> _Part:
    """Ask for every machine and count of a split."""
    machines = part.draw(options.seed, name, options.machines)
    scale = 2 if options.half else 1
    counts = sorted({int(n) for n in machines.depth}) if part.recipe.end_share else [scale * n for n in part.depths]
    loops = max(counts) + (SLACK if network.halting is not None or part.recipe.end_share else 0)
    asked = [None] if network.count_free else counts  # a count-free model answers all counts in one trace
    said = [_roll_out(network, batcher, machines, loops, count, options.batch_size) for count in asked]
    rows, instances, steps, stops = [], [], [], []
    for column, count in enumerate(counts):
        mine = np.flatnonzero(machines.depth == count) if part.recipe.end_share else np.arange(len(machines))
        trace = 0 if network.count_free else column
        rows.append(torch.from_numpy(mine + trace * len(machines)))
        instances.append(torch.from_numpy(mine))
        steps.append(torch.full((len(mine),), count))
        stops.append(_stops(network, batcher, machines[mine], said[trace], mine, count))
        advance(len(mine))
    run = machines.run(loops)
    letters = torch.cat([trace.letters for trace in said])
    details = breakdown(machines, run, said[-1], counts if not part.recipe.end_share else None)
    row, instance, asked_for, stopped = (torch.cat(column) for column in (rows, instances, steps, stops))
    return _Part(name, machines, run, letters, row, instance, asked_for, stopped, details)


@torch.inference_mode()
def _roll_out(
    network: LoopedTransformer,
    batcher: MachineBatcher,
    machines: Machines,
    loops: int,
    count: int | None,
    batch_size: int,
) -> Said:
    """Letters, fields and answer states of a forced number of loops; `count` is what the prompt asks for."""
    device = network.label_ids.device
    letters, answers, fields = [], [], []
    for begin in range(0, len(machines), batch_size):
        batch = batcher.batch(machines[slice(begin, begin + batch_size)], count or 1).to(device)
        start = network.start(batch)
        states = network.states(start)
        shown, kept, named = [], [], []
        for done in range(0, loops, READ_EVERY):
            chunk = list(islice(states, min(READ_EVERY, loops - done)))
            states_of = [network.recurrence.answer(state, start.memory) for state in chunk]
            shown.append(network.read(chunk, start).argmax(-1).short().cpu())
            kept.append(torch.stack(states_of, 1).float())
            if network.state_heads is not None:
                read = network.read_fields(chunk, states_of, start)
                named.append({name: logits[:, 1:].argmax(-1).short().cpu() for name, logits in read.items()})
        letters.append(torch.cat(shown, 1))
        answers.append(torch.cat(kept, 1))
        fields.append({name: torch.cat([piece[name] for piece in named], 1) for name in (named[0] if named else ())})
    joined = {name: torch.cat([piece[name] for piece in fields]) for name in fields[0]}
    return Said(torch.cat(letters), joined, torch.cat(answers))


@torch.inference_mode()
def _stops(
    network: LoopedTransformer, batcher: MachineBatcher, machines: Machines, said: Said, rows: np.ndarray, count: int
) -> Tensor:
    """[B] int32 first loop at which the model stops, 0 for never."""
    if len(machines) == 0:
        return torch.zeros(0, dtype=torch.int32)
    if network.halting is not None:
        query = batcher.batch(machines, count).to(network.label_ids.device)
        answers: list[Tensor | None] = list(said.answers[torch.from_numpy(rows)].unbind(1))
        return stop_loop(network.halt(network.halting_inputs(query), answers)[0]).int().cpu()
    ahead = next((name for name in ("symbol", "op") if name in said.fields), None)
    if ahead is None:
        return torch.zeros(len(machines), dtype=torch.int32)
    over = said.fields[ahead][torch.from_numpy(rows)] == FIELDS[ahead].index(END)
    return torch.where(over.any(1), over.int().argmax(1) + 1, 0).int()


@torch.inference_mode()
def _check_native(network: LoopedTransformer, batcher: MachineBatcher, part: _Part) -> None:
    """Ask for the first query of a split alone: nothing may depend on the batch.

    Raises:
        RuntimeError: a letter differs although its logits are no tie.
    """
    count, loops = int(part.steps[0]), min(part.letters.shape[1], READ_EVERY)
    batch = batcher.batch(part.machines[slice(int(part.instance[0]), int(part.instance[0]) + 1)], count)
    logits = network.rollout(batch.to(network.label_ids.device), loops).letter_logits[0].float().cpu()
    said = part.letters[int(part.row[0]), :loops].long()
    behind = logits.max(-1).values - logits.gather(-1, said[:, None])[:, 0]
    if bool((behind > LOGIT_TOLERANCE).any()):
        loop = int(behind.argmax()) + 1
        raise RuntimeError(
            f"native check: {part.name} machine {int(part.instance[0])} alone says another letter at loop {loop} "
            f"(logits differ by {float(behind.max()):.2g}); evaluate with --precision float32"
        )


def _join(checkpoint: Checkpoint, options: MachineOptions, parts: Sequence[_Part]) -> OutcomeStore:
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
    digests = {
        name: hashlib.sha256((checkpoint.directory / file).read_bytes()).hexdigest()
        for name, file in (("model", WEIGHTS), ("config", CONFIG))
    }
    return OutcomeStore(
        metadata=OutcomeMetadata(
            benchmark=f"machine-{options.task}",
            labels=STATES,
            loops=loops,
            cap=loops,
            digests={**digests, "machines": words},
            trained_steps=tuple(checkpoint.config.get("provenance", {}).get("trained_counts", ())),
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
