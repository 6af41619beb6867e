"""The machine engines agree with slow interpreters of their own prompts; splits are disjoint and deterministic."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import machine_interpreter
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.tasks.machines.family import RECIPES, MachineInstance, MachineStage, MachineTask, curriculum
from datamodules.tasks.machines.machine import Machines, held_out
from datamodules.tasks.machines.program import Programs
from datamodules.tasks.machines.register_program import RegisterRecipe
from datamodules.tasks.machines.splits import SPLITS, split
from datamodules.tasks.machines.stack_program import StackRecipe
from datamodules.tasks.machines.tape import TapeMachines, TapeRecipe
from datamodules.tasks.machines.words import TRAINED_NAMES, UNSEEN_NAMES, WORDS

tapes = st.builds(
    TapeRecipe,
    states=st.integers(1, 26),
    symbols=st.integers(1, 4),
    cells=st.integers(2, 14),
    names=st.sampled_from([14, 32, 128]),
    maps=st.sampled_from(["mixture", "function", "permutation"]),
    colours=st.booleans(),
    end_share=st.sampled_from([0.0, 0.5, 1.0]),
    tables=st.just("any"),
)
registers = st.builds(
    lambda branch, two, **options: RegisterRecipe(
        branch_rate=branch, targets=branch > 0 or two, opcodes=("SET", "MOV", "INC", "DEC"), tables="any", **options
    ),
    branch=st.sampled_from([0.0, 0.3, 0.8]),
    two=st.booleans(),
    lines=st.integers(2, 12),
    registers=st.integers(2, 4),
    values=st.integers(2, 26),
    names=st.sampled_from([12, 128]),
    end_share=st.sampled_from([0.0, 0.5, 1.0]),
    pace=st.sampled_from(["instruction", "half"]),
)
stacks = st.builds(
    StackRecipe,
    lines=st.integers(4, 12),
    places=st.integers(3, 6),
    values=st.integers(2, 26),
    end_share=st.sampled_from([0.0, 0.5, 1.0]),
    pace=st.sampled_from(["instruction", "half"]),
    tables=st.just("any"),
)
depths = st.integers(1, 9)


def agree(machines: Machines, loops: int, values: int = 8) -> None:
    """The arrays of a run say what the slow interpreter reads out of the prompts."""
    run, prompt = machines.run(loops), machines.prompt()
    half = isinstance(machines, Programs) and bool(machines.halves.any())
    for row in range(len(machines)):
        slow = machine_interpreter.run(prompt.text(row), loops, values, half)
        assert [WORDS[v] for v in run.visible[row]] == slow.visible
        assert {name: [WORDS[v] for v in words[row]] for name, words in run.state.items()} == slow.fields
        assert [WORDS[v] for v in run.opcode[row]] == slow.opcode
        assert run.taken[row].tolist() == slow.taken


@settings(max_examples=60, deadline=None)
@given(tapes, depths, st.integers(0, 1_000))
def test_tapes_equal_a_slow_interpreter(recipe: TapeRecipe, depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    agree(recipe.draw(rng, 3, depth).repeat(rng, 2), depth + 2)


@settings(max_examples=100, deadline=None)
@given(registers, depths, st.integers(0, 1_000))
def test_register_programs_equal_a_slow_interpreter(recipe: RegisterRecipe, depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    agree(recipe.draw(rng, 3, depth).repeat(rng, 2), 2 * depth + 3, recipe.values)


@settings(max_examples=60, deadline=None)
@given(stacks, depths, st.integers(0, 1_000))
def test_stack_programs_equal_a_slow_interpreter(recipe: StackRecipe, depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    agree(recipe.draw(rng, 3, depth).repeat(rng, 2), 2 * depth + 3, recipe.values)


@settings(max_examples=60, deadline=None)
@given(st.one_of(tapes, registers, stacks), depths, st.integers(0, 1_000))
def test_a_machine_ends_exactly_after_its_depth(recipe: Any, depth: int, seed: int) -> None:
    """END is what the state carries after the last step, never before it; machines that go on never carry it."""
    machines = recipe.draw(np.random.default_rng(seed), 8, depth)
    run = machines.run(int(machines.depth.max()))
    ahead = run.state["symbol" if isinstance(machines, TapeMachines) else "op"]
    for row in range(len(machines)):
        over = [WORDS[v] == "END" for v in ahead[row, : machines.depth[row] + 1]]
        assert over == [False] * int(machines.depth[row]) + [bool(machines.ends[row])]


def test_draws_are_deterministic_and_seeds_differ() -> None:
    for recipe in RECIPES.values():
        first, again, other = (recipe.draw(np.random.default_rng(seed), 20, 4).prompt().words for seed in (0, 0, 1))
        assert (first == again).all()
        assert (first != other).any()


def test_splits_are_reproducible_and_disjoint_from_training() -> None:
    for machine in RECIPES:
        for name in SPLITS:
            part = split(machine, name)
            machines = part.draw(5, name, 30)
            assert (machines.prompt().words == part.draw(5, name, 30).prompt().words).all()
            assert held_out(machines.table()).all() == (name != "trained"), (machine, name)
            assert (name == "ending") == bool(machines.ends.any())
        for stage in curriculum(RECIPES[machine]):
            assert not held_out(stage.draw((0, 1)).table()).any()


def test_names_of_the_unseen_names_split_occur_in_no_training() -> None:
    assert set(TRAINED_NAMES) & set(UNSEEN_NAMES) == set()
    assert len(TRAINED_NAMES) == 128
    for machine in RECIPES:
        drawn = {WORDS[w] for w in split(machine, "unseen_names").draw(0, "unseen_names", 40).prompt().words.flat}
        trained = {WORDS[w] for w in RECIPES[machine].draw(np.random.default_rng(0), 400, 2).prompt().words.flat}
        assert drawn & set(TRAINED_NAMES) == set()
        assert drawn & set(UNSEEN_NAMES) == set(UNSEEN_NAMES)
        assert trained & set(UNSEEN_NAMES) == set()
        assert trained >= set(TRAINED_NAMES)


def test_about_one_table_in_eight_is_held_out_whatever_the_names() -> None:
    recipe = replace(RECIPES["registers"], tables="any")
    share = held_out(recipe.draw(np.random.default_rng(3), 4_000, 2).table()).mean()
    assert 0.1 < share < 0.15
    one, other = (
        replace(recipe, unseen_names=unseen, names=32).draw(np.random.default_rng(7), 50, 2) for unseen in (False, True)
    )
    assert (one.table() == other.table()).all()
    assert (one.lines != other.lines).any()


def test_longer_prompts_are_longer() -> None:
    for machine in RECIPES:
        sizes = [
            split(machine, name).draw(0, name, 2).prompt().words.shape[1]
            for name in ("trained", "longer_prompts", "much_longer_prompts")
        ]
        assert sizes == sorted(set(sizes))


def test_permutations_never_merge_and_functions_do() -> None:
    recipe = TapeRecipe(maps="permutation", tables="any")
    rules = recipe.draw(np.random.default_rng(0), 50, 2).rules
    targets = [set(map(tuple, row[:, 1:])) for row in rules]
    assert all(len(pairs) == 16 for pairs in targets), "every (symbol, target) once"
    functions = replace(recipe, maps="function").draw(np.random.default_rng(0), 50, 2).rules
    assert all(len(set(map(tuple, row[:, 1:]))) < 16 for row in functions)


def test_random_links_lead_anywhere_and_few_letters_stay_few() -> None:
    recipe = TapeRecipe(states=4, symbols=1, cells=4, names=8, letters=6, links="random")
    machines = recipe.draw(np.random.default_rng(0), 200, 1)
    names, following = machines.cells[:, :, 0], machines.cells[:, :, 2]
    assert 0.2 < (names == following).mean() < 0.3, "one cell in four leads to itself"
    assert (following[:, :, None] == names[:, None]).any(2).all(), "always to a cell of the tape"
    assert {WORDS[word] for word in machines.rules[:, :, 0].flat} == set("ABCDEF")


def test_jumps_are_taken_and_not_taken() -> None:
    run = RECIPES["jumps"].draw(np.random.default_rng(0), 2_000, 6).run(6)
    jumping = np.isin(run.opcode, [WORDS.index("EQ"), WORDS.index("NE")])
    assert not run.taken[~jumping].any()
    assert 0.2 < run.taken[jumping].mean() < 0.8
    assert 0.1 < jumping.mean() < 0.5


def test_a_stage_repeats_a_table_with_other_starts() -> None:
    for recipe in RECIPES.values():
        machines = MachineStage(recipe, (3,), 24, runs=4).draw((0, 0))
        prompt = machines.prompt()
        tables = prompt.words[:, : prompt.start].reshape(6, 4, -1)
        assert (tables == tables[:, :1]).all()
        assert len(np.unique(prompt.words[:, prompt.start :], axis=0)) > 12


def test_curricula_end_at_the_full_size() -> None:
    for recipe in RECIPES.values():
        stages = curriculum(recipe, (1, 2, 3))
        assert stages[-1].recipe == recipe
        assert stages[-1].depths == (1, 2, 3)
        assert stages[0].depths == (1,)
        lengths = [stage.recipe.draw(np.random.default_rng(0), 2, 1).prompt().words.shape[1] for stage in stages]
        assert lengths == sorted(lengths)


def test_random_links_lead_anywhere_and_agree_with_a_slow_interpreter() -> None:
    recipe = RegisterRecipe(lines=4, links="random", tables="any")
    machines = recipe.draw(np.random.default_rng(0), 400, 3)
    label, following = machines.lines[:, :, 0], machines.lines[:, :, -1]
    assert 0.2 < (label == following).mean() < 0.3  # in a ring of four it would never be so
    agree(machines[:20], 5)
    agree(StackRecipe(lines=4, links="random").draw(np.random.default_rng(0), 20, 3), 9)


def test_jumps_that_test_one_value_hold_about_half_the_time() -> None:
    recipe = replace(RECIPES["jumps"], tested=4)
    assert isinstance(recipe, RegisterRecipe)
    machines = recipe.draw(np.random.default_rng(0), 500, 1).repeat(np.random.default_rng(1), 4)
    jump = np.isin(machines.lines[:, :, 1], [WORDS.index("EQ"), WORDS.index("NE")])
    asked = np.where(jump, machines.lines[:, :, 3], -1)
    assert all(len(set(row) - {-1}) <= 1 for row in asked.tolist())
    assert set(asked.flat) == {-1, 0, 1, 2, 3}
    run = machines.run(1)
    for op in ("EQ", "NE"):
        assert 0.4 < run.taken[run.opcode == WORDS.index(op)].mean() < 0.6
    agree(machines[:20], 5)


@pytest.mark.parametrize("machine", ["registers", "jumps", "stack"])
def test_a_program_starts_with_a_whole_line(machine: str) -> None:
    """What closes the prompt is what closes a line: the same words stand before both."""
    prompt = RECIPES[machine].draw(np.random.default_rng(0), 1, 2).prompt().text(0)
    lines = prompt.split("\n")[0].removeprefix("Program:").split(";")
    assert any(prompt.endswith(f"{line};") for line in lines if line)


@pytest.mark.parametrize("machine", RECIPES)
def test_procedure_renders_examples(machine: str) -> None:
    task = MachineTask(machine)
    instance = task.draw(3, 4)
    steps = task.steps(instance)
    example = task.example(instance, "steps")
    assert example.prompt == task.prompt(instance, "full")
    assert f"\nSteps: {steps}\nAnswer:" in example.prompt
    assert "Steps" not in task.prompt(instance, "executor")
    slow = machine_interpreter.run(task.prompt(instance, "executor"), steps)
    assert example.completion == "".join(f" {word}" for word in slow.visible)
    trace = task.example(instance, "trace").completion.split("\n")
    assert [line.split(";")[0].strip() for line in trace] == slow.visible
    assert set(task.fields) == set(slow.fields) == set(task.field_states(instance))
    assert all(len(values) == steps + 1 for values in task.field_states(instance).values())
    with pytest.raises(ValueError, match="view: got 'other'"):
        task.prompt(instance, "other")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TapeRecipe(states=27), "states: got 27"),
        (lambda: TapeRecipe(symbols=5), "symbols: got 5"),
        (lambda: TapeRecipe(letters=7), "letters: got 7 for 8 states"),
        (lambda: TapeRecipe(links="random", end_share=0.2), "end_share: a tape with random links"),
        (lambda: TapeRecipe(cells=1), "cells: got 1"),
        (lambda: TapeRecipe(cells=20, names=12), "cells: got 20 for 12 names"),
        (lambda: TapeRecipe(names=129), "names: got 129"),
        (lambda: TapeRecipe(end_share=1.5), "end_share: got 1.5"),
        (lambda: RegisterRecipe(lines=1), "lines: got 1"),
        (lambda: RegisterRecipe(registers=5), "registers: got 5"),
        (lambda: RegisterRecipe(opcodes=("JMP",)), re.escape("opcodes: got ['JMP']")),
        (lambda: RegisterRecipe(registers=1), "MOV needs 2 registers"),
        (lambda: RegisterRecipe(branch_rate=0.5), "set targets=True"),
        (lambda: RegisterRecipe(tested=9), "tested: got 9; use 1 to 8"),
        (lambda: RegisterRecipe(links="random", end_share=0.2), "end_share: a program with random links"),
        (lambda: StackRecipe(opcodes=("PUSH", "INC")), "give POP together with PUSH or DUP"),
        (lambda: StackRecipe(places=1), "places: got 1"),
        (lambda: StackRecipe(links="random", end_share=0.2), "end_share: a program with random links"),
        (lambda: MachineStage(TapeRecipe(), ()), "stages.depths"),
        (lambda: MachineStage(TapeRecipe(), (1,), 10, runs=4), "stages.runs: got 4"),
        (lambda: MachineTask("turing"), "machine: got 'turing'"),
        (lambda: split("fsm", "far"), "splits: got 'far'"),
        (lambda: MachineInstance(TapeRecipe().draw(np.random.default_rng(0), 2, 1)), "a set of one"),
        (lambda: TapeRecipe(states=1, symbols=1, tables="held_out").draw(np.random.default_rng(0), 2_000, 1), None),
    ],
)
def test_mistakes_are_named(make: Any, message: str | None) -> None:
    if message is None:  # 26 tables exist: enough to find a held-out one
        make()
        return
    with pytest.raises(ValueError, match=message):
        make()
