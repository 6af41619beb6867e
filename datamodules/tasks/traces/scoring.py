"""What a model wrote, judged: results as values, states as text, with tokens counted.

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
        states: states or changes it had to write.
        right_states: how many of them were right: before the first wrong one, or after the true state (`judge_steps`).
    """

    steps: int
    correct: bool
    tokens: int
    states: int = 0
    right_states: int = 0


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


class RollOut:
    """A program that a model runs by itself, one call per step, each on the state it wrote before.

    Ask the model with `prompt`, hand what it wrote to `accept`, until there is an `answer`.

    Args:
        trace: the trace; only its program and call are shown to the model.
        rendering: the dynamic scratchpad.
        most: calls after which the model counts as lost.

    Attributes:
        answer: the judged answer, None while the run goes on.

    Raises:
        ValueError: fewer than 1 call.
    """

    def __init__(self, trace: Trace, rendering: DynamicScratchpad, most: int) -> None:
        if most < 1:
            raise ValueError(f"most: got {most}; allow at least 1 call")
        self._trace, self._rendering, self._left = trace, rendering, most
        self._wanted = [*map(str, skipped(trace, rendering.steps))]
        self._state = START
        self._calls = self._tokens = self._right = 0
        self.answer: Answer | None = None

    @property
    def prompt(self) -> str:
        """The next prompt."""
        return self._rendering.prompt(self._trace, self._state)

    def accept(self, completion: str, tokens: int) -> None:
        """Take what the model wrote, and how many tokens that was."""
        self._tokens += tokens
        self._left -= 1
        result = stated_result(completion)
        if result is None:
            self._state = completion.strip()
            if self._right == self._calls < len(self._wanted) and self._state == self._wanted[self._calls]:
                self._right += 1
            self._calls += 1
        if result is not None or self._left == 0:
            assert self._trace.result is not None
            correct = correct_result(result, self._trace.result)
            self.answer = Answer(len(self._trace.events), correct, self._tokens, len(self._wanted), self._right)


def roll_out(trace: Trace, rendering: DynamicScratchpad, generate: Generate, count: CountTokens, most: int) -> Answer:
    """Run one `RollOut` with a model.

    Args:
        trace: the trace.
        rendering: the dynamic scratchpad.
        generate: the model.
        count: counts tokens.
        most: calls after which it counts as lost.
    """
    run = RollOut(trace, rendering, most)
    while run.answer is None:
        completion = generate(run.prompt)
        run.accept(completion, count(completion))
    return run.answer


def judge_steps(trace: Trace, expected: Sequence[str], completions: Sequence[str], tokens: int) -> Answer:
    """Judge the step after each true state (no error carries over); correct only if every one is right.

    Args:
        trace: the trace.
        expected: completions of `DynamicScratchpad.examples`.
        completions: what the model wrote.
        tokens: how many tokens that was in all.
    """
    right = 0
    for wanted, completion in zip(expected, completions, strict=True):
        result = stated_result(wanted)
        if result is None:
            right += completion.strip() == wanted
        else:
            right += correct_result(stated_result(completion), result)
    return Answer(len(trace.events), right == len(expected), tokens, len(expected), right)
