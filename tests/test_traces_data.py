"""Programs to trace (generated, published, long) and the scores of what a model writes about them."""

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.corpus import FEATURES, corpus, generate
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.long_runs import LONG_RUNS, long_run, long_run_length
from datamodules.tasks.traces.programs import Program, Traced, trace_each
from datamodules.tasks.traces.renderings import RESULT, CompactScratchpad, DynamicScratchpad, OutputOnly, Scratchpad
from datamodules.tasks.traces.scoring import (
    Answer,
    correct_result,
    judge_output,
    judge_steps,
    judge_written,
    parse_value,
    roll_out,
    same_value,
    stated_result,
)

LONG = Limits(seconds=120.0, cpu_seconds=120)


@pytest.fixture(scope="module")
def tracer():
    with Tracer(LONG) as found:
        yield found


# Programs


def test_a_program_depends_on_seed_and_index_alone():
    programs = list(corpus(3, 30))
    assert programs == list(corpus(3, 40))[:30]
    assert programs[7] == generate(3, 7)
    assert {p.source for p in programs}.isdisjoint({p.source for p in corpus(4, 30)})
    command = "from datamodules.tasks.traces.corpus import generate; print(generate(3, 7).source, end='')"
    root = Path(__file__).parents[1]
    again = subprocess.run([sys.executable, "-c", command], cwd=root, capture_output=True, text=True, check=True)
    assert again.stdout == programs[7].source


def test_generated_functions_run_and_differ(tracer):
    lengths, results = [], Counter()
    for one in trace_each(corpus(11, 150), tracer, states=False):
        assert isinstance(one, Traced), one
        lengths.append(len(one.trace.events))
        results[one.trace.result] += 1
    lengths.sort()
    assert lengths[75] >= 8
    assert lengths[-1] >= 60
    assert results.most_common(1)[0][1] < 30


@pytest.mark.parametrize(
    ("feature", "mark"),
    [
        ("branch", "if "),
        ("for", "for k"),
        ("while", "while c"),
        ("list", ".append("),
        ("string", "[-12:]"),
        ("dict", ".setdefault("),
        ("call", "= g("),
        ("comprehension", " for k"),
        ("try", "except ("),
    ],
)
def test_features(feature, mark):
    assert any(mark in program.source for program in corpus(0, 200, features=(feature,)))
    others = tuple(name for name in FEATURES if name != feature)
    if feature in ("while", "call", "try", "dict"):
        assert not any(mark in program.source for program in corpus(0, 200, features=others))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ("loops",)}, "features: 'loops' is unknown"),
        ({"statements": (3, 2)}, "statements: got"),
        ({"count": 0}, "count: got 0"),
    ],
)
def test_corpus_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        list(corpus(**({"seed": 0, "count": 1} | options)))


@pytest.mark.parametrize("family", LONG_RUNS)
@pytest.mark.parametrize("steps", [1, 64, 1_000, 14_000])
def test_long_runs_have_the_length_they_say(family, steps, tracer):
    program = long_run(family, steps, seed=1)
    trace = tracer.trace(program.source, program.call)
    assert len(trace.events) == long_run_length(family, program)
    assert len(trace.events) >= steps
    if steps >= 1_000:
        assert len(trace.events) < 1.6 * steps


def test_an_endless_run_with_states_ends_at_its_events():
    """Not at its memory: equal instructions are one object, and lines are counted while they are recorded."""
    with Tracer(Limits(events=10_000, memory=24 * 2**20)) as small:
        lines = small.trace("def f():\n    n = 0\n    while True:\n        n += 1", "f()", states=True)
        none = small.trace("def f():\n    while 1: pass", "f()", states=True)  # a jump to itself begins no line
    assert str(lines.failure) == "EventLimit: more than 10000 events"
    assert str(none.failure) == "EventLimit: more than 600000 events"


@pytest.mark.slow
@pytest.mark.parametrize("family", LONG_RUNS)
def test_long_runs_resume(family, tracer):
    program = long_run(family, 14_000, seed=2)
    trace = tracer.trace(program.source, program.call, states=True)
    assert len(trace.states) >= 14_000
    for position in (0, 7_000, len(trace.states) - 1):
        assert tracer.resume(program.source, program.call, str(trace.states[position])).result == trace.result
    text = CompactScratchpad().body(trace.states)
    assert Scratchpad().body(CompactScratchpad().states(text)) == Scratchpad().body(trace.states)


def test_long_runs_are_checked():
    with pytest.raises(ValueError, match="family: got 'ackermann'"):
        long_run("ackermann", 5)
    with pytest.raises(ValueError, match="steps: got 0"):
        long_run("collatz", 0)


def test_the_worker_traces_50_000_line_events_per_second(tracer):
    """Of processor time: the machines that run this are shared."""
    program = long_run("nested_loops", 50_000)
    best = max(50_000 / tracer.trace(program.source, program.call).seconds for _ in range(3))
    assert best > 50_000


def test_refusals_name_program_and_reason(tracer):
    programs = [
        Program("endless", "def f():\n    while True:\n        pass", "f()"),
        Program("class", "class A:\n    pass\ndef f():\n    return 1", "f()"),
        Program("error", "def f():\n    return [][0]", "f()"),
    ]
    with Tracer(Limits(events=100)) as small:
        refused = list(trace_each(programs, small))
    assert [one.name for one in refused] == ["endless", "class", "error"]
    assert refused[0].reason.startswith("EventLimit")
    assert refused[1].reason == "not resumable: a class definition"
    assert refused[2].reason == "Raised: IndexError: list index out of range"


