"""Forms and frames: the grammar compiled for the search, so that a move costs microseconds.

A form is a list of symbols with some nonterminals still in it. The search needs three things of it: where its leftmost
nonterminal stands, how many terminals it has, and which productions may come next. A child form takes them over from
its parent, because nothing before the leftmost nonterminal ever changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from datamodules.tasks.grammar.grammar import Grammar
from datamodules.tasks.grammar.moves import Move, try_production

Phase = Literal["entered", "await_bt", "expanding"]


@dataclass(frozen=True)
class Rule:
    """A production as the search uses it.

    Attributes:
        rhs: its right-hand side.
        lead: number of terminals before its first nonterminal (all of them if it has none).
        terminals: number of terminals in all.
        move: the move that tries it.
    """

    rhs: tuple[str, ...]
    lead: int
    terminals: int
    move: Move


class Frame:
    """One form on the stack.

    Attributes:
        form: the symbols.
        lead: index of the leftmost nonterminal, the length of the form if there is none.
        terminals: number of terminals in the form.
        choices: the rules of the leftmost nonterminal, in list order.
        tried: how many of them have been tried (always the first ones).
        phase: "entered", "await_bt" or "expanding".
    """

    __slots__ = ("choices", "form", "lead", "phase", "terminals", "tried")

    def __init__(self, form: tuple[str, ...], lead: int, terminals: int, choices: tuple[Rule, ...]) -> None:
        self.form = form
        self.lead = lead
        self.terminals = terminals
        self.choices = choices
        self.tried = 0
        self.phase: Phase = "entered"

    def tried_names(self) -> list[str]:
        """Return the names of the productions tried here, in order."""
        return [rule.move.value for rule in self.choices[: self.tried]]


class Forms:
    """Makes the frames of one grammar."""

    def __init__(self, grammar: Grammar) -> None:
        def rule(index: int) -> Rule:
            rhs = grammar.productions[index].rhs
            lead = next((at for at, symbol in enumerate(rhs) if symbol in grammar.alternatives), len(rhs))
            terminals = sum(symbol not in grammar.alternatives for symbol in rhs)
            return Rule(rhs, lead, terminals, try_production(grammar.names[index]))

        self._rules = {symbol: tuple(map(rule, indices)) for symbol, indices in grammar.alternatives.items()}

    def root(self, start: str) -> Frame:
        """Return the first frame of a search."""
        return Frame((start,), 0, 0, self._rules[start])

    def child(self, parent: Frame, rule: Rule) -> Frame:
        """Return the frame whose form is the parent's with its leftmost nonterminal rewritten."""
        at = parent.lead
        form = parent.form[:at] + rule.rhs + parent.form[at + 1 :]
        lead = at + rule.lead
        if rule.lead == len(rule.rhs):
            # A rule of terminals only: the next nonterminal is further right, past terminals of the parent.
            while lead < len(form) and form[lead] not in self._rules:
                lead += 1
        choices = self._rules[form[lead]] if lead < len(form) else ()
        return Frame(form, lead, parent.terminals + rule.terminals, choices)
