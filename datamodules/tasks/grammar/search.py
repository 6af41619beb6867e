"""The prescribed depth-first search, one move at a time.

The state is a stack of frames, root first. A frame holds its form (a list of symbols), the productions already tried
there and a phase; its depth is its index. The top frame alone decides the next move:

1. await_bt: BT, nothing is inspected.
2. entered: classify, first hit wins: deeper than max_depth CUT; terminals before the first nonterminal no prefix of the
   string PRN pref; more terminals than the string PRN long; all terminals ACC or REJ term; leftmost nonterminal without
   a production REJ no_prod.
3. otherwise: TRY the first production of the leftmost nonterminal not tried here; none left: DONE.

TRY pushes the new form. PRN, REJ, CUT and DONE pop: the parent awaits BT, and without a parent the run ends in reject
(unknown if a CUT ever happened). ACC ends in accept, a used-up budget of moves in unknown.

    search = Search(grammar, "a a b".split(), Limits(max_depth=6))
    moves = search.run()          # list of Move
    search.verdict                # "accept", "reject" or "unknown"
    Search.from_json(search.to_json())  # resumes identically, at any move

Source: specification of the grammar task, section "The prescribed search".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datamodules.tasks.grammar.frames import Forms, Frame
from datamodules.tasks.grammar.grammar import Grammar, GrammarError, check_keys
from datamodules.tasks.grammar.moves import (
    ACC,
    BT,
    CUT,
    DONE,
    PRN_LONG,
    PRN_PREFIX,
    REJ_NO_PROD,
    REJ_TERM,
    Move,
    Verdict,
)


@dataclass(frozen=True)
class Limits:
    """Budgets of a search.

    Attributes:
        max_depth: deepest frame that is still looked at.
        max_steps: moves before the run ends in unknown.

    Raises:
        GrammarError: a budget is no whole number, is negative, or allows no move at all.
    """

    max_depth: int
    max_steps: int = 512

    def __post_init__(self) -> None:
        whole = type(self.max_depth) is int and type(self.max_steps) is int
        if not whole or self.max_depth < 0 or self.max_steps < 1:
            raise GrammarError(f"limits: got {self}; use whole numbers, max_depth >= 0, max_steps >= 1")


class Search:
    """The search as a state machine.

    Attributes:
        steps: moves made so far.
        cut: whether a CUT has happened.
        verdict: how the run ended, None while it goes on.

    Args:
        grammar: the grammar.
        string: the string, a list of terminals; may be empty.
        limits: the budgets.

    Raises:
        GrammarError: the string holds an unknown symbol.
    """

    def __init__(self, grammar: Grammar, string: Sequence[str], limits: Limits) -> None:
        self.grammar = grammar
        self.string = grammar.check_string(string)
        self.limits = limits
        self.steps = 0
        self.cut = False
        self.verdict: Verdict | None = None
        self._forms = Forms(grammar)
        self._frames = [self._forms.root(grammar.start)]

    def next_move(self) -> Move:
        """Return the move that `step` would make; the state stays as it is.

        Raises:
            GrammarError: the run has ended.
        """
        if self.verdict is not None:
            raise GrammarError(f"search: the run has ended ({self.verdict}); there is no next move")
        return self._decide()

    def _decide(self) -> Move:
        frame = self._frames[-1]
        if frame.phase == "await_bt":
            return BT
        if frame.phase == "entered":
            end = self._classify(frame)
            if end is not None:
                return end
        return frame.choices[frame.tried].move if frame.tried < len(frame.choices) else DONE

    def step(self) -> Move:
        """Make one move and return it.

        Raises:
            GrammarError: the run has ended.
        """
        move = self.next_move()
        frame = self._frames[-1]
        self.steps += 1
        if move is BT:
            frame.phase = "expanding"
        elif move is ACC:
            self.verdict = "accept"
        elif move.op == "TRY":
            rule = frame.choices[frame.tried]
            frame.tried += 1
            frame.phase = "expanding"
            self._frames.append(self._forms.child(frame, rule))
        else:
            self._pop(move)
        if self.verdict is None and self.steps >= self.limits.max_steps:
            self.verdict = "unknown"
        return move

    def run(self) -> list[Move]:
        """Make all moves up to the end and return them."""
        moves = []
        while self.verdict is None:
            moves.append(self.step())
        return moves

    def _pop(self, move: Move) -> None:
        self.cut = self.cut or move is CUT
        if len(self._frames) > 1:
            self._frames.pop()
            self._frames[-1].phase = "await_bt"
        else:
            # The root frame stays, so that a finished search still has a state to show.
            self.verdict = "unknown" if self.cut else "reject"

    def _classify(self, frame: Frame) -> Move | None:
        if len(self._frames) - 1 > self.limits.max_depth:
            return CUT
        lead = frame.lead
        if frame.form[:lead] != self.string[:lead]:
            return PRN_PREFIX
        if frame.terminals > len(self.string):
            return PRN_LONG
        if lead == len(frame.form):
            return ACC if lead == len(self.string) else REJ_TERM
        return None if frame.choices else REJ_NO_PROD

    def to_json(self) -> dict[str, Any]:
        """Return everything a resumed search needs, as plain JSON data."""
        return {
            "grammar": self.grammar.to_json(),
            "string": list(self.string),
            "max_depth": self.limits.max_depth,
            "max_steps": self.limits.max_steps,
            "frames": self.frames(),
            "steps": self.steps,
            "cut": self.cut,
            "verdict": self.verdict,
        }

    def frames(self) -> list[dict[str, Any]]:
        """Return the stack, root first: what a model is shown of the state."""
        return [
            {
                "form": list(frame.form),
                "tried": frame.tried_names(),
                "phase": frame.phase,
            }
            for frame in self._frames
        ]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Search:
        """Restore a search at the move at which it was written.

        The moves up to there are made again, so that no state is taken that the search would not come to.

        Raises:
            GrammarError: a field is missing or has the wrong type, or this search is in another state after so many
                moves (names the field).
        """
        check_keys("state", data, ("grammar", "string", "max_depth", "max_steps", "frames", "steps", "cut", "verdict"))
        limits = Limits(data["max_depth"], data["max_steps"])
        search = cls(Grammar.from_json(data["grammar"]), data["string"], limits)
        steps = data["steps"]
        if type(steps) is not int or not 0 <= steps <= limits.max_steps:
            raise GrammarError(f"steps: got {steps!r}; use a whole number from 0 to max_steps, {limits.max_steps}")
        while search.steps < steps:
            if search.verdict is not None:
                raise GrammarError(f"steps: got {steps}; this run ends after {search.steps} moves")
            search.step()
        search._compare(data)
        return search

    def _compare(self, data: Mapping[str, Any]) -> None:
        """Check that this is the state that was written."""
        after = f"after {self.steps} moves it is"
        own, stack = self.frames(), data["frames"]
        if not isinstance(stack, list):
            raise GrammarError(f"frames: got {type(stack).__name__}; use a list of frames, root first")
        for depth, (item, frame) in enumerate(zip(stack, own, strict=False)):
            check_keys(f"frames[{depth}]", item, tuple(frame))
            for name, value in frame.items():
                if item[name] != value:
                    raise GrammarError(f"frames[{depth}].{name}: got {item[name]!r}; {after} {value!r}")
        if len(stack) != len(own):
            raise GrammarError(f"frames: got a stack of {len(stack)}; {after} one of {len(own)}")
        # 1 == True in Python, so the type is checked too.
        if type(data["cut"]) is not bool or data["cut"] != self.cut:
            raise GrammarError(f"cut: got {data['cut']!r}; {after} {self.cut}")
        if data["verdict"] != self.verdict:
            raise GrammarError(f"verdict: got {data['verdict']!r}; {after} {self.verdict!r}")
