"""Office items, splits and wordings: what is asked, what the answer is, and that no evaluation item is ever trained."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date, timedelta
from itertools import product

import pytest

from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.office.draws import ATOMIC, COMPOSED, OPERATIONS, combinations, draw
from datamodules.tasks.office.items import FACTORS, FAMILIES, KEYS
from datamodules.tasks.office.splits import (
    COMBINATIONS_PER_FAMILY,
    PER_FAMILY,
    SPLITS,
    digest,
    evaluation,
    reserved,
    training,
    validation,
)
from datamodules.tasks.office.wordings import REWORDED, WORDINGS, question

DIGESTS = {
    "in-distribution": "92810220133f47315e7afd34a4f498453a11abc73969f878f4d081666d266e0e",
    "shift": "5db2ed7b3330bec0ffece1752555ae138afd25a82669bd25219cc3b2ac34dd06",
    "composition": "1e60ce9d4f0a1b5ac0fd11ddd84791d9fe448576d2b92e86b7c61d9ff102bedb",
    "combination": "fd3b14f83546cfb871e34be44d17036bf2c7f0c1140a51cd59137604234bf914",
}


def solve(text: str) -> str:
    """Answer a question in the standard wording from its text alone, by other means than the task's own."""
    kind, body = text.split(": ", 1)
    body = body.rsplit(". What is the", 1)[0]
    given, *steps = re.split(r", then |\. Take it, then |\. Remove the hyphens, then ", body)
    if kind == "Code":
        value = list(given.replace("-", ""))
        for step in steps:
            numbers = [int(n) for n in re.findall(r"\d+", step)]
            if "first" in step:
                del value[numbers[0] :]
            elif "last" in step:
                del value[: -numbers[0]]
            elif "characters" in step:
                value = [c for place, c in enumerate(value, 1) if numbers[0] <= place <= numbers[1]]
            else:
                assert step == "reverse the text"
                value.reverse()
        return "".join(value)
    if kind == "Date":
        year, month, day = map(int, given.split("-"))
        days = sum(int(step.split()[1]) * {"days": 1, "weeks": 7}[step.split()[2]] for step in steps)
        return str(date.fromordinal(date(year, month, day).toordinal() + days))
    if kind == "Amount":
        number, unit = given.split()
        total = int(number)
        for step in steps:
            if step.startswith("convert"):
                target = step.split()[-1]
                scale = {"mcm": 100, "cmmm": 10, "kgg": 1000, "mins": 60}[unit + target]
                total, unit = total * scale, target
            else:
                assert step.split()[2] == unit
                total += int(step.split()[1])
        return str(total)
    assert kind == "Table"
    shown, first = given.split(". Take the value of ")
    table = dict(entry.split(" = ") for entry in shown.split(", "))
    total = int(table[first])
    for step in steps:
        word = step.split()[-1]
        amount = int(table.get(word, word if word.isdigit() else "x"))
        total = total * amount if step.startswith("multiply") else total + amount
    return str(total)


@pytest.mark.parametrize("split", SPLITS)
def test_answers_follow_from_the_text(split: str) -> None:
    asked = [item for item in evaluation(split) if item.wording == "standard"]
    assert asked or split == "shift"
    for item in asked:
        assert solve(question(item)) == item.answer().text, question(item)


def test_training_answers_follow_from_the_text() -> None:
    for item in training(2_000, seed=1):
        assert solve(question(item)) == item.answer().text, question(item)


@pytest.mark.parametrize("split", SPLITS)
def test_evaluation_items_are_fixed(split: str) -> None:
    evaluation.cache_clear()
    assert digest(evaluation(split)) == DIGESTS[split]


@pytest.mark.parametrize("split", SPLITS)
def test_splits_are_balanced_and_named(split: str) -> None:
    items = evaluation(split)
    assert len({item.name for item in items}) == len(items)
    assert set(Counter(item.family for item in items).values()) == {
        COMBINATIONS_PER_FAMILY * len(WORDINGS) if split == "combination" else PER_FAMILY
    }
    if split != "combination":
        assert [item.family for item in items[:8]] == [*FAMILIES, *FAMILIES]
        assert len({item.content() for item in items}) == len(items)


def test_procedures_of_the_splits() -> None:
    for item in (*evaluation("in-distribution"), *evaluation("shift"), *training(400, 0), *validation()):
        assert item.procedure in ATOMIC[item.family]
    for item in evaluation("composition"):
        assert item.procedure in COMPOSED[item.family]
    for family in FAMILIES:
        counts = Counter(item.procedure for item in evaluation("in-distribution") if item.family == family)
        assert set(counts) == set(ATOMIC[family])
        assert max(counts.values()) - min(counts.values()) <= 1


