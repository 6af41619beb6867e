"""Looped batches of the grammar task: the bracket machine and the prescribed search.

data:
  class_path: datamodules.grammar.GrammarDataModule
  init_args:
    train: {class_path: BracketStream}
    validation: {class_path: BracketDepths}
"""

from __future__ import annotations

import random

from transformers import PreTrainedTokenizerBase

from datamodules.procedure import InstanceSet, InstanceStream, ProcedureDataModule
from datamodules.tasks.grammar.bracket_task import (
    BracketStage,
    BracketString,
    BracketTask,
    balanced_string,
    draw_strings,
    growing_depths,
    wrong_closer,
)


class GrammarDataModule(ProcedureDataModule):
    """Loads runs of a grammar machine; one loop is one move, and the number of moves is never in the prompt.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        train: where training instances come from; default brackets to depth 6.
        validation: what is evaluated during training; default brackets within and beyond that depth.
        seed: seed of the stream. Not negative.

    Raises:
        ValueError: see `ProcedureDataModule`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        train: InstanceStream | None = None,
        validation: InstanceSet | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(tokenizer, train or BracketStream(), validation or BracketDepths(), seed)


class BracketStream(InstanceStream[BracketString]):
    """Unlimited bracket strings that grow deeper from stage to stage.

    Args:
        stages: the curriculum; default `growing_depths()`, depth 1 to 6 and then junk behind the end.
        batches_per_epoch: length of what counts as an epoch.

    Raises:
        ValueError: no stage, or fewer than 1 batch.
    """

    def __init__(self, stages: list[BracketStage] | None = None, batches_per_epoch: int = 1_000) -> None:
        super().__init__(batches_per_epoch)
        if stages is not None and not stages:
            raise ValueError("train.stages: the list is empty; give at least one stage or leave it out")
        self.stages = growing_depths() if stages is None else stages
        self.procedure = self._task = BracketTask()

    def draw(self, rng: random.Random, stage: int) -> list[BracketString]:
        """Draw one batch of a stage."""
        return draw_strings(self._task.alphabet, self.stages[stage], rng)

    def counts(self) -> list[int]:
        """Return the numbers of moves up to those of the deepest string (opening, centre, closing, verdict)."""
        deepest = max(stage.depth for stage in self.stages)
        return list(range(1, 2 * deepest + 2 + 1))


class BracketDepths(InstanceSet[BracketString]):
    """As many correct strings as strings with one wrong closer, anywhere, at each of some depths.

    Args:
        depths: openers of the strings.
        per_depth: correct strings of each depth, and as many wrong ones.
        seed: decides the strings; every depth has its own generator.
        batch_size: strings of a batch on one rank.

    Raises:
        ValueError: no depth, a depth below 1, or fewer than 1 string.
    """

    def __init__(
        self, depths: list[int] | None = None, per_depth: int = 32, seed: int = 7, batch_size: int = 64
    ) -> None:
        super().__init__(batch_size)
        self.depths = [4, 6, 8, 16, 32] if depths is None else depths
        if not self.depths or min(self.depths) < 1 or per_depth < 1:
            raise ValueError(
                f"validation: got depths {self.depths} and per_depth {per_depth}; use at least one depth and string, "
                "each 1 or more"
            )
        self.per_depth = per_depth
        self.seed = seed
        self.procedure = self._task = BracketTask()

    def instances(self) -> list[BracketString]:
        """Make the strings: yes and no alternate."""
        alphabet, strings = self._task.alphabet, []
        for depth in self.depths:
            rng = random.Random(f"brackets:{self.seed}:{depth}")
            for _ in range(self.per_depth):
                openers = rng.choices((0, 1), k=depth)
                strings.append(BracketString(balanced_string(alphabet, openers), depth=depth))
                strings.append(wrong_closer(alphabet, depth, rng))
        return strings
