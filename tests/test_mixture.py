"""Several tasks at once: batches of each in turn, in the union of their labels and fields; a curriculum for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from counter_task import WalkSet, WalkStream
from test_machine_data import equal

from callbacks.mixture import MixtureCurriculum
from datamodules.batch import IGNORE
from datamodules.graph import GraphDataModule
from datamodules.graph_evaluation import EvaluationSplit
from datamodules.graph_sources import GraphStream
from datamodules.machine import MachineDataModule, MachineSet, MachineStream
from datamodules.mixture import TASK, MixtureDataModule
from datamodules.office import OfficeDataModule
from datamodules.procedure import ProcedureDataModule
from loopformer.tokenizer import tiny_tokenizer, tiny_words


def tasks() -> dict[str, Callable[..., Any]]:
    return {
        "graph": lambda tokenizer: GraphDataModule(tokenizer, GraphStream(), EvaluationSplit(per_depth=2)),
        "fsm": lambda tokenizer: MachineDataModule(
            tokenizer, MachineStream("fsm", batches_per_epoch=4), MachineSet("fsm", per_depth=2, depths=(1, 9))
        ),
        "counter": lambda tokenizer: ProcedureDataModule(tokenizer, WalkStream(), WalkSet()),
    }


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer(tiny_words(["machines"]))


def mixture(tokenizer: Any, **options: Any) -> MixtureDataModule:
    data = MixtureDataModule(tokenizer, tasks(), batches_per_epoch=12, **options)
    data.setup("fit")
    return data


def test_batches_take_turns_by_weight(tokenizer: Any) -> None:
    data = mixture(tokenizer, weights={"fsm": 2})
    batches = list(data.train_dataloader())
    names = [list(data.tasks)[int(batch.facts[TASK][0])] for batch in batches]
    assert names == ["graph", "fsm", "fsm", "counter"] * 3
    # The stream of a task is its own, whatever the others do: 6 batches, over its epochs of 4.
    own = data.tasks["fsm"].train_batches(0, 1)
    mine = [batch for name, batch in zip(names, batches, strict=True) if name == "fsm"]
    for step, batch in enumerate(mine):
        original = own.batch(*divmod(step, 4))
        assert torch.equal(batch.views["executor"].input_ids, original.views["executor"].input_ids)
        assert torch.equal(batch.fields["fsm_next"], original.fields["next"])


def test_labels_are_the_union_and_keep_their_texts(tokenizer: Any) -> None:
    data = mixture(tokenizer)
    union = data.labels.texts
    assert len(set(union)) == len(union)
    assert set(union) == {text for task in data.tasks.values() for text in task.labels.texts}
    for name, task in data.tasks.items():
        original = task.train_batches(0, 1).batch(0, 0)
        batch = data.adapt(name, original)
        known = original.labels != IGNORE
        assert torch.equal(known, batch.labels != IGNORE)
        before = [task.labels.texts[v] for v in original.labels[known].tolist()]
        assert [union[v] for v in batch.labels[known].tolist()] == before


def test_every_batch_has_the_fields_of_all_tasks(tokenizer: Any) -> None:
    data = mixture(tokenizer)
    batches = list(data.train_dataloader())[:3]
    names = [set(batch.fields) for batch in batches]
    assert names[0] == names[1] == names[2] >= {"fsm_next", "fsm_symbol"}
    assert all(any(field.startswith("counter_") for field in group) for group in names)
    for name, batch in zip(data.tasks, batches, strict=True):
        for field, values in batch.fields.items():
            assert values.shape == (len(batch), batch.labels.shape[1] + 1)
            assert (values == IGNORE).all() == (not field.startswith(name))


def test_validation_holds_every_example_of_every_task_once(tokenizer: Any) -> None:
    data = mixture(tokenizer)
    count = Counter(int(task) for batch in data.val_dataloader() for task in batch.facts[TASK].tolist())
    sizes = [sum(len(batch) for batch in task.val_dataloader()) for task in data.tasks.values()]
    assert [count[number] for number in range(3)] == sizes


def test_resumes_stages_and_position(tokenizer: Any) -> None:
    data, again = mixture(tokenizer), mixture(tokenizer)
    loader = iter(data.train_dataloader())
    for _ in range(5):
        next(loader)
    data.tasks["fsm"].set_stage(2)
    again.load_state_dict(data.state_dict())
    assert again.tasks["fsm"].stage == 2
    for one, other in zip(loader, again.train_dataloader(), strict=True):
        assert equal(one, other)


def test_each_task_has_a_curriculum_of_its_own(tokenizer: Any) -> None:
    data = mixture(tokenizer)
    schedule = SimpleNamespace(started=None, finished=lambda step: False)
    schedule.start_decay = lambda step: setattr(schedule, "started", step)
    trainer: Any = SimpleNamespace(
        datamodule=data, global_step=7, strategy=SimpleNamespace(reduce=lambda value, reduce_op: value)
    )
    module: Any = SimpleNamespace(schedule=schedule, log=lambda *args, **kwargs: None)
    callback = MixtureCurriculum(gate=0.5, momentum=0.0)
    callback.on_train_start(trainer, module)
    batches = {name: data.adapt(name, task.train_batches(0, 1).batch(0, 0)) for name, task in data.tasks.items()}

    def show(name: str, right: bool) -> None:
        labels = batches[name].labels.clamp(min=0)
        logits = torch.nn.functional.one_hot(labels if right else (labels + 1) % 3, 40).float()
        rollout = SimpleNamespace(letter_logits=logits, direct_logits=None, field_logits={})
        callback.on_train_batch_end(trainer, module, {"rollout": rollout}, batches[name], 0)

    show("graph", right=False)
    show("fsm", right=True)
    assert {name: task.stage for name, task in data.tasks.items() if task.stages} == {
        "graph": 0, "fsm": 1, **({"counter": 0} if data.tasks["counter"].stages else {})
    }  # fmt: skip
    for name, task in data.tasks.items():
        for _ in range(len(task.stages) + 1):
            assert schedule.started is None or all(callback.passed.values())
            show(name, right=True)
    assert schedule.started == 7, "the decay waits for the last task"
    saved = callback.state_dict()
    other = MixtureCurriculum()
    other.load_state_dict(saved)
    assert other.state_dict() == saved


def test_mistakes_are_named(tokenizer: Any) -> None:
    for options, message in (
        ({"tasks": {}}, "give at least one task"),
        ({"tasks": tasks(), "weights": {"chess": 1}}, "'chess' is no task"),
        ({"tasks": tasks(), "weights": {"fsm": 0}}, "each is 1 or more"),
        ({"tasks": tasks(), "batches_per_epoch": 0}, "batches_per_epoch: got 0"),
        ({"tasks": {"office": OfficeDataModule}}, "tasks.office: OfficeDataModule has text for an ordinary model"),
    ):
        with pytest.raises(ValueError, match=message):
            MixtureDataModule(tokenizer, **options)  # type: ignore[arg-type]
    data = mixture(tokenizer).tasks["fsm"]
    with pytest.raises(ValueError, match="use a MixtureDataModule"):
        MixtureCurriculum().on_train_start(SimpleNamespace(datamodule=data), None)  # type: ignore[arg-type]