# Scores


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" -2.5 ", -2.5),
        ("[1, (2,), {'a': {3}}]", [1, (2,), {"a": {3}}]),
        ("set()", set()),
        ("frozenset({1})", frozenset({1})),
        ("-inf", -math.inf),
        ("b'x'", b"x"),
    ],
)
def test_values_are_read(text, value):
    assert same_value(parse_value(text), value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "f()",
        "open('x')",
        "[1",
        "1 + 1",
        "{**{}}",
        "{[]: 1}",
        "{[1]}",
        "().__class__",
        "[i for i in [1]]",
        "(" * 999,
        "set(1)",
    ],
)
def test_other_text_is_no_value(text):
    with pytest.raises(ValueError, match=r"no value|no expression"):
        parse_value(text)


@pytest.mark.parametrize(
    ("text", "expected", "correct"),
    [
        ("[1,2]", "[1, 2]", True),
        ('"a"', "'a'", True),
        ("{'b': 1, 'a': 2}", "{'a': 2, 'b': 1}", True),
        ("{2, 1}", "{1, 2}", True),
        ("1", "1.0", False),
        ("True", "1", False),
        ("[True]", "[1]", False),
        ("{1: 2}", "{True: 2}", False),
        ("{1}", "{True}", False),
        ("(1, 2)", "[1, 2]", False),
        ("[1, 2, 3]", "[1, 2]", False),
        ("nan", "nan", True),
        ("<iterator>", "<iterator>", True),
        ("Counter({'a': 1})", "Counter({'a': 1})", True),
        ("__import__('os').system('touch x')", "0", False),
        (None, "1", False),
    ],
)
def test_results_are_compared_as_values(text, expected, correct):
    assert correct_result(text, expected) is correct


def test_the_stated_result_is_the_last_line():
    assert stated_result("f(1, 2)\n\nResult: 3 \n") == "3"
    assert stated_result("Result: 3\nmore") is None
    assert stated_result("3") is None


@pytest.fixture(scope="module")
def trace(tracer):
    return tracer.trace(
        "def f(n):\n    t = 0\n    while n:\n        t += n\n        n -= 1\n    return t", "f(3)", states=True
    )


def perfect(rendering, trace):
    table = {example.prompt: example.completion for example in rendering.examples(trace)}
    return lambda prompt: table[prompt]


def test_output_answers(trace):
    assert judge_output(trace, " 6", len) == Answer(len(trace.events), True, 2)
    assert judge_output(trace, "Result: 6\nIndeed.", len).correct
    assert not judge_output(trace, " 7", len).correct
    assert not judge_output(trace, " exit()", len).correct
    (example,) = OutputOnly().examples(trace)
    assert judge_output(trace, example.completion, len).correct


@pytest.mark.parametrize("rendering", [Scratchpad(), CompactScratchpad(), Scratchpad(3)])
def test_written_traces(rendering, trace):
    (example,) = rendering.examples(trace)
    expected = example.completion
    states = len(trace.states[:: rendering.steps])
    right = judge_written(trace, expected, expected, len)
    assert right == Answer(len(trace.events), True, len(expected), states, states)
    assert judge_written(trace, expected.replace("t=3", "t=4", 1), expected, len).right_states < states
    cut = judge_written(trace, expected[: len(expected) // 2], expected, len)
    assert not cut.correct
    assert 0 < cut.right_states < states
    lucky = judge_written(trace, f"{RESULT}6", expected, len)
    assert lucky.correct
    assert lucky.right_states == 0


@pytest.mark.parametrize("steps", [1, 4])
def test_rolling_out(steps, trace):
    rendering = DynamicScratchpad(steps)
    model = perfect(rendering, trace)
    states = len(trace.states[::steps])
    answer = roll_out(trace, rendering, model, len, most=100)
    assert answer.correct
    assert (answer.states, answer.right_states) == (states, states)
    assert answer.tokens == sum(len(example.completion) for example in rendering.examples(trace))


def test_single_steps(trace):
    wanted = [example.completion for example in DynamicScratchpad().examples(trace)]
    count = len(wanted)
    assert judge_steps(trace, wanted, wanted, 9) == Answer(len(trace.events), True, 9, count, count)
    one_wrong = [*wanted[:2], "f(1, 0)", *wanted[3:]]
    assert judge_steps(trace, wanted, one_wrong, 9) == Answer(len(trace.events), False, 9, count, count - 1)
    assert judge_steps(trace, wanted, [*wanted[:-1], f"{RESULT}7"], 9).right_states == count - 1


def test_rolling_out_stops():
    """A model that never ends is lost; one that goes wrong is right only up to there."""
    with Tracer() as tracer:
        trace = tracer.trace("def f(n):\n    n += 1\n    n += 2\n    return n", "f(1)", states=True)
    rendering = DynamicScratchpad()
    calls = []

    def endless(prompt):
        calls.append(prompt)
        return "f(1, 0)"

    assert roll_out(trace, rendering, endless, len, most=7) == Answer(len(trace.events), False, 49, 3, 0)
    assert len(calls) == 7
    model = perfect(rendering, trace)
    answers = iter([model(rendering.prompt(trace, "start")), "f(9, 9)", f"{RESULT}4"])
    assert roll_out(trace, rendering, lambda _: next(answers), len, most=7).right_states == 1
