"""Machines as text: renderings rebuild every state, and parsers take any output; both kinds meet the same machines."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_machines import registers, stacks, tapes

from datamodules.machine import MachineDataModule, MachineSet, MachineStream
from datamodules.machine_text import MachineTextDataModule
from datamodules.tasks.machines.family import RECIPES, MachineInstance, MachineTask
from datamodules.tasks.machines.renderings import (
    RENDERINGS,
    VISIBLE,
    MachineCompactScratchpad,
    MachineDynamicScratchpad,
    MachineOutput,
    MachineRendering,
    MachineScratchpad,
    text_style,
    trained_rendering,
    written_runs,
)
from datamodules.tasks.machines.words import STATES
from loopformer.tokenizer import tiny_tokenizer, tiny_words

LINES = (MachineScratchpad(), MachineCompactScratchpad())
WORDS = ["machines", "machine_text"]


@settings(max_examples=80, deadline=None)
@given(st.one_of(tapes, registers, stacks), st.integers(1, 9), st.integers(0, 1_000))
def test_every_rendering_rebuilds_the_full_states(recipe: Any, depth: int, seed: int) -> None:
    machines = recipe.draw(np.random.default_rng(seed), 4, depth)
    for run in written_runs(machines):
        wanted = list(run.states[1:])
        sizes = []
        for rendering in LINES:
            (example,) = rendering.examples(run)
            reading = rendering.read(example.completion, run.states[0], 100)
            assert reading.whole
            assert reading.states == wanted
            assert example.prompt.endswith("\nAnswer:")
            sizes.append(len(example.completion))
        assert sizes[1] <= sizes[0] + len(wanted), "a change is no longer than the state, but for the mark of none"
        dynamic = MachineDynamicScratchpad()
        examples = dynamic.examples(run)
        assert len(examples) == len(wanted)
        for example, before, after in zip(examples, run.states, wanted, strict=False):
            assert example.prompt == dynamic.prompt(run.table, before)
            assert dynamic.read(example.completion, before, 1).states == [after]
        (example,) = MachineOutput().examples(run)
        assert MachineOutput().read(example.completion, run.states[0], 1).states[0][VISIBLE] == wanted[-1][VISIBLE]


@pytest.mark.parametrize("machine", RECIPES)
def test_the_scratchpad_is_the_trace_of_the_procedure(machine: str) -> None:
    task = MachineTask(machine)
    machines = task.recipe.draw(np.random.default_rng(0), 24, 4)
    told = {True: 0, False: 0}
    for row, run in enumerate(written_runs(machines)):
        instance = MachineInstance(machines[slice(row, row + 1)])
        asked = task.example(instance, "trace")
        (example,) = MachineScratchpad().examples(run)
        assert example.completion == asked.completion
        ends = bool(machines.ends[row])
        told[ends] += 1
        assert (example.prompt == asked.prompt) != ends
        assert ("Steps:" in example.prompt) != ends, "a machine that ends is asked without the count"
        assert run.prompt.startswith(run.table)
    assert min(told.values()) > 0


def test_unchanged_states_and_the_mark_of_none() -> None:
    compact, state = MachineCompactScratchpad(), {VISIBLE: "A", "symbol": "s", "next": "ab"}
    assert compact.line(state, state) == " ="
    assert compact.read(" =\n symbol: t", state, 9).states == [state, {**state, "symbol": "t"}]
    for text in (
        "", " ", " A; A", " symbol: t; A", " symbol: t; symbol: t", " visible: B", " symbol:t", " symbol: ab",
        " op: SET", " A;symbol: t", "  A", " A\n", " a", " A;", " = ", " A; =",
    ):  # fmt: skip
        assert not compact.read(text, state, 9).whole, text
    full = MachineScratchpad()
    assert full.read(" A; symbol: s; next: ab", state, 9).states == [state]
    for text in (" A", " A; symbol: s", " symbol: s; next: ab", " A; next: ab; symbol: s", " ="):
        assert full.read(text, state, 9) == full.read("", state, 9), text


HOSTILE = {
    "nothing": "",
    "prose": "Sure! Let us execute the machine step by step. First, the state is A; then: B. " * 50,
    "one long word": "A" * 10_000_000,
    "brackets": "[" * 5_000_000 + "]" * 5_000_000,
    "lines": "\n" * 10_000_000,
    "separators": "; " * 5_000_000,
    "names": ": " * 5_000_000,
    "good lines for ever": " A; symbol: s; next: ab\n" * 400_000,
    "numbers": " nan; NaN; inf; 1e999; -0",
    "null bytes": "\x00" * 1_000 + " A\x00",
    "surrogate": " A; symbol: \ud800",
    "other newlines": " A\x85 A\u2028 A\r A",
    "code": "__import__('os').system('false')",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_output_crashes_the_parsers(name: str) -> None:
    state = {VISIBLE: "A", "symbol": "s", "next": "ab"}
    clock = time.process_time()
    for rendering in (kind() for kind in RENDERINGS.values()):
        reading = rendering.read(HOSTILE[name], state, 20)
        assert len(reading.states) <= 20
        if name != "good lines for ever":
            assert not reading.whole
    assert time.process_time() - clock < 5


def test_styles_are_remembered() -> None:
    for name, kind in RENDERINGS.items():
        style = text_style("jumps", kind())
        assert style == f"machine/jumps/{name}"
        assert type(trained_rendering(style)) is kind
    for other in (None, "steps", "office/stack/listed", "machine/fsm/Other", "machine"):
        assert trained_rendering(other) is None


@pytest.mark.parametrize("rendering", [MachineCompactScratchpad(), MachineDynamicScratchpad()])
def test_both_kinds_of_model_meet_the_same_machines(rendering: MachineRendering) -> None:
    tokenizer = tiny_tokenizer(tiny_words(WORDS))
    stream, checked = (
        MachineStream("registers", batches_per_epoch=3),
        MachineSet("registers", depths=[1, 2], per_depth=4),
    )
    looped = MachineDataModule(tokenizer, stream, checked, seed=4)
    text = MachineTextDataModule(tokenizer, rendering, stream, checked, seed=4, generated=2)
    assert text.trained_counts == looped.trained_counts
    assert text.cohorts == looped.cohorts
    for stage in (0, len(text.stages) - 1):
        text.set_stage(stage)
        for ours, theirs in zip(text.train_dataloader(), looped.train_dataloader(), strict=True):
            assert ours.steps.tolist() == theirs.steps.tolist()
            for row in range(0, len(ours), 16):
                words = tokenizer.decode(ours.prompts()[row])
                view = theirs.views["executor"]
                prompt = tokenizer.decode(view.input_ids[row, : view.lengths[row]])
                table = prompt[: prompt.index("\nRegisters:")]
                assert words.startswith(table)
                answer = tokenizer.decode(ours.answers()[row][:-1])
                assert tokenizer.unk_token_id not in ours.input_ids[row]
                if rendering.by_step:
                    step = row % int(theirs.steps[row])
                    assert answer[1] == STATES[theirs.labels[row, step]]
                else:
                    assert answer.count("\n") + 1 == int(theirs.steps[row])
    (first, second) = text.val_dataloader()
    assert first.generated.tolist() == second.generated.tolist() == [True, True, False, False]
