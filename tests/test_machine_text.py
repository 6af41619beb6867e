"""Machines as text, asked and scored: writers of known quality get known scores, hostile models none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from test_language_model import NETWORK, make_model
from test_machine_benchmark import loaded
from test_machine_renderings import HOSTILE, WORDS
from test_training import train

import evaluate
from datamodules.machine import machine_benchmark
from datamodules.tasks.machines.family import RECIPES
from datamodules.tasks.machines.renderings import (
    RENDERINGS,
    MachineDynamicScratchpad,
    MachineOutput,
    MachineRendering,
    MachineScratchpad,
    written_runs,
)
from datamodules.tasks.machines.words import STATES
from datamodules.tasks.procedure import TextExample
from loopformer import language_checkpoint
from loopformer.evaluation.machine_benchmark import MachineOptions, MachineResults, chosen_splits, evaluate_machines
from loopformer.evaluation.machine_text import Answer, WrittenMachine
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.program_benchmark import ProgramOptions
from loopformer.language_checkpoint import LanguageCheckpoint
from loopformer.tokenizer import tiny_tokenizer, tiny_words


def writer(options: MachineOptions, script: Callable[[str, int], tuple[str, bool]] | None = None) -> WrittenMachine:
    """A model that writes the reference, or what `script` makes of it, for every machine of the benchmark."""
    assert options.rendering is not None
    model = make_model()
    tokenizer = tiny_tokenizer(tiny_words(WORDS))
    known: dict[str, str] = {}

    class Scripted(WrittenMachine):
        def _ask(self, examples: Any, slack: Any) -> list[Answer]:
            del slack
            found = [(known[example.prompt], number) for number, example in enumerate(examples)]
            said = [(text, True) if script is None else script(text, number) for text, number in found]
            return [(text, ended, len(text)) for text, ended in said]

    scripted = Scripted(LanguageCheckpoint(model.backbone.lm, tokenizer, {}, "nowhere"), options)
    for name, part in chosen_splits(options, scripted).items():
        machines = part.draw(options.seed, name, options.machines)
        counts = [machines.depth] if part.recipe.end_share else [np.full(len(machines), n) for n in part.depths]
        for steps in counts:
            for run in written_runs(machines, steps):
                known |= {example.prompt: example.completion for example in options.rendering.examples(run)}
    return scripted


def score(options: MachineOptions, script: Callable[[str, int], tuple[str, bool]] | None = None) -> MachineResults:
    counted: list[int] = []
    found = evaluate_machines(writer(options, script), options, counted.append, counted.append)
    assert counted[0] == sum(counted[1:]) == len(found.store.steps), "the bar ends full"
    return found


@pytest.mark.parametrize("rendering", [kind() for kind in RENDERINGS.values()], ids=list(RENDERINGS))
@pytest.mark.parametrize("task", RECIPES)
def test_a_perfect_writer_is_right_everywhere(task: str, rendering: MachineRendering) -> None:
    splits = ["unseen_rules", "longer_runs", "unseen_names", "ending"]
    found = score(MachineOptions(task=task, rendering=rendering, machines=3, longest=12, splits=splits))
    assert list(found.details) == splits
    for split, numbers in found.details.items():
        for cell in numbers["by_count"].values():
            assert cell["final"]["share"] == 1
            assert cell["malformed"]["share"] == 0
            assert cell["tokens"] > 0
            if split == "ending" or not rendering.by_step:
                assert cell["exact_stop"]["share"] == cell["end_to_end"]["share"] == 1
            else:
                assert (cell["exact_stop"], cell["end_to_end"], cell["strict"]) == (None, None, None)
            if rendering.trajectory:
                assert cell["complete"]["share"] == 1
                assert cell["first_error"] is None
            else:
                assert (cell["complete"], cell["strict"], cell["correct_prefix"]) == (None, None, None)
        if rendering.trajectory:
            shares = [*numbers["by_opcode"].values(), *numbers["fields"].values()]
            assert all(one["share"] == 1 for one in shares)
    if rendering.by_step:
        assert set(found.store.stops[found.store.facts["ends"][found.store.instance.long()] == 0].tolist()) == {0}


def lines(text: str) -> list[str]:
    return text.split("\n")


WRITERS: dict[str, tuple[Callable[[str], tuple[str, bool]], dict[str, Any]]] = {
    # 6 steps each; what is written -> the numbers of the cell
    "stops after 4": (
        lambda text: ("\n".join(lines(text)[:4]), True),
        {"final": 0, "complete": 0, "correct_prefix": 4, "first_error": 5, "exact_stop": 0, "malformed": 0},
    ),
    "one step more": (
        lambda text: (f"{text}\n{lines(text)[-1]}", True),
        {"final": 1, "complete": 1, "correct_prefix": 6, "first_error": None, "exact_stop": 0, "malformed": 0},
    ),
    "never ends": (
        lambda text: (text, False),
        {"final": 1, "complete": 1, "correct_prefix": 6, "first_error": None, "exact_stop": 0, "malformed": 0},
    ),
    "prose after the run": (
        lambda text: (f"{text}\nThat is all.", True),
        {"final": 1, "complete": 1, "correct_prefix": 6, "first_error": None, "exact_stop": 0, "malformed": 1},
    ),
    "prose before the run": (
        lambda text: (f"Sure!\n{text}", True),
        {"final": 0, "complete": 0, "correct_prefix": 0, "first_error": 1, "exact_stop": 0, "malformed": 1},
    ),
    "the second letter is another": (
        lambda text: (
            "\n".join(
                f" {STATES[(STATES.index(line[1]) + 1) % 26]}{line[2:]}" if step == 1 else line
                for step, line in enumerate(lines(text))
            ),
            True,
        ),
        {"final": 1, "complete": 0, "correct_prefix": 1, "first_error": 2, "exact_stop": 1, "malformed": 0},
    ),
    "a step is left out": (
        lambda text: ("\n".join(lines(text)[:2] + lines(text)[3:]), True),
        {"exact_stop": 0, "malformed": 0, "complete": 0},
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_known_mistakes_get_their_numbers(name: str) -> None:
    write, wanted = WRITERS[name]
    options = MachineOptions(
        task="jumps", rendering=MachineScratchpad(), machines=6, longest=6, splits=["unseen_rules"]
    )
    cell = score(options, lambda text, _: write(text)).details["unseen_rules"]["by_count"]["6"]
    for field, value in wanted.items():
        found = cell[field]
        assert (found["share"] if isinstance(found, dict) else found) == value, field
    assert cell["strict"]["share"] == cell["exact_stop"]["share"] * cell["complete"]["share"]


def test_half_of_the_writers_wrong_is_half_of_the_share() -> None:
    options = MachineOptions(task="fsm", rendering=MachineOutput(), machines=10, longest=4, splits=["trained"])
    found = score(options, lambda text, row: (text if row % 2 else " no idea", True))
    cell = found.details["trained"]["by_count"]["4"]
    for field in ("final", "exact_stop", "end_to_end", "malformed"):
        assert cell[field]["share"] == 0.5
        assert 0.2 < cell[field]["low"] < 0.5 < cell[field]["high"] < 0.8


def test_step_by_step_an_error_is_carried_on() -> None:
    """A run goes on from the state that was written, and is over where that is none."""
    options = MachineOptions(
        task="fsm", rendering=MachineDynamicScratchpad(), machines=4, longest=6, splits=["trained"], seed=1
    )
    calls = 0

    def script(text: str, row: int) -> tuple[str, bool]:
        nonlocal calls
        calls += 1
        return (text, True) if calls <= 8 or row else ("?", True)  # the first machine fails at its third step

    found = score(options, script)
    cell = found.details["trained"]["by_count"]
    assert cell["2"]["complete"]["share"] == 1
    assert cell["3"]["complete"]["share"] == 0.75
    assert cell["3"]["malformed"]["share"] == 0.25
    assert cell["2"]["malformed"]["share"] == 0
    assert len(found.outputs[0]["texts"]) == 3
    assert cell["2"]["tokens"] < cell["3"]["tokens"] < cell["4"]["tokens"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_models_are_scored(name: str, tmp_path: Path) -> None:
    text = HOSTILE[name][:200_000]
    for rendering in (kind() for kind in RENDERINGS.values()):
        options = MachineOptions(task="fsm", rendering=rendering, machines=2, longest=2, splits=["trained", "ending"])
        found = score(options, lambda _, row: (text, row == 0))
        stop = found.details["trained"]["by_count"]["2"]["exact_stop"]
        assert stop is None if rendering.by_step else stop["share"] == 0
        json.dumps(found.outputs)
        found.store.save(tmp_path / f"{type(rendering).__name__}.safetensors")


def exported(tmp_path: Path, style: str | None) -> Path:
    """A tiny language model of ours, or a plain Hugging Face folder."""
    torch.manual_seed(0)
    model = make_model()
    folder = tmp_path / "text_model"
    if style is None:
        model.backbone.lm.save_pretrained(folder)
        model.backbone.tokenizer.save_pretrained(folder)
    else:
        made = {"text_style": style, "trained_counts": [1, 2], "benchmarks": [machine_benchmark(style.split("/")[1])]}
        language_checkpoint.save(folder, model, NETWORK, made)
    return folder


def test_ordinary_and_looped_results_stand_beside_each_other(tmp_path: Path) -> None:
    loaded(tmp_path)
    folder = exported(tmp_path, "machine/fsm/MachineCompactScratchpad")
    options = MachineOptions(machines=3, longest=2, splits=["trained", "ending"], max_new_tokens=12)
    evaluate.evaluate([folder], tmp_path / "text", "program", program=ProgramOptions("machine", machine=options))
    plain = MachineOptions(task="fsm", machines=3, longest=2, splits=["trained", "ending"])
    looped = ProgramOptions("machine", machine=plain)
    evaluate.evaluate([tmp_path / "model"], tmp_path / "looped", "program", program=looped)
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("text", "looped")]
    assert set(summaries[1]) <= set(summaries[0]) | {"settings"}
    cells = [summary["machine"]["trained"]["by_count"]["2"] for summary in summaries]
    assert list(cells[0]) == list(cells[1])
    assert cells[1]["tokens"] is None
    assert 1 <= cells[0]["tokens"] <= 12
    tables = [(tmp_path / name / "table.md").read_text().splitlines() for name in ("text", "looped")]
    assert tables[0][0] == tables[1][0]
    assert [line.split("|")[1:3] for line in tables[0]] == [line.split("|")[1:3] for line in tables[1]]
    stores = [OutcomeStore.load(tmp_path / name / "outcomes.safetensors") for name in ("text", "looped")]
    assert stores[0].metadata.digests["machines"] == stores[1].metadata.digests["machines"], "the same machines"
    assert torch.equal(stores[0].steps, stores[1].steps)
    written = [json.loads(line) for line in (tmp_path / "text" / "outputs.jsonl").read_text().splitlines()]
    assert len(written) == len(stores[0].steps)
    assert summaries[0]["rendering"] == "MachineCompactScratchpad"
    assert "--program.part machine --program.machine.task fsm" in (folder / "README.md").read_text()
    with pytest.raises(ValueError, match="of models that write; this one is looped"):
        evaluate.evaluate(
            [tmp_path / "model"], tmp_path / "no", "program", program=ProgramOptions("machine", machine=options)
        )


def test_any_hugging_face_model_is_asked_with_worked_examples(tmp_path: Path) -> None:
    folder = exported(tmp_path, None)
    options = MachineOptions(
        task="fsm", machines=2, longest=1, splits=["unseen_names"], rendering=MachineOutput(), worked=2
    )
    program = ProgramOptions("machine", machine=options)
    evaluate.evaluate([folder], tmp_path / "out", "program", program=program)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["forced_final"] is not None
    assert "complete" not in summary
    assert "survival" not in summary
    assert not (tmp_path / "out" / "report.html").exists()
    options.rendering = None
    with pytest.raises(ValueError, match=r"does not tell how it was trained; choose --program.machine.rendering"):
        evaluate.evaluate([folder], tmp_path / "no", "program", program=program)


def test_worked_examples_end_in_a_blank_line_without_a_chat_template() -> None:
    options = MachineOptions(task="stack", rendering=MachineScratchpad(), machines=2, longest=2, worked=2)
    model = writer(options)
    model._checkpoint.tokenizer = make_model().backbone.tokenizer
    model._encoder.tokenizer = model._checkpoint.tokenizer
    asked: list[str] = []
    encode = model._encoder.encode

    def spy(texts: Any) -> list[list[int]]:
        asked.extend(texts)
        return encode(texts)

    model._encoder.encode = spy  # type: ignore[method-assign]
    WrittenMachine._ask(model, [TextExample("Q\nAnswer:", " A")], [1.0])
    assert asked[0].count("\n\n") == 2
    assert asked[0].endswith("\n\nQ\nAnswer:")
    from loopformer.generation import Response

    assert model._read(" A\n\nProgram:", Response([1, 2], False, 2)) == (" A", True, 2)


@pytest.mark.slow
def test_commands_from_training_to_numbers(tmp_path: Path) -> None:
    tiny = ("--config", "configs/program_machine_text.yaml", "--config", "configs/backbone/tiny.yaml")
    small = (
        "--data.init_args.rendering=MachineCompactScratchpad", "--data.init_args.validation.init_args.per_depth=2",
        "--data.init_args.validation.init_args.depths=[1,2]", "--trainer.val_check_interval=3",
        "--trainer.log_every_n_steps=1", "--checkpoint.every_n_train_steps=2", "--trainer.max_time=null",
    )  # fmt: skip
    whole = train(*tiny, *small, "--trainer.max_steps=3", "--output", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.output  # type: ignore[attr-defined]
    provenance = yaml.safe_load((tmp_path / "whole" / "model" / "config.yaml").read_text())["provenance"]
    assert provenance["text_style"] == "machine/fsm/MachineCompactScratchpad"
    assert provenance["trained_counts"] == [1, 2, 3, 4, 6]
    half = train(*tiny, *small, "--trainer.max_steps=2", "--output", str(tmp_path / "half"))
    assert half.returncode == 0, half.output  # type: ignore[attr-defined]
    (tmp_path / "half" / "model").rename(tmp_path / "half" / "earlier")
    rest = train(*tiny, *small, "--trainer.max_steps=3", "--output", str(tmp_path / "half"), "--resume=true")
    assert rest.returncode == 0, rest.output  # type: ignore[attr-defined]
    models = [load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "half")]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items()), "resumed as uninterrupted"
    evaluate.main(
        [
            "--checkpoint", str(tmp_path / "whole" / "model"), "--output", str(tmp_path / "out"),
            "--benchmark", "program", "--program.part", "machine", "--program.machine.machines", "2",
            "--program.machine.longest", "3",
            "--program.machine.splits", "[trained]",
        ]
    )  # fmt: skip
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rendering"] == "MachineCompactScratchpad"
