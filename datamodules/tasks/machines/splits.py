"""Named evaluation splits of the machine tasks: each moves one thing away from training.

    trained            tables of the training part, trained depths: what training itself measures
    unseen_rules       tables that training never draws, trained depths
    held_out_lengths   depths between the trained ones
    longer_runs        runs to 256 steps
    longer_prompts     twice the cells or lines; much_longer_prompts four times
    unseen_names       names of cells and lines that no training data contain
    ending             machines that end by themselves; the model has to know when

All but `trained` draw from the tables kept out of training, with the trained names (but `unseen_names`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from datamodules.tasks.machines.family import Recipe, find_recipe
from datamodules.tasks.machines.machine import Machines, concatenate
from datamodules.tasks.machines.tape import TapeRecipe
from datamodules.tasks.machines.words import TRAINED_NAMES

SPLITS = (
    "trained",
    "unseen_rules",
    "held_out_lengths",
    "longer_runs",
    "longer_prompts",
    "much_longer_prompts",
    "unseen_names",
    "ending",
)

TRAINED_DEPTHS = (1, 2, 3, 4, 6)
HELD_OUT_DEPTHS = (5,)
LONG_DEPTHS = (12, 24, 48, 96, 256)


@dataclass(frozen=True)
class MachineSplit:
    """What a split holds.

    Attributes:
        recipe: how its machines are drawn.
        depths: every machine is asked for each of these numbers of steps; a machine that ends, for its own.
        unseen_names: whether it needs names that a model trained from scratch has never seen.
    """

    recipe: Recipe
    depths: tuple[int, ...]
    unseen_names: bool = False

    def draw(self, seed: int, name: str, size: int) -> Machines:
        """Draw its machines, asked for the largest depth. The split's name and the seed decide everything."""
        key = (seed, *name.encode())
        if not self.recipe.end_share:
            return self.recipe.draw(np.random.default_rng(key), size, max(self.depths))
        rng = np.random.default_rng(key)
        parts = [
            self.recipe.draw(rng, part, depth)
            for part, depth in zip(_shares(size, len(self.depths)), self.depths, strict=True)
            if part
        ]
        return concatenate(parts)


def split(machine: str, name: str, recipe: Recipe | None = None) -> MachineSplit:
    """Describe a split of a task.

    Args:
        machine: name of the task.
        name: one of `SPLITS`.
        recipe: the size that was trained; default the full one.

    Raises:
        ValueError: no such task or split.
    """
    full = replace(find_recipe(machine) if recipe is None else recipe, tables="held_out", end_share=0.0)
    if name not in SPLITS:
        raise ValueError(f"splits: got {name!r}; use some of {', '.join(SPLITS)}")
    size = full.cells if isinstance(full, TapeRecipe) else full.lines
    if name == "trained":
        return MachineSplit(replace(full, tables="training"), TRAINED_DEPTHS)
    if name == "held_out_lengths":
        return MachineSplit(full, HELD_OUT_DEPTHS)
    if name == "longer_runs":
        return MachineSplit(full, LONG_DEPTHS)
    if name == "longer_prompts":
        return MachineSplit(resize(full, 2 * size), TRAINED_DEPTHS)
    if name == "much_longer_prompts":
        return MachineSplit(resize(full, 4 * size), TRAINED_DEPTHS)
    if name == "unseen_names":
        return MachineSplit(replace(full, names=32, unseen_names=True), TRAINED_DEPTHS, unseen_names=True)
    if name == "ending":
        return MachineSplit(replace(full, end_share=1.0), tuple(range(1, size)))
    return MachineSplit(full, TRAINED_DEPTHS)


def resize(recipe: Recipe, size: int) -> Recipe:
    """The same machine with another number of cells or lines."""
    names = max(recipe.names, min(size, len(TRAINED_NAMES)))
    if isinstance(recipe, TapeRecipe):
        return replace(recipe, cells=size, names=names)
    return replace(recipe, lines=size, names=names)


def _shares(total: int, parts: int) -> list[int]:
    """Split a number as evenly as it goes."""
    return [total // parts + (part < total % parts) for part in range(parts)]
