"""Prompt templates of the graph task, and their compilation to token ids.

A template is text with named places. Compiling it tokenises whole rendered prompts once, at set-up, finds which columns
change when the symbol changes, and proves that each symbol is one token, the same one, in every place. A batch of
prompts is then NumPy indexing; no example is ever tokenised, and no cut between tokens is assumed, so tokenizers that
merge punctuation (`) (` as one token) fit as long as symbols and digits stay tokens of their own.

Shape legend: G examples, n rules, S tokens, V symbols, M digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from datamodules.tasks.graph import IntArray

View = Literal["full", "executor"]
VIEWS: tuple[View, View] = ("full", "executor")

DIGITS = "0123456789"


@dataclass(frozen=True)
class Template:
    """Wording of a prompt. A symbol is written with a leading space (" K"), as it is when it is the answer.

    Attributes:
        name: name of the template, for configuration and error messages.
        full: the prompt with places {rules}, {start} and {steps}.
        executor: the prompt without the count, with places {rules} and {start}.
        rule: one rule with places {source} and {target}.
        separator: text between two rules.
    """

    name: str
    full: str
    executor: str
    rule: str
    separator: str = ""

    def render(self, view: View, sources: Sequence[str], targets: Sequence[str], start: str, steps: str) -> str:
        """Write a prompt; sources, targets and start are symbol texts (" K"), steps is the count in digits."""
        rules = (self.rule.format(source=a, target=b) for a, b in zip(sources, targets, strict=True))
        text = self.full if view == "full" else self.executor
        return text.format(rules=self.separator.join(rules), start=start, steps=steps)


TEMPLATES = {
    template.name: template
    for template in (
        Template(
            name="published",
            full="Rules:{rules}\nStart:{start}\nSteps: {steps}\nAnswer:",
            executor="Rules:{rules}\nStart:{start}\nAnswer:",
            rule=" ({source},{target})",
        ),
        Template(
            name="arrows",
            full="Edges:{rules}\nFrom:{start}\nMoves: {steps}\nEnd:",
            executor="Edges:{rules}\nFrom:{start}\nEnd:",
            rule="{source} ->{target}",
            separator=";",
        ),
        Template(
            name="sentences",
            full="Start at{start} and move {steps} times.{rules}\nYou reach:",
            executor="Start at{start} and move.{rules}\nYou reach:",
            rule=" From{source} go to{target}.",
        ),
    )
}
"""Wordings by name; "published" is the specification's, the others are for training on some and testing on others."""


def find_template(name: str) -> Template:
    """Look up a template.

    Raises:
        ValueError: no such template.
    """
    if name not in TEMPLATES:
        raise ValueError(f"template: got {name!r}; use one of {', '.join(TEMPLATES)}")
    return TEMPLATES[name]


@dataclass(frozen=True)
class Layout:
    """Token ids of one view of a template for n rules and M digits, and the columns to fill in.

    Attributes:
        ids: [S] int64 constant ids; the places hold arbitrary ones.
        sources: [n] columns of the rule sources, in displayed order.
        targets: [n] columns of the rule destinations.
        start: column of the start symbol.
        digits: [M] columns of the count's digits (empty in the executor view).
    """

    ids: NDArray[np.int64]
    sources: IntArray
    targets: IntArray
    start: int
    digits: IntArray


