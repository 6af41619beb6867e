"""The recogniser that labels come from: Lark's Earley parser, which shares nothing with the search.

Lark is needed only where puzzles are made or their labels tested; the engine runs without it (`pip install lark`).

    recognises(grammar, "a a b".split())   # True or False

Source: specification of the grammar task ("a chart parser of a well-kept library"); https://github.com/lark-parser/lark
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from datamodules.tasks.grammar.grammar import Grammar, Production

try:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput
    from lark.lexer import Lexer
except ImportError as error:
    raise ImportError("labels of grammar puzzles come from Lark's Earley parser: pip install lark") from error


class _Symbols(Lexer):
    """Hands a list of terminal names to the parser as its tokens: there is no text to cut up."""

    def __init__(self, conf: Any) -> None:
        """Take the configuration Lark passes to every lexer; there is nothing to configure."""

    def lex(self, lexer_state: Any, parser_state: Any = None) -> Iterator[Token]:  # noqa: ARG002
        for name in lexer_state:
            yield Token(name, name)


def recognises(grammar: Grammar, string: Sequence[str]) -> bool:
    """Return whether the grammar generates the string.

    Raises:
        GrammarError: the string holds an unknown symbol.
    """
    symbols = grammar.check_string(string)
    parser = _parser(grammar)
    if parser is None:
        return False
    names = {symbol: f"T{index}" for index, symbol in enumerate(grammar.terminals)}
    try:
        parser.parse([names[symbol] for symbol in symbols])
    except UnexpectedInput:
        return False
    return True


@lru_cache(maxsize=64)
def _parser(grammar: Grammar) -> Lark | None:
    """Return the parser of a grammar, None if its start symbol can never lose its nonterminals."""
    usable = _usable(grammar)
    if not any(production.lhs == grammar.start for production in usable):
        return None
    names = {symbol: f"n{index}" for index, symbol in enumerate(grammar.nonterminals)}
    names |= {symbol: f"T{index}" for index, symbol in enumerate(grammar.terminals)}
    # A rule given twice is fine in a puzzle and an error in Lark; the language is the same.
    alternatives: dict[str, dict[str, None]] = {}
    for production in usable:
        rhs = " ".join(names[symbol] for symbol in production.rhs)
        alternatives.setdefault(names[production.lhs], {})[rhs] = None
    lines = [f"start: {names[grammar.start]}", f"%declare {' '.join(names[symbol] for symbol in grammar.terminals)}"]
    lines += [f"{lhs}: {' | '.join(sides)}" for lhs, sides in alternatives.items()]
    # The forest is never looked at: "forest" only spares the time of picking one tree out of it.
    return Lark("\n".join(lines), parser="earley", lexer=_Symbols, ambiguity="forest")


def _usable(grammar: Grammar) -> list[Production]:
    """Drop the productions with a nonterminal that has none (left): Lark refuses them, and they generate nothing."""
    usable = list(grammar.productions)
    while True:
        dead = set(grammar.nonterminals) - {production.lhs for production in usable}
        kept = [production for production in usable if not dead.intersection(production.rhs)]
        if len(kept) == len(usable):
            return kept
        usable = kept
