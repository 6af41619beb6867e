"""The grammar benchmark of ordinary language models: batched generation in one lane or several.

    python evaluate.py --checkpoint runs/grammar_sft/model --benchmark grammar --output OUT
    python evaluate.py --checkpoint Qwen/Qwen2.5-0.5B-Instruct --benchmark grammar --output OUT \
        --grammar.lane answer,written,gym --grammar.puzzles original,cue_free

What the model wrote in every finished batch is kept, so that a killed evaluation goes on where it was. In the lane gym
a batch of puzzles goes through its runs side by side, one prompt a move, until each has failed or ended.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from datamodules.tasks.grammar.arms import EVALUATED, LETTER_TASKS, TrainedLanes
from datamodules.tasks.grammar.bracket_task import BracketTask
from datamodules.tasks.grammar.checker import check_move
from datamodules.tasks.grammar.lane_items import LaneItem
from datamodules.tasks.grammar.lane_scores import can_ask, prompts, reference
from datamodules.tasks.grammar.lane_suites import first_pairs
from datamodules.tasks.grammar.lanes import PLANTED, SINGLE_MOVES, JsonNotation, LabelNotation, Lane, Notation, Prompt
from datamodules.tasks.procedure import PROCEDURE
from datamodules.text import TextEncoder
from loopformer.evaluation.grammar_questions import (
    BRACKET_DEPTHS,
    SEARCH_RUNS,
    TRAINED,
    GrammarOptions,
    made_with,
    suite_puzzles,
)
from loopformer.evaluation.idle_options import refuse_idle_options
from loopformer.evaluation.lane_outputs import JSON, LETTERS, LaneOutput
from loopformer.evaluation.name_list import names_in
from loopformer.evaluation.writer import Writer
from loopformer.generation import Response, read_response
from loopformer.language_checkpoint import LanguageCheckpoint

RowT = TypeVar("RowT")

BLANK_LINE = "\n\n"
"""Where a reply ends if the model was not trained for the lanes and has no chat template: tasks are apart by it."""

THOUGHT_BEGINS, THOUGHT_ENDS = "<think>", "</think>"
"""Around a thought. The first stands before a thought that was not closed, so that nobody takes it for a reply."""


@dataclass(frozen=True)
class Asked:
    """How a model is asked.

    Attributes:
        lanes: the lanes.
        suites: names of the suites.
        notation: how puzzles and moves are written.
        notation_name: "json" or "letters".
        listing: whether the prompts say how the machine moves.
        trained: whether the model was trained on this notation.
    """

    lanes: tuple[Lane, ...]
    suites: tuple[str, ...]
    notation: Notation
    notation_name: str
    listing: bool
    trained: bool


def find_asked(checkpoint: LanguageCheckpoint, options: GrammarOptions) -> Asked:
    """Resolve lanes, puzzles and prompts of a model.

    Raises:
        ValueError: the lane is "trained", and the model's folder does not tell which that is, or tells a style of text
            that no lane asks; or a lane that a model trained on a looped model's data cannot be asked in.
    """
    style = checkpoint.provenance.get("text_style")
    suites = tuple(names_in(options.puzzles))
    lanes: tuple[Any, ...] = tuple(names_in(options.lane))
    if style in LETTER_TASKS:
        task = LETTER_TASKS[str(style)]
        own, notation = BRACKET_DEPTHS if isinstance(task, BracketTask) else SEARCH_RUNS, LabelNotation(task)
        lanes = ("written",) if options.lane == TRAINED else lanes
        if odd := [lane for lane in lanes if lane not in notation.lanes]:
            raise ValueError(
                f"grammar.lane: {odd[0]} is not for a model that writes letters ({style}); "
                f"use {','.join(notation.lanes)}"
            )
        return Asked(lanes, (own,) if options.puzzles == TRAINED else suites, notation, LETTERS, False, True)
    trained = TrainedLanes.parse(style)
    if options.lane == TRAINED:
        if str(style).startswith(PROCEDURE):
            raise ValueError(
                f"checkpoint: {checkpoint.source} was trained to write {style}, which no benchmark asks; train it with "
                "style: steps, or choose --grammar.lane to ask it like any other model"
            )
        if trained is None:
            raise ValueError(
                f"grammar.lane: {checkpoint.source} does not tell its lane; choose --grammar.lane, such as answer"
            )
        lanes = (EVALUATED[trained.arm],)
    listing = options.listing
    if listing is None:
        listing = trained is None or trained.listing
    if options.puzzles == TRAINED:
        suites = ("cue_free" if trained is None else trained.suite,)
    return Asked(lanes, suites, JsonNotation(), JSON, listing, trained is not None)


def find_items(asked: Asked, options: GrammarOptions) -> list[LaneItem]:
    """Return the puzzles of an evaluation, those that its notation does not ask included."""
    task = asked.notation.task if isinstance(asked.notation, LabelNotation) else None
    permuted = isinstance(task, BracketTask) and task.permuted
    found = [item for suite in asked.suites for item in suite_puzzles(suite, options, permuted)]
    return first_pairs(found, options.pairs)


@dataclass(frozen=True)
class _Call:
    """One prompt of one puzzle: its tokens, and the reply's budget of new ones."""

    item: LaneItem
    prompt: Prompt
    place: int
    ids: list[int]
    budget: int


