"""Puzzles for the looped search: their structures, which letterings are for training and which held out, their draws.

A structure is a puzzle up to renaming its terminals. There are only a few hundred of trained lengths, each in at most
120 letterings: a long training sees all that it may draw. One lettering in five is therefore never drawn, and a
measurement asks those alone. Within the trained lengths a question is new by its letters, beyond them altogether.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from zlib import crc32

from datamodules.tasks.grammar.grammar import Grammar, make_grammar
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.search_task import FREE, TERMINALS, SearchTask
from datamodules.tasks.grammar.suites import FAMILIES, Question, count_a, cue_free, original

HELD_OUT = 5
"""One lettering in so many is held out of the training."""

QUESTIONS: Mapping[str, Callable[[str, int, bool], Question]] = {
    "original": original,
    "cue_free": cue_free,
    "count_a": count_a,
}


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


def structure_of(puzzle: Puzzle) -> tuple[str, tuple[str, ...]]:
    """Return a puzzle's prompt with its terminals renamed, and what they were, both in the order of their occurrence.

    Two puzzles with equal results are the same question; with equal first parts they differ in letters only.
    """
    order: list[str] = []
    words = SearchTask().prompt(puzzle, "executor").replace(".", " .").replace(";", " ;").split()
    for at, word in enumerate(words):
        if word in TERMINALS:
            if word not in order:
                order.append(word)
            words[at] = TERMINALS[order.index(word)]
    return " ".join(words), tuple(order)


@dataclass(frozen=True)
class Letterings:
    """The letterings of a structure: what stands for each of a, b, c, ...

    Attributes:
        structure: see `structure_of`.
        trained: those that a training draws.
        held_out: those that it never draws.
    """

    structure: str
    trained: tuple[str, ...]
    held_out: tuple[str, ...]


@lru_cache(maxsize=16_384)
def letterings_of(recipe: Recipe) -> Letterings:
    """Share out the letterings of a recipe, by what its prompt says alone: equal questions fall on the same side."""
    structure, order = structure_of(recipe.puzzle())
    rest = [symbol for symbol in TERMINALS if symbol not in order]
    shares: tuple[list[str], list[str]] = ([], [])
    for number, letters in enumerate(permutations(TERMINALS, len(order)), crc32(structure.encode())):
        spare = [letter for letter in TERMINALS if letter not in letters]
        lettering = {**dict(zip(order, letters, strict=True)), **dict(zip(rest, spare, strict=True))}
        shares[number % HELD_OUT == 0].append("".join(lettering[symbol] for symbol in TERMINALS))
    return Letterings(structure, *map(tuple, shares))


def held_out_puzzles(recipes: Sequence[Recipe], letterings: int, rng: random.Random) -> list[Puzzle]:
    """Return every structure of some recipes once in each of so many held-out letterings, fewer where it has fewer.

    Original and cue-free puzzles have the same yes puzzles, and a rule alone is the same from behind: such a structure
    is asked where it comes first.
    """
    first = {letterings_of(recipe).structure: recipe for recipe in reversed(recipes)}
    chosen = [recipe for recipe in recipes if first[letterings_of(recipe).structure] is recipe]
    puzzles = []
    for recipe in chosen:
        held_out = letterings_of(recipe).held_out
        puzzles += [recipe.puzzle(lettering) for lettering in rng.sample(held_out, min(letterings, len(held_out)))]
    return puzzles


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
        ValueError: an unknown family or suite, or one given twice.
    """
    for name, values, known in (("families", families, FAMILIES), ("suites", suites, tuple(QUESTIONS))):
        unknown = [value for value in values if value not in known]
        if unknown or not values:
            raise ValueError(f"{name}: got {list(values)}; use some of {', '.join(known)}")
        if twice := [value for value in values if values.count(value) > 1]:
            raise ValueError(f"{name}: {twice[0]} is given twice; name it once")
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
    """Number of moves, None where the prompt cannot write the grammar or the budgets end the run."""
    try:
        SearchTask().prompt(puzzle, "executor")
    except ValueError:
        return None
    run = puzzle.run()
    return None if run.verdict == "unknown" else len(run.moves)


def draw_puzzles(
    families: tuple[str, ...], suites: tuple[str, ...], stage: SearchStage, rng: random.Random
) -> list[Puzzle]:
    """Draw a batch of a stage: runs of like lengths in trained letterings, yes and no evenly, if both exist."""
    table = stage.recipes(families, suites)
    longest = rng.choice(list(table))
    near = [recipe for steps, recipes in table.items() if longest - 3 <= steps <= longest for recipe in recipes]
    by_answer = [some for accept in (True, False) if (some := [r for r in near if r.accept == accept])]
    drawn = [rng.choice(rng.choice(by_answer)) for _ in range(stage.batch_size)]
    return [recipe.puzzle(rng.choice(letterings_of(recipe).trained)) for recipe in drawn]
