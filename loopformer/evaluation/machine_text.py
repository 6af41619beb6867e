"""The machine benchmark for ordinary models: they write the run of a machine as text.

    python evaluate.py --checkpoint runs/program_machine_text/model --output results/fsm_text \
        --benchmark program --program.part machine
    python evaluate.py --checkpoint DIR_OR_HUB_ID --output OUT --benchmark program --program.part machine \
        --program.machine.task fsm --program.machine.rendering MachineScratchpad --program.machine.worked 3

A step that was not written, or not in the asked form, is a wrong one. A response stops after the step that its end
token follows; one that is not of the asked form to its end, or uses up its budget, never stops. Called step by step, a
model stops where it writes END.

Shape legend: B machines, T written steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules.tasks.machines.family import FIELDS, changed_recipe
from datamodules.tasks.machines.machine import Machines
from datamodules.tasks.machines.renderings import (
    RENDERINGS,
    VISIBLE,
    MachineDynamicScratchpad,
    MachineRendering,
    State,
    WrittenRun,
    trained_rendering,
    written_runs,
)
from datamodules.tasks.machines.splits import split
from datamodules.tasks.machines.words import END, STATES
from datamodules.tasks.procedure import TextExample
from datamodules.text import TextEncoder
from loopformer.evaluation.machine_benchmark import SLACK, MachineOptions
from loopformer.evaluation.machine_breakdown import Said, Writing
from loopformer.evaluation.machine_model import MachineModel
from loopformer.evaluation.writer import Writer
from loopformer.generation import Response, read_response
from loopformer.language_checkpoint import LanguageCheckpoint

NOTHING = len(STATES)
"""Label of a step that was not written."""

UNSAID = -1
"""Value of a field that was not written."""

BLANK = "\n\n"
"""What stands between worked examples; a response ends there where no chat template ends it."""

WORKED_SEED = 11
WORKED_STEPS = 3

Answer = tuple[str, bool, int]
"""Text of a response, whether it ended within its budget, and its tokens."""


class WrittenMachine(MachineModel):
    """An ordinary language model that writes.

    Args:
        checkpoint: the model.
        options: rendering, worked examples and budgets.
        folder: where finished batches are kept; None to keep nothing.

    Raises:
        ValueError: the model's folder does not tell how it was trained and no rendering is given.
    """

    labels = (*STATES, "nothing")

    def __init__(self, checkpoint: LanguageCheckpoint, options: MachineOptions, folder: Path | None = None) -> None:
        self._checkpoint, self._options = checkpoint, options
        self._encoder = TextEncoder(checkpoint.tokenizer)
        self._writer = Writer(checkpoint, folder)
        self.rendering = find_rendering(checkpoint, options.rendering)
        self.trajectory = self.rendering.trajectory
        self._worked = worked_examples(options, self.rendering)

    @property
    def knows_every_name(self) -> bool:
        """See `MachineModel`; a model that we trained from scratch does not."""
        return not self._checkpoint.config or self._checkpoint.config["base"] is not None

    @property
    def stops_itself(self) -> bool:
        """See `MachineModel`; whoever writes a whole run also ends it."""
        return not self.rendering.by_step

    @property
    def seconds(self) -> float:
        """See `MachineModel`."""
        return self._writer.seconds

    @property
    def trained_counts(self) -> tuple[int, ...]:
        """See `MachineModel`."""
        return tuple(self._checkpoint.provenance.get("trained_counts", ()))

    def shares_runs(self, ends: bool) -> bool:
        """See `MachineModel`; a machine that ends by itself is asked without its count."""
        return ends or self.rendering.by_step

    def settings(self) -> dict[str, Any]:
        """See `MachineModel`."""
        return {"rendering": type(self.rendering).__name__, "worked": self._options.worked}

    def digests(self) -> dict[str, str]:
        """See `MachineModel`."""
        return self._checkpoint.digests()

    def say(self, machines: Machines, loops: int, count: int | None) -> Said:
        """See `MachineModel`: what the model wrote, as letters and fields."""
        steps = machines.depth if count is None else np.full(len(machines), count)
        runs = written_runs(machines, steps)
        write = self._step_by_step if self.rendering.by_step else self._at_once
        states, writing = write(runs, loops)
        return Said(*_labels(states, runs, loops), writing=writing)

    def stops(self, machines: Machines, said: Said, rows: np.ndarray, count: int) -> torch.Tensor:
        """See `MachineModel`."""
        assert said.writing is not None
        if said.writing.stops is None:
            return super().stops(machines, said, rows, count)
        return said.writing.stops[torch.from_numpy(rows)]

    def _at_once(self, runs: Sequence[WrittenRun], loops: int) -> tuple[list[list[State]], Writing]:
        """Ask for every run in one response."""
        steps = [len(run.states) - 1 for run in runs]
        examples = [self.rendering.examples(run)[0] for run in runs]
        slack = [(count + SLACK + 1) / count if self.trajectory else 2.0 for count in steps]
        answers = self._ask(examples, slack)
        states: list[list[State]] = []
        stops, malformed = [], []
        for run, count, (text, ended, _) in zip(runs, steps, answers, strict=True):
            reading = self.rendering.read(text, run.states[0], loops + 1)
            if not self.trajectory and reading.whole:  # the one state stands for the last step
                reading.states[:0] = [{}] * (count - 1)
            stopped = len(reading.states) if ended and reading.whole else 0
            states.append(reading.states[:loops])
            stops.append(stopped if stopped <= loops else 0)
            malformed.append(not reading.whole)
        writing = Writing(
            texts=[[text] for text, _, _ in answers],
            tokens=torch.tensor([[tokens] for _, _, tokens in answers]),
            malformed=torch.tensor(malformed)[:, None],
            stops=torch.tensor(stops, dtype=torch.int32),
        )
        return states, writing

    def _step_by_step(self, runs: Sequence[WrittenRun], loops: int) -> tuple[list[list[State]], Writing]:
        """Ask for one step after another, each time from the state that the model wrote before."""
        rendering = self.rendering
        assert isinstance(rendering, MachineDynamicScratchpad)
        states: list[list[State]] = [[] for _ in runs]
        texts: list[list[str]] = [[] for _ in runs]
        tokens = torch.zeros(len(runs), loops, dtype=torch.int64)
        malformed = torch.zeros(len(runs), loops, dtype=torch.bool)
        going = list(range(len(runs)))
        for step in range(loops):
            before = {row: (states[row] or [runs[row].states[0]])[-1] for row in going}
            # Nothing of the reference enters but the length of a state, which bounds the response.
            asked = [
                TextExample(rendering.prompt(runs[row].table, before[row]), rendering.examples(runs[row])[0].completion)
                for row in going
            ]
            answers = self._ask(asked, [2.0] * len(asked)) if asked else []
            kept = []
            for row, (text, ended, count) in zip(going, answers, strict=True):
                reading = rendering.read(text, before[row], 1)
                texts[row].append(text)
                tokens[row, step:] += count
                if reading.whole and ended:
                    states[row] += reading.states
                    if END not in (reading.states[0].get(name) for name in ("symbol", "op")):
                        kept.append(row)
                else:
                    malformed[row, step:] = True
            going = kept
        return states, Writing(texts, tokens, malformed)

    def _ask(self, examples: Sequence[TextExample], slack: Sequence[float]) -> list[Answer]:
        """Responses to the prompts of examples; the budget is the reference's length times `slack`.

        A reference and those of like length share a batch, since they end together.
        """
        tokenizer, options = self._checkpoint.tokenizer, self._options
        prefix = "".join(example.prompt + example.completion + BLANK for example in self._worked)
        asked = [TextExample(prefix + example.prompt, example.completion) for example in examples]
        if self._worked:
            asked = [self._encoder.message(example) for example in asked]
        prompts = self._encoder.encode([example.prompt for example in asked])
        lengths = [len(ids) + 1 for ids in self._encoder.encode([example.completion for example in asked])]
        budgets = np.ceil(np.multiply(lengths, slack)).astype(np.int64)
        answers: list[Answer] = [("", False, 0)] * len(asked)
        order = np.argsort(budgets, kind="stable").tolist()
        for begin in range(0, len(order), options.batch_size):
            rows = order[begin : begin + options.batch_size]
            budget = options.max_new_tokens or int(budgets[rows].max())
            responses = self._writer([prompts[row] for row in rows], budget)
            for row, response in zip(rows, responses, strict=True):
                answers[row] = self._read(read_response(tokenizer, response), response)
        return answers

    def _read(self, text: str, response: Response) -> Answer:
        """Text, end and tokens of a response; after worked examples in plain text it ends with a blank line."""
        plain = bool(self._worked) and self._checkpoint.tokenizer.chat_template is None
        if plain and BLANK in text:
            return text.split(BLANK, maxsplit=1)[0], True, response.tokens
        return text, response.ended, response.tokens


def find_rendering(checkpoint: LanguageCheckpoint, given: MachineRendering | None) -> MachineRendering:
    """Return the rendering that was given, or that of the model's training.

    Raises:
        ValueError: neither is known.
    """
    found = given or trained_rendering(checkpoint.provenance.get("text_style"))
    if found is None:
        raise ValueError(
            f"machine.rendering: {checkpoint.source} does not tell how it was trained; choose "
            f"--program.machine.rendering {', '.join(RENDERINGS)} (with "
            "--program.machine.worked 3 for a model that has not learned it)"
        )
    return found


def worked_examples(options: MachineOptions, rendering: MachineRendering) -> list[TextExample]:
    """Return worked examples of trained tables, the same for every question."""
    if options.worked == 0:
        return []
    recipe = split(options.task, "trained", changed_recipe(options.task, options.recipe)).recipe
    machines = recipe.draw(np.random.default_rng(WORKED_SEED), options.worked, WORKED_STEPS)
    found = [rendering.examples(run) for run in written_runs(machines)]
    return [examples[row % len(examples)] for row, examples in enumerate(found)]


def _labels(
    states: Sequence[Sequence[State]], runs: Sequence[WrittenRun], loops: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Letters [B, T] and fields [B, T] by name, as label numbers."""
    letters = np.full((len(states), loops), NOTHING, dtype=np.int16)
    names = [name for name in runs[0].states[0] if name != VISIBLE]
    fields = {name: np.full(letters.shape, UNSAID, dtype=np.int16) for name in names}
    of = {name: {word: label for label, word in enumerate(FIELDS[name])} for name in names}
    letter = {word: label for label, word in enumerate(STATES)}
    for row, said in enumerate(states):
        for step, state in enumerate(said):
            if VISIBLE in state:
                letters[row, step] = letter[state[VISIBLE]]
            for name in names:
                if name in state:
                    fields[name][row, step] = of[name][state[name]]
    return torch.from_numpy(letters), {name: torch.from_numpy(values) for name, values in fields.items()}
