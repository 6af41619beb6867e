"""The program benchmark of evaluate.py: one part of it at a time, each with options of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console

from loopformer import checkpoint, language_checkpoint
from loopformer.evaluation.execution import ExecutionOptions, run_execution
from loopformer.evaluation.machine_benchmark import MachineOptions, as_trained
from loopformer.evaluation.machine_model import LoopedMachine, MachineModel
from loopformer.evaluation.machine_run import run_machines
from loopformer.evaluation.machine_text import WrittenMachine
from loopformer.evaluation.office_benchmark import OfficeOptions, evaluate_office
from loopformer.evaluation.office_summary import markdown
from loopformer.evaluation.partial import PARTIAL, PartialTensors, discard, number_types
from loopformer.evaluation.progress import progress_bar


@dataclass
class ProgramOptions:
    """What to evaluate.

    Attributes:
        part: "office" asks a language model for office programs, "traces" for executions of Python functions;
            "machine" runs a looped model as a small machine, or lets an ordinary one write its steps.
        office: options of the first part.
        traces: options of the second part.
        machine: options of the third part.
    """

    part: str = "office"
    office: OfficeOptions = field(default_factory=OfficeOptions)
    traces: ExecutionOptions = field(default_factory=ExecutionOptions)
    machine: MachineOptions = field(default_factory=MachineOptions)

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"part: {self.part!r} is unknown; use one of {', '.join(PARTS)}")


@dataclass(frozen=True)
class Place:
    """Where a part runs and writes.

    Attributes:
        checkpoint: folder, or id of a model on the Hub.
        name: how the model is called.
        output: folder for the results.
        device: torch device.
        dtype: type of autocast, None for none.
        overwrite: replace results that the output folder holds.
    """

    checkpoint: str
    name: str
    output: Path
    device: str = "cpu"
    dtype: torch.dtype | None = None
    overwrite: bool = False

    def autocast(self) -> torch.autocast:
        """Return the context in which the model runs."""
        return torch.autocast(torch.device(self.device).type, self.dtype, enabled=self.dtype is not None)


def evaluate_program(options: ProgramOptions, place: Place) -> None:
    """Run a part of the benchmark and write its results; summary.json comes last."""
    with place.autocast():
        PARTS[options.part](options, place)


def _office(options: ProgramOptions, place: Place) -> None:
    model = language_checkpoint.load(place.checkpoint, place.device)
    console = Console()
    with progress_bar(console, "answers") as (advance, begin):
        summary = evaluate_office(
            model, options.office, place.output, advance=advance, begin=begin, overwrite=place.overwrite
        )
    console.print(markdown(summary), soft_wrap=True, markup=False)


def _traces(options: ProgramOptions, place: Place) -> None:
    model = language_checkpoint.load(place.checkpoint, place.device)
    run_execution(model, options.traces, place.output, place.name, place.overwrite)


def _machine(options: ProgramOptions, place: Place) -> None:
    model, machine = find_machine_model(options.machine, place)
    run_machines(model, place.output, machine, place.name, place.overwrite, Console())
    discard(place.output / PARTIAL)


def find_machine_model(options: MachineOptions, place: Place) -> tuple[MachineModel, MachineOptions]:
    """Load a looped model, or an ordinary one, and fill in the options that its training tells.

    Raises:
        ValueError: an option that only ordinary models have was given for a looped one, it cannot be loaded, or does
            not tell its task.
    """
    if language_checkpoint.is_language_model(place.checkpoint):
        ordinary = language_checkpoint.load(place.checkpoint, place.device)
        options = as_trained(options, ordinary.provenance, place.checkpoint)
        return WrittenMachine(ordinary, options, place.output / PARTIAL), options
    if options.rendering is not None or options.worked or options.max_new_tokens is not None:
        raise ValueError("machine: rendering, worked and max_new_tokens are of models that write; this one is looped")
    looped = checkpoint.load(place.checkpoint, place.device)
    options = as_trained(options, looped.config.get("provenance", {}), place.checkpoint)
    identity = {"digests": looped.digests(), "options": asdict(options), **number_types(place.device)}
    return LoopedMachine(looped, options.batch_size, PartialTensors(place.output / PARTIAL, identity)), options


PARTS: dict[str, Callable[[ProgramOptions, Place], None]] = {"office": _office, "traces": _traces, "machine": _machine}
"""What runs each part."""
