"""What the grammar benchmark asks: its options, and the strings and puzzles that they choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from datamodules.grammar_sources import BracketDepths, SearchRuns, no_run, permute
from datamodules.tasks.grammar.bracket_task import MOVE_LABELS, SPOILT_BY, BracketTask, string_structure, strings_of
from datamodules.tasks.grammar.brackets import bracket_suite
from datamodules.tasks.grammar.lane_items import LaneItem, bracket_item, search_item
from datamodules.tasks.grammar.lane_suites import BRACKETS, SUITES, string_items, suite_items
from datamodules.tasks.grammar.lanes import LANES, MOST_MOVES
from datamodules.tasks.grammar.search_recipes import QUESTIONS, run_lengths, structure_of
from datamodules.tasks.grammar.search_task import SEARCH_LABELS, SearchTask
from datamodules.tasks.grammar.suites import FAMILIES
from datamodules.tasks.procedure import Procedure
from loopformer.evaluation.name_list import Names, Numbers, joined, names_in, read_names
from loopformer.evaluation.puzzle_file import is_puzzle_file, read_puzzles

TRAINED = "trained"
BRACKET_DEPTHS, SEARCH_RUNS = "bracket_depths", "search_runs"
PUZZLES = (*SUITES, BRACKET_DEPTHS, SEARCH_RUNS)
"""What an ordinary model may be asked: the suites, and what looped models are asked."""

MACHINES = {"brackets": MOVE_LABELS, "permuted_brackets": MOVE_LABELS, "search": SEARCH_LABELS}
"""Machines by name, with the labels of their moves."""

EVALUATION_SEED = 11
"""Seed of the benchmark's strings; the validation during training uses another."""

MADE_WITH: Mapping[str, tuple[str, ...]] = {
    BRACKET_DEPTHS: ("depths", "per_depth"),
    SEARCH_RUNS: ("families", "suites", "longest", "letterings"),
}
"""Options that decide the puzzles of a suite."""

DEEPEST = MOST_MOVES // 2 - 12
"""Most openers of a string: its run has two moves an opener and two more, and letters are read up to `MOST_MOVES`."""


