"""LightningDataModule of the grammar task for ordinary language models: the examples of one supervision arm.

data:
  class_path: datamodules.grammar_text.GrammarTextDataModule
  init_args:
    arm: runs
    train: {class_path: SearchPool, init_args: {pairs: 360}}            # or BracketPool
    validation: {class_path: SearchPool, init_args: {split: validation, pairs: 12}}
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any, ClassVar, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from datamodules.grammar_sources import BracketDepths
from datamodules.loader import BatchLoader, EvaluationOrder, TrainingOrder
from datamodules.resumable import ResumableDataModule
from datamodules.tasks.grammar.arms import TrainedLanes, examples, find_arm
from datamodules.tasks.grammar.brackets import training_puzzles
from datamodules.tasks.grammar.lane_items import LaneItem, Machine, bracket_item, search_item
from datamodules.tasks.grammar.lane_suites import string_items
from datamodules.tasks.grammar.pool import FAMILIES, check_pool, training_pool
from datamodules.tasks.procedure import TextExample
from datamodules.text import TextBatch, TextEncoder
from datamodules.text_rows import TextRows, length_groups

logger = logging.getLogger(__name__)

DEEPEST = 7
"""Most openers of all openings times all closings: 21,845 strings already."""


class PuzzlePool(ABC):
    """Where the puzzles of training or validation come from.

    Attributes:
        machine: whose puzzles they are.
    """

    machine: ClassVar[Machine]

    @abstractmethod
    def items(self) -> list[LaneItem]:
        """Return the puzzles, as many yes as no."""


class SearchPool(PuzzlePool):
    """Contrast pairs of the training pool (`datamodules.tasks.grammar.pool`).

    Args:
        pairs: number of pairs.
        split: "train" or "validation", which share no shape of a grammar.
        families: some of regular, nested, branching.
        seed: decides the grammars.

    Raises:
        ValueError: an option is out of range.
    """

    machine = "search"

    def __init__(
        self,
        pairs: int = 360,
        split: Literal["train", "validation"] = "train",
        families: list[str] = list(FAMILIES),  # noqa: B006
        seed: int = 0,
    ) -> None:
        check_pool(split, pairs, families)
        self.pairs, self.split, self.families, self.seed = pairs, split, tuple(families), seed

    def items(self) -> list[LaneItem]:
        """Make the pairs."""
        puzzles = training_pool(self.split, self.pairs, self.families, self.seed)
        return [search_item(puzzle, self.split) for puzzle in puzzles]


class BracketPool(PuzzlePool):
    """The training strings of brackets: all openings and closings to a depth, and coverage strings.

    There are many more incorrect strings than correct ones, so the correct ones come again and again until both are
    equally many.

    Args:
        max_depth: most openers, up to `DEEPEST`.

    Raises:
        ValueError: `max_depth` is out of range.
    """

    machine = "brackets"

    def __init__(self, max_depth: int = 4) -> None:
        if not 0 <= max_depth <= DEEPEST:
            raise ValueError(f"max_depth: got {max_depth}; use 0 to {DEEPEST}, the strings grow as 4^max_depth")
        self.max_depth = max_depth

    def items(self) -> list[LaneItem]:
        """Make the strings."""
        found = [bracket_item(puzzle, "train") for puzzle in training_puzzles(self.max_depth)]
        yes, no = ([item for item in found if item.accept == answer] for answer in (True, False))
        return [*islice(cycle(yes), len(no)), *no]


class BracketStrings(PuzzlePool):
    """Random strings of brackets in the training alphabet, correct or with one wrong closer.

    Args:
        depths: openers of the strings.
        per_depth: correct strings of each depth, and as many wrong ones.
        seed: decides the strings.

    Raises:
        ValueError: no depth, a depth below 1, or fewer than 1 string.
    """

    machine = "brackets"

    def __init__(self, depths: list[int] = [5, 6], per_depth: int = 8, seed: int = 7) -> None:  # noqa: B006
        self._source = BracketDepths(depths, per_depth, seed)

    def items(self) -> list[LaneItem]:
        """Make the strings."""
        return string_items(self._source.instances(), "validation")


class GrammarTextDataModule(ResumableDataModule):
    """Loads the examples of a supervision arm. No evaluated grammar, whatever its letters, is ever among them.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        arm: what the model learns to write: "answers", "moves", "runs" or "mixed".
        train: puzzles to train on; default 360 pairs of the search's pool.
        validation: puzzles to validate on; default 12 pairs of other shapes.
        listing: say in the prompts how the machine moves.
        moves: states of each run that are shown for a single move.
        batch_size: examples of a batch on one rank.
        longest: longest example in tokens; longer ones are left out, and reported.
        generated: validation examples that are also validated by generation.
        seed: seed of the order and of the states that are shown. Not negative.

    Raises:
        ValueError: an option is out of range, the arm is unknown, or no example is left.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        arm: str = "runs",
        train: PuzzlePool | None = None,
        validation: PuzzlePool | None = None,
        listing: bool = False,
        moves: int = 16,
        batch_size: int = 2,
        longest: int = 4_096,
        generated: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        bounds = (
            ("moves", moves, 1),
            ("batch_size", batch_size, 1),
            ("longest", longest, 2),
            ("generated", generated, 0),
        )
        for name, value, least in (*bounds, ("seed", seed, 0)):
            if value < least:
                raise ValueError(f"{name}: got {value}; use {least} or more")
        find_arm(arm)
        self.seed, self._batch_size, self._longest, self._moves = seed, batch_size, longest, moves
        self._encoder, self._generated = TextEncoder(tokenizer, thinking=False), generated
        self.train_pool = SearchPool() if train is None else train
        self._lanes = TrainedLanes(arm, listing, self.train_pool.machine)
        self.benchmarks = (f"grammar --grammar.puzzles {self._lanes.suite}",)
        self.validation_pool = SearchPool(12, "validation") if validation is None else validation
        self._texts: dict[str, list[TextExample]] = {}

    @property
    def style(self) -> str:
        """Arm, prompt and machine as an exported model remembers them, so that an evaluation asks in the same way."""
        return self._lanes.text

    def texts(self, split: str) -> list[TextExample]:
        """Return the examples of "train" or "validation", made on first use."""
        if split not in self._texts:
            pool = self.train_pool if split == "train" else self.validation_pool
            made = examples(pool.items(), self._lanes.arm, self._lanes.listing, self._moves, self.seed)
            self._texts[split] = self._fitting(made, split)
        return self._texts[split]

    def train_batches(self, rank: int, world: int) -> TextRows:
        """Return the training batches of one rank out of `world`, each of examples of like length."""
        texts = self.texts("train")
        groups = length_groups(texts)
        order = TrainingOrder(len(texts), self._batch_size, self.seed, groups=groups, rank=rank, world=world)
        return TextRows(self._encoder, texts, order)

    def val_dataloader(self) -> BatchLoader[TextBatch]:
        """Return this rank's validation batches; some examples, spread over all, are generated too."""
        texts = self.texts("validation")
        rank, world = self.place()
        order = EvaluationOrder(length_groups(texts), self._batch_size, rank=rank, world=world)
        marks = np.zeros(len(texts), dtype=bool)
        marks[np.linspace(0, len(texts) - 1, min(self._generated, len(texts)), dtype=np.int64)] = True
        return BatchLoader(TextRows(self._encoder, texts, order, marks), resumes=False)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Move a batch as a whole."""
        return batch.to(device, non_blocking=True)

    def _fitting(self, made: Sequence[TextExample], split: str) -> list[TextExample]:
        messages = [self._encoder.message(example) for example in made]
        lengths = self._encoder.encode([message.prompt + message.completion for message in messages])
        fitting = [text for text, ids in zip(made, lengths, strict=True) if len(ids) < self._longest]
        if not fitting:
            raise ValueError(
                f"longest: all {len(made)} examples of {split} have {self._longest} tokens or more; raise it"
            )
        if len(fitting) < len(made):
            logger.warning(
                "%s: %d of %d examples left out, longer than %d tokens",
                split,
                len(made) - len(fitting),
                len(made),
                self._longest,
            )
        return fitting
