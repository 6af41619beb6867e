"""From a `Procedure` to looped batches: tokens, labels, fields, cells; the stream, its curriculum, ranks and resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from counter_task import LETTERS, WalkSet, WalkStream, WalkTask
from jsonargparse import ArgumentParser

from datamodules.batch import IGNORE, NO_CELL, Batch
from datamodules.graph import GraphDataModule
from datamodules.procedure import ProcedureDataModule
from datamodules.procedure_batcher import ProcedureBatcher
from datamodules.tasks.procedure import LabelSet
from loopformer.tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def module(**options: int) -> ProcedureDataModule:
    return ProcedureDataModule(TOKENIZER, WalkStream(), WalkSet(), **options)


def same(one: Batch, other: Batch) -> bool:
    views = zip(one.views.values(), other.views.values(), strict=True)
    return torch.equal(one.labels, other.labels) and all(torch.equal(a.input_ids, b.input_ids) for a, b in views)


def test_batch_by_hand() -> None:
    batch = ProcedureBatcher(WalkTask(), TOKENIZER).batch([(0, 2), (1,)], ids=[7, 9])
    view = batch.views["executor"]
    assert view.cells is not None
    assert [TOKENIZER.decode(row[:n]) for row, n in zip(view.input_ids, view.lengths, strict=True)] == [
        "Word: A C\nRead:", "Word: B\nRead:",
    ]  # fmt: skip
    assert view.cells.tolist() == [[5, 6], [5, NO_CELL]]
    assert TOKENIZER.convert_ids_to_tokens(view.input_ids[0, view.cells[0]].tolist()) == [" A", " C"]
    assert batch.labels.tolist() == [[0, 2], [1, IGNORE]]
    assert batch.steps.tolist() == [2, 1]
    assert batch.initial.tolist() == [IGNORE, IGNORE]
    assert batch.instance.tolist() == [7, 9]
    assert batch.facts["length"].tolist() == [2, 1]
    assert batch.fields["at"].tolist() == [[0, 1, IGNORE], [0, IGNORE, IGNORE]]
    assert batch.fields["last"].tolist() == [[IGNORE, 0, 2], [IGNORE, 1, IGNORE]]


def test_select_and_move_keep_cells_and_fields() -> None:
    batch = ProcedureBatcher(WalkTask(), TOKENIZER).batch([(0, 2), (1,), (2, 2)])
    part = batch.to("cpu").select(torch.tensor([False, True, True]))
    assert part.views["executor"].cells is not None
    assert part.views["executor"].cells.tolist() == [[5, NO_CELL], [5, 6]]
    assert part.fields["last"][1].tolist() == [IGNORE, 2, 2]
    without = replace(batch, views={"executor": replace(batch.views["executor"], cells=None)})
    assert without.select(torch.tensor([0])).views["executor"].cells is None


def test_trace_examples_write_cells_and_undefined_values() -> None:
    assert WalkTask().example((0, 2), "trace").completion == " A; at: 1; last: A\n C; at: -; last: C"


class WrongTask(WalkTask):
    """Contradicts itself in one way at a time."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def states(self, instance):
        return instance[1:] if self.wrong == "states" else instance

    def field_states(self, instance):
        return {"last": list(instance)} if self.wrong == "fields" else super().field_states(instance)

    def cells(self, instance, view):
        return {"twice": [6, 5], "outside": [6, 400]}.get(self.wrong, [])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("states", "states: got 1 labels for 2 steps"),
        ("fields", "field 'last': got 2 values for 2 steps"),
        ("twice", "cells: one lies in one token with another cell"),
        ("outside", "cells: one lies outside the prompt"),
    ],
)
def test_a_task_that_contradicts_itself_is_refused(wrong: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcedureBatcher(WrongTask(wrong), TOKENIZER).batch([(0, 1)])


def test_labels_must_be_single_tokens() -> None:
    task = WalkTask()
    task.labels = LabelSet(LETTERS, (" A", " BC", " C"))
    with pytest.raises(ValueError, match="' BC' is 2 token"):
        ProcedureBatcher(task, TOKENIZER)


def test_stream_follows_its_stage_and_is_a_function_of_the_seed() -> None:
    data = module()
    data.setup("fit")
    first = list(data.train_dataloader())
    assert len(first) == 4
    assert max(int(batch.steps.max()) for batch in first) == 2
    again, other = list(module().train_dataloader()), list(module(seed=1).train_dataloader())
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not all(same(a, b) for a, b in zip(first, other, strict=True))
    data.set_stage(1)
    assert max(int(batch.steps.max()) for _ in range(4) for batch in data.train_dataloader()) == 3
    with pytest.raises(ValueError, match="there are 2 stages"):
        data.set_stage(2)


def test_ranks_draw_different_instances_and_share_the_validation() -> None:
    data = module()
    a, b = (data.train_batches(rank, 2).batch(0, 0) for rank in (0, 1))
    assert not same(a, b)
    data.place = lambda: (0, 2)  # type: ignore[method-assign]
    zero = [int(i) for batch in data.val_dataloader() for i in batch.instance]
    data.place = lambda: (1, 2)  # type: ignore[method-assign]
    one = [int(i) for batch in data.val_dataloader() for i in batch.instance]
    assert sorted(zero + one) == [0, 1, 2, 3, 4]


def test_validation_batches_hold_one_number_of_steps_and_cohorts_name_them() -> None:
    data = module()
    batches = list(data.val_dataloader())
    assert all(len(set(batch.steps.tolist())) == 1 for batch in batches)
    assert sorted(int(i) for batch in batches for i in batch.instance) == [0, 1, 2, 3, 4]
    assert data.cohorts == {"trained": [1, 2], "beyond": [5]}


def test_resume_continues_the_stream_where_it_was() -> None:
    data = module()
    data.set_stage(1)
    loader = iter(data.train_dataloader())
    next(loader)
    state = data.state_dict()
    rest = list(loader)
    resumed = module()
    resumed.load_state_dict(state)
    assert resumed.stage == 1
    assert all(same(a, b) for a, b in zip(rest, resumed.train_dataloader(), strict=True))


def test_configured_by_class_path() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(ProcedureDataModule, "data", skip={"tokenizer"})
    config = {
        "class_path": "datamodules.procedure.ProcedureDataModule",
        "init_args": {"train": {"class_path": "counter_task.WalkStream"}, "validation": {"class_path": "WalkSet"}},
    }
    parsed = parser.parse_object({"data": config})
    assert parsed.data.init_args.train.init_args.batch_size == 3


def test_graph_batches_are_as_before() -> None:
    batch = next(iter(GraphDataModule(TOKENIZER).train_dataloader()))
    assert batch.fields == {}
    assert all(view.cells is None for view in batch.views.values())
