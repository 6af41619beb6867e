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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from datamodules.tasks.grammar.frames import Forms, Frame, Phase
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

    def __init__(self, grammar: Grammar, string: Iterable[str], limits: Limits) -> None:
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

        Raises:
            GrammarError: a field is missing or wrong, or the stack, the number of moves or the verdict could not have
                come from this grammar.
        """
        check_keys("state", data, ("grammar", "string", "max_depth", "max_steps", "frames", "steps", "cut", "verdict"))
        limits = Limits(data["max_depth"], data["max_steps"])
        search = cls(Grammar.from_json(data["grammar"]), data["string"], limits)
        if data["verdict"] not in (None, *get_args(Verdict)):
            raise GrammarError(f"verdict: got {data['verdict']!r}; use null or one of {', '.join(get_args(Verdict))}")
        if type(data["steps"]) is not int or type(data["cut"]) is not bool:
            raise GrammarError(f"state: got steps {data['steps']!r} and cut {data['cut']!r}; use a number and a bool")
        search.steps, search.cut, search.verdict = data["steps"], data["cut"], data["verdict"]
        search._restore(data["frames"])
        search._check_steps()
        return search

    def _restore(self, stack: Any) -> None:
        if not isinstance(stack, list) or not stack:
            raise GrammarError("frames: use a list of frames, root first; the root never leaves it")
        frames: list[Frame] = []
        frame = self._frames[0]
        for depth, item in enumerate(stack):
            where = f"frames[{depth}]"
            check_keys(where, item, ("form", "tried", "phase"))
            if item["phase"] not in get_args(Phase):
                raise GrammarError(f"{where}.phase: got {item['phase']!r}; use one of {', '.join(get_args(Phase))}")
            if depth:
                parent = frames[-1]
                if not parent.tried:
                    raise GrammarError(f"frames[{depth - 1}].tried: empty, but a frame stands above it")
                frame = self._forms.child(parent, parent.choices[parent.tried - 1])
            if item["form"] != list(frame.form):
                raise GrammarError(f"{where}.form: got {item['form']!r}; the frame below leads to {list(frame.form)}")
            names = [rule.move.value for rule in frame.choices]
            if not isinstance(item["tried"], list) or item["tried"] != names[: len(item["tried"])]:
                raise GrammarError(f"{where}.tried: got {item['tried']!r}; the order of the list is {names}")
            frame.tried, frame.phase = len(item["tried"]), item["phase"]
            wanted = ("expanding",) if depth + 1 < len(stack) or frame.tried else ("entered",)
            if frame.phase not in (*wanted, *(("await_bt",) if frame.tried and depth + 1 == len(stack) else ())):
                raise GrammarError(f"{where}.phase: got {frame.phase!r} of a frame that tried {item['tried']}")
            frames.append(frame)
        self._frames = frames

    def _check_steps(self) -> None:
        """Check number of moves and verdict of a restored state against its stack.

        A child that is gone cost three moves at least (TRY, what took it off, BT), one that is still there its TRY.
        """
        top, least = self._frames[-1], sum(3 * frame.tried - 2 for frame in self._frames[:-1])
        least += 3 * top.tried - (top.phase == "await_bt")
        move, most = self._decide(), self.limits.max_steps
        fallen = len(self._frames) == 1 and move.op in ("PRN", "REJ", "CUT", "DONE")
        possible = {
            None: True,
            "accept": move is ACC,
            "reject": fallen and not self.cut,
            "unknown": (fallen and self.cut) or (least > 0 and self.steps == most),
        }
        if not possible[self.verdict]:
            raise GrammarError(f"verdict: got {self.verdict!r}; this stack after {self.steps} moves does not end so")
        if self.verdict is None:
            most = most - 1 if least else 0
        elif self.verdict != "unknown":
            least += 1
        if not least <= self.steps <= most:
            raise GrammarError(f"steps: got {self.steps}; this state comes after {least} to {most} moves")
