"""What a model wrote, judged: results as values, states as text, all by run length and with tokens counted.

Pure functions. A model's text is parsed strictly and never evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from datamodules.tasks.traces.outcome import Trace
from datamodules.tasks.traces.renderings import RESULT, START, DynamicScratchpad, skipped
from datamodules.tasks.traces.state_text import parse_expression

Generate = Callable[[str], str]
"""A model: prompt to completion."""

CountTokens = Callable[[str], int]

EMPTY_CALLS = {"set": set, "frozenset": frozenset}


def parse_value(text: str) -> object:
    """Read a value: literals, containers of them, `set()`, `frozenset({...})`.

    Raises:
        ValueError: anything else.
    """
    return _value(parse_expression(text.strip()))


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() | complex() as number)):
            return -number
        case ast.Name(id="nan" | "inf" as name):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return -math.inf
        case ast.List(elts=items):
            return list(map(_value, items))
        case ast.Tuple(elts=items):
            return tuple(map(_value, items))
        case ast.Set(elts=items):
            return _hashed(set, items)
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            try:
                return dict(zip([_value(key) for key in keys if key], map(_value, values), strict=True))
            except TypeError as error:
                raise ValueError(f"no value: {error}") from error
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in EMPTY_CALLS:
            return EMPTY_CALLS[name]()
        case ast.Call(func=ast.Name(id="frozenset"), args=[ast.Set(elts=items)], keywords=[]):
            return _hashed(frozenset, items)
    raise ValueError(f"no value: {ast.unparse(node)[:80]}")


def _hashed(kind: type[set[object] | frozenset[object]], items: Sequence[ast.expr]) -> object:
    try:
        return kind(map(_value, items))
    except TypeError as error:
        raise ValueError(f"no value: {error}") from error


def same_value(first: object, second: object) -> bool:
    """Compare values with their types: 1, 1.0 and True differ, nan equals nan, dicts and sets ignore order."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float) and isinstance(second, float):
        return first == second or (math.isnan(first) and math.isnan(second))
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same_value, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        if len(first) != len(second) or set(first) != set(second):
            return False
        kinds = {key: type(key) for key in first}
        return all(kinds[key] is type(key) and same_value(first[key], value) for key, value in second.items())
    if isinstance(first, set | frozenset) and isinstance(second, set | frozenset):
        kinds = {item: type(item) for item in first}
        return first == second and all(kinds[item] is type(item) for item in second)
    return first == second


def stated_result(completion: str) -> str | None:
    """Return the text after `Result:` on the last line, None where there is none."""
    last = completion.rstrip().rsplit("\n", 1)[-1]
    return last[len(RESULT) :].strip() if last.startswith(RESULT) else None


def correct_result(text: str | None, expected: str) -> bool:
    """Tell whether a stated result is the expected one: as a value, or word for word where it is no plain value."""
    if text is None:
        return False
    if text.strip() == expected:
        return True
    try:
        return same_value(parse_value(text), parse_value(expected))
    except ValueError:
        return False


@dataclass(frozen=True)
class Answer:
    """One judged answer.

    Attributes:
        steps: events of the run.
        correct: whether the result is right.
        tokens: tokens the model wrote.
        states: states or changes it wrote.
        right_states: how many of them were right before the first wrong one.
    """

    steps: int
    correct: bool
    tokens: int
    states: int = 0
    right_states: int = 0


@dataclass(frozen=True)
class LengthRow:
    """All answers of one range of run lengths.

    Attributes:
        low: shortest run of the range.
        high: longest run of the range.
        count: answers.
        accuracy: share with the right result.
        state_accuracy: share of the states written that were right and came before any wrong one; nan without states.
        tokens: mean tokens per answer.
    """

    low: int
    high: int
    count: int
    accuracy: float
    state_accuracy: float
    tokens: float


def judge_output(trace: Trace, completion: str, count: CountTokens) -> Answer:
    """Judge an answer that only states the value (`OutputOnly`)."""
    assert trace.result is not None
    text = completion.strip().split("\n", 1)[0].removeprefix(RESULT)
    return Answer(len(trace.events), correct_result(text, trace.result), count(completion))


def judge_written(trace: Trace, completion: str, expected: str, count: CountTokens) -> Answer:
    """Judge a written trace (full or compact).

    Args:
        trace: the trace.
        completion: what the model wrote.
        expected: what it should have written.
        count: counts tokens.
    """
    assert trace.result is not None
    correct = correct_result(stated_result(completion), trace.result)
    wanted, written = expected.split("\n\n")[:-1], completion.rstrip().split("\n\n")
    right = 0
    for ours, theirs in zip(wanted, written, strict=False):
        if ours != theirs:
            break
        right += 1
    return Answer(len(trace.events), correct, count(completion), len(wanted), right)


def roll_out(trace: Trace, rendering: DynamicScratchpad, generate: Generate, count: CountTokens, most: int) -> Answer:
    """Let a model run a program by itself, one call per step, each on the state it wrote before.

    Args:
        trace: the trace; only its program and call are shown.
        rendering: the dynamic scratchpad.
        generate: the model.
        count: counts tokens.
        most: calls after which it counts as lost.
    """
    assert trace.result is not None
    wanted = [*map(str, skipped(trace, rendering.steps))]
    state, tokens, right, on_track = START, 0, 0, True
    for call in range(most):
        completion = generate(rendering.prompt(trace, state))
        tokens += count(completion)
        result = stated_result(completion)
        if result is not None:
            return Answer(len(trace.events), correct_result(result, trace.result), tokens, len(wanted), right)
        state = completion.strip()
        on_track = on_track and call < len(wanted) and state == wanted[call]
        right += on_track
    return Answer(len(trace.events), False, tokens, len(wanted), right)


def judge_steps(trace: Trace, rendering: DynamicScratchpad, generate: Generate, count: CountTokens) -> Answer:
    """Ask for the step after each true state (no error can carry over); correct only if every one is right."""
    states = right = tokens = 0
    for example in rendering.examples(trace):
        completion = generate(example.prompt)
        tokens += count(completion)
        states += 1
        expected = stated_result(example.completion)
        if expected is None:
            right += completion.strip() == example.completion
        else:
            right += correct_result(stated_result(completion), expected)
    return Answer(len(trace.events), right == states, tokens, states, right)


def by_run_length(answers: Sequence[Answer], edges: Sequence[int]) -> list[LengthRow]:
    """Group answers by run length.

    Args:
        answers: judged answers.
        edges: first length of each range, ascending; the last range has no end.

    Raises:
        ValueError: no edges, or edges out of order.
    """
    if not edges or list(edges) != sorted(set(edges)):
        raise ValueError(f"edges: got {list(edges)}; give ascending lengths")
    rows = []
    for low, following in zip(edges, [*edges[1:], None], strict=True):
        group = [one for one in answers if one.steps >= low and (following is None or one.steps < following)]
        if group:
            states = sum(one.states for one in group)
            rows.append(
                LengthRow(
                    low=low,
                    high=max(one.steps for one in group) if following is None else following - 1,
                    count=len(group),
                    accuracy=sum(one.correct for one in group) / len(group),
                    state_accuracy=sum(one.right_states for one in group) / states if states else math.nan,
                    tokens=sum(one.tokens for one in group) / len(group),
                )
            )
    return rows
