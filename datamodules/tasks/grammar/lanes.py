"""The lanes: ways to let an ordinary model answer or run a puzzle, with their prompts and notations.

| lane | the model writes | prompts of a puzzle |
|---|---|---|
| answer | {"accept": true} or {"accept": false} | one |
| written | the whole run, one JSON array of moves | one |
| gym | the next move, one JSON object; the gym holds the state and shows it again after every right move | one a move |
| states | the next move of every reference state on its own | one a move |
| planted | the rest of a run whose first four moves stand there already, the first 0, 1, 2 or 4 of them wrong | four |

In the lanes of single moves a prompt shows the exact state and nothing of the moves before, so that a run in the gym is
right for as long as its states are right one by one.

A `Notation` writes and reads the texts. `JsonNotation` is the specification's. `LabelNotation` is that of the looped
models: their prompt, and one letter for every move.

Source: specification of the grammar task, section "Ways to run a model (lanes) and scores".
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from datamodules.tasks.grammar.bracket_task import BracketString, BracketTask, own_alphabet, strings_of
from datamodules.tasks.grammar.brackets import ALPHABETS, BracketPuzzle
from datamodules.tasks.grammar.lane_items import LaneItem
from datamodules.tasks.grammar.model_text import read_array
from datamodules.tasks.grammar.moves import Move, run_text, try_production
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.search_task import MOST_RULES, OTHER_MOVES, SearchTask
from datamodules.tasks.procedure import Procedure

Lane = Literal["answer", "written", "gym", "states", "planted"]
LANES: tuple[Lane, ...] = get_args(Lane)
SINGLE_MOVES: tuple[Lane, ...] = ("gym", "states")

HISTORY = 4
"""Moves that stand in a planted history."""
PLANTED = (0, 1, 2, 4)
"""How many of them are wrong, from the first on."""

MOST_MOVES = 1_024
"""Moves of a text in letters that are read; every reference run has fewer."""

_ASK: Mapping[Lane, Mapping[str, str]] = {
    "answer": dict.fromkeys(
        ("search", "brackets"), 'Write only the answer, {"accept": true} or {"accept": false}, and nothing else.'
    ),
    "written": {
        "search": "Write the whole run of the search as one JSON array of moves, and nothing else.",
        "brackets": "Write the whole run of the machine as one JSON array of moves, and nothing else.",
    },
    "gym": {
        "search": "Write only the next move of the search as one JSON object, and nothing else.",
        "brackets": "Write only the next move of the machine as one JSON object, and nothing else.",
    },
}
_GOAL = {"search": "Does the grammar generate the string?", "brackets": "Is the string of brackets correct?"}
_RUN_BY = {"search": "A prescribed depth-first search decides it.", "brackets": "A prescribed machine decides it."}
_STATE = {"search": "Stack", "brackets": "State"}
_HEAD: Mapping[Lane, str] = {"answer": "Answer:", "written": "Run:", "gym": "Move:"}

RULES: Mapping[str, str] = {
    "search": """\
Rules of the search:
Productions are named p0, p1, ... in the order of the list. A frame holds a form (a list of symbols), the productions \
tried there, and a phase. The search starts with one frame: its form is the start symbol, nothing is tried, its phase \
is entered. The depth of a frame is its index in the stack, from 0. The top frame alone decides the next move:
1. Phase await_bt: {"op": "BT"}. The phase becomes expanding.
2. Phase entered, the first of these that holds:
   depth above max_depth: {"op": "CUT", "reason": "max_depth"};
   the terminals before the first nonterminal are not how the string begins: {"op": "PRN", "reason": "pref"};
   the form has more terminals than the string: {"op": "PRN", "reason": "long"};
   no nonterminal left and the form is the string: {"op": "ACC"}, the run ends;
   no nonterminal left and the form is another: {"op": "REJ", "reason": "term"};
   the leftmost nonterminal has no production: {"op": "REJ", "reason": "no_prod"}.
