"""Training that may start from the weights of an exported model instead of the network's own initialisation."""

from __future__ import annotations

from typing import Any

from loopformer.initial import ExportedWeights
from loopformer.own_tensors import OwnTensorsModule


class InitializedModule(OwnTensorsModule):
    """Loads initial weights once, before a fit begins, and keeps a record of them.

    Args:
        initial: weights to start from; None for the network's own initialisation. Whoever begins a fit calls
            `load_initial` first; a resumed one has its weights already.
    """

    def __init__(self, initial: ExportedWeights | None) -> None:
        super().__init__()
        self.initial = initial
        self._initial_record: dict[str, Any] | None = None

    def load_initial(self) -> None:
        """Load the initial weights, if there are any to load; before anything copies or shards the network.

        Raises:
            ValueError: they do not fit (`ExportedWeights.load_into`).
        """
        if self.initial is not None:
            self._initial_record = self.initial.load_into(self.network)

    @property
    def provenance(self) -> dict[str, Any]:
        """What an export tells of the weights that training started from."""
        return {} if self._initial_record is None else {"initial": self._initial_record}

    def on_fit_start(self) -> None:
        """Make sure that the initial weights are there.

        Raises:
            ValueError: they were not loaded.
        """
        if self.initial is not None and self._initial_record is None and self.trainer.ckpt_path is None:
            raise ValueError("initial: its weights are not loaded; call load_initial() before the fit")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the initial weights were: a resumed run does not load them again."""
        super().on_save_checkpoint(checkpoint)
        if self._initial_record is not None:
            checkpoint["initial"] = self._initial_record

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """See `OwnTensorsModule.on_load_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        self._initial_record = checkpoint.get("initial", self._initial_record)
