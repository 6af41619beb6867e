"""What the machine benchmark asks of a model, whether it executes in loops or writes text; and looped models.

Shape legend: B machines, T loops or written steps, b some of the machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.machine_batcher import MachineBatcher
from datamodules.tasks.machines.family import FIELDS
from datamodules.tasks.machines.machine import IntArray, Machines
from datamodules.tasks.machines.words import END, STATES
from loopformer.checkpoint import Checkpoint
from loopformer.evaluation.machine_breakdown import Said
from loopformer.evaluation.native import check_alone
from loopformer.evaluation.partial import PartialTensors
from loopformer.evaluation.trace import state_chunks
from loopformer.metrics import stop_loop

LETTERS, ANSWERS = "<letters>", "<answers>"
"""Names of tensors that are no state fields."""


class MachineModel(ABC):
    """A model as the benchmark sees it.

    Attributes:
        labels: names of the labels that `say` may give. Those after the letters stand for nothing said.
        trajectory: whether every step is said, so that a complete run can be told.
    """

    labels: tuple[str, ...] = STATES
    trajectory: bool = True

    @property
    @abstractmethod
    def knows_every_name(self) -> bool:
        """Whether it may be asked for names that its training lacked."""

    @property
    @abstractmethod
    def stops_itself(self) -> bool:
        """Whether it has a stop rule, beside a state that says END."""

    @abstractmethod
    def shares_runs(self, ends: bool) -> bool:
        """Whether one run of a machine serves every count, because the model does not see it.

        Args:
            ends: whether the machines end by themselves.
        """

    @abstractmethod
    def say(self, machines: Machines, loops: int, count: int | None) -> Said:
        """Execute machines.

        Args:
            machines: B machines.
            loops: T; what comes later is not looked at.
            count: steps that all are asked for; None for runs that serve every count.
        """

    def tells_end(self, said: Said, ends: bool) -> bool:
        """Whether a stop can be judged: there is a stop rule, or a state that can say END and a run that comes to it.

        Args:
            said: what was said.
            ends: whether the machines end by themselves.
        """
        return self.stops_itself or (ends and _ahead(said) is not None)

    def stops(self, machines: Machines, said: Said, rows: IntArray, count: int) -> Tensor:  # noqa: ARG002
        """[b] int32 first step at which the model stops, 0 for never: here, where its state says END.

        Args:
            machines: b machines.
            said: what was said of all B.
            rows: [b] which of them these are.
            count: what they are asked for.
        """
        ahead = _ahead(said)
        if ahead is None or len(machines) == 0:
            return torch.zeros(len(machines), dtype=torch.int32)
        over = said.fields[ahead][torch.from_numpy(rows)] == FIELDS[ahead].index(END)
        return torch.where(over.any(1), over.int().argmax(1) + 1, 0).int()

    def check(self, machine: Machines, count: int, letters: Tensor) -> bool:  # noqa: ARG002
        """Ask for one machine alone: nothing may depend on its batch.

        Args:
            machine: a set of one.
            count: what it is asked for.
            letters: [T] what it said in its batch.

        Returns:
            whether there was something to compare.

        Raises:
            RuntimeError: it says something else.
        """
        return False

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Wall seconds of all it has said so far, those of a run that was killed included."""

    @property
    @abstractmethod
    def trained_counts(self) -> tuple[int, ...]:
        """Requested counts seen in training; empty where that is unknown."""

    def settings(self) -> dict[str, Any]:
        """How it was asked, for the summary; plain JSON types."""
        return {}

    @abstractmethod
    def digests(self) -> dict[str, str]:
        """SHA-256 of the model's files by name."""


def _ahead(said: Said) -> str | None:
    """The field of what comes next that says END."""
    return next((name for name in ("symbol", "op") if name in said.fields), None)