3. Otherwise: try the first production of the leftmost nonterminal that was not tried in this frame, such as \
{"op": "TRY", "production": "p0"}. The phase becomes expanding, and a new frame (entered) with the rewritten form goes \
on top. If all of them were tried: {"op": "DONE"}.
PRN, REJ, CUT and DONE take the frame off the stack; the frame below awaits BT (await_bt). If none is left, the run \
ends. After max_steps moves it ends in any case.\
""",
    "brackets": """\
Rules of the machine:
It reads the string once, from left to right, and keeps a list of the closers it expects; the last one comes next.
{"op": "PUSH", "expected": closer}: before the centre, the next symbol is an opener; its closer is expected now.
{"op": "CENTER"}: the next symbol is the centre, for the first time.
{"op": "POP"}: behind the centre, the next symbol is the closer expected next.
{"op": "ACCEPT"}: the string is used up, the centre was read, and no closer is expected; the run ends.
{"op": "REJECT"}: in every other case; the run ends.""",
}
"""How each machine moves, for models that were not trained on it."""


@dataclass(frozen=True)
class Prompt:
    """One call of a model.

    Attributes:
        text: the message.
        begun: how the reply begins already; empty where the model writes all of it.
        planted: wrong moves in `begun`; None where nothing was planted.
    """

    text: str
    begun: str = ""
    planted: int | None = None


class Notation(ABC):
    """How puzzles and moves are written.

    Attributes:
        lanes: the lanes that it can write.
        is_message: whether a prompt is a message, which goes through a chat template where there is one.
    """

    lanes: ClassVar[tuple[Lane, ...]]
    is_message: ClassVar[bool]

    @abstractmethod
    def ask(self, item: LaneItem, lane: Lane, listing: bool, state: Any = None) -> str:
        """Return the message.

        Args:
            item: the puzzle.
            lane: what is to be written.
            listing: say how the machine moves; an answer alone needs none of it.
            state: state before the move that is asked for, in the lanes of single moves.
        """

    @abstractmethod
    def asks(self, item: LaneItem) -> bool:
        """Tell whether a puzzle is asked in this notation.

        Raises:
            ValueError: a puzzle of a suite that this model cannot be asked at all (names grammar.puzzles).
        """

    @abstractmethod
    def run(self, item: LaneItem, moves: Sequence[Move]) -> str:
        """Write a whole run of a puzzle."""

    @abstractmethod
    def begin(self, item: LaneItem, moves: Sequence[Move]) -> str:
        """Write how a run of a puzzle begins that goes on behind these moves."""

    def whole(self, begun: str, reply: str) -> str:
        """Return the text of a run: how it began before the model wrote, and the reply."""
        return begun + reply

    @abstractmethod
    def to_json(self, text: object, item: LaneItem, ended: bool) -> object:
        """Return a written run as JSON text, whatever it is: what is no run in this notation stays none.

        Args:
            text: what the model wrote, with what stood there before.
            item: the puzzle.
            ended: whether the model ended its reply.
        """


class JsonNotation(Notation):
    """Moves as JSON objects, a run as one JSON array."""

    lanes = LANES
    is_message = True

    def ask(self, item: LaneItem, lane: Lane, listing: bool, state: Any = None) -> str:
        """Return goal, rules if listed, the puzzle, the state if any, and what to write."""
        asked: Lane = {"states": "gym", "planted": "written"}.get(lane, lane)  # type: ignore[assignment]
        shown = "" if state is None else f"\n{_STATE[item.machine]}: {json.dumps(state)}"
        runs = asked != "answer"
        head = [_GOAL[item.machine], *([_RUN_BY[item.machine]] if runs else []), _ASK[asked][item.machine]]
        rules = [RULES[item.machine]] if runs and listing else []
        return "\n\n".join([" ".join(head), *rules, f"{item.question()}{shown}\n{_HEAD[asked]}\n"])

    def asks(self, item: LaneItem) -> bool:  # noqa: ARG002
        """Say yes: JSON writes every puzzle."""
        return True

    def run(self, item: LaneItem, moves: Sequence[Move]) -> str:  # noqa: ARG002
        """Write one JSON array."""
        return run_text(moves)

    def begin(self, item: LaneItem, moves: Sequence[Move]) -> str:  # noqa: ARG002
        """Write the array up to the comma behind the moves, where a tokenizer's words end."""
        return run_text(moves)[:-1] + ","

    def whole(self, begun: str, reply: str) -> str:
        """Take a reply that writes the moves of the beginning itself as the whole run."""
        planted = read_array(begun, HISTORY).items
        return reply if planted and read_array(reply, HISTORY).items == planted else begun + reply

    def to_json(self, text: object, item: LaneItem, ended: bool) -> object:  # noqa: ARG002
        """Return the text as it is."""
        return text


