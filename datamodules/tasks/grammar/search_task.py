"""The prescribed search as a `Procedure`: one step is one move, and the string's symbols are the cells.

    Rules: A s> a s b; B s> c.
    String: a a c b b.
    Move:

Nonterminals are written s, t, u, ... (the start symbol first), terminals as they are, and every rule begins with the
letter that stands for trying it. The other moves have letters of their own, so every move is one token. The budget of
depth is not in the prompt; `draw_puzzles` makes runs without a CUT.

Eight named fields tell the state of the top frame before every move, undefined behind the last: where the terminals
before its first nonterminal end in the string (`left`) and where those behind its last one begin (`right`), the first
cell that the former contradict (`clash`, what PRN pref is decided by), which rule first names the symbol that the
string has next (`ahead`), its depth as the number of a cell, its phase, how many rules were tried there, and whether
it is the root.

Source: feasibility study of looped executors, grammar search.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from datamodules.tasks.grammar.grammar import Grammar, make_grammar
from datamodules.tasks.grammar.moves import ACC, BT, CUT, DONE, PRN_LONG, PRN_PREFIX, REJ_NO_PROD, REJ_TERM, Move
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.search import Limits
from datamodules.tasks.grammar.suites import FAMILIES, Question, count_a, cue_free, original
from datamodules.tasks.procedure import CELLS, UNDEFINED, LabelSet, Procedure

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OTHER_MOVES = (PRN_PREFIX, PRN_LONG, REJ_TERM, REJ_NO_PROD, CUT, BT, DONE, ACC)
MOST_RULES = len(LETTERS) - len(OTHER_MOVES)
NONTERMINALS = "stuvwxyz"
TERMINALS = "abcde"
PHASES = ("entered", "await_bt", "expanding")
AHEAD = (*(f"p{index}" for index in range(MOST_RULES)), "none", "end")
FREE = Limits(max_depth=256)
"""Budget of depth that cuts nothing."""

SEARCH_LABELS = LabelSet(
    (*(move.kind for move in OTHER_MOVES), *(f"TRY p{index}" for index in range(MOST_RULES))),
    tuple(f" {letter}" for letter in LETTERS[MOST_RULES:] + LETTERS[:MOST_RULES]),
)
"""The moves without a production, S to Z, then TRY of each production, A to R."""

QUESTIONS: Mapping[str, Callable[[str, int, bool], Question]] = {
    "original": original,
    "cue_free": cue_free,
    "count_a": count_a,
}


def label_of(move: Move) -> int:
    """Return the label of a move."""
    return len(OTHER_MOVES) + int(move.value[1:]) if move.op == "TRY" else OTHER_MOVES.index(move)


class SearchTask(Procedure[Puzzle]):
    """Runs the search on a puzzle of at most 18 rules, 8 nonterminals and the terminals a to e."""

    views: ClassVar[tuple[str, ...]] = ("executor",)
    labels = SEARCH_LABELS
    fields: Mapping[str, LabelSet | None] = MappingProxyType(
        {
            "left": CELLS,
            "right": CELLS,
            "clash": CELLS,
            "ahead": LabelSet(AHEAD, tuple(f" {rule}" for rule in AHEAD)),
            "depth": CELLS,
            "phase": LabelSet(PHASES, tuple(f" {phase}" for phase in PHASES)),
            "tried": LabelSet(
                tuple(map(str, range(MOST_RULES + 1))), tuple(f" {count}" for count in range(MOST_RULES + 1))
            ),
            "root": LabelSet(("no", "yes"), (" no", " yes")),
        }
    )

    def prompt(self, instance: Puzzle, view: str) -> str:
        """Return the prompt; there is one view, in which the number of moves does not occur.

        Raises:
            ValueError: unknown view, or a grammar that these letters cannot write.
        """
        if view not in self.views:
            raise ValueError(f"view: got {view!r}; use one of {', '.join(self.views)}")
        return f"{self._rules(instance)} {' '.join(instance.string)}.\nMove:"

    def cells(self, instance: Puzzle, view: str) -> list[int]:  # noqa: ARG002
        """Return the ":" before the string, its symbols and the "." behind it."""
        begin = len(self._rules(instance))
        return [begin - 1, *range(begin + 1, begin + 2 * len(instance.string), 2), begin + 2 * len(instance.string)]

    def steps(self, instance: Puzzle) -> int:
        """Return the number of moves."""
        return len(_run(instance)[0])

    def initial(self, instance: Puzzle) -> None:
        """Return no label: there is no move before the first."""
        del instance

    def states(self, instance: Puzzle) -> Sequence[int]:
        """Return the moves."""
        return _run(instance)[0]

    def field_states(self, instance: Puzzle) -> Mapping[str, Sequence[int]]:
        """Return the state of the top frame before every move."""
        return _run(instance)[1]

    def facts(self, instance: Puzzle) -> dict[str, int]:
        """Return the level (as `depth`), the family and the answer."""
        family = FAMILIES.index(instance.family)
        return {"depth": instance.level, "family": family, "accept": int(instance.accept)}

    @staticmethod
    def _rules(instance: Puzzle) -> str:
        names = _names(instance.grammar)
        rules = "; ".join(
            f"{LETTERS[index]} {names[rule.lhs]}> {' '.join(names[symbol] for symbol in rule.rhs)}"
            for index, rule in enumerate(instance.grammar.productions)
        )
        return f"Rules: {rules}.\nString:"


def _names(grammar: Grammar) -> dict[str, str]:
    """How the symbols are written: the start is the first nonterminal."""
    heads = [grammar.start, *(symbol for symbol in grammar.nonterminals if symbol != grammar.start)]
    odd = [symbol for symbol in grammar.terminals if symbol not in tuple(TERMINALS)]
    if len(heads) > len(NONTERMINALS) or len(grammar.productions) > MOST_RULES or odd:
        raise ValueError(
            f"grammar: {len(heads)} nonterminals, {len(grammar.productions)} rules and the terminals "
            f"{' '.join(grammar.terminals)}; use at most {len(NONTERMINALS)}, {MOST_RULES}, and {' '.join(TERMINALS)}"
        )
    return {**dict(zip(heads, NONTERMINALS, strict=False)), **{symbol: symbol for symbol in grammar.terminals}}


@lru_cache(maxsize=4_096)
def _run(puzzle: Puzzle) -> tuple[list[int], dict[str, list[int]]]:
    """Run the search once: labels of the moves and the fields of steps 0..N."""
    search = puzzle.search()
    moves: list[int] = []
    fields: dict[str, list[int]] = {name: [] for name in SearchTask.fields}
    while search.verdict is None:
        stack = search.frames()
        for name, value in _top(stack, puzzle.grammar, puzzle.string).items():
            fields[name].append(value)
        moves.append(label_of(search.step()))
    return moves, {name: [*values, UNDEFINED] for name, values in fields.items()}


def _top(stack: list[dict[str, Any]], grammar: Grammar, string: Sequence[str]) -> dict[str, int]:
    """Fields of the top frame. Cell 0 stands before the string (and for no clash), cell `length` + 1 behind it."""
    frame = stack[-1]
    form, length = frame["form"], len(string)
    inner = [at for at, symbol in enumerate(form) if symbol in grammar.alternatives]
    left = inner[0] if inner else len(form)
    behind = len(form) - 1 - inner[-1] if inner else 0
    clashes = (at for at, symbol in enumerate(form[:left], 1) if at > length or symbol != string[at - 1])
    return {
        "left": min(left, length) + 1,
        "right": max(length - behind, 0) + 1,
        "clash": next(clashes, 0),
        "ahead": AHEAD.index(_first_rule(grammar, string[left]) if left < length else "end"),
        "depth": min(len(stack) - 1, length + 1),
        "phase": PHASES.index(frame["phase"]),
        "tried": len(frame["tried"]),
        "root": int(len(stack) == 1),
    }


def _first_rule(grammar: Grammar, symbol: str) -> str:
    """The first rule, as p0, p1, ..., whose right side names a symbol."""
    named = (f"p{index}" for index, rule in enumerate(grammar.productions) if symbol in rule.rhs)
    return next(named, "none")


@dataclass(frozen=True)
class Recipe:
    """A puzzle before lettering.

    Attributes:
        suite: key of `QUESTIONS`.
        family: family of the suites.
        level: level, any from 1.
        accept: yes or no.
        backwards: whether the rules stand in reverse order, which changes the run.
    """

    suite: str
    family: str
    level: int
    accept: bool
    backwards: bool

    def puzzle(self, lettering: Sequence[str] = TERMINALS) -> Puzzle:
        """Write the puzzle with these letters for a, b, c, ..."""
        rules, text = QUESTIONS[self.suite](self.family, self.level, self.accept)
        letters = dict(zip(TERMINALS, lettering, strict=True))
        written = [(lhs, [letters.get(symbol, symbol) for symbol in rhs]) for lhs, rhs in rules]
        start = written[0][0]
        grammar = make_grammar(written[::-1] if self.backwards else written, TERMINALS)
        if grammar.start != start:
            heads = (start, *(symbol for symbol in grammar.nonterminals if symbol != start))
            grammar = Grammar(start, heads, grammar.terminals, grammar.productions)
        string = tuple(letters[symbol] for symbol in text)
        return Puzzle("", self.family, self.level, "", grammar, string, FREE, self.accept)


@dataclass(frozen=True)
class SearchStage:
    """One stage of the curriculum.

    Attributes:
        moves: longest run.
        batch_size: puzzles of a batch on one rank.
        suites: how its no puzzles are made; None for all ways of the stream.

    Raises:
        ValueError: a value is below 1, or the list is empty.
    """

    moves: int
    batch_size: int = 32
    suites: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.moves < 1 or self.batch_size < 1:
            raise ValueError(f"stages: moves and batch_size must be 1 or more, got {self}")
        if self.suites is not None and not self.suites:
            raise ValueError("stages: suites is empty; name some, or leave it out")

    def recipes(self, families: tuple[str, ...], suites: tuple[str, ...]) -> dict[int, list[Recipe]]:
        """Return its recipes by number of moves; `suites` are the stream's. See `run_lengths`."""
        return run_lengths(families, self.moves, self.suites or suites)