@dataclass
class GrammarOptions:
    """What to evaluate. `depths` to `suite` are for brackets, `families` to `letterings` for the search.

    Those from `lane` on are for ordinary language models (`loopformer.evaluation.lane_benchmark`); the others apply to
    them in the puzzles "bracket_depths" and "search_runs". An option that would do nothing for a model and its puzzles
    is refused (`loopformer.evaluation.idle_options`).

    What takes several names or depths takes them apart by commas, or as a list.

    Attributes:
        machine: whose moves a looped model makes: "brackets", "permuted_brackets" (every string in an alphabet of its
            own), "search", or "trained" for what its training asked. A model of several tasks has to be told.
        depths: openers of the strings, such as "8,16,32".
        per_depth: correct strings at each depth, and as many with one wrong closer.
        suite: also run the 46 strings of the suite of brackets, written in the training alphabet.
        families: families of search puzzles, such as "recursion,nesting".
        suites: how the no puzzles of a search are made: original, cue_free, count_a, one or several apart by commas.
        longest: most moves of a search; all kinds of runs up to it are asked.
        letterings: letterings of each kind of search.
        slack: loops beyond the last move at which a stop still counts as late rather than missing.
        batch_size: instances of one rollout, or prompts of one batch.
        lane: how an ordinary model is asked, one lane or several apart by commas: answer, written, gym (next move, the
            state held by the gym), states (every reference state on its own), planted (a run that begins with planted
            moves); "trained" is the one it was trained for.
        puzzles: suites that an ordinary model is asked, apart by commas: original, cue_free, count_a, count_b,
            balanced, brackets, bracket_depths, search_runs, or files of own puzzles (`puzzle_file`), which end in
            .jsonl; "trained" is bracket_depths or search_runs for a model trained on a looped model's data, brackets
            for another one trained on brackets, cue_free for all others.
        pairs: yes and no puzzles of each family and level of each suite; None for all.
        listing: say in the prompts how the machine moves; None for what a model was trained with, yes for others.
        max_new_tokens: budget of each reply; None for twice the reference's number of tokens and 64 more.
        thinking_tokens: budget of a thought before the reply, which </think> closes; one that is not closed within it
            is no reply. 0 for no thought.
    """

    machine: str = TRAINED
    depths: Numbers = "2,4,6,8,16,24,32,48,64"
    per_depth: int = 64
    suite: bool = True
    families: Names = "recursion,nesting"
    suites: Names = "original,cue_free"
    longest: int = 40
    letterings: int = 4
    slack: int = 16
    batch_size: int = 32
    lane: Names = TRAINED
    puzzles: Names = TRAINED
    pairs: int | None = None
    listing: bool | None = None
    max_new_tokens: int | None = None
    thinking_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("depths", "families", "suites", "lane", "puzzles"):  # one way of writing, so that equals are equal
            setattr(self, name, joined(getattr(self, name)))
        for name in ("per_depth", "longest", "letterings", "batch_size", "pairs", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"grammar.{name}: needs at least 1, got {value}")
        if self.machine not in (TRAINED, *MACHINES):
            raise ValueError(f"grammar.machine: {self.machine!r} is unknown; use {TRAINED}, {' or '.join(MACHINES)}")
        for name in ("slack", "thinking_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"grammar.{name}: needs at least 0, got {getattr(self, name)}")
        files = [name for name in names_in(self.puzzles) if is_puzzle_file(name)]
        for name, known in (("lane", LANES), ("puzzles", (*PUZZLES, "FILE.jsonl", *files))):
            if getattr(self, name) != TRAINED:
                read_names(f"grammar.{name}", getattr(self, name), known, TRAINED)
        read_names("grammar.families", self.families, FAMILIES)
        read_names("grammar.suites", self.suites, tuple(QUESTIONS))
        read_depths(self.depths)
        if self.thinking_tokens and "planted" in names_in(self.lane):
            raise ValueError("grammar.thinking_tokens: lane planted begins the reply itself; use 0, or another lane")


@dataclass
class Questions:
    """The instances of an evaluation.

    Attributes:
        task: their task.
        instances: the instances.
        facts: extra facts by name, one integer per instance: `suite`, and `structure`, a number that instances share
            where they differ in letters alone, the same in every evaluation.
        fact_values: names of the codes of a fact.
    """

    task: Procedure[Any]
    instances: Sequence[Any]
    facts: dict[str, list[int]]
    fact_values: dict[str, tuple[str, ...]]


def read_depths(given: Numbers) -> list[int]:
    """Read depths of strings, such as "8,16,32", in order.

    Raises:
        ValueError: one is no number, below 1, or above `DEEPEST`.
    """
    text = joined(given)
    try:
        depths = sorted({int(depth) for depth in text.split(",")})
    except ValueError:
        raise ValueError(f"grammar.depths: {text!r} is not of the form 8,16,32") from None
    if depths[0] < 1 or depths[-1] > DEEPEST:
        raise ValueError(f"grammar.depths: got {text}; use depths from 1 to {DEEPEST}")
    return depths


def bracket_questions(options: GrammarOptions, permuted: bool = False) -> Questions:
    """Return the bracket strings of an evaluation: by depth, and the suite; each in its own alphabet, if `permuted`."""
    depths = read_depths(options.depths)
    strings = BracketDepths(depths, options.per_depth, EVALUATION_SEED, permuted=permuted).instances()
    # Both alphabets of the suite ask the same 46 questions once they are written in one alphabet.
    suite = strings_of(bracket_suite()[:46]) if options.suite else []
    suite = permute(suite, EVALUATION_SEED + 1) if permuted else suite
    in_suite = [0] * len(strings) + [1] * len(suite)
    instances = [*strings, *suite]
    facts = {"suite": in_suite, "structure": structure_numbers(map(string_structure, instances))}
    return Questions(BracketTask(permuted=permuted), instances, facts, {"spoilt": SPOILT_BY})


def search_questions(options: GrammarOptions) -> Questions:
    """Return the search puzzles of an evaluation: every kind of run up to a length.

    Raises:
        ValueError: no run is that short.
    """
    families, suites = names_in(options.families), names_in(options.suites)
    if not run_lengths(tuple(families), options.longest, tuple(suites)):
        raise ValueError(f"grammar.longest: {no_run(families, options.longest)}")
    instances = SearchRuns(families, suites, options.longest, options.letterings, EVALUATION_SEED).instances()
    structures = structure_numbers(structure_of(puzzle)[0] for puzzle in instances)
    facts = {"suite": [0] * len(instances), "structure": structures}
    return Questions(SearchTask(), instances, facts, {"family": FAMILIES})


def structure_numbers(structures: Iterable[str]) -> list[int]:
    """Return numbers of structures that depend on nothing but their texts, of 31 bits."""
    return [crc32(text.encode()) >> 1 for text in structures]


def made_with(suite: str, options: GrammarOptions) -> dict[str, Any] | None:
    """Return the options that decide the puzzles of a suite, as plain JSON data; None for a fixed suite."""
    return {name: getattr(options, name) for name in MADE_WITH[suite]} if suite in MADE_WITH else None


def options_of(suite: str, made: object) -> GrammarOptions:
    """Return options that make the puzzles of a suite again.

    Args:
        suite: name of the suite.
        made: what `made_with` returned.

    Raises:
        ValueError: it is not of that form, or an option is out of range.
    """
    names = MADE_WITH.get(suite, ())
    if not names and made is None:
        return GrammarOptions()
    if not names or not isinstance(made, dict) or set(made) != set(names):
        raise ValueError(f"made: got {made!r}; {suite} needs {'exactly ' + ', '.join(names) if names else 'null'}")
    for name, value in made.items():
        if type(value) is not type(getattr(GrammarOptions, name)):
            raise ValueError(f"made.{name}: got {value!r}; use a value such as {getattr(GrammarOptions, name)!r}")
    return GrammarOptions(**made)


def suite_puzzles(suite: str, options: GrammarOptions, permuted: bool = False) -> list[LaneItem]:
    """Return all puzzles of a suite as the lanes ask them.

    Args:
        suite: one of `PUZZLES`, or a file of own puzzles.
        options: decide the suites that looped models are asked.
        permuted: every string of brackets in an alphabet of its own, the looped models'.

    Raises:
        ValueError, FileNotFoundError: see `read_puzzles`.
    """
    if is_puzzle_file(suite):
        return read_puzzles(suite)
    if suite == BRACKET_DEPTHS:
        # The suite of brackets within these questions is asked under its own name.
        return string_items(bracket_questions(replace(options, suite=False), permuted).instances, suite)
    if suite == SEARCH_RUNS:
        puzzles = search_questions(options).instances
        return [search_item(replace(one, name=f"{suite}-{at}"), suite) for at, one in enumerate(puzzles)]
    if suite == BRACKETS and permuted:
        fixed = bracket_suite()[:46]
        strings = permute(strings_of(fixed), EVALUATION_SEED + 1)
        own = [
            replace(puzzle, alphabet=string.alphabet or puzzle.alphabet, string=string.symbols)
            for puzzle, string in zip(fixed, strings, strict=True)
        ]
        return [bracket_item(puzzle, suite) for puzzle in own]
    return suite_items(suite)
