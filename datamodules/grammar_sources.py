"""Where runs of grammar machines come from: parts that a configuration composes by class name."""

from __future__ import annotations

import random
from collections.abc import Sequence

from datamodules.procedure import InstanceSet, InstanceStream
from datamodules.tasks.grammar.bracket_task import (
    LETTERS,
    BracketStage,
    BracketString,
    BracketTask,
    balanced_string,
    draw_alphabet,
    draw_strings,
    growing_depths,
    own_alphabet,
    wrong_closer,
)
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.search_recipes import (
    SearchStage,
    draw_puzzles,
    growing_runs,
    held_out_puzzles,
    run_lengths,
)
from datamodules.tasks.grammar.search_task import SearchTask


class BracketStream(InstanceStream[BracketString]):
    """Unlimited bracket strings that grow deeper from stage to stage.

    Args:
        stages: the curriculum; default `growing_depths()`, depth 1 to 6 and then junk behind the end.
        batches_per_epoch: length of what counts as an epoch.
        permuted: every string has an alphabet of its own, which the prompt tells.

    Raises:
        ValueError: no stage, or fewer than 1 batch.
    """

    def __init__(
        self, stages: list[BracketStage] | None = None, batches_per_epoch: int = 1_000, permuted: bool = False
    ) -> None:
        super().__init__(batches_per_epoch)
        if stages is not None and not stages:
            raise ValueError("train.stages: the list is empty; give at least one stage or leave it out")
        self.stages = growing_depths() if stages is None else stages
        self.procedure = self._task = BracketTask(permuted=permuted)

    def draw(self, rng: random.Random, stage: int) -> list[BracketString]:
        """Draw one batch of a stage."""
        return draw_strings(self._task, self.stages[stage], rng)

    def counts(self) -> list[int]:
        """Return the numbers of moves up to those of the deepest string (opening, centre, closing, verdict)."""
        deepest = max(stage.depth for stage in self.stages)
        return list(range(1, 2 * deepest + 2 + 1))


class BracketDepths(InstanceSet[BracketString]):
    """As many correct strings as strings with one wrong closer, anywhere, at each of some depths.

    Args:
        depths: openers of the strings.
        per_depth: correct strings of each depth, and as many wrong ones.
        seed: decides the strings; every depth has its own generator.
        batch_size: strings of a batch on one rank.
        permuted: every string has an alphabet of its own; the strings are the same, symbol for symbol.

    Raises:
        ValueError: no depth, a depth below 1, or fewer than 1 string.
    """

    def __init__(
        self,
        depths: list[int] | None = None,
        per_depth: int = 32,
        seed: int = 7,
        batch_size: int = 64,
        permuted: bool = False,
    ) -> None:
        super().__init__(batch_size)
        self.depths = [4, 6, 8, 16, 32] if depths is None else depths
        if not self.depths or min(self.depths) < 1 or per_depth < 1:
            raise ValueError(
                f"validation: got depths {self.depths} and per_depth {per_depth}; use at least one depth and string, "
                "each 1 or more"
            )
        self.per_depth = per_depth
        self.seed = seed
        self.procedure = self._task = BracketTask(permuted=permuted)

    def instances(self) -> list[BracketString]:
        """Make the strings: yes and no alternate."""
        alphabet, strings = self._task.alphabet, []
        for depth in self.depths:
            rng = random.Random(f"brackets:{self.seed}:{depth}")
            for _ in range(self.per_depth):
                openers = rng.choices((0, 1), k=depth)
                strings.append(BracketString(balanced_string(alphabet, openers), depth=depth))
                strings.append(wrong_closer(alphabet, depth, rng))
        return permute(strings, self.seed) if self._task.permuted else strings


def permute(strings: Sequence[BracketString], seed: int) -> list[BracketString]:
    """Write strings of the training alphabet in alphabets of all letters, each in its own."""
    rng = random.Random(f"alphabets:{seed}")
    return [own_alphabet(string, draw_alphabet(len(LETTERS), rng)) for string in strings]


