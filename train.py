"""Train a looped transformer from YAML.

    python train.py --config configs/arch4_executor.yaml
    python train.py --config configs/arch4_executor.yaml --config configs/backbone/tiny.yaml --output runs/tiny

Later --config files overlay earlier ones, so an overlay states only what differs. The run lives in --output: its parsed
config.yaml, metrics.csv, training checkpoints, W&B files (offline unless asked otherwise) and, at the end, the exported
model in OUTPUT/model. --resume continues a stopped run exactly where its last checkpoint stands.
"""

from __future__ import annotations

from loopformer.cli import LoopformerCLI
from loopformer.errors import one_line_errors


def main() -> None:
    """Parse, fit, export."""
    with one_line_errors():
        LoopformerCLI().fit()


if __name__ == "__main__":
    main()
