"""Context-free grammars: validated on construction, to JSON and back.

Productions stand in one global ordered list and are named p0, p1, ... by their position. A grammar that the search
could not run through (an empty right-hand side, left recursion) is refused here, with a message that names the
production, so that everything behind this file may rely on it.

Source: specification of the grammar task, section "Grammar".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


class GrammarError(ValueError):
    """A grammar, or a string for it, that breaks a rule of the task."""


@dataclass(frozen=True)
class Production:
    """One rule.

    Attributes:
        lhs: the nonterminal it rewrites.
        rhs: the symbols it is rewritten to, never empty; a list becomes a tuple.
    """

    lhs: str
    rhs: tuple[str, ...]

    def __post_init__(self) -> None:
        given: object = self.rhs
        if isinstance(given, list):  # what else it may be is checked by the grammar, which knows the rule's name
            object.__setattr__(self, "rhs", tuple(given))


@dataclass(frozen=True)
class Grammar:
    """A context-free grammar without empty right-hand sides and without left recursion.

    Attributes:
        start: the start nonterminal.
        nonterminals: all nonterminals; one without any production is allowed (the search rejects it as no_prod).
        terminals: all terminals, one token each; not every one needs to occur in a production.
        productions: the ordered list of rules.

    Lists are taken like tuples, and become tuples.

    Raises:
        GrammarError: a value has the wrong type, a symbol is unknown, empty or listed twice, a right-hand side is
            empty, or a nonterminal can begin with itself (directly or through others).
    """

    start: str
    nonterminals: tuple[str, ...]
    terminals: tuple[str, ...]
    productions: tuple[Production, ...]

    def __post_init__(self) -> None:
        for name in ("nonterminals", "terminals"):
            object.__setattr__(self, name, _symbols(name, getattr(self, name)))
        if not isinstance(self.productions, list | tuple):
            raise GrammarError("productions: use a list of {lhs, rhs}")
        object.__setattr__(self, "productions", tuple(self.productions))
        self._check_symbols()
        self._check_productions()
        self._check_left_recursion()

    def _check_symbols(self) -> None:
        symbols = self.nonterminals + self.terminals
        for symbol in symbols:
            if not symbol or symbol != symbol.strip():
                raise GrammarError(f"symbols: got {symbol!r}; use non-empty texts without surrounding blanks")
        twice = sorted(symbol for symbol, count in Counter(symbols).items() if count > 1)
        if twice:
            raise GrammarError(f"symbols: {', '.join(twice)} listed twice; every symbol is one terminal or nonterminal")
        if self.start not in self.nonterminals:
            raise GrammarError(f"start: got {self.start!r}; use one of the nonterminals {', '.join(self.nonterminals)}")

    def _check_productions(self) -> None:
        left, known = set(self.nonterminals), {*self.nonterminals, *self.terminals}
        for index, production in enumerate(self.productions):
            if not isinstance(production, Production):
                raise GrammarError(f"p{index}: got {production!r}; use a Production")
            if not isinstance(production.lhs, str):
                raise GrammarError(f"p{index}.lhs: got {production.lhs!r}; use one nonterminal")
            _symbols(f"p{index}.rhs", production.rhs)
            if production.lhs not in left:
                raise GrammarError(f"p{index}: left-hand side {production.lhs!r} is not among the nonterminals")
            if not production.rhs:
                raise GrammarError(f"p{index}: the right-hand side of {production.lhs} is empty; give it a symbol")
            unknown = [symbol for symbol in production.rhs if symbol not in known]
            if unknown:
                raise GrammarError(f"p{index}: unknown symbol {unknown[0]!r}; list it as terminal or nonterminal")

    def _check_left_recursion(self) -> None:
        # Right-hand sides are never empty, so A can begin with A exactly if first symbols lead from A back to A.
        begins: dict[str, set[str]] = {symbol: set() for symbol in self.nonterminals}
        for production in self.productions:
            if production.rhs[0] in begins:
                begins[production.lhs].add(production.rhs[0])
        finished: set[str] = set()
        for root in self.nonterminals:
            path: dict[str, None] = {}  # the symbols on the way from the root, in order
            pending = [(root, False)]
            while pending:
                symbol, leaving = pending.pop()
                if leaving:
                    del path[symbol]
                    finished.add(symbol)
                elif symbol in path:
                    way = list(path)
                    cycle = [*way[way.index(symbol) :], symbol]
                    raise GrammarError(f"left recursion: {' -> '.join(cycle)}; the search would never end")
                elif symbol not in finished:
                    path[symbol] = None
                    pending.append((symbol, True))
                    pending.extend((first, False) for first in sorted(begins[symbol]))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the productions, p0, p1, ..."""
        return tuple(f"p{index}" for index in range(len(self.productions)))

    @cached_property
    def alternatives(self) -> Mapping[str, tuple[int, ...]]:
        """Positions of the productions of each nonterminal, in list order."""
        found: dict[str, list[int]] = {symbol: [] for symbol in self.nonterminals}
        for index, production in enumerate(self.productions):
            found[production.lhs].append(index)
        return {symbol: tuple(indices) for symbol, indices in found.items()}

    def check_string(self, string: Sequence[str]) -> tuple[str, ...]:
        """Return the string as a tuple of terminals.

        Raises:
            GrammarError: it is no list or tuple of symbols, such as one text or a set, or holds a symbol that is no
                terminal.
        """
        if not isinstance(string, list | tuple):
            raise GrammarError(f"string: got {string!r}; use a list of one-token symbols")
        symbols = tuple(string)
        for symbol in symbols:
            if symbol not in self.terminals:
                raise GrammarError(f"string: unknown symbol {symbol!r}; the terminals are {', '.join(self.terminals)}")
        return symbols

    def to_json(self) -> dict[str, Any]:
        """Return the grammar as plain JSON data."""
        return {
            "start": self.start,
            "nonterminals": list(self.nonterminals),
            "terminals": list(self.terminals),
            "productions": [{"lhs": p.lhs, "rhs": list(p.rhs)} for p in self.productions],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Grammar:
        """Build a grammar from JSON data.

        Raises:
            GrammarError: a key is missing or unknown, or the grammar itself is invalid.
        """
        check_keys("grammar", data, ("start", "nonterminals", "terminals", "productions"))
        productions = data["productions"]
        if isinstance(productions, list | tuple):
            for index, item in enumerate(productions):
                check_keys(f"p{index}", item, ("lhs", "rhs"))
            productions = tuple(Production(item["lhs"], item["rhs"]) for item in productions)
        return cls(data["start"], data["nonterminals"], data["terminals"], productions)


def make_grammar(rules: Iterable[tuple[str, Iterable[str]]], terminals: Iterable[str] = "abcd") -> Grammar:
    """Build a grammar from (left, right) pairs; everything that is no terminal is a nonterminal, the first left starts.

    Raises:
        GrammarError: there is no rule, or the grammar is invalid.
    """
    productions = tuple(Production(lhs, tuple(rhs)) for lhs, rhs in rules)
    if not productions:
        raise GrammarError("productions: got none; give at least one rule of the start symbol")
    known = tuple(terminals)
    symbols = (symbol for p in productions for symbol in (p.lhs, *p.rhs) if symbol not in known)
    return Grammar(productions[0].lhs, tuple(dict.fromkeys(symbols)), known, productions)


def check_keys(where: str, data: object, keys: tuple[str, ...]) -> None:
    """Check that some JSON data is an object with exactly these keys.

    Raises:
        GrammarError: it is not (names `where`).
    """
    if not isinstance(data, Mapping):
        raise GrammarError(f"{where}: got {type(data).__name__}; use an object with the keys {', '.join(keys)}")
    if set(data) != set(keys):
        raise GrammarError(f"{where}: got the keys {', '.join(map(str, data))}; use exactly {', '.join(keys)}")


def _symbols(where: str, data: object) -> tuple[str, ...]:
    if not isinstance(data, list | tuple):
        raise GrammarError(f"{where}: got {type(data).__name__}; use a list of symbols")
    for symbol in data:
        if not isinstance(symbol, str):
            raise GrammarError(f"{where}: got the symbol {symbol!r}; symbols are texts")
    return tuple(data)
