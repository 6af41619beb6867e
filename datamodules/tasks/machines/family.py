"""The machine tasks by name: sizes, curricula, state fields, evaluation splits; each is a `Procedure`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypedDict, cast

import numpy as np

from datamodules.tasks.machines.machine import IntArray, Links, Machines
from datamodules.tasks.machines.program import Pace
from datamodules.tasks.machines.register_program import RegisterRecipe
from datamodules.tasks.machines.stack_program import StackRecipe
from datamodules.tasks.machines.tape import Maps, TapeRecipe
from datamodules.tasks.machines.words import (
    BITS,
    COLOURS,
    END,
    NAMES,
    NONE,
    OPCODES,
    REGISTERS,
    STATES,
    SYMBOLS,
    label_set,
    lookup,
)
from datamodules.tasks.procedure import LabelSet, Procedure

Recipe = TapeRecipe | RegisterRecipe | StackRecipe

ENDING = 0.2
"""Share of training machines that end by themselves."""

RECIPES: dict[str, Recipe] = {
    "fsm": TapeRecipe(end_share=ENDING),
    "coloured": TapeRecipe(states=26, colours=True, end_share=ENDING),
    "registers": RegisterRecipe(end_share=ENDING),
    "jumps": RegisterRecipe(branch_rate=0.25, targets=True, end_share=ENDING),
    "stack": StackRecipe(end_share=ENDING),
}
"""The full-size machine of each task."""

_OPERAND = (NONE, *STATES, *REGISTERS)

FIELDS: dict[str, tuple[str, ...]] = {
    "symbol": (END, *SYMBOLS, *COLOURS),
    "next": (END, *NAMES),
    "op": (END, *OPCODES),
    "operand_1": _OPERAND,
    "operand_2": _OPERAND,
    "target": (NONE, END, *NAMES),
    "jumps": BITS,
    "phase": BITS,
    **{f"register_{name}": STATES for name in REGISTERS},
    **{f"stack_{place}": (NONE, *STATES) for place in range(1, 17)},
}
"""Values of every state field, the same in all machine tasks, so that one model can learn several."""


def find_recipe(machine: str) -> Recipe:
    """The full-size recipe of a task.

    Raises:
        ValueError: no such task.
    """
    if machine not in RECIPES:
        raise ValueError(f"machine: got {machine!r}; use one of {', '.join(RECIPES)}")
    return RECIPES[machine]


class RecipeChanges(TypedDict, total=False):
    """Fields of a task's recipe that are changed; all others stay the task's own.

    A field that the task's recipe lacks is refused, and so is another value of `colours` or `targets`, which would be
    another machine. See `TapeRecipe`, `RegisterRecipe` and `StackRecipe`.
    """

    states: int
    symbols: int
    cells: int
    letters: int
    maps: Maps
    colours: bool
    lines: int
    registers: int
    places: int
    values: int
    tested: int | None
    opcodes: list[str]
    branch_rate: float
    targets: bool
    names: int
    end_share: float
    links: Links


KINDS = ("colours", "targets")
"""What tells the machines of one class of recipes apart."""


def changed_recipe(machine: str, changes: RecipeChanges | None = None, pace: Pace = "instruction") -> Recipe:
    """The recipe of a task with some fields changed, at a pace.

    Raises:
        ValueError: no such task, a field that it lacks or that makes it another machine, or a value out of range.
    """
    own, given = find_recipe(machine), dict(changes or {})
    known = {field.name: getattr(own, field.name) for field in fields(own)}
    for name in given:
        if name not in known:
            raise ValueError(
                f"recipe.{name}: the machine {machine} has no such field; use some of {', '.join(recipe_changes(own))}"
            )
    if isinstance(given.get("opcodes"), list):
        given["opcodes"] = tuple(cast("list[str]", given["opcodes"]))
    try:
        recipe: Recipe = replace(own, **cast("dict[str, Any]", given))
    except ValueError as error:
        raise ValueError(f"recipe.{error}") from error
    check_kind(machine, recipe)
    return at_pace(recipe, pace)


def check_kind(machine: str, recipe: Recipe) -> None:
    """Refuse a recipe that draws another machine than the one named.

    Raises:
        ValueError: it is of another class, or differs in what tells the machines of its class apart.
    """
    own = find_recipe(machine)
    if type(recipe) is not type(own):
        raise ValueError(
            f"recipe: got a {type(recipe).__name__}, but the machine {machine} has a {type(own).__name__}; "
            "give the fields of that, or choose another machine"
        )
    for name in KINDS:
        value, wanted = (getattr(one, name, None) for one in (recipe, own))
        if value != wanted:
            raise ValueError(
                f"recipe.{name}: got {value}, but the machine {machine} has {wanted}; set it to {wanted}, or choose "
                "another machine"
            )


def recipe_changes(recipe: Recipe) -> RecipeChanges:
    """Every field of a recipe that can be changed, as plain data: `changed_recipe` makes it again of them."""
    known = {name: getattr(recipe, name) for name in RecipeChanges.__annotations__ if hasattr(recipe, name)}
    return cast("RecipeChanges", {name: list(v) if isinstance(v, tuple) else v for name, v in known.items()})


def at_pace(recipe: Recipe, pace: Pace) -> Recipe:
    """The same machine at another pace.

    Raises:
        ValueError: a tape machine has no halves to take.
    """
    if not isinstance(recipe, TapeRecipe):
        return replace(recipe, pace=pace)
    if pace == "half":
        raise ValueError("pace: only programs have half instructions; use 'instruction' for a machine with a tape")
    return recipe


def field_labels(machines: Machines, loops: int) -> dict[str, IntArray]:
    """[B, T + 1] label number by field, of a run of `loops` loops."""
    return {name: lookup(FIELDS[name])[words] for name, words in machines.run(loops).state.items()}


@dataclass(frozen=True)
class MachineInstance:
    """One machine, as a set of one."""

    machines: Machines

    def __post_init__(self) -> None:
        if len(self.machines) != 1:
            raise ValueError(f"machines: got {len(self.machines)}; an instance is a set of one")


class MachineTask(Procedure[MachineInstance]):
    """A machine task: prompts as text, labels and fields of one instance, examples for ordinary models.

    Args:
        machine: "fsm", "coloured", "registers", "jumps" or "stack".
        recipe: how its machines are drawn; default the full size.
    """

    views: ClassVar[tuple[str, ...]] = ("full", "executor")

    def __init__(self, machine: str, recipe: Recipe | None = None) -> None:
        self.machine = machine
        self.recipe = find_recipe(machine) if recipe is None else recipe
        self.labels: LabelSet = label_set(STATES)
        sample = self.recipe.draw(np.random.default_rng(0), 1, 1)
        self.fields: Mapping[str, Any] = MappingProxyType(
            {name: label_set(FIELDS[name]) for name in sample.run(1).state}
        )

    def draw(self, seed: int, depth: int) -> MachineInstance:
        """Draw one machine that is asked for `depth` steps."""
        return MachineInstance(self.recipe.draw(np.random.default_rng(seed), 1, depth))

    def prompt(self, instance: MachineInstance, view: str) -> str:
        """The "full" view, or the "executor" view without the count.

        Raises:
            ValueError: unknown view.
        """
        if view not in self.views:
            raise ValueError(f"view: got {view!r}; use one of {', '.join(self.views)}")
        return instance.machines.prompt().text(0, self.steps(instance) if view == "full" else None)

    def steps(self, instance: MachineInstance) -> int:
        """The number of loops."""
        return int(instance.machines.depth[0])

    def initial(self, instance: MachineInstance) -> int:
        """The visible state before the first loop."""
        return int(instance.machines.initial()[0])

    def states(self, instance: MachineInstance) -> list[int]:
        """The visible states."""
        states: list[int] = instance.machines.run(self.steps(instance)).visible[0].tolist()
        return states

    def field_states(self, instance: MachineInstance) -> dict[str, list[int]]:
        """The state fields at steps 0..N."""
        return {name: v[0].tolist() for name, v in field_labels(instance.machines, self.steps(instance)).items()}

    def facts(self, instance: MachineInstance) -> dict[str, int]:
        """Length of tape or program and whether the machine ends by itself, among others."""
        return {name: int(values[0]) for name, values in instance.machines.facts().items()}


@dataclass(frozen=True)
class MachineStage:
    """One stage of a curriculum.

    Attributes:
        recipe: how the stage's machines are drawn.
        depths: requested steps (instructions); each batch draws one of them.
        batch_size: runs of a batch on one rank.
        runs: runs of one machine behind one another; the model then reads their common table once.

    Raises:
        ValueError: a value is below 1, there is no depth, or the runs do not fill the batch evenly.
    """

    recipe: Recipe
    depths: tuple[int, ...]
    batch_size: int = 64
    runs: int = 4

    def __post_init__(self) -> None:
        if not self.depths or min(self.depths) < 1:
            raise ValueError(f"stages.depths: got {self.depths}; give at least one depth, each 1 or more")
        if self.batch_size < 1:
            raise ValueError(f"stages.batch_size: got {self.batch_size}; it must be 1 or more")
        if self.runs < 1 or self.batch_size % self.runs:
            raise ValueError(f"stages.runs: got {self.runs}; use a divisor of batch_size ({self.batch_size})")

    def draw(self, key: tuple[int, ...]) -> Machines:
        """Draw a batch; `key` (non-negative integers) decides everything."""
        rng = np.random.default_rng(key)
        machines = self.recipe.draw(rng, self.batch_size // self.runs, int(rng.choice(self.depths)))
        return machines.repeat(rng, self.runs)


def curriculum(recipe: Recipe, depths: tuple[int, ...] = (1, 2, 3, 4, 6)) -> list[MachineStage]:
    """Growing machines that end at the full size: small ones at one step first, then longer runs, then all names.

    Args:
        recipe: the full size.
        depths: depths to train, opened one after another.
    """
    if isinstance(recipe, TapeRecipe):
        return _tape_stages(recipe, depths)
    return _program_stages(recipe, depths)


def _tape_stages(full: TapeRecipe, depths: tuple[int, ...]) -> list[MachineStage]:
    """Small tables over few words first; states, cells, names and steps then grow together.

    In the first stage a cell may lead to any cell. In a small ring a learner gets half of the names right by excluding
    the two that cannot follow, and stayed with that for long in trials. All symbols occur from the start: where one
    stood in every cell, nothing learned which of them is START's, and some trials never did so later.
    """
    steps = [(2, 4, 8, 8), (4, 6, 12, 12), (8, 8, 16, 26), (13, 10, 20, 26), (26, 12, 24, 26)]
    sizes = [
        replace(full, states=states, cells=cells, names=min(names, full.names), letters=min(letters, full.letters))
        for states, cells, names, letters in steps
        if states <= full.states and cells <= full.cells
    ]
    sizes[:1] = [replace(size, links="random", end_share=0.0) for size in sizes[:1]]
    stages = [MachineStage(size, depths[:1], 128, 8 if number else 4) for number, size in enumerate(sizes)]
    return [*stages, *_last_stages(full, depths)]


def _program_stages(full: RegisterRecipe | StackRecipe, depths: tuple[int, ...]) -> list[MachineStage]:
    """Few lines over few names first; lines, names and steps then grow together. All instructions occur from the start.

    As on a tape, a line may lead to any line in the first stage.
    """
    sizes = [
        replace(full, lines=lines, names=min(names, full.names), end_share=0.0) for lines, names in ((4, 8), (6, 12))
    ]
    sizes.append(replace(full, names=min(26, full.names)))
    sizes[0] = replace(sizes[0], links="random")
    stages = [*(MachineStage(size, depths[:1], 128) for size in sizes), *_last_stages(full, depths)]
    if isinstance(full, RegisterRecipe) and full.branch_rate:
        return _jump_stages(stages)
    return stages


def _jump_stages(stages: list[MachineStage]) -> list[MachineStage]:
    """Half of the first lines jump, and test one value, then two, four and all. Until the last stage tests hold often.

    In a trial with all eight values from the start the learner took every NE and no EQ, which is right seven times in
    eight, and never came to look.
    """
    recipes = [cast("RegisterRecipe", stage.recipe) for stage in stages]
    first, values = replace(recipes[0], branch_rate=max(recipes[0].branch_rate, 0.5)), recipes[0].values
    small = [replace(stages[0], recipe=replace(first, tested=count)) for count in (1, 2, 4, values) if count <= values]
    grown = zip(stages[1:-1], recipes[1:-1], strict=True)
    return [*small, *(replace(stage, recipe=replace(r, tested=values)) for stage, r in grown), stages[-1]]


def _last_stages(full: Recipe, depths: tuple[int, ...]) -> list[MachineStage]:
    """The full size with more and more names and steps."""
    grown = [(replace(full, names=names), depths[:count]) for names, count in ((32, 2), (64, 4)) if names < full.names]
    return [MachineStage(size, trained, 64, 8) for size, trained in (*grown, (full, depths))]