def check_alphabets(train: InstanceStream, validation: InstanceSet) -> None:
    """Refuse strings in the training alphabet beside strings in alphabets of their own.

    Raises:
        ValueError: train and validation differ in `permuted`.
    """
    trained, given = (getattr(source.procedure, "permuted", None) for source in (train, validation))
    if None not in (trained, given) and given != trained:
        raise ValueError(
            f"validation.permuted: got {given}, but train.permuted is {trained}; "
            f"set validation.init_args.permuted to {trained}"
        )


def no_run(families: Sequence[str], longest: int) -> str:
    """Return what to say where a bound leaves no run."""
    return f"no run of {','.join(families)} has at most {longest} moves; raise it"


class SearchStream(InstanceStream[Puzzle]):
    """Unlimited puzzles for the search, whose runs grow longer from stage to stage; letters are permuted.

    Args:
        families: families of the suites.
        suites: how their no puzzles are made: "original", "cue_free", "count_a".
        stages: the curriculum; default `growing_runs()`, up to 21 moves.
        batches_per_epoch: length of what counts as an epoch.

    Raises:
        ValueError: no stage, fewer than 1 batch, a family or suite that is unknown or given twice, or a stage without
            any run.
    """

    def __init__(
        self,
        families: list[str] = ["recursion", "nesting"],  # noqa: B006
        suites: list[str] = ["original", "cue_free"],  # noqa: B006
        stages: list[SearchStage] | None = None,
        batches_per_epoch: int = 1_000,
    ) -> None:
        super().__init__(batches_per_epoch)
        if stages is not None and not stages:
            raise ValueError("train.stages: the list is empty; give at least one stage or leave it out")
        self.stages = growing_runs() if stages is None else stages
        self.families, self.suites = tuple(families), tuple(suites)
        self.procedure = SearchTask()
        for stage in self.stages:
            if not stage.recipes(self.families, self.suites):
                raise ValueError(f"train.stages: {no_run(families, stage.moves)}")

    def draw(self, rng: random.Random, stage: int) -> list[Puzzle]:
        """Draw one batch of a stage."""
        return draw_puzzles(self.families, self.suites, self.stages[stage], rng)

    def counts(self) -> list[int]:
        """Return the numbers of moves of all runs of all stages."""
        return sorted({steps for stage in self.stages for steps in stage.recipes(self.families, self.suites)})


class SearchRuns(InstanceSet[Puzzle]):
    """Every kind of run up to a length, once in each of some letterings that no `SearchStream` draws.

    The structures of short runs are few, so training has them too, in other letters: what is new here is the lettering
    of trained lengths, and everything beyond them.

    Args:
        families: families of the suites.
        suites: how their no puzzles are made.
        longest: most moves of a run.
        letterings: most letterings of each structure; one of a single letter has one that is held out.
        seed: decides the letterings.
        batch_size: puzzles of a batch on one rank.

    Raises:
        ValueError: fewer than 1 lettering, a family or suite that is unknown or given twice, or no run is that short.
    """

    def __init__(
        self,
        families: list[str] = ["recursion", "nesting"],  # noqa: B006
        suites: list[str] = ["original", "cue_free"],  # noqa: B006
        longest: int = 30,
        letterings: int = 1,
        seed: int = 7,
        batch_size: int = 64,
    ) -> None:
        super().__init__(batch_size)
        if letterings < 1:
            raise ValueError(f"validation.letterings: needs at least 1, got {letterings}")
        self.families, self.suites, self.longest = tuple(families), tuple(suites), longest
        self.letterings, self.seed = letterings, seed
        self.procedure = SearchTask()
        if not run_lengths(self.families, longest, self.suites):
            raise ValueError(f"validation.longest: {no_run(families, longest)}")

    def instances(self) -> list[Puzzle]:
        """Make the puzzles, by number of moves."""
        rng = random.Random(f"search:{self.seed}")
        table = run_lengths(self.families, self.longest, self.suites)
        return held_out_puzzles([recipe for recipes in table.values() for recipe in recipes], self.letterings, rng)
