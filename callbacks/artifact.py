"""Logs the exported model to W&B as an artifact."""

from __future__ import annotations

from pathlib import Path

import lightning as L

from loopformer.wandb_logger import RunLogger


class ModelArtifact(L.Callback):
    """Logs a folder that `ExportModel` wrote, when the fit is over; its files are referred to, not copied.

    Args:
        directory: the exported model.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Declare the artifact on rank 0."""
        del pl_module
        logger = next((logger for logger in trainer.loggers if isinstance(logger, RunLogger)), None)
        if logger is None or not trainer.is_global_zero or not self.directory.is_dir():
            return
        import wandb  # noqa: PLC0415 (slow to import, and only runs that log to it need it)

        artifact = wandb.Artifact(f"model-{logger.version}", type="model", metadata={"steps": trainer.global_step})
        artifact.add_dir(str(self.directory), policy="immutable")
        logger.experiment.log_artifact(artifact)