class LoopedMachine(MachineModel):
    """A looped model: one loop is one step.

    Args:
        checkpoint: the model.
        batch_size: machines of one rollout.
        parts: keeps finished rollouts; None to keep nothing. They are numbered as they are asked for.

    Raises:
        ValueError: its labels are not the letters, or its tokenizer does not know the words.
    """

    def __init__(self, checkpoint: Checkpoint, batch_size: int, parts: PartialTensors | None = None) -> None:
        self._checkpoint, self._network, self._size = checkpoint, checkpoint.network, batch_size
        self._parts, self._asked, self._seconds = parts or PartialTensors(None, {}), 0, 0.0
        self._batcher = MachineBatcher(self._network.backbone.tokenizer)
        if self._network.labels != list(self._batcher.labels.texts):
            raise ValueError(f"checkpoint: its labels {self._network.labels[:3]}... are not the machines' letters")

    @property
    def knows_every_name(self) -> bool:
        """See `MachineModel`; a model from scratch has no idea of a name that its training lacked."""
        return self._network.backbone.reference is not None

    @property
    def stops_itself(self) -> bool:
        """See `MachineModel`."""
        return self._network.halting is not None

    @property
    def seconds(self) -> float:
        """See `MachineModel`."""
        return self._seconds

    @property
    def trained_counts(self) -> tuple[int, ...]:
        """See `MachineModel`."""
        return tuple(self._checkpoint.config.get("provenance", {}).get("trained_counts", ()))

    def digests(self) -> dict[str, str]:
        """See `MachineModel`."""
        return self._checkpoint.digests()

    def shares_runs(self, ends: bool) -> bool:
        """See `MachineModel`."""
        del ends
        return self._network.count_free

    def say(self, machines: Machines, loops: int, count: int | None) -> Said:
        """See `MachineModel`: letters, fields and answer states of a forced number of loops."""
        said = []
        for begin in range(0, len(machines), self._size):
            some = machines[slice(begin, begin + self._size)]
            part, seconds = self._parts.get(self._asked, partial(self._run, some, loops, count))
            said.append(part)
            self._asked += 1
            self._seconds += seconds
        joined = {name: torch.cat([part[name] for part in said]) for name in sorted(said[0])}
        letters, answers = joined.pop(LETTERS), joined.pop(ANSWERS, None)
        return Said(letters, joined, None if answers is None else answers.to(self._network.label_ids.device))

    @torch.inference_mode()
    def _run(self, machines: Machines, loops: int, count: int | None) -> dict[str, Tensor]:
        """Roll some machines out: letters [b, T], answer states [b, T, D] and fields [b, T] by name."""
        network = self._network
        start = network.start(self._batcher.batch(machines, count or 1).to(network.label_ids.device))
        read: list[dict[str, Tensor]] = []
        for chunk in state_chunks(network, start, loops):
            answers = [network.recurrence.answer(state, start.memory) for state in chunk]
            logits = {LETTERS: network.read(chunk, start)}
            if network.state_heads is not None:
                fields = network.read_fields(chunk, answers, start)
                logits |= {name: values[:, 1:] for name, values in fields.items()}
            read.append({name: values.argmax(-1).short().cpu() for name, values in logits.items()})
            if network.halting is not None:
                read[-1][ANSWERS] = torch.stack(answers, 1).float().cpu()
        return {name: torch.cat([piece[name] for piece in read], 1) for name in read[0]}

    @torch.inference_mode()
    def stops(self, machines: Machines, said: Said, rows: np.ndarray, count: int) -> Tensor:
        """See `MachineModel`; the model's own stop rule where it has one."""
        network = self._network
        if network.halting is None or len(machines) == 0:
            return super().stops(machines, said, rows, count)
        assert said.answers is not None
        query = self._batcher.batch(machines, count).to(network.label_ids.device)
        answers: list[Tensor | None] = list(said.answers[torch.from_numpy(rows)].unbind(1))
        return stop_loop(network.halt(network.halting_inputs(query), answers)[0]).int().cpu()

    @torch.inference_mode()
    def check(self, machine: Machines, count: int, letters: Tensor) -> bool:
        """See `MachineModel`; letters whose logits are a tie may differ."""
        check_alone(self._network, self._batcher.batch(machine, count), letters)
        return True
