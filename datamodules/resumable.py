"""A LightningDataModule whose training data resume exactly, wherever the checkpoint was written."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lightning.pytorch import LightningDataModule

from datamodules.loader import BatchLoader, BatchSource


class ResumableDataModule(LightningDataModule):
    """Keeps the state of its training loader in the datamodule's own part of a checkpoint.

    Lightning saves the loader within its loops too, but restores it from there only when it takes the checkpoint for
    one of an unfinished epoch (`FitLoop.restarting` of lightning 2.6). From one written after an epoch, or after `fit`,
    the order of the first epoch would otherwise be repeated.

    Attributes:
        benchmarks: what `evaluate.py --benchmark` asks of a model trained on these data, with the options of its part.
        recipes: by machine task, the fields of the recipe that training draws from, as plain data.
    """

    benchmarks: tuple[str, ...] = ("graph",)
    recipes: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    def __init__(self) -> None:
        super().__init__()
        # A rank without evaluation examples is fine: none is padded (see EvaluationOrder).
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self._loader: BatchLoader | None = None
        self._restored: dict[str, int] | None = None

    @abstractmethod
    def train_batches(self, rank: int, world: int) -> BatchSource:
        """Return the training batches of one rank out of `world`."""

    def train_dataloader(self) -> BatchLoader:
        """Return this rank's training batches, continuing a restored run once.

        Raises:
            ValueError: the checkpoint counts batches of another data set, batch size or number of processes.
        """
        self._loader = BatchLoader(self.train_batches(*self.place()))
        if self._restored is not None:
            self._loader.load_state_dict(self._restored)
            self._restored = None
        return self._loader

    def place(self) -> tuple[int, int]:
        """Rank and number of processes; one process when no trainer is attached."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def state_dict(self) -> dict[str, Any]:
        """Save how far the training data have been consumed."""
        return {} if self._loader is None else {"loader": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue there, with the next training loader or with the one that is open already.

        Strategies that shard the model restore after the set-up, which has asked for the loader to count its batches.
        """
        self._restored = state_dict.get("loader")
        if self._loader is not None and self._restored is not None:
            self._loader.load_state_dict(self._restored)
