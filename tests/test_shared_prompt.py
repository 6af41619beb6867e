"""Rows that share their table: reading it once gives the very rollout, and gradients, of reading it row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from datamodules.batch import Batch
from datamodules.machine_batcher import MachineBatcher
from datamodules.tasks.machines.family import RECIPES, MachineStage
from loopformer import checkpoint
from loopformer.looped import LoopedTransformer
from loopformer.shared_prompt import can_share


def network(recurrence: dict | None = None) -> LoopedTransformer:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return checkpoint.build_network(
        {
            "class_path": "LoopedTransformer",
            "init_args": {
                "backbone": {
                    "class_path": "ScratchBackbone",
                    "init_args": {
                        "config": {**sizes, "num_hidden_layers": 5},
                        "split": {"prelude": 2, "recurrent": 2, "coda": 1},
                        "words": ["machines"],
                    },
                },
                "recurrence": recurrence or {"class_path": "FixedPrompt"},
                "bridge": {"class_path": "ReentryBridge"},
                "direct_head": {"class_path": "DirectHead"},
                "adaptation": {"class_path": "Everything"},
            },
        }
    )


def batch_of(machine: str, model: LoopedTransformer) -> Batch:
    stage = MachineStage(RECIPES[machine], (3,), 12, runs=4)
    return MachineBatcher(model.backbone.tokenizer).batch(stage.draw((1, 2)), runs=4)


def apart(batch: Batch) -> Batch:
    views = {name: replace(view, shared=None) for name, view in batch.views.items()}
    return replace(batch, views=views)


@pytest.mark.parametrize("machine", RECIPES)
def test_shared_tables_change_no_number(machine: str) -> None:
    model = network()
    batch = batch_of(machine, model)
    assert can_share(model.recurrence, batch.views["executor"])
    shared = batch.views["executor"].shared
    assert shared is not None
    assert int(shared[0, 1]) > 0.6 * batch.views["executor"].input_ids.shape[1], "the table is most of the prompt"
    results = []
    for given in (batch, apart(batch)):
        model.zero_grad()
        rollout = model.rollout(given, 3)
        (rollout.letter_logits.square().mean() + rollout.direct_logits.square().mean()).backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append([rollout.letter_logits, rollout.direct_logits, rollout.initial_logits, *gradients])
    assert len(results[0]) == len(results[1]) > 10
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_rows_of_a_group_have_one_table_and_other_starts() -> None:
    model = network()
    view = batch_of("fsm", model).views["executor"]
    assert view.shared is not None
    length = int(view.shared[0, 1])
    groups = view.input_ids.view(3, 4, -1)
    assert (groups[:, :, :length] == groups[:, :1, :length]).all()
    assert len(torch.unique(groups[:, :, length:].flatten(0, 1), dim=0)) > 6


def test_what_cannot_share_reads_row_by_row() -> None:
    full = network({"class_path": "FullSequence", "init_args": {"view": "executor"}})
    batch = batch_of("fsm", full)
    assert not can_share(full.recurrence, batch.views["executor"])
    assert full.rollout(batch, 2).letter_logits.shape[0] == 12
    two = network({"class_path": "FixedPrompt", "init_args": {"slots": 2}})
    assert not can_share(two.recurrence, batch.views["executor"])
