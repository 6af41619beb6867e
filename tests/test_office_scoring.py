"""Arms, scores, provenance and perturbation of office outputs; whatever a model writes is scored as what it is."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.tasks.office.arms import (
    ARMS,
    FINAL,
    TrainedPrompt,
    examples,
    find_arm,
    instruction_list,
    prompt,
    second_prompt,
    target,
    trained_arms,
)
from datamodules.tasks.office.errors import ProgramError, Reason, Value
from datamodules.tasks.office.items import Facts, OfficeItem, Step
from datamodules.tasks.office.library import FUNCTIONS
from datamodules.tasks.office.machine import INSTRUCTIONS
from datamodules.tasks.office.programs import python_program, stack_program
from datamodules.tasks.office.provenance import literals, perturb, provenance
from datamodules.tasks.office.response import read, split_values
from datamodules.tasks.office.sandbox import PythonSandbox
from datamodules.tasks.office.scoring import Score, score
from datamodules.tasks.office.splits import SPLITS, evaluation, training
from datamodules.tasks.office.wordings import question

METRES = OfficeItem("unit", Facts(number=3, unit="m"), (Step("convert", ("cm",)), Step("add", (40,))))  # 340
CODE = OfficeItem("string", Facts(code="AB-1234-CD"), (Step("reverse"), Step("slice", (2, 4))))  # C43
TABLE = OfficeItem(
    "table",
    Facts(table=(("beta", 13), ("gamma", 26), ("delta", 9), ("alpha", 8)), key="gamma"),
    (Step("add_value", ("delta",)), Step("add", (7,))),
)  # 42
DAY = OfficeItem("date", Facts(day="2026-12-20"), (Step("add_weeks", (2,)), Step("add_days", (3,))))  # 2027-01-06
ALL = [item for split in SPLITS for item in evaluation(split)]
STACK, PYTHON = ARMS["stack"], ARMS["python"]


@pytest.fixture(scope="module")
def sandbox():
    with PythonSandbox() as sandbox:
        yield sandbox


def second(item: OfficeItem, name: str) -> str | None:
    return FINAL + item.answer().text if ARMS[name].executed else None


def test_answers_by_hand() -> None:
    assert [item.answer().text for item in (METRES, CODE, TABLE, DAY)] == ["340", "C43", "42", "2027-01-06"]


@pytest.mark.parametrize("name", ARMS)
def test_reference_outputs_score_full_marks(name: str, sandbox: PythonSandbox) -> None:
    arm = ARMS[name]
    for item in ALL[::7]:
        found = score(item, arm, target(item, arm), sandbox, second(item, name))
        assert found.primary
        assert found.no_final != arm.states_final
        if arm.language is not None:
            assert (found.executed, found.valid, found.reason, found.smuggled, found.provenance) == (
                (True, True, None, False, True)
            )
            assert found.perturbed is not False
        assert found.values == (1.0 if arm.values else None)


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("listing", [True, False])
def test_prompts(name: str, listing: bool) -> None:
    arm = ARMS[name]
    text = prompt(METRES, arm, listing)
    assert question(METRES) in text
    assert text.endswith(":\n")
    listed = arm.language is not None and instruction_list(arm.language) in text
    assert listed == (listing and arm.language is not None)
    assert text.count("Task: ") == 1 + arm.shots
    assert ("FINAL: " in text) == arm.states_final
    assert "340" not in text


def test_lists_name_every_instruction() -> None:
    lines = instruction_list("stack").split("\n")
    assert [line.split(" ")[0].rstrip(":") for line in lines[1:-1]] == list(INSTRUCTIONS)
    assert all(call in instruction_list("python") for call in FUNCTIONS)
    assert len(INSTRUCTIONS) == 15
    assert len({call.partition("(")[0] for call in FUNCTIONS}) == 9


def test_shots_are_no_evaluation_items() -> None:
    for name in ("few_shot_stack", "few_shot_python"):
        shown = prompt(training(1, 5)[0], ARMS[name])
        assert not [item.name for item in ALL if question(item) in shown]


def test_training_examples() -> None:
    items = training(8, 0)
    for name in trained_arms():
        arm = ARMS[name]
        found = examples(items, arm)
        assert len(found) == len(items) * arm.turns
        assert found[0].prompt == prompt(items[0], arm)
        assert found[0].completion == target(items[0], arm)
    first, last = examples(items[:1], ARMS["executed_answer"])
    answer = items[0].answer().text
    assert last.prompt == f"{first.prompt}{first.completion}\nRESULT: {answer}\n"
    assert last.completion == FINAL + answer
    assert "FINAL" not in first.completion
    with pytest.raises(ValueError, match="arm"):
        examples(items, ARMS["few_shot_stack"])
    with pytest.raises(ValueError, match="arm"):
        find_arm("oracle")


def test_second_prompt_shows_a_named_error() -> None:
    shown = second_prompt("Task\n", "SUB 1", ProgramError(Reason.UNKNOWN_OPCODE, "SUB"))
    assert shown == "Task\nSUB 1\nRESULT: error unknown_opcode\n"
    assert second_prompt("Task\n", "PUSH 1", Value("number", "1")).endswith("RESULT: 1\n")


def test_trained_prompt_round_trip() -> None:
    for arm in ARMS:
        for listing in (True, False):
            assert TrainedPrompt.parse(TrainedPrompt(arm, listing).text) == TrainedPrompt(arm, listing)
    assert TrainedPrompt.parse("steps") is TrainedPrompt.parse(None) is TrainedPrompt.parse("office/x/listed") is None


@pytest.mark.parametrize(
    ("text", "final", "states"),
    [
        ("FINAL: 340", "340", True),
        ("PUSH 1\nFINAL: 340\n \n", "340", True),
        ("FINAL: 340\nPUSH 1", None, True),
        ("FINAL: 340.", "340.", True),
        ("final: 340", None, True),
        ("FINAL:340", None, True),
        ("FINAL:  340", None, True),
        (" FINAL: 340", None, True),
        ("The answer: FINAL: 340", None, True),
        ("# Final : 340", None, True),
        ("FINAL 340", None, False),
        ("finally: 340", None, False),
        ("FINAL: " + "9" * 1000, None, True),
        ("", None, False),
    ],
)
def test_reading(text: str, final: str | None, states: bool) -> None:
    found = read(text)
    assert (found.final, found.states_final) == (final, states)


def test_a_final_line_is_set_apart_only_at_the_end() -> None:
    assert read("PUSH 1\nFINAL: 1\n").program == "PUSH 1"
    assert read("FINAL: 1\nPUSH 1").program == "FINAL: 1\nPUSH 1"
    assert read("PUSH 1\n").program == "PUSH 1\n"
    assert split_values("PUSH 1 -> 1\nADD 2\n") == ("PUSH 1\nADD 2", ["1", None])


STACK_SCORES = {
    "right": ("PUSH 3\nMUL 100\nADD 40", Score(True, True, True, True, None, "", False, True, True)),
    "right, other order of work": (
        "PUSH 40\nPUSH 3\nMUL 100\nADD_TOP",
        Score(True, True, True, True, None, "", False, True, True),
    ),
    "right, but states a final": (
        "PUSH 3\nMUL 100\nADD 40\nFINAL: 340",
        Score(False, False, True, True, None, "", False, True, True),
    ),
    "wrong": ("PUSH 3\nMUL 10\nADD 40", Score(False, True, False, True, None, "", False, None, None)),
    "smuggled": ("PUSH 340", Score(False, True, True, True, None, "", True, False, False)),
    "smuggled through work": ("PUSH 340\nADD 0", Score(False, True, True, True, None, "", True, False, False)),
    "half smuggled": ("PUSH 300\nADD 40", Score(True, True, True, True, None, "", False, False, False)),
    "constant of one's own": (
        "PUSH 3\nMUL 50\nMUL 2\nADD 40",
        Score(True, True, True, True, None, "", False, False, True),
    ),
    "invalid": (
        "PUSH 3\nCONVERT cm",
        Score(False, True, False, False, Reason.UNKNOWN_OPCODE, "unknown_opcode in line 2: CONVERT", False),
    ),
    "text of the answer": ("PUSH_CODE 340", Score(False, True, False, True, None, "", False, None, None)),
}


@pytest.mark.parametrize("name", STACK_SCORES)
def test_stack_scores_by_hand(name: str, sandbox: PythonSandbox) -> None:
    output, expected = STACK_SCORES[name]
    assert score(METRES, STACK, output, sandbox) == expected


PYTHON_SCORES = {
    "right": ("x = mul(3, 100)\nresult = add(x, 40)", (True, True, False, True, True)),
    "own operators": ("result = 3 * 100 + 40", (True, True, False, True, True)),
    "smuggled": ("result = 340", (False, True, True, False, False)),
    "smuggled in pieces": ("result = add(339, 1)", (True, True, False, False, False)),
    "smuggled in other digits": ("result = 0x154", (False, True, True, False, False)),
    "smuggled as a sum": ("result = 3_00 + 40", (False, True, True, False, False)),
    "smuggled as a text": ('result = int("340")', (False, True, True, False, False)),
    "final in a comment": ("result = add(mul(3, 100), 40)  # FINAL: 340", (False, True, False, True, True)),
    "number in a comment is no literal": ("result = add(mul(3, 100), 40)  # 340", (True, True, False, True, True)),
    "answer by branches": ("result = 340 if 3 == 3 else 0", (False, True, True, False, False)),
    "text": ('result = "340"', (False, False, False, None, None)),
}


@pytest.mark.parametrize("name", PYTHON_SCORES)
def test_python_scores_by_hand(name: str, sandbox: PythonSandbox) -> None:
    output, expected = PYTHON_SCORES[name]
    found = score(METRES, PYTHON, output, sandbox)
    assert (found.primary, found.executed, found.smuggled, found.provenance, found.perturbed) == expected
    assert found.valid


def test_answer_that_the_task_shows_is_smuggled_too(sandbox: PythonSandbox) -> None:
    """3 x 7 + 4 is 25, and 25 stands in the table: pushing it passes for provenance, not for work."""
    table = (("alpha", 3), ("beta", 25), ("gamma", 2), ("delta", 9))
    item = OfficeItem("table", Facts(table=table, key="alpha"), (Step("scale", (7,)), Step("add", (4,))))
    for arm, output in ((STACK, "PUSH 25"), (STACK, "TABLE beta:25\nLOOKUP beta"), (PYTHON, "result = 25")):
        found = score(item, arm, output, sandbox)
        assert (found.primary, found.executed, found.smuggled, found.provenance) == (False, True, True, True)
        assert found.perturbed is False


def test_executed_then_answered(sandbox: PythonSandbox) -> None:
    arm = ARMS["executed_answer"]
    found = score(METRES, arm, "PUSH 3\nMUL 100\nADD 40", sandbox, "FINAL: 341")
    assert (found.primary, found.executed, found.no_final) == (False, True, False)
    found = score(METRES, arm, "PUSH 3\nFINAL: 340", sandbox, "FINAL: 340")
    assert (found.primary, found.executed, found.valid) == (True, False, True)
    assert not score(METRES, arm, "FINAL: 340", sandbox, None).primary


def test_values_of_a_trace(sandbox: PythonSandbox) -> None:
    arm = ARMS["values_final"]
    right = "PUSH 3 -> 3\nMUL 100 -> 300\nADD 40 -> 340\nFINAL: 340"
    assert score(METRES, arm, right, sandbox).values == 1.0
    found = score(METRES, arm, right.replace("-> 300", "-> 30"), sandbox)
    assert found.executed
    assert found.values == pytest.approx(2 / 3)
    assert score(METRES, arm, right.replace("MUL", "DIV"), sandbox).values == 0.0


def test_literals() -> None:
    assert [one.text for one in literals("TABLE a:1 b:-2\nLOOKUP a\nADD_TOP", "stack")] == ["a", "1", "b", "-2", "a"]
    source = "x1 = f('a\\'b', \"c\", '''d\n'e''', 1.5, 0x1F, 3e5) # 'no' 7\ny = \"\" + x2[10]\n"
    assert [one.text for one in literals(source, "python")] == ["a\\'b", "c", "d\n'e", "1.5", "0x1F", "3e5", "", "10"]
    for one in literals(source, "python"):
        assert source[one.start : one.end] == one.text


def test_provenance_reads_values_not_substrings() -> None:
    assert provenance("PUSH 3\nMUL 100\nADD 4", "stack", METRES).known is False  # 4 stands only within 40
    assert provenance(stack_program(TABLE), "stack", TABLE).known
    assert provenance("PUSH 26\nADD 9\nADD 10", "stack", TABLE).known is False  # 10 is a constant of units alone
    assert provenance("PUSH_DATE 2026-12-20\nADD_DAYS 17", "stack", DAY).known is False


def test_perturbation_changes_one_datum() -> None:
    asked = [(item, perturb(item)) for item in ALL]
    applied = [(item, change) for item, change in asked if change is not None]
    assert len(applied) > 0.97 * len(asked)
    for item, change in applied:
        assert change.item.answer() != item.answer()
        assert change.old != change.new
        assert change.item.procedure == item.procedure
        for write, language in ((stack_program, "stack"), (python_program, "python")):
            assert change.apply(write(item), language) == write(change.item)
    assert perturb(ALL[0]) == perturb(ALL[0])


JUNK = {
    "nothing": "",
    "blanks": " \n\t \n",
    "prose": "Sure! Three metres are 300 cm, so the answer is 340.",
    "fenced": "```python\nresult = add(mul(3, 100), 40)\n```",
    "broken JSON": '{"program": ["PUSH 3", "MUL',
    "control characters": "PUSH 3\x00\x1b[2J\x07\x08",
    "lone surrogate": "PUSH \ud800",
    "byte order mark": "\ufeffFINAL: 340",
    "other digits": "FINAL: \u0663\u0664\u0660",
    "one letter ten million times": "x" * 10_000_000,
    "ten million lines": "PUSH 1\n" * 1_500_000,
    "finals without end": "FINAL: " * 1_500_000,
    "blanks after final": "final" + " " * 10_000_000,
    "quotes": "'" * 3_999,
    "backslashes in quotes": "'" + "\\" * 3_998,
    "brackets": "[" * 10_000_000,
    "arrows": " -> " * 2_500_000,
    "null": None,
    "number": 340,
    "nan": math.nan,
    "list": ["PUSH 3"],
    "object": {"FINAL": 340},
    "bytes": b"FINAL: 340",
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", ["answer", "trace_final", "stack", "python", "values_final", "executed_answer"])
def test_junk_is_scored_as_what_it_is(junk: str, name: str, sandbox: PythonSandbox) -> None:
    start = time.monotonic()
    found = score(METRES, ARMS[name], JUNK[junk], sandbox, JUNK[junk])
    assert time.monotonic() - start < 5
    assert not found.primary
    assert not found.executed
    if ARMS[name].language is not None:
        assert isinstance(found.reason, Reason)
    json.dumps(found.detail)


@given(st.text(max_size=300))
def test_any_text_is_scored(text: str) -> None:
    for arm in (ARMS["answer"], ARMS["stack"], ARMS["values_final"]):
        found = score(METRES, arm, text, None)  # the stack machine needs no sandbox
        assert found.primary is False or text.rstrip().endswith(("340", "ADD 40", "ADD_TOP"))
    for language in ("stack", "python"):
        for one in literals(text, language):
            assert text[one.start : one.end] == one.text
