"""The machine benchmark: its numbers follow from what the model said, whatever the model; its files are complete."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from test_configs import ROOT, real_size
from test_shared_prompt import network

import evaluate
from datamodules.machine import MachineDataModule, MachineStream, machine_benchmark, trained_paces
from datamodules.machine_batcher import MachineBatcher
from datamodules.tasks.machines.family import FIELDS, RECIPES, changed_recipe
from datamodules.tasks.machines.machine import Machines
from datamodules.tasks.machines.program import Pace
from datamodules.tasks.machines.words import END, WORDS, lookup
from loopformer import checkpoint
from loopformer.checkpoint import Checkpoint
from loopformer.evaluation.curves import read_curves
from loopformer.evaluation.machine_benchmark import MachineOptions, as_trained, evaluate_machines
from loopformer.evaluation.machine_breakdown import Said, breakdown
from loopformer.evaluation.machine_model import LoopedMachine
from loopformer.evaluation.machine_run import machine_table
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.program_benchmark import ProgramOptions
from loopformer.looped import LoopedTransformer
from loopformer.tokenizer import tiny_tokenizer, tiny_words

HEADS = {
    name: {"class_path": "ClassHead", "init_args": {"values": len(FIELDS[name])}} for name in ("symbol", "next", "op")
}


def loaded(tmp_path: Path, halting: str | None = None, view: str = "executor") -> Checkpoint:
    config: dict[str, Any] = network_config(halting, view)
    torch.manual_seed(1)
    checkpoint.save(tmp_path / "model", checkpoint.build_network(config), config)
    return checkpoint.load(tmp_path / "model")


def network_config(halting: str | None, view: str) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
    return {
        "class_path": "LoopedTransformer",
        "init_args": {
            "backbone": {
                "class_path": "ScratchBackbone",
                "init_args": {"config": {**sizes, "num_hidden_layers": 3}, "words": ["machines"]},
            },
            "recurrence": {"class_path": "FixedPrompt", "init_args": {"view": view}},
            "bridge": {"class_path": "ReentryBridge"},
            "halting": None if halting is None else {"class_path": halting},
            "state_heads": {"class_path": "StateHeads", "init_args": {"heads": HEADS}},
            "adaptation": {"class_path": "Everything"},
        },
    }


def run(given: Checkpoint, **options: Any) -> tuple[OutcomeStore, dict[str, Any]]:
    counted: list[int] = []
    given_options = MachineOptions(**options)
    model = LoopedMachine(given, given_options.batch_size)
    found = evaluate_machines(model, given_options, counted.append, counted.append)
    store, details = found.store, found.details
    assert counted[0] == sum(counted[1:]) == len(store.steps), "the bar ends full"
    return store, details


def said_by(machines: Machines, loops: int) -> Said:
    """A model that is always right."""
    run = machines.run(loops)
    fields = {name: torch.from_numpy(lookup(FIELDS[name])[words][:, 1:]) for name, words in run.state.items()}
    return Said(torch.from_numpy(run.visible.copy()), fields, torch.zeros(len(machines), loops, 1))


def test_breakdown_counts_only_what_follows_a_right_state() -> None:
    machines = RECIPES["jumps"].draw(np.random.default_rng(0), 300, 12)
    machines = machines[~machines.ends]
    truth = machines.run(12)
    perfect = breakdown(machines, truth, said_by(machines, 12), [12])
    cells = [*perfect["by_opcode"].values(), *perfect["fields"].values()]
    assert all(cell["share"] == 1.0 for cell in [*cells, perfect["after_taken"], perfect["after_other"]])
    assert perfect["after_taken"]["n"] == truth.taken[:, :-1].sum()
    assert sum(cell["n"] for cell in perfect["by_opcode"].values()) == truth.visible.size

    wrong = said_by(machines, 12)
    taken = torch.from_numpy(truth.taken)
    after = torch.cat([torch.zeros(len(machines), 1, dtype=torch.bool), taken[:, :-1]], 1)
    wrong.letters = torch.where(after, (wrong.letters + 1) % 26, wrong.letters)
    never = breakdown(machines, truth, wrong, [12])
    jumped = (taken[:, :-1]).any(1).sum()
    assert never["after_taken"]["share"] == 0
    assert never["after_other"]["share"] == 1
    assert never["after_taken"]["n"] == int(jumped), "a run counts up to its first error"
    assert never["fields"]["op"]["share"] == 1


@pytest.mark.parametrize(("halting", "view"), [(None, "executor"), ("StopHead", "executor"), ("GRUController", "full")])
def test_store_holds_every_query_of_every_split(tmp_path: Path, halting: str | None, view: str) -> None:
    given = loaded(tmp_path, halting, view)
    store, details = run(given, task="fsm", machines=5, longest=12)
    names = store.metadata.fact_values["split"]
    assert names == tuple(details)
    assert "unseen_names" not in names, "a model from scratch does not know them"
    split = store.facts["split"][store.instance.long()]
    assert {name: int((split == n).sum()) for n, name in enumerate(names)} == {
        "trained": 25, "unseen_rules": 25, "held_out_lengths": 5, "longer_runs": 5, "longer_prompts": 25,
        "much_longer_prompts": 25, "ending": 5,
    }  # fmt: skip
    # The letters of the store are those of native calls.
    query = int(np.flatnonzero((split == names.index("longer_prompts")).numpy())[-1])
    instance, steps = int(store.instance[query]), int(store.steps[query])
    from datamodules.tasks.machines.splits import split as find

    machines = find("fsm", "longer_prompts").draw(307, "longer_prompts", 5)
    local = instance - 5 * names.index("longer_prompts")
    batch = MachineBatcher(given.network.backbone.tokenizer).batch(machines[slice(local, local + 1)], steps)
    native = given.network.rollout(batch, steps)
    assert store.letters[int(store.row[query]), :steps].tolist() == native.letter_logits[0].argmax(-1).tolist()
    assert store.reference[int(store.row[query]), :steps].tolist() == batch.labels[0].tolist()


def test_without_a_stop_rule_the_state_tells_the_end(tmp_path: Path) -> None:
    given = loaded(tmp_path)
    head = given.network.state_heads.heads["symbol"]  # type: ignore[union-attr]
    head.linear.weight.zero_()  # type: ignore[union-attr, operator]
    head.linear.bias.zero_()  # type: ignore[union-attr, operator]
    head.linear.bias[FIELDS["symbol"].index(END)] = 1.0  # type: ignore[union-attr, index, operator]
    store, details = run(given, task="fsm", machines=6, splits=["ending"])
    assert store.stops.tolist() == [1] * 6, "this model sees END everywhere"
    assert details["ending"]["fields"]["symbol"]["n"] > 0
    head.linear.bias[FIELDS["symbol"].index(END)] = -1.0  # type: ignore[union-attr, index, operator]
    assert run(given, task="fsm", machines=6, splits=["ending"])[0].stops.tolist() == [0] * 6


@pytest.mark.parametrize(("halting", "heads"), [(None, ["symbol", "next"]), (None, ["next"]), ("StopHead", ["symbol"])])
def test_stops_are_judged_where_an_end_can_be_told(tmp_path: Path, halting: str | None, heads: list[str]) -> None:
    """A tape that goes round has no end: without a stop rule its stops are no number, and no part of one."""
    config = network_config(halting, "executor")
    config["init_args"]["state_heads"]["init_args"]["heads"] = {name: HEADS[name] for name in heads}
    torch.manual_seed(1)
    checkpoint.save(tmp_path / "model", checkpoint.build_network(config), config)
    options = MachineOptions(task="fsm", machines=3, longest=8, splits=["trained", "ending"])
    program = ProgramOptions("machine", machine=options)
    evaluate.evaluate([tmp_path / "model"], tmp_path / "out", "program", program=program)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    counted = {None: 3 if "symbol" in heads else 0, "StopHead": summary["queries"]}[halting]
    judged = {"trained": halting is not None, "ending": counted > 0}
    for split, told in judged.items():
        for cell in (summary["by_split"][split], *summary["machine"][split]["by_count"].values()):
            assert (cell["exact_stop"] is not None) == told
            assert (cell["strict"] is not None) == told
            assert cell["complete"] is not None
    assert (summary["machine"]["trained"]["exact_stop"] is not None) == judged["trained"]
    assert summary["n_of"].get("exact_stop", summary["queries"]) == counted
    if counted == 3:
        for name in ("exact_stop", "strict", "missing_stop"):
            assert summary[name] == summary["by_split"]["ending"][name]
            assert summary["intervals"][name] == summary["by_split"]["ending"]["intervals"][name]
        steps = [
            n for n, share in zip(*(summary["by_steps"][k] for k in ("steps", "missing_stop")), strict=True) if share
        ]
        assert len(steps) <= 3
    assert (summary["exact_stop"] is None) == (counted == 0)
    assert summary["forced_final"] is not None


def test_terminal_table_fits(tmp_path: Path) -> None:
    _, details = run(loaded(tmp_path), task="jumps", machines=3, longest=12, seed=3)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(machine_table(details, "a title"))
    text = console.export_text()
    assert "…" not in text
    assert all(re.search(rf"^{name} ", text, re.MULTILINE) for name in details)
    assert "much_longer_prompts" in details


def test_half_instructions_ask_for_twice_the_loops(tmp_path: Path) -> None:
    store, details = run(loaded(tmp_path), task="jumps", machines=4, splits=["trained"], half=True)
    assert sorted(set(store.steps.tolist())) == [2, 4, 6, 8, 12]
    assert list(details["trained"]["by_count"]) == ["2", "4", "6", "8", "12"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    given = loaded(tmp_path)
    for options, message in (
        ({"task": "fsm", "splits": ["unseen_names"]}, "needs a pretrained model"),
        ({"task": "fsm", "splits": ["far"]}, "splits: got 'far'"),
        ({"task": "turing"}, "machine: got 'turing'"),
        ({"task": "fsm", "half": True}, "only programs"),
        ({"task": "fsm", "splits": ["longer_runs"], "longest": 5}, "machine.longest"),
        ({"machines": 0}, "machine.machines: needs at least 1"),
        ({"seed": -1}, r"^machine\.seed: needs at least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            run(given, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "style", "given", "found"),
    [
        (["registers"], None, {}, ("registers", False)),
        (["jumps half"], None, {}, ("jumps", True)),
        (["jumps half"], None, {"half": False}, ("jumps", False)),
        (["jumps half"], None, {"task": "registers"}, ("registers", False)),
        (["registers"], None, {"half": True}, ("registers", True)),
        (["fsm", "jumps half"], None, {"task": "jumps"}, ("jumps", True)),
        ([], "machine/stack/MachineOutput", {}, ("stack", False)),
        ([], None, {"task": "fsm"}, ("fsm", False)),
    ],
)
def test_a_trained_model_tells_its_machine(
    told: list[str], style: str | None, given: dict[str, Any], found: tuple[str, bool]
) -> None:
    paces: dict[str, Pace] = {word.split()[0]: "half" if "half" in word else "instruction" for word in told}
    benchmarks = ["graph", "grammar", *(machine_benchmark(task, pace) for task, pace in paces.items())]
    assert trained_paces(benchmarks) == paces
    made = {"benchmarks": benchmarks} if style is None else {"text_style": style}
    options = as_trained(MachineOptions(**given), made, "m")
    assert (options.task, options.half) == found


def test_a_model_that_does_not_tell_its_machine_is_refused() -> None:
    several = {"benchmarks": [machine_benchmark("fsm"), machine_benchmark("stack")]}
    with pytest.raises(
        ValueError, match=r"^machine\.task: m was trained on several machines \(fsm, stack\); say which"
    ):
        as_trained(MachineOptions(), several, "m")
    for made in ({}, {"benchmarks": ["graph"]}, {"text_style": "trace"}):
        with pytest.raises(
            ValueError, match=r"^machine\.task: m does not tell .* --program\.machine\.task fsm, coloured, registers"
        ):
            as_trained(MachineOptions(), made, "m")


def test_command_asks_the_trained_machine_at_its_pace(tmp_path: Path) -> None:
    config = network_config(None, "executor")
    data = MachineDataModule(
        tiny_tokenizer(tiny_words(["machines"])), MachineStream("jumps", {"lines": 6}, pace="half")
    )
    made = {"benchmarks": list(data.benchmarks), "recipes": data.recipes}
    checkpoint.save(tmp_path / "model", checkpoint.build_network(config), config, made)
    options = MachineOptions(machines=2, longest=1, splits=["trained", "longer_prompts"])
    program = ProgramOptions("machine", machine=options)
    evaluate.evaluate([tmp_path / "model"], tmp_path / "out", "program", program=program)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["benchmark"] == "machine-jumps"
    assert summary["half"] is True
    assert list(summary["machine"]["trained"]["by_count"]) == ["2"]
    assert list(summary["by_length"]) == ["6", "12"]
    given = as_trained(MachineOptions(recipe={"lines": 10}), made, "m")
    assert changed_recipe("jumps", given.recipe) == replace(RECIPES["jumps"], lines=10)
    assert "--program.machine.task jumps --program.machine.half true" in (tmp_path / "model" / "README.md").read_text()


def test_command_writes_every_file(tmp_path: Path) -> None:
    loaded(tmp_path)
    options = MachineOptions(task="registers", machines=4, longest=6, splits=["unseen_rules", "ending"])
    program = ProgramOptions("machine", machine=options)
    evaluate.evaluate([tmp_path / "model"], tmp_path / "out", "program", program=program)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary["machine"]) == {"unseen_rules", "ending"}
    assert summary["machine"]["unseen_rules"]["by_count"]["6"]["n"] == 4
    assert set(summary["machine"]["unseen_rules"]["by_opcode"]) <= {"SET", "MOV", "INC"}
    assert summary["benchmark"] == "machine-registers"
    (curve,) = read_curves([str(tmp_path / "out")])
    assert [point[0] for point in curve.points] == [1, 2, 3, 4, 6]
    assert "| unseen_rules | 6 |" in (tmp_path / "out" / "table.md").read_text()
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert OutcomeStore.load(tmp_path / "out" / "outcomes.safetensors").metadata.labels == tuple(WORDS[:26])


@pytest.mark.parametrize("machine", RECIPES)
def test_real_backbone_builds(machine: str) -> None:
    """At its real size, on the meta device: R of 12 layers is trained, and every field has its head."""
    config = yaml.safe_load((ROOT / f"configs/program_{machine}.yaml").read_text())["model"]["init_args"]["network"]
    heads = list(config["init_args"]["state_heads"]["init_args"]["heads"])
    real = real_size(config)
    assert isinstance(real, LoopedTransformer)
    assert len(real.backbone.recurrent) == 12
    assert all(p.requires_grad for layer in real.backbone.recurrent for p in layer.parameters())
    assert not any(p.requires_grad for layer in real.backbone.prelude for p in layer.parameters())
    assert real.state_heads is not None
    assert set(real.state_heads.sizes) == set(heads)
    assert network().state_heads is None
