"""The loader: order, sharding, and exact resume inside Lightning."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from datamodules.loader import BatchLoader, BatchSource, EvaluationOrder, TrainingOrder
from datamodules.resumable import ResumableDataModule

SIZE, BATCH = 23, 3  # 8 batches, the last one smaller


class Numbers(BatchSource):
    """Batches of (rows, values) in a training order; plain tensors are enough for a toy model."""

    def __init__(self):
        self.order = TrainingOrder(SIZE, BATCH, seed=5)

    def __len__(self):
        return len(self.order)

    def batch(self, epoch, position):
        return torch.from_numpy(self.order.rows(epoch, position))


class Data(ResumableDataModule):
    def train_batches(self, *_):
        return Numbers()

    def val_dataloader(self):
        return BatchLoader(Numbers(), resumes=False)


class Toy(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(SIZE, 1)
        self.seen, self.validated = [], []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, batch_idx, batch.tolist()))
        inputs = torch.nn.functional.one_hot(batch, SIZE).float()
        return (self.layer(inputs).squeeze(1) - batch / SIZE).square().mean()

    def validation_step(self, batch, _batch_idx):
        self.validated.append(batch.tolist())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def fit(tmp_path, resume=None, **options):
    model = Toy()
    trainer = Trainer(
        **{"max_epochs": 3, "limit_val_batches": 0, **options},
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(options.get("callbacks")),
    )
    trainer.fit(model, datamodule=Data(), ckpt_path=resume)
    return model, trainer


def rows(model):
    return [rows for _, _, rows in model.seen]


def assert_resumes(tmp_path, stop, **options):
    """Stop, save, resume; the two parts see what one run sees and end with its weights, bit for bit.

    Rows only: Lightning counts an epoch that max_steps cut short as finished, so its epoch numbers shift by one.
    """
    whole, _ = fit(tmp_path, **options)
    first, trainer = fit(tmp_path, **{**options, **stop})
    trainer.save_checkpoint(tmp_path / "stop.ckpt")
    second, _ = fit(tmp_path, resume=tmp_path / "stop.ckpt", **options)
    assert 0 < len(first.seen) < len(whole.seen)
    assert rows(first) + rows(second) == rows(whole)
    assert torch.equal(whole.layer.weight, second.layer.weight)
    assert torch.equal(whole.layer.bias, second.layer.bias)


@pytest.mark.parametrize("steps", [1, 3, 7, 8, 9, 13, 16])
def test_resumes_anywhere(tmp_path, steps):
    assert_resumes(tmp_path, {"max_steps": steps}, max_steps=21, max_epochs=-1)


# Not 3: stopped by max_steps on the very last batch of an epoch, Lightning resumes with one batch that it counts into
# the finished epoch and steps on it alone. A checkpoint that a callback writes at that step resumes exactly, see below.
@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_resumes_with_accumulated_gradients(tmp_path, steps):
    assert_resumes(tmp_path, {"max_steps": steps}, max_steps=8, max_epochs=-1, accumulate_grad_batches=3)


@pytest.mark.parametrize("steps", [2, 3, 5, 10])
def test_resumes_with_limited_epochs(tmp_path, steps):
    assert_resumes(tmp_path, {"max_steps": steps}, limit_train_batches=4, max_steps=14, max_epochs=-1)


def test_resumes_at_the_end_of_an_epoch(tmp_path):
    assert_resumes(tmp_path, {"max_epochs": 1})


@pytest.mark.parametrize(("accumulate", "consumed"), [(1, list(range(1, 24))), (3, [3, 6, 8, 11, 14, 16, 19, 22])])
def test_resumes_from_any_checkpoint_written_on_the_way(tmp_path, accumulate, consumed):
    """After every optimiser step but the last; the last window of an epoch of 8 batches holds 2 of them."""
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    whole, _ = fit(tmp_path, callbacks=[saver], accumulate_grad_batches=accumulate)
    for step, batches in enumerate(consumed, start=1):
        second, _ = fit(tmp_path, resume=tmp_path / f"step={step}.ckpt", accumulate_grad_batches=accumulate)
        assert second.seen == whole.seen[batches:]
        assert torch.equal(whole.layer.weight, second.layer.weight)


def test_resumes_from_a_checkpoint_written_after_validation(tmp_path):
    saver = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1)
    options = {"limit_val_batches": 1.0, "val_check_interval": 3}
    whole, _ = fit(tmp_path, callbacks=[saver], **options)
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) == 6
    for path in paths:
        step = int(path.stem.split("=")[1])
        second, _ = fit(tmp_path, resume=path, **options)
        assert second.seen == whole.seen[step:]
        assert torch.equal(whole.layer.weight, second.layer.weight)


def test_validation_runs_the_same_batches_every_time(tmp_path):
    model, _ = fit(tmp_path, limit_val_batches=1.0, num_sanity_val_steps=2, max_epochs=2)
    epoch = [Numbers().batch(0, i).tolist() for i in range(8)]
    assert model.validated == epoch[:2] + epoch + epoch


def test_every_epoch_has_every_example_once_in_its_own_order(tmp_path):
    model, _ = fit(tmp_path)
    epochs = [[row for epoch, _, rows in model.seen if epoch == e for row in rows] for e in range(3)]
    assert all(sorted(rows) == list(range(SIZE)) for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_loader_alone():
    loader = BatchLoader(Numbers())
    iterator = iter(loader)
    iter(loader)  # reading nothing changes nothing
    first = [next(iterator).tolist() for _ in range(5)]
    assert loader.state_dict() == {"epoch": 0, "position": 5, "length": 8}
    resumed = BatchLoader(Numbers())
    resumed.load_state_dict(loader.state_dict())
    rest = [batch.tolist() for batch in resumed]
    assert first + rest == [Numbers().batch(0, i).tolist() for i in range(8)]
    assert [batch.tolist() for batch in resumed] == [Numbers().batch(1, i).tolist() for i in range(8)]
    with pytest.raises(ValueError, match="epoch of 9 batches, this one has 8"):
        resumed.load_state_dict({"epoch": 0, "position": 5, "length": 9})


def groups(sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_training_order_groups_drops_nothing_and_shares_evenly(world):
    group = groups([7, 4, 9, 1])
    orders = [TrainingOrder(21, 4, 3, groups=group, rank=r, world=world) for r in range(world)]
    whole = TrainingOrder(21, 4 * world, 3, groups=group)
    assert {len(order) for order in orders} == {len(whole)}
    for i in range(len(whole)):
        shares = [order.rows(2, i) for order in orders]
        assert len({len(share) for share in shares}) == 1
        together = np.concatenate(shares)
        assert len(set(group[together])) == 1, "all ranks are at the same depth"
        assert set(together) == set(whole.rows(2, i)), "they share out one process's batch"
        assert len(together) - len(whole.rows(2, i)) < world
    seen = [row for i in range(len(whole)) for row in whole.rows(2, i)]
    assert sorted(seen) == list(range(21))


def test_training_order_depends_on_seed_and_epoch_only():
    def rows(seed, epoch, order=None):
        order = order or TrainingOrder(40, 4, seed)
        return [order.rows(epoch, i).tolist() for i in range(len(order))]

    used = TrainingOrder(40, 4, 1)
    rows(1, 0, used)
    assert rows(1, 3) == rows(1, 3, used)
    assert rows(1, 3) != rows(1, 4)
    assert rows(1, 3) != rows(2, 3)


@pytest.mark.parametrize("world", [1, 2, 3, 30])
def test_evaluation_order_has_each_example_exactly_once(world):
    group = groups([7, 4, 9, 1])[::-1].copy()
    orders = [EvaluationOrder(group, 4, rank=r, world=world) for r in range(world)]
    batches = [order.rows(0, i) for order in orders for i in range(len(order))]
    assert sorted(row for rows in batches for row in rows) == list(range(21))
    assert all(len(set(group[rows])) == 1 for rows in batches)
    assert all(0 < len(rows) <= 4 for rows in batches)
    if world > 21:
        assert min(map(len, orders)) == 0


def test_batch_size_is_checked():
    with pytest.raises(ValueError, match="batch_size=0"):
        TrainingOrder(3, 0, 0)
    with pytest.raises(ValueError, match="batch_size: got 0"):
        EvaluationOrder(groups([3]), 0)
