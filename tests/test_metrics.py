"""Metrics of one process: hand-made cases, an independent slow scoring, and the torchmetrics contract."""

import math
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopformer.metrics import (
    AbsoluteStopError,
    Complete,
    Hazard,
    StopError,
    Strict,
    Survival,
    execution_metrics,
    query_outcome,
    stop_loop,
)
from loopformer.metrics.functional import first_error_counts, prefix_length, quantile_of_counts, rate_rows

mpl.use("Agg")
NAN = math.nan


def random_queries(seed, queries=200, horizon=9, loops=12, letters=4):
    """Letters that are mostly right, stops that are mostly exact, and all the ways to be wrong."""
    g = torch.Generator().manual_seed(seed)
    reference = torch.randint(letters, (queries, horizon), generator=g)
    steps = torch.randint(1, horizon + 1, (queries,), generator=g)
    full = torch.cat([reference, torch.randint(letters, (queries, loops - horizon), generator=g)], dim=1)
    noise = torch.randint(letters, (queries, loops), generator=g)
    predictions = torch.where(torch.rand(queries, loops, generator=g) < 0.2, noise, full)
    stop = torch.where(torch.rand(queries, generator=g) < 0.6, steps, torch.randint(loops + 1, (queries,), generator=g))
    return predictions, reference, steps, stop


def slow_scores(predictions, reference, steps, stop, horizon=9):
    """Score by the words of the protocol, one query and one loop at a time."""
    total = dict.fromkeys(("forced_final", "complete", "exact_stop", "early_stop", "late_stop", "missing_stop"), 0)
    total |= dict.fromkeys(("returned", "wrong_time", "end_to_end", "strict", "correct_prefix"), 0)
    right, asked, died, at_risk, alive = ([0] * (horizon + 1) for _ in range(5))
    errors = []
    for p, x, n, s in zip(predictions, reference, steps, stop, strict=True):
        first = None
        for t in range(1, n + 1):
            asked[t] += 1
            at_risk[t] += first is None
            if p[t - 1] == x[t - 1]:
                right[t] += 1
            elif first is None:
                first = t
                died[t] += 1
            alive[t] += first is None
        total["correct_prefix"] += n if first is None else min(first - 1, n)
        final = p[n - 1] == x[n - 1]
        back = p[(s or len(p)) - 1] == x[n - 1]
        total["forced_final"] += final
        total["complete"] += first is None
        total["exact_stop"] += s == n
        total["early_stop"] += 0 < s < n
        total["late_stop"] += s > n
        total["missing_stop"] += s == 0
        total["returned"] += back
        total["wrong_time"] += back and s != n
        total["end_to_end"] += s == n and p[s - 1] == x[n - 1]
        total["strict"] += s == n and first is None
        if s:
            errors.append(s - n)
    scores = {name: value / len(steps) if steps else NAN for name, value in total.items()}
    for name, above, below in (("loop_accuracy", right, asked), ("survival", alive, asked), ("hazard", died, at_risk)):
        scores[name] = [a / b if b else NAN for a, b in zip(above[1:], below[1:], strict=True)]
    for name, q in (("p10", 0.1), ("median", 0.5), ("p90", 0.9)):
        scores[f"stop_error_{name}"] = float(np.quantile(errors, q)) if errors else NAN
        scores[f"absolute_stop_error_{name}"] = float(np.quantile(np.abs(errors), q)) if errors else NAN
    return scores


def assert_scores(values, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(values[name].numpy(), value, rtol=1e-12, err_msg=name)


def select(queries, keep):
    return [part[keep] for part in queries]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), queries=st.integers(1, 60), batches=st.integers(1, 3))
def test_agrees_with_a_slow_scoring(seed, queries, batches):
    data = random_queries(seed, queries)
    metrics = execution_metrics(9, 12, panels=(4, 6), groups={"odd": (1, 3, 5, 7, 9)})
    for index in torch.arange(queries).tensor_split(batches):
        metrics.update(query_outcome(*select(data, index)))
    values = metrics.compute()
    assert_scores(values, slow_scores(*(part.tolist() for part in data)))
    odd = slow_scores(*(part.tolist() for part in select(data, data[2] % 2 == 1)))
    assert_scores(values, {f"{k}/odd": v for k, v in odd.items() if f"{k}/odd" in values})
    for n in (4, 6):
        panel = slow_scores(*(part.tolist() for part in select(data, data[2] == n)))
        assert_scores(values, {f"survival@{n}": panel["survival"], f"hazard@{n}": panel["hazard"]})


