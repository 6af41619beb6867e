"""A resumable LightningDataModule whose training data come in stages that a curriculum advances."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from datamodules.resumable import ResumableDataModule


class Staged(Protocol):
    """A training source in stages.

    Attributes:
        stage: position of the current stage.
    """

    stage: int

    @property
    def stages(self) -> Sequence[Any]:
        """The curriculum."""

    def counts(self) -> list[int]:
        """Numbers of steps that occur in training, in order."""


class StagedDataModule(ResumableDataModule):
    """Moves its training source from stage to stage and saves where it stands; a source may have no stages.

    Attributes:
        train_source: the training source.
    """

    train_source: Staged

    @property
    def stages(self) -> Sequence[Any]:
        """Stages of the training source."""
        return self.train_source.stages

    @property
    def stage(self) -> int:
        """Position of the current stage."""
        return self.train_source.stage

    @property
    def trained_counts(self) -> list[int]:
        """Numbers of steps seen in training, in order."""
        return self.train_source.counts()

    @abstractmethod
    def validation_counts(self) -> list[int]:
        """Numbers of steps that occur in validation, in order."""

    @property
    def cohorts(self) -> dict[str, list[int]]:
        """Validation steps by cohort: trained, held out (below the largest trained number) and beyond it."""
        trained, present = self.trained_counts, self.validation_counts()
        parts = {
            "trained": [n for n in present if n in trained],
            "held_out": [n for n in present if n not in trained and n < trained[-1]],
            "beyond": [n for n in present if n > trained[-1]],
        }
        return {name: counts for name, counts in parts.items() if counts}

    def set_stage(self, stage: int) -> None:
        """Go to a stage; the next batch is drawn from it.

        Raises:
            ValueError: there is no such stage, or no stages at all.
        """
        if not self.stages:
            raise ValueError("stage: there are no stages; train on a stream (GraphStream and the like) to have some")
        if not 0 <= stage < len(self.stages):
            raise ValueError(
                f"stage: got {stage}, there are {len(self.stages)} stages; use 0 to {len(self.stages) - 1}"
            )
        self.train_source.stage = stage

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Move a batch as a whole."""
        return batch.to(device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Save the stage of the curriculum and the position in the training data."""
        return {**super().state_dict(), "stage": self.stage}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to the saved stage and position."""
        super().load_state_dict(state_dict)
        if self.stages:
            self.set_stage(state_dict["stage"])
