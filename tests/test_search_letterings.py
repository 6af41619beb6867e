"""Letterings of the search's puzzles: which a training draws, and which a measurement asks."""

from __future__ import annotations

import random
from collections import Counter
from itertools import permutations

import pytest

from datamodules.grammar_sources import SearchRuns, SearchStream
from datamodules.tasks.grammar.search_recipes import (
    HELD_OUT,
    QUESTIONS,
    Recipe,
    held_out_puzzles,
    letterings_of,
    run_lengths,
    structure_of,
)
from datamodules.tasks.grammar.suites import FAMILIES


def test_a_structure_is_a_puzzle_up_to_its_letters() -> None:
    recipe = Recipe("original", "nesting", 2, accept=True, backwards=False)
    assert structure_of(recipe.puzzle("abcde")) == (
        "Rules: A s> a s b ; B s> c . String: a a c b b . Move:",
        ("a", "b", "c"),
    )
    assert structure_of(recipe.puzzle("dbaec")) == (structure_of(recipe.puzzle())[0], ("d", "b", "a"))
    refused = Recipe("original", "nesting", 2, accept=False, backwards=False)
    assert structure_of(refused.puzzle())[1] == ("a", "b", "d", "c"), "in the order of their occurrence in the prompt"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_question_is_for_training_or_held_out(family: str) -> None:
    """Counted over all 120 letterings of every structure: the two sides share no prompt and lack none."""
    recipes = {r for some in run_lengths((family,), 14, tuple(QUESTIONS)).values() for r in some}
    assert recipes
    sides: dict[str, set[str]] = {}
    for recipe in recipes:
        letterings = letterings_of(recipe)
        for name in ("trained", "held_out"):
            contents = {recipe.puzzle(lettering).content() for lettering in getattr(letterings, name)}
            assert len(contents) == len(getattr(letterings, name)), "each is another question"
            sides.setdefault(name, set()).update(contents)
        every = {recipe.puzzle(lettering).content() for lettering in permutations("abcde")}
        assert len(every) == len(letterings.trained) + len(letterings.held_out)
        assert len(letterings.held_out) == len(every) // HELD_OUT
    assert not sides["trained"] & sides["held_out"]


def test_a_training_never_draws_what_is_asked() -> None:
    families = list(FAMILIES)
    stream = SearchStream(families)
    asked = SearchRuns(families, longest=21, letterings=24).instances()
    contents = {puzzle.content() for puzzle in asked}
    rng = random.Random(0)
    drawn = {puzzle.content() for _ in range(600) for puzzle in stream.draw(rng, len(stream.stages) - 1)}
    assert len(drawn) > 2_000
    assert not drawn & contents


def test_every_structure_is_asked_once_in_each_lettering() -> None:
    asked = SearchRuns(["terminal_length", "nesting"], longest=14, letterings=4).instances()
    times = Counter(structure_of(puzzle)[0] for puzzle in asked)
    letters = {structure_of(puzzle)[0]: len(structure_of(puzzle)[1]) for puzzle in asked}
    assert len({puzzle.content() for puzzle in asked}) == len(asked)
    assert set(letters.values()) == {1, 2, 3, 4}
    assert all(times[structure] == {1: 1, 2: 4, 3: 4, 4: 4}[count] for structure, count in letters.items())


def test_equal_puzzles_are_asked_where_they_come_first() -> None:
    original, cue_free = (
        Recipe(suite, "recursion", 3, accept=True, backwards=False) for suite in ("original", "cue_free")
    )
    assert original.puzzle() == cue_free.puzzle()
    asked = held_out_puzzles([cue_free, original], 2, random.Random(0))
    assert len(asked) == 2
    assert letterings_of(original) == letterings_of(cue_free)
