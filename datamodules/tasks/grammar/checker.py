"""Scores what a model wrote against the reference run. Any text has a score; nothing raises.

A move is right only if the parsed object equals the reference; a run is read up to its first error. A complete run has
every move right, is concluded by its bracket and has nothing behind it. The first error is one of:

- wrong_move: a move, but not the right one, or one move too many;
- missing_move: the text ends, properly or not, between two moves before the run does;
- malformed: no move: prose, broken JSON, unknown keys, text behind the array, no bracket at its end;
- capped_loop: any of these where the text goes on from there with one block over and over, until the model was stopped.

Whether a model ended its reply itself is not in the text, so every check is told (`ended`).

    score = check_run(model_text, puzzle.run().moves, ended=True)
    score.complete, score.right, score.first_error, score.error, score.by_kind

Source: specification of the grammar task, section "Ways to run a model (lanes) and scores".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from datamodules.tasks.grammar.model_text import loops, read_array, read_value
from datamodules.tasks.grammar.moves import Move

ErrorClass = Literal["wrong_move", "missing_move", "malformed", "capped_loop"]


@dataclass(frozen=True)
class RunScore:
    """Score of one run.

    Attributes:
        length: moves to be made.
        right: moves right before the first error.
        first_error: index of the first error in the reference run (its length for something behind the last move);
            None for a complete run.
        error: class of the first error, None for a complete run.
        judged: moves of each kind up to the first error, that one included, by the kind of the reference move.
        correct: how many of these were right.
    """

    length: int
    right: int
    first_error: int | None
    error: ErrorClass | None
    judged: Mapping[str, int]
    correct: Mapping[str, int]

    @property
    def complete(self) -> bool:
        """Strict score: every move right, concluded, nothing trailing."""
        return self.error is None

    @property
    def prefix(self) -> float:
        """Prefix score: share of the run made right before the first error."""
        return self.right / self.length if self.length else float(self.complete)


@dataclass
class KindTally:
    """Move accuracy by kind over many runs or single moves.

    Attributes:
        judged: moves judged, by the kind of the reference move.
        correct: moves right.
    """

    judged: Counter[str] = field(default_factory=Counter)
    correct: Counter[str] = field(default_factory=Counter)

    def add(self, score: RunScore) -> None:
        """Count the moves of a run up to its first error."""
        self.judged.update(score.judged)
        self.correct.update(score.correct)

    def add_move(self, reference: Move, right: bool) -> None:
        """Count one move on its own (every reference state shown by itself)."""
        self.judged[reference.kind] += 1
        self.correct[reference.kind] += right

    def accuracy(self) -> dict[str, float]:
        """Return the share of right moves of every kind that occurred."""
        return {kind: self.correct[kind] / total for kind, total in self.judged.items()}


def check_move(text: object, reference: Move, ended: bool) -> ErrorClass | None:
    """Score one move written on its own; None means right."""
    readable, data = read_value(text)
    if readable:
        return _compare(data, reference)
    return _unreadable(text, ended)


def check_moves(texts: Iterable[object], reference: Sequence[Move], ended: Iterable[bool]) -> RunScore:
    """Score a run made move by move: one text per move, nothing is read behind the first error.

    Args:
        texts: what the model wrote for every move.
        reference: the moves of the reference run.
        ended: whether it ended each of these replies, as many.
    """
    right = 0
    for text, closed in zip(texts, ended, strict=True):
        # After the last move nobody asks for another one, so further texts are not looked at.
        if right == len(reference):
            break
        error = check_move(text, reference[right], closed)
        if error is not None:
            return _score(reference, 0, right, error)
        right += 1
    return _score(reference, 0, right, None if right == len(reference) else "missing_move")


def check_run(text: object, reference: Sequence[Move], ended: bool, start: int = 0) -> RunScore:
    """Score a run written as one array.

    Args:
        text: what the model wrote.
        reference: the moves of the reference run.
        ended: whether the model ended its reply.
        start: that many moves at the beginning of the text were planted and are not scored.
    """
    written = read_array(text, len(reference) + 1)
    items = written.items[start:]
    at = start
    error: ErrorClass | None = None
    for item, move in zip(items, reference[start:], strict=False):
        error = _compare(item, move)
        if error is not None:
            break
        at += 1
    if error is None:
        if at < len(written.items):
            error = "wrong_move" if _is_move(written.items[at]) else "malformed"
        elif written.ending == "broken" or (written.ending == "stops" and at == len(reference)):
            error = "malformed"
        elif at < len(reference):
            error = "missing_move"
    if error is not None and not ended and isinstance(text, str) and not text.rstrip().endswith("]"):
        # Only what follows the last right move may be a loop: runs that are right may well repeat themselves.
        begin = written.ends[at - 1] if 0 < at <= len(written.ends) else 0
        error = "capped_loop" if loops(text[begin:]) else error
    return _score(reference, start, at, error)


def check_answer(text: object, accept: bool, ended: bool) -> ErrorClass | None:
    """Score an answer on its own, `{"accept": true}`; None means right, a wrong answer is a wrong_move."""
    readable, data = read_value(text)
    if not readable:
        return _unreadable(text, ended)
    # 1 == True in Python, so the type is checked too.
    if not isinstance(data, dict) or set(data) != {"accept"} or not isinstance(data["accept"], bool):
        return "malformed"
    return None if data["accept"] == accept else "wrong_move"


def _unreadable(text: object, ended: bool) -> ErrorClass:
    return "capped_loop" if not ended and loops(text) else "malformed"


def _compare(data: object, reference: Move) -> ErrorClass | None:
    if data == reference.to_json():
        return None
    return "wrong_move" if _is_move(data) else "malformed"


def _is_move(data: object) -> bool:
    try:
        Move.from_json(data)
    except ValueError:
        return False
    return True


def _score(reference: Sequence[Move], start: int, at: int, error: ErrorClass | None) -> RunScore:
    correct = Counter(move.kind for move in reference[start:at])
    judged = Counter(move.kind for move in reference[start : at + 1])
    return RunScore(len(reference) - start, at - start, None if error is None else at, error, judged, correct)