def growing_runs(moves: int = 21, batch_size: int = 32) -> list[SearchStage]:
    """Return the curriculum of the feasibility study: runs of up to 7, 10, 13, ... moves."""
    return [SearchStage(longest, batch_size) for longest in (*range(7, moves, 3), moves)]


@lru_cache(maxsize=8)
def run_lengths(families: tuple[str, ...], longest: int, suites: tuple[str, ...]) -> dict[int, list[Recipe]]:
    """Return all recipes whose run has at most so many moves, by the number of moves.

    A table instead of rejection: letters do not change a run, so a few hundred recipes stand for all puzzles.

    Raises:
        ValueError: an unknown family or suite.
    """
    for name, values, known in (("families", families, FAMILIES), ("suites", suites, tuple(QUESTIONS))):
        unknown = [value for value in values if value not in known]
        if unknown or not values:
            raise ValueError(f"{name}: got {list(values)}; use some of {', '.join(known)}")
    table: dict[int, list[Recipe]] = {}
    for suite in suites:
        for family in families:
            for accept in (True, False):
                for backwards in (False, True):
                    for level in range(1, longest + 1):
                        recipe = Recipe(suite, family, level, accept, backwards)
                        steps = _writable_steps(recipe.puzzle())
                        if steps is not None and steps <= longest:
                            table.setdefault(steps, []).append(recipe)
    return dict(sorted(table.items()))


def _writable_steps(puzzle: Puzzle) -> int | None:
    """Number of moves, None where the prompt cannot write the grammar."""
    try:
        _names(puzzle.grammar)
    except ValueError:
        return None
    return len(puzzle.run().moves)


def draw_puzzles(
    families: tuple[str, ...], suites: tuple[str, ...], stage: SearchStage, rng: random.Random
) -> list[Puzzle]:
    """Draw a batch of a stage: runs of like lengths, permuted letters, yes and no with equal chance if both exist."""
    table = stage.recipes(families, suites)
    longest = rng.choice(list(table))
    near = [recipe for steps, recipes in table.items() if longest - 3 <= steps <= longest for recipe in recipes]
    by_answer = [some for accept in (True, False) if (some := [r for r in near if r.accept == accept])]
    return [
        rng.choice(rng.choice(by_answer)).puzzle(rng.sample(TERMINALS, len(TERMINALS))) for _ in range(stage.batch_size)
    ]
