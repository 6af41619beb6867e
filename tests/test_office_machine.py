"""The stack machine, the reference programs and the Python functions: strict, and equal to the reference answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.tasks.office.errors import ProgramError, Reason, Value
from datamodules.tasks.office.machine import INSTRUCTIONS, MAX_CHARACTERS, run, trace
from datamodules.tasks.office.programs import python_program, stack_program, with_values
from datamodules.tasks.office.sandbox import PythonSandbox
from datamodules.tasks.office.splits import SPLITS, evaluation, training

ITEMS = [*(item for split in SPLITS for item in evaluation(split)), *training(400, 0)]


@pytest.fixture(scope="module")
def sandbox():
    with PythonSandbox() as sandbox:
        yield sandbox


def test_stack_programs_reach_the_answer() -> None:
    for item in ITEMS:
        assert run(stack_program(item)) == item.answer()


def test_python_programs_reach_the_answer(sandbox: PythonSandbox) -> None:
    for item in ITEMS[::3]:
        program = python_program(item)
        assert sandbox.run(program) == item.answer()
        *_, last = program.split("\n")
        assert last.startswith("result = ")


def test_python_program_by_hand() -> None:
    item = next(item for item in evaluation("composition") if item.family == "table")
    (k1, k2), bias = (item.facts.key, item.steps[0].arguments[0]), item.steps[1].arguments[0]
    table = ", ".join(f'"{key}": {value}' for key, value in item.facts.table)
    assert python_program(item).split("\n") == [
        f"table = {{{table}}}",
        f'x1 = lookup(table, "{k1}")',
        f'x2 = lookup(table, "{k2}")',
        "x3 = add(x1, x2)",
        f"result = add(x3, {bias})",
    ]


def test_values_by_hand() -> None:
    program = "TABLE alpha:3 beta:4\nLOOKUP beta\nMUL 5\nLOOKUP alpha\nADD_TOP"
    assert with_values(program) == (
        "TABLE alpha:3 beta:4\nLOOKUP beta -> 4\nMUL 5 -> 20\nLOOKUP alpha -> 3\nADD_TOP -> 23"
    )
    assert with_values("PUSH_DATE 2026-12-30\nADD_DAYS 3").endswith("ADD_DAYS 3 -> 2027-01-02")


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("PUSH 7", Value("number", "7")),
        ("PUSH -7\nMUL -3\nADD 0", Value("number", "21")),
        ("PUSH 7\n", Value("number", "7")),
        ("PUSH 3\nPUSH 4\nADD_TOP", Value("number", "7")),
        ("PUSH_CODE AB-1234-CD\nSTRIP_HYPHENS\nREVERSE\nSLICE 2 4", Value("text", "C43")),
        ("PUSH_CODE abc\nTAKE_PREFIX 3\nTAKE_SUFFIX 1", Value("text", "c")),
        ("PUSH_CODE --\nSTRIP_HYPHENS", Value("text", "")),
        ("PUSH_DATE 2024-02-28\nADD_DAYS 1\nADD_WEEKS -1", Value("text", "2024-02-22")),
        ("LOOKUP a\n".replace("LOOKUP a", "TABLE a:0 b:-5\nLOOKUP b"), Value("number", "-5")),
    ],
)
def test_programs_by_hand(program: str, value: Value) -> None:
    assert run(program) == value


ERRORS = {
    ("", Reason.EMPTY_PROGRAM, None),
    (" \n\t\n", Reason.EMPTY_PROGRAM, None),
    ("PUSH 1\n" * 65, Reason.TOO_LONG, None),
    ("PUSH_CODE " + "x" * MAX_CHARACTERS, Reason.TOO_LONG, None),
    ("PUSH 1\n\nADD 1", Reason.EMPTY_LINE, 2),
    ("PUSH 1\n\n", Reason.EMPTY_LINE, 2),
    ("SUB 1", Reason.UNKNOWN_OPCODE, 1),
    ("push 1", Reason.UNKNOWN_OPCODE, 1),
    (" PUSH 1", Reason.UNKNOWN_OPCODE, 1),
    ("1. PUSH 1", Reason.UNKNOWN_OPCODE, 1),
    ("```\nPUSH 1\n```", Reason.UNKNOWN_OPCODE, 1),
    ("PUSH 1\nFINAL: 1", Reason.UNKNOWN_OPCODE, 2),
    ("PUSH\t1", Reason.UNKNOWN_OPCODE, 1),
    ("\ufeffPUSH 1", Reason.UNKNOWN_OPCODE, 1),
    ("PUSH", Reason.WRONG_OPERANDS, 1),
    ("PUSH ", Reason.WRONG_OPERANDS, 1),
    ("PUSH 1 2", Reason.WRONG_OPERANDS, 1),
    ("PUSH  1", Reason.WRONG_OPERANDS, 1),
    ("PUSH 1 ", Reason.WRONG_OPERANDS, 1),
    ("PUSH 1\r", Reason.WRONG_OPERANDS, 1),
    ("PUSH 1.0", Reason.WRONG_OPERANDS, 1),
    ("PUSH 01", Reason.WRONG_OPERANDS, 1),
    ("PUSH +1", Reason.WRONG_OPERANDS, 1),
    ("PUSH -0", Reason.WRONG_OPERANDS, 1),
    ("PUSH 1_000", Reason.WRONG_OPERANDS, 1),
    ("PUSH \u0661", Reason.WRONG_OPERANDS, 1),
    ("PUSH nan", Reason.WRONG_OPERANDS, 1),
    ("PUSH " + "9" * 19, Reason.WRONG_OPERANDS, 1),
    ("PUSH_CODE caf\u00e9", Reason.WRONG_OPERANDS, 1),
    ("PUSH_CODE " + "x" * 65, Reason.WRONG_OPERANDS, 1),
    ("PUSH_CODE ab\nREVERSE 1", Reason.WRONG_OPERANDS, 2),
    ("PUSH_CODE abcd\nSLICE 1", Reason.WRONG_OPERANDS, 2),
    ("PUSH 1\nADD x", Reason.WRONG_OPERANDS, 2),
    ("ADD x", Reason.WRONG_OPERANDS, 1),
    ("TABLE", Reason.WRONG_OPERANDS, 1),
    ("TABLE a=1", Reason.WRONG_OPERANDS, 1),
    ("TABLE a:1, b:2", Reason.WRONG_OPERANDS, 1),
    ("TABLE a:1 a:2", Reason.WRONG_OPERANDS, 1),
    ("PUSH_DATE 2026-02-30", Reason.WRONG_OPERANDS, 1),
    ("PUSH_DATE 2026-2-3", Reason.WRONG_OPERANDS, 1),
    ("PUSH_DATE 20260203", Reason.WRONG_OPERANDS, 1),
    ("ADD 1", Reason.STACK_UNDERFLOW, 1),
    ("PUSH 1\nADD_TOP", Reason.STACK_UNDERFLOW, 2),
    ("REVERSE", Reason.STACK_UNDERFLOW, 1),
    ("ADD_DAYS 1", Reason.STACK_UNDERFLOW, 1),
    ("PUSH 1\nREVERSE", Reason.WRONG_TYPE, 2),
    ("PUSH_CODE 12\nADD 1", Reason.WRONG_TYPE, 2),
    ("PUSH_CODE 2026-01-01\nADD_DAYS 1", Reason.WRONG_TYPE, 2),
    ("PUSH_DATE 2026-01-01\nSTRIP_HYPHENS", Reason.WRONG_TYPE, 2),
    ("PUSH 1\nPUSH_CODE a\nADD_TOP", Reason.WRONG_TYPE, 3),
    ("PUSH_CODE abc\nTAKE_PREFIX 4", Reason.OUT_OF_RANGE, 2),
    ("PUSH_CODE abc\nTAKE_PREFIX 0", Reason.OUT_OF_RANGE, 2),
    ("PUSH_CODE abc\nTAKE_SUFFIX 4", Reason.OUT_OF_RANGE, 2),
    ("PUSH_CODE abc\nTAKE_SUFFIX -1", Reason.OUT_OF_RANGE, 2),
    ("PUSH_CODE abc\nSLICE 0 2", Reason.OUT_OF_RANGE, 2),
    ("PUSH_CODE abc\nSLICE 2 4", Reason.OUT_OF_RANGE, 2),
    ("PUSH_CODE abc\nSLICE 3 2", Reason.OUT_OF_RANGE, 2),
    ("LOOKUP a", Reason.NO_TABLE, 1),
    ("TABLE a:1\nTABLE b:2\nLOOKUP a", Reason.SECOND_TABLE, 2),
    ("TABLE a:1\nLOOKUP b", Reason.UNKNOWN_KEY, 2),
    ("PUSH 999999999999999999\nADD 1", Reason.OVERFLOW, 2),
    ("PUSH 999999999999999999\nMUL -999999999999999999", Reason.OVERFLOW, 2),
    ("PUSH_DATE 9999-12-31\nADD_DAYS 1", Reason.OVERFLOW, 2),
    ("PUSH_DATE 2026-01-01\nADD_WEEKS 999999999999999999", Reason.OVERFLOW, 2),
    ("PUSH 1\nPUSH 2", Reason.LEFTOVERS, None),
    ("TABLE a:1", Reason.NO_RESULT, None),
}
STACK_REASONS = set(Reason) & {reason for _, reason, _ in ERRORS}


@pytest.mark.parametrize(("program", "reason", "line"), sorted(ERRORS, key=str))
def test_invalid_programs(program: str, reason: Reason, line: int | None) -> None:
    with pytest.raises(ProgramError) as caught:
        run(program)
    assert (caught.value.reason, caught.value.line) == (reason, line)
    assert len(str(caught.value)) < 300


def test_every_reason_of_the_machine_has_a_case() -> None:
    of_python = list(Reason)[list(Reason).index(Reason.SYNTAX) :]
    assert set(Reason) - set(of_python) - {Reason.NOT_TEXT} == STACK_REASONS


def ended(program: str) -> Reason | None:
    """The named reason a program ends in, None for one that has a result."""
    try:
        run(program)
    except ProgramError as error:
        return error.reason
    return None


@given(st.text())
def test_any_text_is_a_value_or_a_named_error(text: str) -> None:
    assert ended(text) is None or ended(text) in STACK_REASONS


LINES = st.one_of(
    st.sampled_from(sorted(INSTRUCTIONS)),
    st.builds(
        lambda *words: " ".join(words), st.sampled_from(sorted(INSTRUCTIONS)), st.text("0123456789-", max_size=20)
    ),
    st.sampled_from(["PUSH 3", "PUSH_CODE AB-12", "PUSH_DATE 2026-05-05", "TABLE a:1 b:2", "LOOKUP a", "SLICE 1 2"]),
)


@given(st.lists(LINES, min_size=1, max_size=12))
def test_any_instructions_are_a_value_or_a_named_error(lines: list[str]) -> None:
    program = "\n".join(lines)
    reason = ended(program)
    if reason is not None:
        assert reason in STACK_REASONS
        return
    tops, value = trace(program)
    assert len(tops) == len(lines)
    assert str(tops[-1]) == value.text


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ('strip_hyphens("A-B")', "AB"),
        ('reverse("abc")', "cba"),
        ('take_prefix("abcd", 2)', "ab"),
        ('take_suffix("abcd", 2)', "cd"),
        ('slice1("abcd", 2, 3)', "bc"),
        ("add(2, 3)", "5"),
        ("mul(2, 3)", "6"),
        ('lookup({"a": 4}, "a")', "4"),
        ('date_add("2024-02-28", days=2)', "2024-03-01"),
        ('date_add("2026-12-24", weeks=4)', "2027-01-21"),
    ],
)
def test_python_functions(sandbox: PythonSandbox, call: str, value: str) -> None:
    assert sandbox.run(f"result = {call}").text == value


@pytest.mark.parametrize(
    "call",
    [
        'take_prefix("abc", 4)',
        'take_prefix("abc", 0)',
        'take_suffix("abc", 4)',
        'slice1("abc", 3, 2)',
        'slice1("abc", 0, 2)',
        'add("1", 2)',
        "add(True, 2)",
        "add(1.0, 2)",
        "reverse(12)",
        'lookup({"a": 4}, "b")',
        "lookup([4], 0)",
        'date_add("2026-02-30", days=1)',
        'date_add("2026-02-03", 1.5)',
        'date_add("9999-12-31", days=1)',
        "add(1)",
    ],
)
def test_python_functions_are_strict(sandbox: PythonSandbox, call: str) -> None:
    with pytest.raises(ProgramError) as caught:
        sandbox.run(f"result = {call}")
    assert caught.value.reason is Reason.EXCEPTION
