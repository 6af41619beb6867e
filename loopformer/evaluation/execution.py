r"""Execution traces for ordinary language models: output prediction and next-state prediction by run length.

    python evaluate.py --checkpoint runs/program_traces/model --output results/traces \
        --benchmark program --program.part traces
    python evaluate.py --checkpoint DIR_OR_HUB_ID --output OUT --benchmark program --program.part traces \
        --program.traces.rendering OutputOnly --program.traces.programs PublishedPrograms \
        --program.traces.programs.source cruxeval.jsonl

A model trained on traces is asked as it was trained, unless rendering or level are given.
Writes OUT/summary.json: accuracy of the result, share of right states and tokens written, by run length and in all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.outcome import Level, Trace
from datamodules.tasks.traces.programs import Program, Refused, trace_each
from datamodules.tasks.traces.renderings import CompactScratchpad, DynamicScratchpad, OutputOnly, Rendering, TraceStyle
from datamodules.tasks.traces.scoring import (
    Answer,
    RollOut,
    by_run_length,
    check_edges,
    judge_output,
    judge_steps,
    judge_written,
)
from datamodules.tasks.traces.sources import GeneratedPrograms, ProgramSource
from datamodules.text import TextEncoder
from loopformer.evaluation.partial import PARTIAL, discard
from loopformer.evaluation.progress import progress_bar
from loopformer.evaluation.writer import Writer
from loopformer.files import SUMMARY, refuse_finished, write_text
from loopformer.generation import Response, read_response
from loopformer.language_checkpoint import LanguageCheckpoint


@dataclass
class ExecutionOptions:
    """What to ask an ordinary model, and how.

    Attributes:
        programs: the programs; default 100 generated ones that no default training has.
        rendering: what the model writes; None as it was trained, the compact scratchpad for a model that does not tell.
        level: "line" or "instruction"; None as it was trained, lines for a model that does not tell.
        true_states: for the dynamic scratchpad, ask for the step after each true state instead of letting the model run
            on the states it wrote itself.
        edges: first run length of each range of the table.
        max_new_tokens: budget of each response.
        calls: for the dynamic scratchpad, calls after which a run is lost; None for twice as many as it needs.
        batch_size: prompts of one batch.
        limits: limits of each traced program.
    """

    programs: ProgramSource = field(default_factory=lambda: GeneratedPrograms(100, seed=2))
    rendering: Rendering | None = None
    level: Level | None = None
    true_states: bool = False
    edges: list[int] = field(default_factory=lambda: [1, 10, 30, 100, 300, 1_000, 3_000, 10_000])
    max_new_tokens: int = 2_048
    calls: int | None = None
    batch_size: int = 32
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size", "calls"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}; it must be 1 or more")
        check_edges(self.edges)
        if self.rendering is not None:
            self.check_rendering(self.rendering)

    def check_rendering(self, rendering: Rendering) -> None:
        """Check that the other options go with a rendering.

        Raises:
            ValueError: single steps are asked for, and the rendering has none.
        """
        if self.true_states and not isinstance(rendering, DynamicScratchpad):
            raise ValueError("true_states: only the dynamic scratchpad asks for single steps; set rendering to it")


def find_style(checkpoint: LanguageCheckpoint, options: ExecutionOptions) -> TraceStyle:
    """Resolve rendering and level: what was given, else that of the model's training, else the defaults.

    Raises:
        ValueError: the rendering does not go with the other options.
    """
    trained = TraceStyle.parse(checkpoint.provenance.get("text_style")) or TraceStyle(CompactScratchpad(), "line")
    style = TraceStyle(options.rendering or trained.rendering, options.level or trained.level)
    options.check_rendering(style.rendering)
    return style


class Asker:
    """Asks a model in batches.

    Args:
        checkpoint: the model.
        max_new_tokens: budget of each response.
        batch_size: prompts of one batch.
        advance: called with the number of responses of each batch.
        folder: where finished batches are kept; None to keep nothing.
    """

    def __init__(
        self,
        checkpoint: LanguageCheckpoint,
        max_new_tokens: int,
        batch_size: int,
        advance: Callable[[int], object] = lambda _: None,
        folder: Path | None = None,
    ) -> None:
        self._writer, self._tokenizer, self._advance = Writer(checkpoint, folder), checkpoint.tokenizer, advance
        self._encoder = TextEncoder(checkpoint.tokenizer)
        self._budget, self._size = max_new_tokens, batch_size

    def __call__(self, prompts: Sequence[str]) -> list[tuple[str, int]]:
        """Return text and number of tokens of each response."""
        found: list[Response] = []
        for begin in range(0, len(prompts), self._size):
            ids = self._encoder.encode(prompts[begin : begin + self._size])
            found += self._writer(ids, self._budget)
            self._advance(len(ids))
        return [(read_response(self._tokenizer, response), response.tokens) for response in found]


def _roll_outs(ask: Asker, traces: Sequence[Trace], rendering: DynamicScratchpad, calls: int | None) -> list[Answer]:
    """Run all programs side by side, one batch of prompts per step."""
    limits = [2 * _calls(trace, rendering) if calls is None else calls for trace in traces]
    runs = [RollOut(trace, rendering, limit) for trace, limit in zip(traces, limits, strict=True)]
    while going := [run for run in runs if run.answer is None]:
        for run, (text, tokens) in zip(going, ask([run.prompt for run in going]), strict=True):
            run.accept(text, tokens)
    return [run.answer for run in runs if run.answer is not None]


def _calls(trace: Trace, rendering: Rendering) -> int:
    """Responses that a right run takes."""
    return len(trace.events[:: rendering.steps]) + 1 if isinstance(rendering, DynamicScratchpad) else 1


def _single_steps(ask: Asker, traces: Sequence[Trace], rendering: DynamicScratchpad) -> list[Answer]:
    answers = []
    for trace in traces:
        examples = rendering.examples(trace)
        responses = ask([example.prompt for example in examples])
        wanted = [example.completion for example in examples]
        tokens = sum(count for _, count in responses)
        answers.append(judge_steps(trace, wanted, [text for text, _ in responses], tokens))
    return answers


def _written(ask: Asker, traces: Sequence[Trace], rendering: Rendering) -> list[Answer]:
    examples = [rendering.examples(trace)[0] for trace in traces]
    answers = []
    responses = ask([example.prompt for example in examples])
    for trace, example, (text, tokens) in zip(traces, examples, responses, strict=True):
        if isinstance(rendering, OutputOnly):
            answers.append(judge_output(trace, text, lambda _, n=tokens: n))  # type: ignore[misc]
        else:
            answers.append(judge_written(trace, text, example.completion, lambda _, n=tokens: n))  # type: ignore[misc]
    return answers


def evaluate_execution(
    checkpoint: LanguageCheckpoint,
    options: ExecutionOptions,
    advance: Callable[[int], object] = lambda _: None,
    begin: Callable[[int], object] = lambda _: None,
    partial_results: Path | None = None,
) -> dict[str, Any]:
    """Ask a model to execute programs.

    Args:
        checkpoint: the model.
        options: programs, rendering and budgets.
        advance: called with the number of responses finished.
        begin: called once with the number of responses; a model that runs on its own states may need fewer or more.
        partial_results: folder in which finished batches are kept; None to keep nothing.

    Returns:
        The summary: "all" and "by_run_length" with count, accuracy, state accuracy and tokens; what was refused.

    Raises:
        ValueError: no program could be traced, or the options do not go with the model's rendering.
    """
    style = find_style(checkpoint, options)
    rendering = style.rendering
    found = options.programs.programs()
    refused = [one for one in found if isinstance(one, Refused)]
    traces: list[Trace] = []
    with Tracer(options.limits) as tracer:
        programs = [one for one in found if isinstance(one, Program)]
        for one in trace_each(programs, tracer, style.level, not isinstance(rendering, OutputOnly)):
            if isinstance(one, Refused):
                refused.append(one)
            else:
                traces.append(one.trace)
    if not traces:
        raise ValueError(f"programs: none of {len(found)} could be traced; the first: {refused[:1]}")
    begin(sum(_calls(trace, rendering) for trace in traces))
    ask = Asker(checkpoint, options.max_new_tokens, options.batch_size, advance, partial_results)
    if not isinstance(rendering, DynamicScratchpad):
        answers = _written(ask, traces, rendering)
    elif options.true_states:
        answers = _single_steps(ask, traces, rendering)
    else:
        answers = _roll_outs(ask, traces, rendering, options.calls)
    return {
        "benchmark": "execution",
        "rendering": type(rendering).__name__,
        "steps": rendering.steps,
        "level": style.level,
        "true_states": options.true_states,
        "max_new_tokens": options.max_new_tokens,
        "python": traces[0].python,
        "all": _plain(by_run_length(answers, [0])[0]),
        "by_run_length": [_plain(row) for row in by_run_length(answers, options.edges)],
        "refused": [asdict(one) for one in refused],
    }


def _plain(row: Any) -> dict[str, Any]:
    """Return a row as JSON has it, without the number where there is none."""
    return {name: value for name, value in asdict(row).items() if not (isinstance(value, float) and math.isnan(value))}


def run_execution(checkpoint: LanguageCheckpoint, options: ExecutionOptions, output: Path, overwrite: bool) -> None:
    """Evaluate and write summary.json.

    Args:
        checkpoint: an ordinary language model.
        options: programs, rendering and budgets.
        output: folder for the results.
        overwrite: replace results that are there.

    Raises:
        FileExistsError: the folder holds results and `overwrite` is False.
    """
    refuse_finished(output, overwrite)
    with progress_bar(Console(), "responses") as (advance, begin):
        summary = evaluate_execution(checkpoint, options, advance, begin, output / PARTIAL)
    summary["digests"] = checkpoint.digests()
    write_text(output / SUMMARY, json.dumps(summary, indent=2) + "\n", overwrite=True)
    discard(output / PARTIAL)