class PromptCompiler:
    """Compiles one template for one tokenizer and set of symbols; layouts are made on first use and kept.

    Args:
        tokenizer: any Hugging Face tokenizer; no special tokens are added.
        template: the wording.
        symbols: [V] text of each symbol with its leading space, which is also the label's continuation text.

    Raises:
        ValueError: a symbol or a digit is not one token of its own somewhere (names template, symbol and fix).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: Template, symbols: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.symbols = tuple(symbols)
        self._layouts: dict[tuple[View, int, int], Layout] = {}
        self.symbol_ids = self._find_symbol_ids()
        self.digit_ids = self._find_digit_ids()

    def layout(self, view: View, rules: int, digits: int) -> Layout:
        """Return the layout of a view for a number of rules and of digits (ignored in the executor view)."""
        key = (view, rules, digits if view == "full" else 0)
        if key not in self._layouts:
            self._layouts[key] = self._compile(*key)
        return self._layouts[key]

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise whole texts with the real tokenizer (set-up and checks only)."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def _uniform(self, view: View, rules: int, symbol: str, steps: str) -> str:
        return self.template.render(view, [symbol] * rules, [symbol] * rules, symbol, steps)

    def _find_symbol_ids(self) -> NDArray[np.int64]:
        """[V] id of each symbol as the answer, after a prompt of either view."""
        found: dict[str, int] = {}
        for view in VIEWS:
            prompts = [self._uniform(view, 1, symbol, "1") for symbol in self.symbols]
            answered = self.tokenize([p + symbol for p, symbol in zip(prompts, self.symbols, strict=True)])
            for symbol, alone, ids in zip(self.symbols, self.tokenize(prompts), answered, strict=True):
                if len(ids) != len(alone) + 1 or ids[:-1] != alone or found.setdefault(symbol, ids[-1]) != ids[-1]:
                    raise self._error(symbol, f"as the answer of the {view} view")
        if len(set(found.values())) < len(found):
            ids_of = list(found.values())
            twin = next(symbol for symbol in self.symbols if ids_of.count(found[symbol]) > 1)
            raise self._error(twin, "since it shares its token (unknown?) with another symbol")
        return np.array(list(found.values()), dtype=np.int64)

    def _find_digit_ids(self) -> NDArray[np.int64]:
        """[10] id of each digit of the count, checked in counts of one and of two digits."""
        one = self._varying("full", 1, [(self.symbols[0], d) for d in DIGITS], DIGITS, "count")
        ids = one.ids[:, one.columns]
        if ids.shape[1] != 1 or len(set(ids[:, 0].tolist())) < len(DIGITS):
            raise self._error(DIGITS, "in the count")
        return ids[:, 0].astype(np.int64)

    def _compile(self, view: View, rules: int, digits: int) -> Layout:
        steps = "1" * digits
        grid = self._varying(view, rules, [(s, steps) for s in self.symbols], self.symbols, "rules or start")
        # Placeholders that no template contains tell the order of the places in the text.
        order = [c for c in self.template.render(view, ["\0"] * rules, ["\1"] * rules, "\2", "") if c in "\0\1\2"]
        if len(grid.columns) != len(order):
            raise self._error(self.symbols[0], f"in a {view} prompt of {rules} rules")
        wrong = grid.ids[:, grid.columns] != self.symbol_ids[:, None]
        if wrong.any():
            symbol, place = np.argwhere(wrong)[0]
            where = {"\0": "as a rule source", "\1": "as a rule destination", "\2": "as the start"}[order[place]]
            raise self._error(self.symbols[symbol], where)
        columns = {mark: grid.columns[np.array([c == mark for c in order])] for mark in "\0\1\2"}
        return Layout(
            ids=grid.ids[0],
            sources=columns["\0"],
            targets=columns["\1"],
            start=int(columns["\2"][0]),
            digits=self._digit_columns(rules, digits) if view == "full" else np.empty(0, dtype=np.int64),
        )

    def _digit_columns(self, rules: int, digits: int) -> IntArray:
        grid = self._varying("full", rules, [(self.symbols[0], d * digits) for d in DIGITS], DIGITS, "count")
        wrong = grid.ids[:, grid.columns] != self.digit_ids[:, None]
        if len(grid.columns) != digits or wrong.any():
            raise self._error(DIGITS[np.argwhere(wrong)[0][0]] if wrong.any() else DIGITS, f"in a count of {digits}")
        return grid.columns

    def _varying(
        self, view: View, rules: int, fills: Sequence[tuple[str, str]], values: Sequence[str], where: str
    ) -> _Grid:
        """Tokenise one prompt per (symbol, count) and find the columns in which they differ."""
        rows = self.tokenize([self._uniform(view, rules, symbol, steps) for symbol, steps in fills])
        lengths = [len(row) for row in rows]
        usual = max(set(lengths), key=lengths.count)
        for value, length in zip(values, lengths, strict=True):
            if length != usual:
                raise self._error(value, f"in the {where}")
        ids = np.array(rows, dtype=np.int64)
        return _Grid(ids, np.flatnonzero((ids != ids[0]).any(axis=0)))

    def _error(self, symbol: str, where: str) -> ValueError:
        return ValueError(
            f"template {self.template.name!r}: {symbol!r} is not one token of its own {where}; "
            "use a template that sets it apart by spaces, or a tokenizer with one token for it"
        )


@dataclass(frozen=True)
class _Grid:
    """Prompts that differ in one value only: [values, S] ids and the columns that differ."""

    ids: NDArray[np.int64]
    columns: IntArray