def test_known_answers():
    reference = torch.tensor([[0, 1, 2, 3]] * 4)
    predictions = torch.tensor([[0, 1, 2, 3, 9, 9], [0, 5, 2, 3, 9, 9], [5, 5, 5, 5, 9, 3], [0, 1, 5, 3, 9, 9]])
    steps, stop = torch.tensor([4, 4, 4, 2]), torch.tensor([4, 4, 0, 3])
    outcome = query_outcome(predictions, reference, steps, stop)
    assert outcome.first_error.tolist() == [5, 2, 1, 3]
    assert outcome.final_correct.tolist() == [True, True, False, True]
    assert outcome.returned_correct.tolist() == [True, True, True, False]  # the third returns its letter at the cap
    metrics = execution_metrics(4, 6, panels=(4,))
    metrics.update(outcome)
    expected = {
        "forced_final": 3 / 4, "complete": 2 / 4, "exact_stop": 2 / 4, "early_stop": 0, "late_stop": 1 / 4,
        "missing_stop": 1 / 4, "returned": 3 / 4, "wrong_time": 1 / 4, "end_to_end": 2 / 4, "strict": 1 / 4,
        "correct_prefix": (4 + 1 + 0 + 2) / 4, "survival": [3 / 4, 2 / 4, 1 / 3, 1 / 3], "hazard": [1 / 4, 1 / 3, 0, 0],
        "survival@4": [2 / 3, 1 / 3, 1 / 3, 1 / 3], "loop_accuracy": [3 / 4, 2 / 4, 2 / 3, 2 / 3],
        "stop_error_median": 0, "absolute_stop_error_p90": 0.8,
    }  # fmt: skip
    assert_scores(metrics.compute(), expected)


def test_hazard_is_undefined_on_an_empty_risk_set():
    metric = Hazard(3)
    metric.update(
        query_outcome(torch.tensor([[1, 1, 1]]), torch.tensor([[0, 1, 1]]), torch.tensor([3]), torch.tensor([3]))
    )
    np.testing.assert_array_equal(metric.compute().numpy(), [1.0, NAN, NAN])


def test_a_label_that_is_ignored_is_no_error():
    reference = torch.tensor([[-100, 1, -100]])
    outcome = query_outcome(torch.tensor([[7, 1, 9]]), reference, torch.tensor([2]), torch.tensor([2]))
    assert outcome.first_error.tolist() == [3]
    assert outcome.counted.tolist() == [[False, True, False]]


def test_stop_loop():
    logits = torch.tensor([[-1.0, 0.0, 2.0], [-1.0, -1.0, -1e-12], [NAN, -1.0, 1.0], [5.0, -5.0, 5.0]])
    assert stop_loop(logits).tolist() == [2, 0, 3, 1]


def test_the_cap_may_lie_before_the_last_loop():
    predictions = torch.tensor([[0, 1, 0, 0]])
    arguments = (predictions, torch.tensor([[1]]), torch.tensor([1]), torch.tensor([0]))
    assert query_outcome(*arguments, cap=2).returned_correct.tolist() == [True]
    assert query_outcome(*arguments).returned_correct.tolist() == [False]


def test_mistakes_are_told():
    predictions, reference, steps, stop = random_queries(0)
    with pytest.raises(ValueError, match="predictions have 5 loops but reference has 9"):
        query_outcome(predictions[:, :5], reference, steps, stop)
    with pytest.raises(ValueError, match="cap is 13"):
        query_outcome(predictions, reference, steps, stop, cap=13)
    with pytest.raises(ValueError, match="horizon is 0"):
        Survival(0)
    with pytest.raises(ValueError, match=r"steps holds 10, outside 1\.\.9"):
        Strict(9, steps=(3, 10))
    with pytest.raises(ValueError, match="quantile is 2"):
        StopError(9, 12, 2)
    outcome = query_outcome(predictions, reference, steps, stop)
    with pytest.raises(ValueError, match="steps holds"):
        Complete(3, validate_args=True).update(outcome)
    with pytest.raises(ValueError, match="stop holds"):
        StopError(9, 4, validate_args=True).update(outcome)
    with pytest.raises(ValueError, match="first_error holds 99"):
        Complete(9, validate_args=True).update(outcome._replace(first_error=torch.full_like(steps, 99)))