def test_the_shift_asks_the_same_in_other_words() -> None:
    pairs = list(zip(evaluation("in-distribution"), evaluation("shift"), strict=True))
    assert all(one.content() == other.content() for one, other in pairs)
    assert all(question(one) != question(other) for one, other in pairs)
    assert set(Counter((item.family, item.wording) for _, item in pairs).values()) == {PER_FAMILY // len(REWORDED)}


def test_combinations_are_all_pairs_and_triples() -> None:
    for family in FAMILIES:
        shown = {item.procedure for item in evaluation("combination") if item.family == family}
        assert shown == set(combinations(family))
        if family != "unit":
            every = {names for length in (2, 3) for names in product(OPERATIONS[family], repeat=length)}
            assert shown == every - set(ATOMIC[family])
    assert {len(item.steps) for item in evaluation("combination")} == {2, 3}
    # Of the unit family: first units times sequences, as far as there is a smaller unit to convert to.
    assert len(combinations("unit")) == 32
    assert ("m", "convert", "convert", "add") in combinations("unit")
    assert ("kg", "convert", "convert") not in combinations("unit")


def test_wording_and_procedure_vary_independently() -> None:
    cells = Counter((item.wording, item.procedure) for item in evaluation("combination"))
    for procedure in {procedure for _, procedure in cells}:
        assert len({cells[wording, procedure] for wording in WORDINGS}) == 1
    contents = [{i.content() for i in evaluation("combination") if i.wording == wording} for wording in WORDINGS]
    assert all(content == contents[0] for content in contents)


@pytest.mark.parametrize("seed", range(3))
def test_no_evaluation_item_is_trained(seed: int) -> None:
    drawn = {item.content() for item in training(6_000, seed, tuple(WORDINGS))}
    held = {item.content() for item in validation()}
    assert not drawn & reserved()
    assert not drawn & held
    assert not held & reserved()


def test_training_would_meet_evaluation_items_if_they_were_not_left_out() -> None:
    rng = seeded("test")
    drawn = {draw(rng, "unit", procedure).content() for procedure in ATOMIC["unit"] for _ in range(300)}
    assert drawn & reserved()


def test_training_is_balanced_and_follows_its_seed() -> None:
    items = training(480, 3, ("standard", "mail"))
    assert Counter(item.family for item in items) == dict.fromkeys(FAMILIES, 120)
    assert Counter(item.wording for item in items) == {"standard": 240, "mail": 240}
    assert items == training(480, 3, ("standard", "mail"))
    assert items != training(480, 4, ("standard", "mail"))


def test_facts_and_arguments_are_in_range() -> None:
    for item in (*training(4_000, 0), *evaluation("composition")):
        facts, arguments = item.facts, [step.arguments for step in item.steps]
        composed = item.procedure in COMPOSED[item.family]
        if item.family == "string":
            assert re.fullmatch(r"[A-HJ-NP-Z]{2}-\d{4}-[A-HJ-NP-Z]{2}", facts.code)
            for step in item.steps:
                if step.name == "slice":
                    first, last = step.arguments
                    assert 1 <= first < last <= 8
                    assert 3 <= last - first + 1 <= 5
                elif step.name != "reverse":
                    assert 3 <= step.arguments[0] <= 5
        elif item.family == "unit":
            assert (1 if composed else 2) <= facts.number <= (8 if composed else 19)
            if composed:
                assert arguments[1][0] in (5, 10, 15, 20, 25, 40, 50, 75)
            elif item.procedure[1] == "add":
                assert facts.unit == "cm"
                assert 2 <= arguments[0][0] <= 40
            else:
                assert (facts.unit, arguments[0][0]) in FACTORS
        elif item.family == "table":
            assert sorted(key for key, _ in facts.table) == sorted(KEYS)
            assert all(2 <= value <= 29 for _, value in facts.table)
            for step in item.steps:
                if step.name == "add_value":
                    assert step.arguments[0] in set(KEYS) - {facts.key}
                else:
                    low, high = (2, 7) if step.name == "scale" else (1, 9 if composed else 11)
                    assert low <= step.arguments[0] <= high
        else:
            day = date.fromisoformat(facts.day)
            assert day.year == 2026
            assert day.day <= 24
            limits = {"add_days": 6, "add_weeks": 3} if composed else {"add_days": 14, "add_weeks": 4}
            assert all(1 <= step.arguments[0] <= limits[step.name] for step in item.steps)
            assert date.fromisoformat(item.answer().text) - day > timedelta(0)


def test_every_datum_stands_in_every_wording() -> None:
    for item in evaluation("combination"):
        words = re.findall(r"[\w-]+", question(item))
        facts = item.facts
        data = [facts.code, facts.day, facts.unit, *(str(a) for step in item.steps for a in step.arguments)]
        data += [word for key, value in facts.table for word in (key, str(value))]
        assert all(datum in words for datum in data if datum), question(item)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: training(0, 0), "count"),
        (lambda: training(4, 0, ()), "wordings"),
        (lambda: training(4, 0, ("plain",)), "wording"),
        (lambda: evaluation("test"), "split"),
        (lambda: validation(99), "per_family"),
        (lambda: draw(seeded("x"), "colour", ("add",)), "family"),
    ],
)
def test_bad_arguments_name_the_field(call, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        call()