class LabelNotation(Notation):
    """Moves as the labels of looped models, a run as one letter after the other, closed by the end of the reply.

    Args:
        task: the looped models' task; it renders the prompts and names the letters.
    """

    lanes = ("written", "planted")
    is_message = False

    def __init__(self, task: Procedure[Any]) -> None:
        self.task = task

    def ask(self, item: LaneItem, lane: Lane, listing: bool, state: Any = None) -> str:  # noqa: ARG002
        """Return the looped models' prompt.

        Raises:
            ValueError: a puzzle of the other machine, or one that these letters cannot write.
        """
        self._check_machine(item)
        instance: BracketString | Puzzle
        if isinstance(item.puzzle, BracketPuzzle):
            instance = strings_of([item.puzzle])[0]
            if isinstance(self.task, BracketTask) and self.task.permuted:
                instance = own_alphabet(instance, item.puzzle.alphabet)
        else:
            instance = item.puzzle
        return self.task.prompt(instance, self.task.views[0])

    def asks(self, item: LaneItem) -> bool:
        """Say no where the letters cannot write the grammar, and where they have written the question already.

        The suite of brackets asks the same in two alphabets, which are one in letters.
        """
        self._check_machine(item)
        if isinstance(item.puzzle, BracketPuzzle):
            return item.puzzle.alphabet != ALPHABETS[1]
        try:
            self.ask(item, "written", listing=False)
        except ValueError:
            return False
        return True

    def _check_machine(self, item: LaneItem) -> None:
        machine = "search" if isinstance(self.task, SearchTask) else "brackets"
        if item.machine != machine:
            raise ValueError(
                f"grammar.puzzles: {item.suite} is not for a model trained on {self.task.task_name}; "
                f"use suites of {'the search' if machine == 'search' else 'brackets'}"
            )

    def run(self, item: LaneItem, moves: Sequence[Move]) -> str:
        """Write the letters."""
        texts = dict(zip(self._moves(item), self.task.labels.texts, strict=True))
        return "".join(texts[move] for move in moves)

    def begin(self, item: LaneItem, moves: Sequence[Move]) -> str:
        """Write the letters: nothing tells a run that ends from one that goes on."""
        return self.run(item, moves)

    def to_json(self, text: object, item: LaneItem, ended: bool) -> object:
        """Read letter by letter; what is none, and all behind it, is one entry of the array, which stays open."""
        if not isinstance(text, str):
            return text
        known = dict(zip(self.task.labels.texts, self._moves(item), strict=True))
        moves: list[str] = []
        at = 0
        while len(moves) < MOST_MOVES and text[at : at + 2] in known:
            moves.append(known[text[at : at + 2]].text())
            at += 2
        rest = text[at:]
        if rest.strip():
            # As a JSON text, so that JSON among the letters is no move. Cut off like the reply, so that what repeats
            # itself to the end still does.
            moves.append(json.dumps(rest) if ended else json.dumps(rest)[:-1])
        elif rest:
            moves.append(rest)
        array = "[" + ", ".join(moves)
        return array + "]" if ended and not rest else array

    @staticmethod
    def _moves(item: LaneItem) -> tuple[Move, ...]:
        """The move of every label; those of brackets name the closers of the puzzle's own alphabet."""
        if isinstance(item.puzzle, BracketPuzzle):
            return item.puzzle.alphabet.moves()
        return (*OTHER_MOVES, *(try_production(f"p{index}") for index in range(MOST_RULES)))