@pytest.mark.parametrize("metric", [Survival(3), Complete(3), StopError(9, 4)])
def test_a_query_beyond_the_tables_fails(metric):
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        metric.update(query_outcome(*random_queries(0)))


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.33, 0.5, 0.9, 1.0])
def test_quantile_agrees_with_numpy(quantile):
    values, counts = torch.tensor([[5, -2], [0, 9]]), torch.tensor([[3, 1], [0, 100_000]])
    expanded = np.repeat(values.numpy().ravel(), counts.numpy().ravel())
    assert float(quantile_of_counts(values, counts, quantile)) == pytest.approx(np.quantile(expanded, quantile))
    assert math.isnan(quantile_of_counts(values, counts * 0, quantile))


def test_each_group_is_updated_once_per_batch(monkeypatch):
    calls = []
    metrics = execution_metrics(9, 12, panels=(4, 6), groups={"odd": (1, 3)}, prefix="val/")
    assert len(metrics.compute_groups) == 5
    for metric in metrics.values():
        monkeypatch.setattr(
            metric, "count", lambda outcome, m=metric, count=metric.count: calls.append(m) or count(outcome)
        )
    metrics.update(query_outcome(*random_queries(0)))
    assert len(calls) == 5
    assert all(name.startswith("val/") for name in metrics.compute())


def test_reset_forgets_and_clone_is_independent():
    first, second = (query_outcome(*random_queries(seed)) for seed in (1, 2))
    metrics = execution_metrics(9, 12)
    fresh = metrics.clone()
    metrics.update(first)
    metrics.reset()
    metrics.update(second)
    fresh.update(second)
    for name, value in fresh.compute().items():
        torch.testing.assert_close(metrics.compute()[name], value, equal_nan=True, rtol=0, atol=0)


def test_forward_gives_the_batch_and_keeps_the_sum():
    first, second = (query_outcome(*random_queries(seed)) for seed in (1, 2))
    metric, whole = Complete(9), Complete(9)
    metric(first)
    assert float(metric(second)) == pytest.approx(float((second.first_error > second.steps).double().mean()))
    whole.update(first)
    whole.update(second)
    assert metric.compute() == whole.compute()


def test_a_model_without_halting_has_no_stop_metrics():
    metrics = execution_metrics(9, panels=())
    metrics.update(query_outcome(*random_queries(0)))
    assert set(metrics.compute()) == {
        "survival", "hazard", "loop_accuracy", "correct_prefix", "forced_final", "complete", "wrong_loop_fraction",
        "recovery", "wrong_stretches", "stretch_censored", "stretch_length", "stretch_length_censored",
    }  # fmt: skip


def test_counters_stay_integers_after_half():
    metric = Strict(9).half()
    metric.update(query_outcome(*random_queries(0)))
    assert metric.rate_counts.dtype == torch.int64


def test_plots():
    outcome = query_outcome(*random_queries(0))
    for metric in (Survival(9), Strict(9), AbsoluteStopError(9, 12)):
        metric.update(outcome)
        fig, ax = metric.plot()
        again, _ = metric.plot([metric.compute(), metric.compute()], ax=ax)
        assert fig is again
        mpl.pyplot.close(fig)


def test_row_sums_are_the_tables():
    outcome = query_outcome(*random_queries(3))
    rows = rate_rows(outcome)
    assert rows[:, 0].sum() == len(outcome.steps)
    table = first_error_counts(outcome, 9)
    assert table.sum() == len(outcome.steps)
    assert prefix_length(outcome).sum() == (table * torch.arange(-1, 10)).sum()


def test_metrics_do_not_import_lightning():
    code = "import sys, loopformer.metrics; sys.exit(any(m in sys.modules for m in ('lightning', 'datamodules')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
