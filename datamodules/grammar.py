"""Looped batches of the grammar task: the bracket machine and the prescribed search.

data:
  class_path: datamodules.grammar.GrammarDataModule
  init_args:
    train: {class_path: BracketStream}
    validation: {class_path: BracketDepths}
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from datamodules.grammar_sources import BracketDepths, BracketStream, SearchRuns, SearchStream, check_alphabets
from datamodules.procedure import InstanceSet, InstanceStream, ProcedureDataModule
from datamodules.tasks.grammar.bracket_task import BracketTask
from datamodules.tasks.procedure import Procedure

ASKED = "grammar --grammar.machine "
"""What stands before the machine's name where a model says how to evaluate it."""

__all__ = ["BracketDepths", "BracketStream", "GrammarDataModule", "SearchRuns", "SearchStream"]


class GrammarDataModule(ProcedureDataModule):
    """Loads runs of a grammar machine; one loop is one move, and the number of moves is never in the prompt.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        train: where training instances come from; default brackets to depth 6.
        validation: what is evaluated during training; default brackets within and beyond that depth.
        seed: seed of the stream. Not negative.

    Raises:
        ValueError: see `ProcedureDataModule`; or only one of the parts has permuted alphabets.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        train: InstanceStream | None = None,
        validation: InstanceSet | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(tokenizer, train or BracketStream(), validation or BracketDepths(), seed)
        check_alphabets(self.train_source, self.validation)
        self.benchmarks = (ASKED + machine_name(self.train_source.procedure),)


def machine_name(task: Procedure[Any]) -> str:
    """Return what `evaluate.py --grammar.machine` calls a task."""
    if isinstance(task, BracketTask):
        return "permuted_brackets" if task.permuted else "brackets"
    return "search"
