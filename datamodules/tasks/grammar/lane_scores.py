"""Prompts and scores of a lane: what a model is asked for a puzzle, and what its replies are worth.

Any reply has a score: prose, broken JSON, ten megabytes, no text at all. A score is either of one reply (answer,
written, planted) or of the replies to a puzzle's single moves (gym, states).

Source: specification of the grammar task, section "Ways to run a model (lanes) and scores".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from datamodules.tasks.grammar.brackets import CENTER
from datamodules.tasks.grammar.checker import (
    ErrorClass,
    KindTally,
    RunScore,
    check_answer,
    check_move,
    check_moves,
    check_run,
)
from datamodules.tasks.grammar.lane_items import LAST_NO, LAST_YES, LaneItem
from datamodules.tasks.grammar.lanes import HISTORY, PLANTED, SINGLE_MOVES, Lane, Notation, Prompt
from datamodules.tasks.grammar.model_text import WrittenArray, read_array
from datamodules.tasks.grammar.moves import BT, Move
from datamodules.tasks.grammar.seeds import seeded

LONGEST_RUN = 4_096
"""Moves of a written run behind which neither its end nor its verdict is looked for."""


@dataclass(frozen=True)
class LaneScore:
    """What one reply, or one puzzle's replies to single moves, scored.

    Attributes:
        length: moves to be made; 0 in lane answer.
        right: moves right before the first error; in lane states, moves right in all.
        complete: every move right, concluded, nothing trailing; None in lane answer.
        exact_stop: whether the run was closed behind as many moves as the reference has, right or wrong; None in the
            lanes that close no run (answer, gym, states).
        answer: whether the answer that was given is right: the answer itself, or where a written run ends. None in the
            lanes of single moves, where a run gives an answer only if it is complete.
        first_error: index of the first error in the reference run; None without one, and in lane answer.
        error: class of the first error.
        judged: moves judged, by kind of the reference move.
        correct: how many of these were right.
    """

    length: int
    right: int
    complete: bool | None
    exact_stop: bool | None
    answer: bool | None
    first_error: int | None
    error: ErrorClass | None
    judged: Mapping[str, int]
    correct: Mapping[str, int]

    def record(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return asdict(self)


def can_ask(item: LaneItem, lane: Lane, notation: Notation) -> bool:
    """Tell whether a lane can ask a puzzle: a planted history needs a run that is longer than itself.

    Raises:
        ValueError: see `Notation.asks`.
    """
    return notation.asks(item) and (lane != "planted" or len(item.moves) > HISTORY)


def prompts(item: LaneItem, lane: Lane, notation: Notation, listing: bool) -> list[Prompt]:
    """Return the calls of a model for one puzzle, in order."""
    if lane in SINGLE_MOVES:
        return [Prompt(notation.ask(item, lane, listing, state)) for state in item.states()]
    text = notation.ask(item, lane, listing)
    if lane != "planted":
        return [Prompt(text)]
    return [Prompt(text, notation.begin(item, planted_history(item, wrong)), wrong) for wrong in PLANTED]


def reference(item: LaneItem, lane: Lane, notation: Notation, prompt: Prompt) -> str:
    """Return a reply that scores in full to a call for an answer or a run."""
    if lane == "answer":
        return answer_text(item)
    begun = "" if prompt.planted is None else notation.begin(item, item.moves[:HISTORY])
    return notation.run(item, item.moves)[len(begun) :]


def answer_text(item: LaneItem) -> str:
    """Return the right answer."""
    return '{"accept": true}' if item.accept else '{"accept": false}'


def planted_history(item: LaneItem, wrong: int) -> list[Move]:
    """Return the first four moves of a run, the first `wrong` of them replaced by other moves of the run."""
    history = list(item.moves[:HISTORY])
    stray = BT if item.machine == "search" else CENTER
    for at in range(wrong):
        others = [move for move in dict.fromkeys((*item.moves, stray)) if move != item.moves[at]]
        history[at] = seeded("planted", item.key, wrong, at).choice(others)
    return history


def score_reply(
    item: LaneItem, lane: Lane, notation: Notation, prompt: Prompt, reply: object, ended: bool
) -> LaneScore:
    """Score the reply to a call for an answer or a run.

    Args:
        item: the puzzle.
        lane: "answer", "written" or "planted".
        notation: how the model was asked.
        prompt: the call.
        reply: what the model wrote, of any type.
        ended: whether it ended its reply.
    """
    if lane == "answer":
        error = check_answer(reply, item.accept, ended)
        return LaneScore(0, 0, None, None, error is None, None, error, {}, {})
    whole = notation.whole(prompt.begun, reply) if isinstance(reply, str) else reply
    text = notation.to_json(whole, item, ended)
    found = check_run(text, item.moves, ended, start=0 if prompt.planted is None else HISTORY)
    written = read_array(text, LONGEST_RUN)
    stopped = written.ending == "closed" and len(written.items) == len(item.moves)
    return _of_run(found, stopped, stated_answer(written) == item.accept)


def score_moves(item: LaneItem, lane: Lane, replies: object, ended: bool | Sequence[bool] = True) -> LaneScore:
    """Score the replies to single moves.

    Args:
        item: the puzzle.
        lane: "gym", where nothing is read behind the first error, or "states", where every reply counts.
        replies: one reply a move; anything but a list or tuple counts as one reply.
        ended: whether the model ended its replies, all of them or one by one; it did where nothing is said.
    """
    texts: Sequence[object] = replies if isinstance(replies, list | tuple) else [replies]
    told = [ended] * len(texts) if isinstance(ended, bool) else [*ended, *[True] * len(texts)][: len(texts)]
    if lane == "gym":
        return _of_run(check_moves(texts, item.moves, told), None, None)
    errors: list[ErrorClass | None] = [
        check_move(text, move, closed) for text, move, closed in zip(texts, item.moves, told, strict=False)
    ]
    errors += ["missing_move"] * (len(item.moves) - len(errors))
    tally = KindTally()
    for move, error in zip(item.moves, errors, strict=True):
        tally.add_move(move, error is None)
    first = next((at for at, error in enumerate(errors) if error is not None), None)
    return LaneScore(
        length=len(item.moves),
        right=errors.count(None),
        complete=first is None,
        exact_stop=None,
        answer=None,
        first_error=first,
        error=None if first is None else errors[first],
        judged=dict(tally.judged),
        correct=dict(tally.correct),
    )


def stated_answer(written: WrittenArray) -> bool | None:
    """Return the answer that a written run gives by its last move; None if it is not closed or no such move ends it."""
    if written.ending != "closed" or not written.items:
        return None
    try:
        op = Move.from_json(written.items[-1]).op
    except ValueError:
        return None
    return op in LAST_YES if op in (*LAST_YES, *LAST_NO) else None


def _of_run(found: RunScore, exact_stop: bool | None, answer: bool | None) -> LaneScore:
    return LaneScore(
        found.length,
        found.right,
        found.complete,
        exact_stop,
        answer,
        found.first_error,
        found.error,
        dict(found.judged),  # plain: a Counter does not survive asdict
        dict(found.correct),
    )
