"""Supervision arms of the grammar task: which lanes an ordinary model is trained on, and its text examples.

| arm | examples of a puzzle | evaluated in |
|---|---|---|
| answers | the answer | answer |
| moves | some states of the run with their next moves | gym |
| runs | the written run | written |
| mixed | all of these | written |

Examples are written in JSON (`lanes.JsonNotation`), prompts and replies exactly as in the lanes.

Source: specification of the grammar task, section "Ways to run a model (lanes) and scores" (supervision arms).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from datamodules.tasks.grammar.bracket_task import BracketTask
from datamodules.tasks.grammar.lane_items import LaneItem, Machine
from datamodules.tasks.grammar.lane_scores import answer_text
from datamodules.tasks.grammar.lanes import JsonNotation, Lane
from datamodules.tasks.grammar.search_task import SearchTask
from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.procedure import TextExample, style_name

ARMS: Mapping[str, tuple[Lane, ...]] = {
    "answers": ("answer",),
    "moves": ("gym",),
    "runs": ("written",),
    "mixed": ("answer", "gym", "written"),
}
"""Lanes that each arm is trained on."""

EVALUATED: Mapping[str, Lane] = {"answers": "answer", "moves": "gym", "runs": "written", "mixed": "written"}
"""Lane in which each arm is evaluated unless one is named."""


LETTER_TASKS: Mapping[str, BracketTask | SearchTask] = {
    style_name(task, "steps"): task for task in (BracketTask(), BracketTask(permuted=True), SearchTask())
}
"""Style of text of a model that writes runs in the looped models' letters, with their task."""


@dataclass(frozen=True)
class TrainedLanes:
    """How a model was trained to be asked.

    Attributes:
        arm: name of the arm.
        listing: whether the prompts say how the machine moves.
        machine: whose puzzles it was trained on.
    """

    arm: str
    listing: bool
    machine: Machine

    @property
    def text(self) -> str:
        """Return it as one word for a checkpoint's provenance, such as "grammar/runs/unlisted/search"."""
        return f"grammar/{self.arm}/{'listed' if self.listing else 'unlisted'}/{self.machine}"

    @property
    def suite(self) -> str:
        """Suite that the model is evaluated on unless one is named."""
        return "cue_free" if self.machine == "search" else "brackets"

    @classmethod
    def parse(cls, text: object) -> TrainedLanes | None:
        """Read such a word; None for anything else. Older models name no machine; take "search"."""
        parts = str(text).split("/")
        if len(parts) == 3:
            parts.append("search")
        if len(parts) != 4:
            return None
        task, arm, listed, machine = parts
        if (
            task != "grammar"
            or arm not in ARMS
            or listed not in ("listed", "unlisted")
            or machine not in get_args(Machine)
        ):
            return None
        return cls(arm, listed == "listed", "search" if machine == "search" else "brackets")


def find_arm(name: str) -> tuple[Lane, ...]:
    """Return the lanes of an arm.

    Raises:
        ValueError: no such arm.
    """
    if name not in ARMS:
        raise ValueError(f"arm: got {name!r}; use one of {', '.join(ARMS)}")
    return ARMS[name]


def examples(items: Sequence[LaneItem], arm: str, listing: bool, moves: int, seed: int = 0) -> list[TextExample]:
    """Write the training examples of puzzles.

    Args:
        items: the puzzles.
        arm: name of the arm.
        listing: say in the prompts how the machine moves.
        moves: states of each run that are shown for a single move; all of shorter runs.
        seed: decides which states.

    Raises:
        ValueError: no such arm, or fewer than 1 move.
    """
    lanes = find_arm(arm)
    if moves < 1:
        raise ValueError(f"moves: got {moves}; show at least 1 state of each run")
    notation = JsonNotation()
    found = []
    for item in items:
        if "answer" in lanes:
            found.append(TextExample(notation.ask(item, "answer", listing), answer_text(item)))
        if "written" in lanes:
            found.append(TextExample(notation.ask(item, "written", listing), notation.run(item, item.moves)))
        if "gym" in lanes:
            states = item.states()
            found += [
                TextExample(notation.ask(item, "gym", listing, states[at]), item.moves[at].text())
                for at in chosen_states(item, moves, seed)
            ]
    return found


def chosen_states(item: LaneItem, count: int, seed: int) -> list[int]:
    """Choose states of a run, in order: the kinds of moves take turns, the rarest first, so that each kind is shown."""
    rng = seeded("states", seed, item.key)
    places: dict[str, list[int]] = {}
    for at, move in enumerate(item.moves):
        places.setdefault(move.kind, []).append(at)
    for of_kind in places.values():
        rng.shuffle(of_kind)
    sizes = Counter({kind: len(of_kind) for kind, of_kind in places.items()})
    turns = sorted(places, key=lambda kind: (sizes[kind], kind))
    chosen: list[int] = []
    while len(chosen) < min(count, len(item.moves)):
        for kind in turns:
            if places[kind] and len(chosen) < count:
                chosen.append(places[kind].pop())
    return sorted(chosen)
