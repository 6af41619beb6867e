"""The real checkpoint: identity of one loop, and that training on it learns, killed and resumed on the way."""

from __future__ import annotations

import csv
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from test_training import train

from datamodules.graph_batcher import GraphBatcher
from datamodules.graph_text import GraphTextBatcher
from datamodules.tasks.graph_splits import published
from datamodules.tasks.graph_text import GraphTexts
from loopformer.adaptation import Frozen
from loopformer.backbone import PretrainedBackbone
from loopformer.looped import LoopedTransformer
from loopformer.recurrence import FixedPrompt, FullSequence, Recurrence
from loopformer.tokenizer import load_tokenizer

QWEN = os.environ.get("LOOPFORMER_QWEN")
pytestmark = [
    pytest.mark.real_weights,
    pytest.mark.slow,
    pytest.mark.skipif(not QWEN, reason="LOOPFORMER_QWEN is not set"),
]


@pytest.mark.parametrize("recurrence", [FullSequence(), FixedPrompt()])
def test_one_loop_is_the_stock_model(recurrence: Recurrence) -> None:
    assert QWEN is not None
    backbone = PretrainedBackbone(QWEN, dtype="float32")
    network = LoopedTransformer(backbone, recurrence, adaptation=Frozen())
    graphs = published("cyclic", "train")[:3]
    batch = GraphBatcher(backbone.tokenizer).batch(graphs, torch.tensor([3, 12, 100]).numpy())
    view = batch.views[recurrence.view]
    with torch.no_grad():
        ours = network.rollout(batch, 1).letter_logits[:, 0]
        for row in range(3):
            stock = backbone.lm(view.input_ids[row : row + 1, : view.lengths[row]]).logits[0, -1, network.label_ids]
            # Logits are near 20; float32 sums of 896 terms in another order differ by some 1e-5.
            torch.testing.assert_close(ours[row], stock, atol=1e-4, rtol=0)


def test_forty_updates_killed_and_resumed_lower_the_loss(tmp_path: Path) -> None:
    assert QWEN is not None
    output = tmp_path / "run"
    arguments = (
        "--config", "configs/arch4_executor.yaml",
        f"--model.init_args.network.init_args.backbone.init_args.model={QWEN}",
        "--model.init_args.network.init_args.backbone.init_args.revision=null",
        "--model.init_args.optimizer.warmup=5", "--trainer.max_steps=40", "--trainer.log_every_n_steps=1",
        "--trainer.limit_val_batches=0", "--checkpoint.monitor=null", "--checkpoint.every_n_train_steps=10",
        "--trainer.accelerator=cpu", "--output", str(output),
    )  # fmt: skip
    first = train(*arguments, wait=False, OMP_NUM_THREADS="2")
    last = output / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 1500
    while not last.exists() and time.monotonic() < deadline and first.poll() is None:
        time.sleep(1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    resumed = train(*arguments, "--resume=true", wait=False, OMP_NUM_THREADS="2")
    printed = resumed.communicate(timeout=3000)[0]
    assert resumed.returncode == 0, printed
    losses = read_losses(output)
    assert sorted(losses) == list(range(40)), "a row for every update, those before the kill included"
    first_ten, last_ten = (sum(losses[s] for s in steps) / 10 for steps in (range(10), range(30, 40)))
    print(f"mean loss of the first ten updates {first_ten:.4f}, of the last ten {last_ten:.4f}")
    assert last_ten < first_ten
    assert (output / "model" / "model.safetensors").stat().st_size < 800e6, "only what the base lacks is exported"


def test_longest_row_of_the_trace_baseline_has_the_published_length() -> None:
    assert QWEN is not None
    tokenizer = load_tokenizer(QWEN)
    graphs = published("cyclic", "train")
    batcher = GraphTextBatcher(tokenizer, GraphTexts("steps"))
    longest = batcher.batch(graphs[graphs.depth == 12])
    assert int(longest.lengths.max()) == 439
    assert set(longest.answer_lengths.tolist()) == {13}, "twelve letters and the end token"
    assert int(batcher.batch(graphs[:512]).lengths.max()) == 439
    text = tokenizer.decode(longest.input_ids[0, : longest.lengths[0]])
    assert text.startswith("<|im_start|>system\n")
    assert re.search(r"Answer:<\|im_end\|>\n<\|im_start\|>assistant\n[A-Z]( [A-Z]){11}<\|im_end\|>$", text)


def read_losses(folder: Path) -> dict[int, float]:
    rows = csv.DictReader((folder / "metrics.csv").open())
    return {int(row["step"]): float(row["train/loss"]) for row in rows if row.get("train/loss")}
