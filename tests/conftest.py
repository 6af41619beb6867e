"""Shared builders: small real models and batches, nothing mocked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ["WANDB_MODE"] = "disabled"  # whatever the caller's shell says: tests of W&B switch it on themselves

import pytest
import torch

import loopformer  # noqa: F401  (sets the OpenMP policy before torch starts its threads)
from datamodules.batch import Batch
from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph_splits import published
from loopformer.adaptation import Everything
from loopformer.backbone import ScratchBackbone, Split
from loopformer.looped import LoopedTransformer
from loopformer.recurrence import Recurrence

torch.set_num_threads(1)


def make_network(
    recurrence: Recurrence,
    model_type: str = "qwen2",
    split: Split = Split(1, 2, 2),  # noqa: B008
    seed: int = 0,
    std: float = 0.2,
    **parts: Any,
) -> LoopedTransformer:
    """A tiny model with weights large enough for attention to matter."""
    torch.manual_seed(seed)
    config = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": split.prelude + split.recurrent + split.coda,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": std,
    }
    backbone = ScratchBackbone(config, model_type=model_type, split=split)
    return LoopedTransformer(backbone, recurrence, **{"adaptation": Everything(), **parts})


@pytest.fixture(autouse=True)
def own_wandb_staging() -> Iterator[None]:
    """A logger made in this process names its staging folder for the whole process: not for the next test."""
    os.environ.pop("WANDB_DATA_DIR", None)
    yield
    os.environ.pop("WANDB_DATA_DIR", None)


@pytest.fixture
def graph_batch() -> Batch:
    """Six published graphs with counts of one, two and three digits, so that full views differ in length."""
    network = make_network_tokenizer()
    return GraphBatcher(network).batch(published("cyclic", "train")[:6], 3)


def make_network_tokenizer() -> Any:
    from loopformer.tokenizer import tiny_tokenizer

    return tiny_tokenizer()
