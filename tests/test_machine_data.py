"""Batches of machines: what they say equals the prompts and the procedures; speed; the datamodule resumes exactly."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from test_configs import ROOT
from transformers import AutoTokenizer

from datamodules.batch import IGNORE, Batch
from datamodules.machine import MachineDataModule, MachineSet, MachineStream
from datamodules.machine_batcher import MachineBatcher
from datamodules.machine_text import MachineTextDataModule
from datamodules.tasks.machines.family import (
    FIELDS,
    RECIPES,
    MachineInstance,
    MachineStage,
    MachineTask,
    at_pace,
    changed_recipe,
    recipe_changes,
)
from datamodules.tasks.machines.splits import SPLITS, split
from datamodules.tasks.machines.tape import TapeRecipe
from loopformer.cli import LoopformerCLI
from loopformer.tokenizer import tiny_tokenizer, tiny_vocabulary, tiny_words

SIZE = 36_000
SECONDS = 10.0


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer(tiny_words(["machines"]))


def equal(one: Batch, other: Batch) -> bool:
    def flat(batch: Batch) -> dict[str, torch.Tensor]:
        views = {f"{name}.ids": view.input_ids for name, view in batch.views.items()}
        return {"labels": batch.labels, "steps": batch.steps, **views, **batch.fields}

    mine, theirs = flat(one), flat(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("machine", RECIPES)
def test_batches_equal_the_procedure(machine: str, tokenizer: Any) -> None:
    task = MachineTask(machine)
    batcher = MachineBatcher(tokenizer)
    machines = task.recipe.draw(np.random.default_rng(0), 12, 5)
    batch = batcher.batch(machines)
    assert batcher.labels == task.labels
    for row in range(len(machines)):
        instance = MachineInstance(machines[slice(row, row + 1)])
        steps = task.steps(instance)
        assert batch.steps[row] == steps
        assert batch.initial[row] == task.initial(instance)
        assert batch.labels[row].tolist() == task.states(instance) + [IGNORE] * (batch.labels.shape[1] - steps)
        for name, values in task.field_states(instance).items():
            assert batch.fields[name][row].tolist() == values + [IGNORE] * (batch.labels.shape[1] - steps)
            assert max(values) < len(task.fields[name])
        for name, view in batch.views.items():
            ids = tokenizer(task.prompt(instance, name))["input_ids"]
            assert view.input_ids[row, : view.lengths[row]].tolist() == ids
        digits = batch.digits[row][batch.digits[row] >= 0]
        assert tokenizer.decode(digits) == str(steps)


@pytest.mark.parametrize("machine", RECIPES)
def test_every_split_suits_the_tokenizer(machine: str, tokenizer: Any) -> None:
    batcher = MachineBatcher(tokenizer)
    for name in SPLITS:
        batcher.check(split(machine, name).draw(0, name, 8))


def test_counts_of_other_widths_fill_in_too(tokenizer: Any) -> None:
    machines = RECIPES["registers"].draw(np.random.default_rng(0), 4, 3)
    batch = MachineBatcher(tokenizer).batch(machines, np.array([1, 12, 345, 9]))
    prompt = machines.prompt()
    for row, count in enumerate((1, 12, 345, 9)):
        view = batch.views["full"]
        assert tokenizer.decode(view.input_ids[row, : view.lengths[row]]) == prompt.text(row, count)
    with pytest.raises(ValueError, match="counts: got 0"):
        MachineBatcher(tokenizer).batch(machines, 0)


def test_words_are_single_tokens_of_the_real_tokenizer_too() -> None:
    path = os.environ.get("LOOPFORMER_QWEN")
    if not path:
        pytest.skip("LOOPFORMER_QWEN is not set")
    batcher = MachineBatcher(AutoTokenizer.from_pretrained(path))
    for machine in RECIPES:
        for name in SPLITS:
            batcher.check(split(machine, name).draw(0, name, 8))


def test_words_are_appended_to_the_tiny_vocabulary() -> None:
    plain, learned = tiny_vocabulary(), tiny_vocabulary(tiny_words(["machines"]))
    assert learned[: len(plain)] == plain
    assert len(set(learned)) == len(learned)
    text = "Rules: ( K, Q) ( B, K)\nStart: K\nSteps: 12\nAnswer:"
    assert tiny_tokenizer()(text)["input_ids"] == tiny_tokenizer(tiny_words(["machines"]))(text)["input_ids"]
    # A word counts only where it stands alone.
    assert tiny_tokenizer(tiny_words(["machines"])).tokenize(" red redder") == [" red", " r", *"edder"]
    with pytest.raises(ValueError, match="' END' is 3 token"):
        MachineBatcher(tiny_tokenizer())
    with pytest.raises(ValueError, match=r"backbone\.words: got 'machine'"):
        tiny_words(["machine"])


@pytest.mark.parametrize("machine", RECIPES)
def test_an_epoch_of_machines_in_seconds(machine: str, tokenizer: Any) -> None:
    batcher = MachineBatcher(tokenizer)
    begin = time.process_time()
    batch = batcher.batch(RECIPES[machine].draw(np.random.default_rng(0), SIZE, 6))
    seconds = time.process_time() - begin
    print(f"{machine}: {SIZE:,} machines drawn, run and batched in {seconds:.2f} CPU s")
    assert len(batch) == SIZE
    assert seconds < SECONDS


def test_stream_is_a_function_of_seed_and_step(tokenizer: Any) -> None:
    def module(seed: int) -> MachineDataModule:
        return MachineDataModule(tokenizer, MachineStream("fsm", batches_per_epoch=3), seed=seed)

    data = module(0)
    data.setup("fit")
    assert len(data.stages) > 5
    first = list(data.train_dataloader())
    assert all(equal(a, b) for a, b in zip(first, module(0).train_dataloader(), strict=True))
    assert not equal(first[0], first[1])
    assert not equal(first[0], next(iter(module(1).train_dataloader())))
    assert (first[0].fields["next"] != IGNORE).all()
    data.set_stage(3)
    saved = data.state_dict()
    again = module(0)
    again.load_state_dict(saved)
    assert again.stage == 3
    later = next(iter(again.train_dataloader()))
    assert later.views["executor"].input_ids.shape[1] > first[0].views["executor"].input_ids.shape[1]
    assert saved["loader"]["position"] == 3
    with pytest.raises(ValueError, match="stage: got 99"):
        data.set_stage(99)


def test_validation_holds_every_depth_once(tokenizer: Any) -> None:
    part = MachineSet("registers", depths=(2, 9), per_depth=5, batch_size=4)
    data = MachineDataModule(tokenizer, MachineStream("registers"), part)
    batches = list(data.val_dataloader())
    assert sorted(n for batch in batches for n in batch.instance.tolist()) == list(range(10))
    assert all(len(batch.steps.unique()) == 1 for batch in batches)
    assert data.cohorts == {"trained": [2], "beyond": [9]}
    assert data.trained_counts == [1, 2, 3, 4, 6]
    half = MachineDataModule(tokenizer, MachineStream("registers", pace="half"), MachineSet("registers", pace="half"))
    assert half.trained_counts == [2, 4, 6, 8, 12]
    assert half.cohorts["trained"] == [2, 4, 8, 12]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MachineStream("fsm", batches_per_epoch=0), "train.batches_per_epoch: got 0"),
        (lambda: MachineStream("fsm", stages=[]), "train.stages: the list is empty"),
        (lambda: MachineStream("fsm", pace="half"), "only programs have half instructions"),
        (lambda: MachineSet("fsm", per_depth=0), "validation.per_depth: got 0"),
        (lambda: at_pace(RECIPES["coloured"], "half"), "pace"),
        (lambda: MachineStream("coloured", {"states": 40}), r"^recipe\.states: got 40; use 1 to 26$"),
        (lambda: MachineStream("coloured", {"colours": False}), r"^recipe\.colours: got False, .* coloured has True"),
        (lambda: MachineSet("jumps", recipe={"targets": False, "branch_rate": 0}), r"^recipe\.targets: got False"),
        (lambda: MachineStream("stack", {"registers": 3}), r"^recipe\.registers: the machine stack has no .* lines, "),
        (
            lambda: MachineStream("coloured", stages=[MachineStage(TapeRecipe(cells=10), (1,))]),
            r"^train\.stages\.recipe\.colours: got False, but the machine coloured has True",
        ),
        (
            lambda: MachineStream("stack", stages=[MachineStage(RECIPES["registers"], (1,))]),
            r"^train\.stages\.recipe: got a RegisterRecipe, but the machine stack has a StackRecipe",
        ),
        (
            lambda: MachineStream("jumps", stages=[MachineStage(RECIPES["jumps"], (1,))], pace="half"),
            r"^train\.stages\.recipe\.pace: got 'instruction', but train\.pace is 'half'",
        ),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("machine", RECIPES)
def test_a_recipe_is_remade_of_its_fields(machine: str) -> None:
    assert changed_recipe(machine) == RECIPES[machine]
    assert changed_recipe(machine, recipe_changes(RECIPES[machine])) == RECIPES[machine]


@pytest.mark.parametrize("kind", [MachineDataModule, MachineTextDataModule])
def test_both_sources_are_of_one_machine_and_pace(kind: Any, tokenizer: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^validation\.machine: got 'fsm', but train\.machine is 'coloured'; set .* to"
    ):
        kind(tokenizer, train=MachineStream("coloured"), validation=MachineSet("fsm"))
    with pytest.raises(ValueError, match=r"^validation\.pace: got 'instruction', but train\.pace is 'half'; set .* to"):
        kind(tokenizer, train=MachineStream("stack", pace="half"), validation=MachineSet("stack"))
    data = kind(tokenizer, train=MachineStream("stack", {"lines": 12}, pace="half"))
    assert data.validation.recipe == data.train_source.recipe == replace(RECIPES["stack"], lines=12, pace="half")


def test_a_partial_recipe_keeps_the_machine(tmp_path: Path) -> None:
    """On the command line too, where it is one field of a nested part."""
    cli = LoopformerCLI(
        [
            *("--config", "configs/program_coloured.yaml", "--config", "configs/backbone/tiny.yaml"),
            *("--data.init_args.train.init_args.recipe.cells", "10", "--output", str(tmp_path / "run")),
        ]
    )
    assert cli.datamodule.train_source.recipe == replace(RECIPES["coloured"], cells=10)


@pytest.mark.parametrize("machine", RECIPES)
def test_configs_have_a_head_for_every_field(machine: str) -> None:
    config = yaml.safe_load((ROOT / f"configs/program_{machine}.yaml").read_text())
    heads = config["model"]["init_args"]["network"]["init_args"]["state_heads"]["init_args"]["heads"]
    sizes = {name: head["init_args"]["values"] for name, head in heads.items()}
    assert sizes == {name: len(FIELDS[name]) for name in MachineTask(machine).fields}
    for part in ("train", "validation"):
        assert config["data"]["init_args"][part]["init_args"]["machine"] == machine