class LaneAsker:
    """Asks a model in the lanes.

    Args:
        checkpoint: the model.
        asked: how it is asked.
        options: batch size and budgets.
        folder: where finished batches are kept; None to keep nothing.
    """

    def __init__(
        self, checkpoint: LanguageCheckpoint, asked: Asked, options: GrammarOptions, folder: Path | None = None
    ) -> None:
        self._writer, self._tokenizer = Writer(checkpoint, folder), checkpoint.tokenizer
        self._asked, self._options = asked, options
        self._encoder = TextEncoder(checkpoint.tokenizer, thinking=options.thinking_tokens > 0)
        self._plain = not asked.trained and checkpoint.tokenizer.chat_template is None

    def rows(self, items: Sequence[LaneItem]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Ask batch after batch; yield the number of replies and their rows."""
        size = self._options.batch_size
        for lane in self._asked.lanes:
            able = [item for item in items if can_ask(item, lane, self._asked.notation)]
            if lane == "gym":
                for group in _slices(sorted(able, key=lambda item: len(item.moves)), size):
                    yield len(group), self._gym(group)
                continue
            calls = [call for item in able for call in self._calls(item, lane)]
            for some in _slices(sorted(calls, key=lambda call: (call.budget, len(call.ids))), size):
                yield len(some), self._rows(some, lane)

    def count(self, items: Sequence[LaneItem]) -> int:
        """Return the number of replies of an evaluation; a run in the gym counts as one."""
        return sum(
            {"states": len(item.moves), "planted": len(PLANTED)}.get(lane, 1)
            for lane in self._asked.lanes
            for item in items
            if can_ask(item, lane, self._asked.notation)
        )

    def _calls(self, item: LaneItem, lane: Lane) -> list[_Call]:
        asked = prompts(item, lane, self._asked.notation, self._asked.listing)
        wanted = [
            item.moves[at].text() if lane in SINGLE_MOVES else reference(item, lane, self._asked.notation, prompt)
            for at, prompt in enumerate(asked)
        ]
        return self._encoded(item, asked, wanted)

    def _encoded(self, item: LaneItem, asked: Sequence[Prompt], wanted: Sequence[str], first: int = 0) -> list[_Call]:
        chat = self._encoder.chat if self._asked.notation.is_message else str
        heads = self._encoder.encode([chat(prompt.text) for prompt in asked])
        begun = self._encoder.encode([prompt.begun for prompt in asked])
        lengths = [len(ids) for ids in self._encoder.encode(list(wanted))]
        return [
            _Call(item, prompt, first + at, [*head, *more], self._budget(length))
            for at, (prompt, head, more, length) in enumerate(zip(asked, heads, begun, lengths, strict=True))
        ]

    def _budget(self, reference_tokens: int) -> int:
        return self._options.max_new_tokens or 2 * reference_tokens + 64

    def _rows(self, calls: Sequence[_Call], lane: Lane) -> list[dict[str, Any]]:
        rows = []
        for call, row in zip(calls, self._write(calls), strict=True):
            place = {"suite": call.item.suite, "item": call.item.name, "lane": lane, "planted": call.prompt.planted}
            rows.append({**place, "place": call.place, **row})
        return rows

    def _gym(self, items: Sequence[LaneItem]) -> list[dict[str, Any]]:
        """Go through some runs side by side; the gym makes a move only if it is right."""
        states = [item.states() for item in items]
        replies: list[list[dict[str, Any]]] = [[] for _ in items]
        going = list(range(len(items)))
        while going:
            calls = []
            for row in going:
                item, at = items[row], len(replies[row])
                text = self._asked.notation.ask(item, "gym", self._asked.listing, states[row][at])
                calls += self._encoded(item, [Prompt(text)], [item.moves[at].text()], first=at)
            for row, reply in zip(list(going), self._write(calls), strict=True):
                item, at = items[row], len(replies[row])
                replies[row].append(reply)
                error = check_move(reply["output"], item.moves[at], reply["ended"])
                if error is not None or at + 1 == len(item.moves):
                    going.remove(row)
        return [
            {"suite": item.suite, "item": item.name, "lane": "gym", "planted": None, "place": 0, **_joined(made)}
            for item, made in zip(items, replies, strict=True)
        ]

    def _write(self, calls: Sequence[_Call]) -> list[dict[str, Any]]:
        """Let the model reply; each reply is cut at its own budget, whatever its batch's is."""
        budget = max(call.budget for call in calls) + self._options.thinking_tokens
        responses = self._writer([call.ids for call in calls], budget)
        return [self._reply(call, response) for call, response in zip(calls, responses, strict=True)]

    def _reply(self, call: _Call, response: Response) -> dict[str, Any]:
        """Cut the thought at its budget and the reply at its own; a thought that is not closed by then is no reply."""
        thinking = self._options.thinking_tokens
        thought = self._thought(response, call.budget) if thinking else 0
        if thought is None:
            cut = _cut(response, thinking)
            text = THOUGHT_BEGINS + read_response(self._tokenizer, cut).removeprefix(THOUGHT_BEGINS)
            return {"output": text, "ended": False, "new_tokens": cut.tokens, "thought_tokens": cut.tokens}
        kept = _cut(response, thought + call.budget)
        text, ended = read_response(self._tokenizer, kept), kept.ended
        if thought:
            text = text.partition(THOUGHT_ENDS)[2].lstrip()
        if self._plain and BLANK_LINE in text:
            text, ended = text.split(BLANK_LINE, maxsplit=1)[0], True
        told = thought if thinking else None
        return {"output": text, "ended": ended, "new_tokens": kept.tokens, "thought_tokens": told}

    def _thought(self, response: Response, budget: int) -> int | None:
        """Return the tokens of the thought, None if it was not closed within its budget.

        A response that ends within the reply's budget and closes no thought is a reply without one.
        """

        def closed(tokens: int) -> bool:
            return THOUGHT_ENDS in read_response(self._tokenizer, Response(response.ids[:tokens], False, tokens))

        size = len(response.ids)
        if not closed(size):
            return 0 if response.ended and response.tokens <= budget else None
        tokens = bisect_left(range(size), True, key=closed)
        return tokens if tokens <= self._options.thinking_tokens else None


def ask_lanes(
    checkpoint: LanguageCheckpoint,
    options: GrammarOptions,
    advance: Callable[[int], object],
    begin: Callable[[int], object],
    partial_results: Path | None = None,
) -> tuple[list[LaneOutput], list[LaneItem], Asked]:
    """Let a model write in all lanes.

    Args:
        checkpoint: the model.
        options: lanes, puzzles and budgets.
        advance: called with the number of replies finished.
        begin: called once with the number of all replies.
        partial_results: folder in which finished batches are kept; None to keep nothing.

    Returns:
        What it wrote, the puzzles, and how it was asked.

    Raises:
        ValueError: see `find_asked`; or the model cannot be asked these puzzles, or an option would do nothing.
    """
    asked = find_asked(checkpoint, options)
    refuse_idle_options(options, asked.suites, asked.notation_name == LETTERS, checkpoint.source)
    items = find_items(asked, options)
    asker = LaneAsker(checkpoint, asked, options, partial_results)
    if not (count := asker.count(items)):
        raise ValueError(
            f"grammar.puzzles: nothing of {','.join(asked.suites)} can be asked in {','.join(asked.lanes)}; use others"
        )
    begin(count)
    rows: list[dict[str, Any]] = []
    for size, found in asker.rows(items):
        rows += found
        advance(size)
    return _outputs(rows, items, asked, options), items, asked


def items_digest(items: Sequence[LaneItem]) -> str:
    """SHA-256 of the questions and reference runs."""
    texts = [json.dumps([item.key, item.question(), [move.to_json() for move in item.moves]]) for item in items]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _outputs(
    rows: Sequence[dict[str, Any]], items: Sequence[LaneItem], asked: Asked, options: GrammarOptions
) -> list[LaneOutput]:
    """Put the rows in the order of lanes and puzzles; replies to single states become one list a puzzle."""
    order = {item.key: at for at, item in enumerate(items)}
    calls: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        key = (asked.lanes.index(row["lane"]), order[f"{row['suite']}/{row['item']}"], row["planted"] or 0)
        calls.setdefault(key, []).append(row)
    outputs = []
    for _, made in sorted(calls.items()):
        made.sort(key=lambda row: row["place"])
        first = {name: value for name, value in made[0].items() if name != "place"}
        merged = _joined(made) if first["lane"] == "states" else {}
        told = {"notation": asked.notation_name, "made": made_with(first["suite"], options)}
        outputs.append(LaneOutput(**{**first, **merged, **told}))
    return outputs


def _cut(response: Response, budget: int) -> Response:
    """Return what of a response lies within a budget."""
    return response if response.tokens <= budget else Response(response.ids[:budget], False, budget)


def _slices(rows: Sequence[RowT], size: int) -> Iterator[Sequence[RowT]]:
    """Yield a list in slices of some size."""
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]


def _joined(made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The replies to the single moves of a puzzle as one."""
    thoughts = [row["thought_tokens"] for row in made if row["thought_tokens"] is not None]
    return {
        "output": [row["output"] for row in made],
        "ended": [row["ended"] for row in made],
        "new_tokens": sum(row["new_tokens"] for row in made),
        "thought_tokens": sum(thoughts) if thoughts else None,
    }
