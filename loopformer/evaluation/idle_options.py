"""Options of the grammar benchmark that would do nothing are refused, in one line that says whom they are for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loopformer.evaluation.grammar_questions import BRACKET_DEPTHS, MADE_WITH, SEARCH_RUNS, GrammarOptions

OF_LOOPED = ("machine", "suite", "slack")
"""Options that say nothing to a model that writes."""

OF_WRITERS = ("lane", "puzzles", "pairs", "listing", "max_new_tokens", "thinking_tokens")
"""Options that say nothing to a looped model."""

OF_JSON = ("listing", "thinking_tokens")
"""Options that say nothing to a model that writes in letters: its prompts are those of its training."""

OF_BRACKETS, OF_SEARCH = (*MADE_WITH[BRACKET_DEPTHS], "suite"), MADE_WITH[SEARCH_RUNS]
"""Options of a looped model that say nothing to one of the other machine."""


def refuse_writers_options(options: GrammarOptions, source: str) -> None:
    """Refuse what a looped model has no use for, whatever its machine.

    Args:
        options: what to evaluate.
        source: what the model is called in messages.

    Raises:
        ValueError: an option is for models that write.
    """
    _refuse(options, OF_WRITERS, "models that write", f"{source} is looped")


def refuse_other_machines_options(options: GrammarOptions, machine: str) -> None:
    """Refuse options of the puzzles of another machine.

    Args:
        options: what to evaluate.
        machine: the machine that a looped model runs.

    Raises:
        ValueError: an option is for another machine.
    """
    search = machine == "search"
    idle, audience = (OF_BRACKETS, "the machines of brackets") if search else (OF_SEARCH, "machine search")
    _refuse(options, idle, audience, f"this model runs {machine}")


def refuse_idle_options(options: GrammarOptions, suites: Sequence[str], letters: bool, source: str) -> None:
    """Refuse what an ordinary model has no use for.

    Args:
        options: what to evaluate.
        suites: names of the suites that it is asked.
        letters: whether it writes in letters.
        source: what the model is called in messages.

    Raises:
        ValueError: an option is for looped models, for models that write JSON, or for puzzles that are not asked.
    """
    _refuse(options, OF_LOOPED, "looped models", f"{source} writes")
    if letters:
        _refuse(options, OF_JSON, "models that write JSON", f"{source} writes letters")
    for suite, names in MADE_WITH.items():
        if suite not in suites:
            _refuse(options, names, f"the puzzles {suite}", f"{source} is asked {','.join(suites)}")


def _refuse(options: GrammarOptions, names: Iterable[str], audience: str, instead: str) -> None:
    usual = GrammarOptions()
    for name in names:
        if getattr(options, name) != getattr(usual, name):
            raise ValueError(f"grammar.{name}: is for {audience}; {instead}, leave it out")
