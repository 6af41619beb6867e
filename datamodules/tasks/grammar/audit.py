"""The shortcut audit: what cheap guesses score on a suite. A sound suite leaves them at 50%.

    python -m datamodules.grammar_audit            # prints the table of every suite, in a few minutes

The battery is `cheap_rules.CHEAP_RULES`, a classifier over the bag of symbols, and one over neighbours too. The
classifiers are tested on pairs they were not trained on. Every rule is one guess; read the other way round it scores
what is missing to 100%, so a score far below 50% is as bad as one far above.

Source: specification of the grammar task, section "Suites".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from datamodules.tasks.grammar.brackets import BracketPuzzle
from datamodules.tasks.grammar.cheap_rules import CHEAP_RULES
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.search import Limits
from datamodules.tasks.grammar.seeds import seeded

FOLDS = 5
_Z = 1.96


@dataclass(frozen=True)
class Guess:
    """What one cheap guess scores.

    Attributes:
        name: the rule or classifier.
        correct: puzzles guessed right.
        total: puzzles.
    """

    name: str
    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        """Share guessed right."""
        return self.correct / self.total

    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95% interval of the accuracy."""
        n, share = self.total, self.accuracy
        middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
        return middle - half, middle + half

    @property
    def is_chance(self) -> bool:
        """Whether 50% lies in the interval."""
        low, high = self.interval()
        return low <= 0.5 <= high


def bag_of_symbols(puzzle: Puzzle) -> Counter[str]:
    """Return how often every symbol stands in the string and in the rules, and the sizes of both."""
    bag = Counter(f"string {symbol}" for symbol in puzzle.string)
    bag.update(f"rules {symbol}" for p in puzzle.grammar.productions for symbol in (p.lhs, *p.rhs))
    bag.update({"length": len(puzzle.string), "rules": len(puzzle.grammar.productions)})
    bag.update({"max_depth": puzzle.limits.max_depth, "longest": max(len(p.rhs) for p in puzzle.grammar.productions)})
    return bag


def bag_of_neighbours(puzzle: Puzzle) -> Counter[str]:
    """Return the bag of symbols with all pairs of neighbours, in the string and in the rules."""
    bag = bag_of_symbols(puzzle)
    bag.update(f"string {a} {b}" for a, b in zip(puzzle.string, puzzle.string[1:], strict=False))
    for p in puzzle.grammar.productions:
        bag.update(f"rules {a} {b}" for a, b in zip(p.rhs, p.rhs[1:], strict=False))
    return bag


CLASSIFIERS: Mapping[str, Callable[[Puzzle], Counter[str]]] = {
    "classifier: bag of symbols": bag_of_symbols,
    "classifier: and of neighbours": bag_of_neighbours,
}


def audit(puzzles: Sequence[Puzzle]) -> list[Guess]:
    """Return what the whole battery scores on a suite."""
    right: Counter[str] = Counter()
    for puzzle in puzzles:
        # Puzzle by puzzle, so that all rules use what was worked out for its grammar.
        right.update(name for name, rule in CHEAP_RULES.items() if rule(puzzle) == puzzle.accept)
    guesses = [Guess(name, right[name], len(puzzles)) for name in CHEAP_RULES]
    return guesses + [Guess(name, classify(puzzles, features), len(puzzles)) for name, features in CLASSIFIERS.items()]


def classify(puzzles: Sequence[Puzzle], features: Callable[[Puzzle], Counter[str]]) -> int:
    """Return how many labels a logistic regression guesses right, in a cross-validation that never splits a pair."""
    bags = [features(puzzle) for puzzle in puzzles]
    names = sorted(set().union(*bags))
    table = np.array([[bag[name] for name in names] for bag in bags], dtype=float)
    labels = np.array([puzzle.accept for puzzle in puzzles], dtype=float)
    pairs = sorted({puzzle.pair for puzzle in puzzles})
    seeded("audit").shuffle(pairs)
    fold_of = {pair: index % FOLDS for index, pair in enumerate(pairs)}
    folds = np.array([fold_of[puzzle.pair] for puzzle in puzzles])
    correct = 0
    for fold in range(FOLDS):
        train, test = folds != fold, folds == fold
        if not test.any():
            continue
        centre, scale = table[train].mean(0), table[train].std(0) + 1e-9
        weights = _logistic((table[train] - centre) / scale, labels[train])
        scores = _with_bias((table[test] - centre) / scale) @ weights
        # Puzzles the features cannot tell apart must get one guess, so rounding may not decide.
        correct += int(((scores > 1e-9) == (labels[test] == 1)).sum())
    return correct


def _with_bias(table: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.concatenate([table, np.ones((len(table), 1))], axis=1)


def _logistic(table: NDArray[np.floating], labels: NDArray[np.floating], ridge: float = 1.0) -> NDArray[np.floating]:
    """Fit a logistic regression with a ridge by Newton's method."""
    table = _with_bias(table)
    weights = np.zeros(table.shape[1])
    for _ in range(25):
        chance = 1 / (1 + np.exp(-np.clip(table @ weights, -30, 30)))
        slope = table.T @ (labels - chance) - ridge * weights
        curve = (table * (chance * (1 - chance))[:, None]).T @ table + ridge * np.eye(len(weights))
        weights = weights + np.linalg.solve(curve, slope)
    return weights


def bracket_questions(puzzles: Sequence[BracketPuzzle]) -> list[Puzzle]:
    """Write bracket puzzles with the grammar of their correct strings, so that the battery can score them."""
    return [
        Puzzle(
            name=puzzle.name,
            family="brackets",
            level=puzzle.depth,
            pair=puzzle.name.rpartition("-")[0],
            grammar=puzzle.alphabet.grammar(),
            string=puzzle.string,
            limits=Limits(puzzle.depth + 4),
            accept=puzzle.accept,
        )
        for puzzle in puzzles
    ]


def report(suites: Mapping[str, Sequence[Puzzle]]) -> str:
    """Return a table of what every guess scores on every suite, in percent; * marks those that are not chance."""
    columns = {name: audit(puzzles) for name, puzzles in suites.items()}
    lines = [f"{'guess':38}" + "".join(f"{name:>15}" for name in columns)]
    for row in zip(*columns.values(), strict=True):
        cells = (f"{100 * guess.accuracy:.1f}{' ' if guess.is_chance else '*'}" for guess in row)
        lines.append(f"{row[0].name:38}" + "".join(f"{cell:>15}" for cell in cells))
    sizes = {name: Guess("", len(puzzles) // 2, len(puzzles)).interval() for name, puzzles in suites.items()}
    lines.append(f"{'95% interval of 50%':38}" + "".join(f"{f'+-{50 * (b - a):.1f} ':>15}" for a, b in sizes.values()))
    return "\n".join(lines)
