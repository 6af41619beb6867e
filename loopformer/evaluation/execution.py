r"""Execution traces for ordinary language models: output prediction and next-state prediction by run length.

    python evaluate.py --checkpoint runs/program_traces/model --output results/traces \
        --benchmark program --program.part traces
    python evaluate.py --checkpoint DIR_OR_HUB_ID --output OUT --benchmark program --program.part traces \
        --program.traces.rendering OutputOnly --program.traces.programs PublishedPrograms \
        --program.traces.programs.source cruxeval.jsonl

A model trained on traces is asked as it was trained, unless rendering or level are given.
Writes outputs.jsonl (all that the model wrote, word for word), scores.jsonl (a line per program), table.md and
summary.json: accuracy of the result, share of right states and tokens written, by run length and in all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.outcome import Level, Trace
from datamodules.tasks.traces.programs import Program, Refused, Traced, trace_each
from datamodules.tasks.traces.renderings import CompactScratchpad, DynamicScratchpad, OutputOnly, Rendering, TraceStyle
from datamodules.tasks.traces.scoring import (
    Answer,
    RollOut,
    judge_output,
    judge_steps,
    judge_written,
)
from datamodules.tasks.traces.sources import GeneratedPrograms, ProgramSource
from datamodules.text import TextEncoder
from loopformer.evaluation.execution_summary import check_edges, summarize_traces, traces_table
from loopformer.evaluation.partial import PARTIAL, discard
from loopformer.evaluation.progress import progress_bar
from loopformer.evaluation.summary import write_summary
from loopformer.evaluation.writer import Writer
from loopformer.files import OUTPUTS, SCORES, SUMMARY, TABLE, refuse_finished, write_json_lines, write_text
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


@dataclass(frozen=True)
class Reply:
    """What a model wrote in one call.

    Attributes:
        text: the text.
        ended: whether it ended within its budget.
        tokens: tokens of it.
    """

    text: str
    ended: bool
    tokens: int


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

    def __call__(self, prompts: Sequence[str]) -> list[Reply]:
        """Return what the model wrote after each prompt."""
        found: list[Response] = []
        for begin in range(0, len(prompts), self._size):
            ids = self._encoder.encode(prompts[begin : begin + self._size])
            found += self._writer(ids, self._budget)
            self._advance(len(ids))
        return [Reply(read_response(self._tokenizer, one), one.ended, one.tokens) for one in found]


@dataclass(frozen=True)
class Judged:
    """What a model wrote about one program, and what it is worth.

    Attributes:
        replies: what it wrote, call by call.
        answer: the judged answer.
    """

    replies: list[Reply]
    answer: Answer


def _roll_outs(ask: Asker, traces: Sequence[Trace], rendering: DynamicScratchpad, calls: int | None) -> list[Judged]:
    """Run all programs side by side, one batch of prompts per step."""
    limits = [2 * _calls(trace, rendering) if calls is None else calls for trace in traces]
    runs = [RollOut(trace, rendering, limit) for trace, limit in zip(traces, limits, strict=True)]
    replies: list[list[Reply]] = [[] for _ in runs]
    while going := [number for number, run in enumerate(runs) if run.answer is None]:
        for number, reply in zip(going, ask([runs[number].prompt for number in going]), strict=True):
            runs[number].accept(reply.text, reply.tokens)
            replies[number].append(reply)
    return [Judged(said, run.answer) for said, run in zip(replies, runs, strict=True) if run.answer is not None]


def _calls(trace: Trace, rendering: Rendering) -> int:
    """Responses that a right run takes."""
    return len(trace.events[:: rendering.steps]) + 1 if isinstance(rendering, DynamicScratchpad) else 1


def _single_steps(ask: Asker, traces: Sequence[Trace], rendering: DynamicScratchpad) -> list[Judged]:
    found = []
    for trace in traces:
        examples = rendering.examples(trace)
        replies = ask([example.prompt for example in examples])
        wanted = [example.completion for example in examples]
        tokens = sum(reply.tokens for reply in replies)
        found.append(Judged(replies, judge_steps(trace, wanted, [reply.text for reply in replies], tokens)))
    return found


def _written(ask: Asker, traces: Sequence[Trace], rendering: Rendering) -> list[Judged]:
    examples = [rendering.examples(trace)[0] for trace in traces]
    found = []
    for trace, example, reply in zip(traces, examples, ask([one.prompt for one in examples]), strict=True):

        def count(_: str, tokens: int = reply.tokens) -> int:
            return tokens

        if isinstance(rendering, OutputOnly):
            answer = judge_output(trace, reply.text, count)
        else:
            answer = judge_written(trace, reply.text, example.completion, count)
        found.append(Judged([reply], answer))
    return found


@dataclass(frozen=True)
class ExecutionResults:
    """What an evaluation found.

    Attributes:
        summary: how the model was asked, and "all" and "by_run_length" of `summarize_traces`.
        outputs: what the model wrote, a row per program, plain JSON types; a list where it had several calls.
        scores: what that scored, a row per program, plain JSON types.
    """

    summary: dict[str, Any]
    outputs: list[dict[str, Any]]
    scores: list[dict[str, Any]]


def evaluate_execution(
    checkpoint: LanguageCheckpoint,
    options: ExecutionOptions,
    advance: Callable[[int], object] = lambda _: None,
    begin: Callable[[int], object] = lambda _: None,
    partial_results: Path | None = None,
) -> ExecutionResults:
    """Ask a model to execute programs.

    Args:
        checkpoint: the model.
        options: programs, rendering and budgets.
        advance: called with the number of responses finished.
        begin: called once with the number of responses; a model that runs on its own states may need fewer or more.
        partial_results: folder in which finished batches are kept; None to keep nothing.

    Raises:
        ValueError: no program could be traced, or the options do not go with the model's rendering.
    """
    style = find_style(checkpoint, options)
    rendering = style.rendering
    items, refused = trace_programs(options, style)
    traces = [item.trace for item in items]
    begin(sum(_calls(trace, rendering) for trace in traces))
    ask = Asker(checkpoint, options.max_new_tokens, options.batch_size, advance, partial_results)
    if not isinstance(rendering, DynamicScratchpad):
        judged = _written(ask, traces, rendering)
    elif options.true_states:
        judged = _single_steps(ask, traces, rendering)
    else:
        judged = _roll_outs(ask, traces, rendering, options.calls)
    summary = {
        "benchmark": "execution",
        "rendering": type(rendering).__name__,
        "steps": rendering.steps,
        "level": style.level,
        "true_states": options.true_states,
        "max_new_tokens": options.max_new_tokens,
        "python": traces[0].python,
        "programs": options.programs.told(),
        "digests": {**checkpoint.digests(), "items": items_digest(items)},
        **_training(checkpoint, style),
        **summarize_traces([one.answer for one in judged], options.edges),
        "refused": [asdict(one) for one in refused],
    }
    several = isinstance(rendering, DynamicScratchpad)
    return ExecutionResults(
        summary,
        [_output(item, one, several) for item, one in zip(items, judged, strict=True)],
        [_score(item, one) for item, one in zip(items, judged, strict=True)],
    )


def trace_programs(options: ExecutionOptions, style: TraceStyle) -> tuple[list[Traced], list[Refused]]:
    """Trace the programs; what is refused, by name and reason, comes apart.

    Raises:
        ValueError: no program could be traced.
    """
    found = options.programs.programs()
    refused = [one for one in found if isinstance(one, Refused)]
    items: list[Traced] = []
    programs = [one for one in found if isinstance(one, Program)]
    with Tracer(options.limits) as tracer:
        for one in trace_each(programs, tracer, style.level, not isinstance(style.rendering, OutputOnly)):
            if isinstance(one, Refused):
                refused.append(one)
            else:
                items.append(one)
    if not items:
        raise ValueError(f"programs: none of {len(found)} could be traced; the first: {refused[:1]}")
    return items, refused


def items_digest(items: Sequence[Traced]) -> str:
    """SHA-256 of names, programs, calls and results."""
    texts = [json.dumps([one.program.name, one.trace.source, one.trace.call, one.trace.result]) for one in items]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _training(checkpoint: LanguageCheckpoint, style: TraceStyle) -> dict[str, Any]:
    """Style and run lengths of the training; lengths only where they count what this evaluation counts."""
    word = checkpoint.provenance.get("text_style")
    trained = TraceStyle.parse(word)
    same = trained is not None and trained.level == style.level
    return {
        "trained_style": word,
        "trained_steps": list(checkpoint.provenance.get("trained_counts", ())) if same else [],
    }


def _output(item: Traced, judged: Judged, several: bool) -> dict[str, Any]:
    texts = [reply.text for reply in judged.replies]
    return {
        "item": item.program.name,
        "output": texts if several else texts[0],
        "ended": all(reply.ended for reply in judged.replies),
        "new_tokens": judged.answer.tokens,
    }


def _score(item: Traced, judged: Judged) -> dict[str, Any]:
    answer = judged.answer
    return {
        "item": item.program.name,
        "result": item.trace.result,
        "steps": answer.steps,
        "correct": answer.correct,
        "states": answer.states,
        "right_states": answer.right_states,
        "new_tokens": answer.tokens,
    }


def run_execution(
    checkpoint: LanguageCheckpoint, options: ExecutionOptions, output: Path, name: str, overwrite: bool
) -> None:
    """Evaluate and write outputs.jsonl, scores.jsonl, table.md and, last, summary.json; print the table.

    Args:
        checkpoint: an ordinary language model.
        options: programs, rendering and budgets.
        output: folder for the results.
        name: how the model is called.
        overwrite: replace results that are there.

    Raises:
        FileExistsError: the folder holds results and `overwrite` is False.
    """
    refuse_finished(output, overwrite)
    console = Console()
    with progress_bar(console, "responses") as (advance, begin):
        found = evaluate_execution(checkpoint, options, advance, begin, output / PARTIAL)
    summary = {"name": name, "checkpoint": checkpoint.source, **found.summary}
    table = traces_table(summary)
    write_json_lines(output / OUTPUTS, found.outputs, overwrite=True)
    write_json_lines(output / SCORES, found.scores, overwrite=True)
    write_text(output / TABLE, table.markdown(), overwrite=True)
    write_summary(output / SUMMARY, summary, overwrite=True)
    discard(output / PARTIAL)
    console.print(table.rich(f"{name}: {summary['rendering']}, {summary['level']} level"))
