"""LightningDataModule of the office programs: text examples of one arm for an ordinary language model.

data:
  class_path: datamodules.office.OfficeDataModule
  init_args: {arm: stack, items: 384, batch_size: 2}
"""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from datamodules.loader import BatchLoader, EvaluationOrder, TrainingOrder
from datamodules.resumable import ResumableDataModule
from datamodules.tasks.office.arms import ARMS, TrainedPrompt, examples, find_arm
from datamodules.tasks.office.splits import VALIDATION_PER_FAMILY, training, validation
from datamodules.text import TextBatch, TextEncoder
from datamodules.text_rows import TextRows


class OfficeDataModule(ResumableDataModule):
    """Loads office items as text. No evaluation item, whatever its wording, is ever among them.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        arm: what the model learns to write; one of the trained arms.
        listing: list the instructions or functions in the prompt.
        items: training items, drawn once.
        batch_size: examples of a training batch on one rank.
        wordings: wordings of the training items, taken in turn; default "standard" alone, since the template shift is
            one only for a model that was not trained on its wordings.
        validation_per_family: validation items of each family.
        validation_batch_size: examples of a validation batch on one rank.
        generated: validation examples that are also validated by generation.
        seed: seed of the items and of their order. Not negative.

    Raises:
        ValueError: an option is out of range, or the arm is unknown or not trained.
    """

    benchmarks = ("program --program.part office",)

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        arm: str = "stack",
        listing: bool = True,
        items: int = 384,
        batch_size: int = 2,
        wordings: list[str] | None = None,
        validation_per_family: int = VALIDATION_PER_FAMILY,
        validation_batch_size: int = 8,
        generated: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value, least in (("seed", seed, 0), ("generated", generated, 0), ("batch_size", batch_size, 1)):
            if value < least:
                raise ValueError(f"{name}: got {value}; use {least} or more")
        self.seed, self._batch_size, self._validation_batch_size = seed, batch_size, validation_batch_size
        self._prompt = TrainedPrompt(find_arm(arm).name, listing)
        self._encoder = TextEncoder(tokenizer)
        drawn = training(items, seed, tuple(["standard"] if wordings is None else wordings))
        self.train_texts = examples(drawn, ARMS[arm], listing)
        self.validation_texts = examples(validation(validation_per_family), ARMS[arm], listing)
        self._marks = np.arange(len(self.validation_texts)) < generated

    @property
    def style(self) -> str:
        """Arm and prompt as an exported model remembers them, so that an evaluation asks in the same way."""
        return self._prompt.text

    def train_batches(self, rank: int, world: int) -> TextRows:
        """Return the training batches of one rank out of `world`."""
        order = TrainingOrder(len(self.train_texts), self._batch_size, self.seed, rank=rank, world=world)
        return TextRows(self._encoder, self.train_texts, order)

    def val_dataloader(self) -> BatchLoader[TextBatch]:
        """Return this rank's validation batches."""
        rank, world = self.place()
        groups = np.zeros(len(self.validation_texts), dtype=np.int64)
        order = EvaluationOrder(groups, self._validation_batch_size, rank=rank, world=world)
        return BatchLoader(TextRows(self._encoder, self.validation_texts, order, self._marks), resumes=False)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Move a batch as a whole."""
        return batch.to(device, non_blocking=True)
