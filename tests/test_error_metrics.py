"""Metrics of errors, readouts, counting and pairs: hand-made cases, and an independent slow scoring."""

import dataclasses
import math

import matplotlib as mpl
import numpy as np
import pytest
import slow_scoring as slow
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outcome_cases import synthetic_store
from torch.utils._python_dispatch import TorchDispatchMode

import loopformer.metrics as lm
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.summary import RANGES, summarize
from loopformer.metrics import CountGains, CountLosses, StretchSurvival, execution_metrics, query_outcome
from loopformer.metrics.functional import (
    CONSISTENCY,
    FIRST_ERROR_KINDS,
    READOUTS,
    TRANSITIONS,
    UNVISITED,
    count_sensitivity,
    first_error_counts,
    first_visits,
    hazard,
    pairwise_changes,
    stretch_counts,
    survival,
)

mpl.use("Agg")
H, LOOPS, K = 9, 12, 6


def random_queries(seed, queries=80, graphs=12):
    """Random worlds of K letters, letters that are mostly right, and everything else a model may say."""
    g = torch.Generator().manual_seed(seed)
    rules, begin = torch.randint(K, (graphs, K), generator=g), torch.randint(K, (graphs,), generator=g)
    instance = torch.randint(graphs, (queries,), generator=g)
    f, state, states = rules[instance], begin[instance], []
    for _ in range(LOOPS):
        state = f.gather(1, state[:, None])[:, 0]
        states.append(state)
    x = torch.stack(states, 1)
    letters, direct = (
        torch.where(torch.rand(x.shape, generator=g) < 0.3, torch.randint(K, x.shape, generator=g), x) for _ in range(2)
    )
    steps = torch.randint(1, H + 1, (queries,), generator=g)
    near = torch.where(torch.rand(queries, generator=g) < 0.5, steps, torch.randint(LOOPS + 1, (queries,), generator=g))
    ideal = steps[:, None] - torch.arange(LOOPS + 1)
    more = {
        "direct": direct,
        "initial": begin[instance],
        "successors": f,
        "estimates": ideal + 0.4 * torch.randn(ideal.shape, generator=g),
        "instance": instance,
    }
    return (letters, x[:, :H], steps, near), more


def outcome_of(data, keep=slice(None)):
    required, more = data
    return query_outcome(*(part[keep] for part in required), **{name: part[keep] for name, part in more.items()})


def plain(data):
    (p, x, n, s), more = data
    columns = (p, x, n, s, more["initial"], more["successors"], more["direct"], more["estimates"], more["instance"])
    return [slow.Query(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def full_collection():
    return execution_metrics(
        H, LOOPS, panels=(4,), groups={"odd": (1, 3, 5, 7, 9)}, direct=True, world=True, estimates=True
    )


def scores(queries):
    return slow.after_an_error(queries) | slow.world(queries) | slow.readouts(queries) | slow.reading(queries)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), queries=st.integers(1, 60), batches=st.integers(1, 3))
def test_the_collection_agrees_with_a_slow_scoring(seed, queries, batches):
    data = random_queries(seed, queries)
    metrics = full_collection()
    for index in torch.arange(queries).tensor_split(batches):
        metrics.update(outcome_of(data, index))
    values = metrics.compute()
    everything, odd = plain(data), [q for q in plain(data) if q.n % 2]
    for suffix, chosen in (("", everything), ("/odd", odd)):
        expected = scores(chosen)
        compared = 0
        for name, value in expected.items():
            if name + suffix in values:
                assert float(values[name + suffix]) == pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True), name
                compared += 1
        assert compared == 23


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), queries=st.integers(1, 60))
def test_tables_and_pairs_agree_with_a_slow_scoring(seed, queries):
    data, everything = random_queries(seed, queries), plain(random_queries(seed, queries))
    outcome = outcome_of(data)
    lengths = StretchSurvival(H)
    lengths.update(outcome)
    np.testing.assert_allclose(lengths.compute(), slow.kaplan_meier(everything, H), rtol=1e-12)
    assert stretch_counts(outcome, H).sum() == sum(len(slow.stretches(q)) for q in everything)
    gains, losses = CountGains(12, H), CountLosses(12, H)
    for metric in (gains, losses):
        metric.update(outcome_of(data, slice(0, queries // 2)))
        metric.update(outcome_of(data, slice(queries // 2, None)))
    expected = np.array(slow.sensitivity(everything, H))
    found = gains.sensitivity()
    np.testing.assert_array_equal(torch.stack([found.pairs, found.gains, found.losses], 1), expected)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(gains.compute(), expected[:, 1] / expected[:, 0])
        np.testing.assert_allclose(losses.compute(), expected[:, 2] / expected[:, 0])
    readings = scores(everything)
    for metric, name in (
        (lm.LargestReadingError(), "largest_initial"),
        (lm.LargestDecrementError(), "largest_decrement"),
    ):
        metric.update(outcome)
        assert float(metric.compute()) == pytest.approx(readings[name], rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_survival_is_the_product_of_one_minus_hazard_at_a_fixed_count(seed):
    outcome = outcome_of(random_queries(seed, 200))
    for n in (3, H):
        rows = torch.zeros(H + 1, H + 2, dtype=torch.int64)
        rows[n] = first_error_counts(outcome, H)[n]
        product = (1 - hazard(rows)[:n]).cumprod(0)
        known = ~torch.isnan(product)
        torch.testing.assert_close(product[known], survival(rows)[:n][known])


def test_shares_that_must_add_up():
    outcome = outcome_of(random_queries(1, 300))
    for family, names in (
        (FIRST_ERROR_KINDS, list(FIRST_ERROR_KINDS.ratios)),
        (READOUTS, ["readout_direct_right", "readout_both_same", "readout_both_different"]),
    ):
        sums = family.rows(outcome).sum(0)
        assert float(sum(family.value(sums, name) for name in names)) == pytest.approx(1.0)
    sums = TRANSITIONS.rows(outcome).sum(0)
    column = dict(zip(TRANSITIONS.columns, sums.tolist(), strict=True))
    assert column["ended_length"] + column["censored_length"] == column["wrong_loops"]
    assert column["ended"] + column["censored"] == column["stretches"]


# One graph: 0 -> 1 -> 2 -> 3 -> 1, and 4 -> 5 -> 0 off the orbit; the run from 0 is 1 2 3 1 2 3.
WORLD = {"initial": torch.tensor([0]), "successors": torch.tensor([[1, 2, 3, 1, 5, 0]])}
PATH = torch.tensor([[1, 2, 3, 1, 2, 3]])


def made(letters, n=6, **more):
    return query_outcome(torch.tensor([letters]), PATH, torch.tensor([n]), torch.tensor([n]), **WORLD, **more)


@pytest.mark.parametrize(
    ("letters", "kind"),
    [
        ([0, 2, 3, 1, 2, 3], "repeats"),  # the start, at t = 1
        ([1, 1, 3, 1, 2, 3], "repeats"),
        ([1, 0, 3, 1, 2, 3], "earlier"),  # the start, at t = 2
        ([1, 2, 1, 1, 2, 3], "earlier"),
        ([1, 3, 3, 1, 2, 3], "orbit"),  # reached later
        ([1, 4, 3, 1, 2, 3], "outside"),
        ([1, 2, 3, 3, 2, 3], "repeats"),
        ([1, 2, 3, 2, 2, 3], "earlier"),
    ],
)
def test_kinds_by_hand(letters, kind):
    sums = FIRST_ERROR_KINDS.rows(made(letters))[0]
    assert dict(zip(FIRST_ERROR_KINDS.columns, sums.tolist(), strict=True)) == {
        "first_errors": 1, "repeats": 0, "earlier": 0, "orbit": 0, "outside": 0, kind: 1,
    }  # fmt: skip


def test_transitions_by_hand():
    # wrong at 2, 3 (ended) and at 5, 6 (censored); 4 follows from 3 by the rules: no (5 -> 0); 3 from 2: yes (4 -> 5)
    outcome = made([1, 4, 5, 1, 0, 1])
    row = dict(zip(TRANSITIONS.columns, TRANSITIONS.rows(outcome)[0].tolist(), strict=True))
    assert row == {
        "queries": 1, "loops": 6, "wrong_loops": 4, "after_wrong": 3, "recovered": 1, "stretches": 2, "ended": 1,
        "ended_length": 2, "censored": 1, "censored_length": 2,
    }  # fmt: skip
    row = dict(zip(CONSISTENCY.columns, CONSISTENCY.rows(outcome)[0].tolist(), strict=True))
    assert row == {"after_wrong": 3, "consistent": 2, "unrecovered": 2, "consistent_unrecovered": 2}
    shorter = dict(zip(TRANSITIONS.columns, TRANSITIONS.rows(made([1, 4, 5, 1, 0, 1], n=3))[0].tolist(), strict=True))
    assert (shorter["censored"], shorter["censored_length"], shorter["ended"]) == (1, 2, 0)  # N = 3 cuts the first run


def test_a_letter_off_the_orbit_is_outside_however_late_the_error_comes():
    reference = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2]])
    outcome = query_outcome(
        torch.tensor([[1, 2, 3, 1, 2, 3, 1, 4]]), reference, torch.tensor([8]), torch.tensor([8]), **WORLD
    )
    assert FIRST_ERROR_KINDS.rows(outcome).tolist() == [[1, 0, 0, 0, 1]]


def test_first_visits():
    assert first_visits(**WORLD).tolist() == [[0, 1, 2, 3, UNVISITED, UNVISITED]]


def test_pairs_by_hand():
    # one graph asked for 1, 2 and 3 steps; right under N = 3 alone at loop 1, wrong under it at loop 2
    asked = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 1, 1]]])
    right = torch.tensor([[[0, 0, 0], [0, 1, 0], [1, 0, 1]]])
    found = count_sensitivity(asked, right)
    assert [part.tolist() for part in found] == [[3, 2, 1], [1, 1, 1], [3, 1, 0], [2, 0, 0], [0, 1, 0]]
    pairs, gains, losses = pairwise_changes(asked, right)
    assert pairs.tolist() == [[0, 1, 1], [0, 0, 2], [0, 0, 0]]
    assert gains.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0]]
    assert losses.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_what_is_missing_is_told():
    (letters, reference, steps, stop), more = random_queries(0)
    bare = query_outcome(letters, reference, steps, stop)
    for metric, field in (
        (lm.OutsideState(H), "initial"), (lm.TransitionConsistency(H), "successors"), (lm.DirectRight(H), "direct"),
        (lm.SpentExactly(H), "estimates"), (CountGains(12, H), "instance"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"outcome lacks {field}"):
            metric.update(bare)
    for name in ("direct", "estimates"):
        with pytest.raises(ValueError, match=f"{name} has 3 columns"):
            query_outcome(letters, reference, steps, stop, **{name: more[name][:, :3]})


def test_every_class_plots():
    outcome = outcome_of(random_queries(0))
    single = [metric for metric in full_collection().values() if "/" not in type(metric).__name__]
    for metric in [*single[::7], StretchSurvival(H), CountGains(12, H), CountLosses(12, H), lm.LargestReadingError()]:
        metric.update(outcome)
        figure, _ = metric.plot()
        mpl.pyplot.close(figure)


class NoTransfers(TorchDispatchMode):
    """Refuses what makes a device wait for the host or the host for a device."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select", "bincount", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        assert name not in self.FORBIDDEN, f"{name} waits for the device"
        if name == "index" or name == "index_put_":
            assert not any(i is not None and i.dtype == torch.bool for i in args[1]), "a mask as index waits"
        return func(*args, **(kwargs or {}))


def test_an_update_never_waits_for_the_device():
    data = random_queries(2)
    metrics = full_collection()
    more = [StretchSurvival(H), CountGains(12, H), lm.LargestDecrementError()]
    metrics.update(outcome_of(data))
    with NoTransfers():
        outcome = outcome_of(data)
        metrics.update(outcome)
        for metric in more:
            metric.update(outcome)
        lm.stop_loop(torch.randn(5, 4))
    with pytest.raises(AssertionError, match="waits for the device"), NoTransfers():
        bool(outcome.correct.any())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_an_update_on_a_gpu_never_synchronises():
    (letters, reference, steps, stop), more = random_queries(2)
    outcome = query_outcome(
        *(part.cuda() for part in (letters, reference, steps, stop)), **{k: v.cuda() for k, v in more.items()}
    )
    metrics = full_collection().cuda()
    metrics.update(outcome)
    torch.cuda.set_sync_debug_mode("error")
    try:
        metrics.update(outcome)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def store():
    return synthetic_store(hazard=0.1, counts=range(1, 13), loops=14)


def store_queries(store, keep):
    result = []
    for query in np.flatnonzero(keep):
        row, graph = int(store.row[query]), int(store.instance[query])
        result.append(
            slow.Query(
                p=store.letters[row].tolist(), x=store.reference[row].tolist(), n=int(store.steps[query]),
                s=int(store.stops[query]), start=int(store.initial[graph]), f=store.successors[graph].tolist(),
                d=store.direct[row].tolist(), m=store.estimates[int(store.estimate[query])].tolist(), graph=graph,
            )
        )  # fmt: skip
    return result


def check_cell(cell, queries):
    for name, value in scores(queries).items():
        if name in cell:
            got = math.nan if cell[name] is None else cell[name]
            assert got == pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True), name
    errors = slow.stop_errors(queries)
    assert cell["stop_error"]["n"] == errors["n"]
    for sign in ("signed", "absolute"):
        assert cell["stop_error"][sign]["median"] == pytest.approx(slow.median(errors[sign]))
        assert cell["stop_error"][sign]["mean"] == pytest.approx(slow.mean(errors[sign]))


def test_every_breakdown_of_the_summary_agrees_with_a_slow_scoring(store):
    summary = summarize(store)
    steps, graph = store.steps.numpy(), store.instance.numpy()
    check_cell(summary, store_queries(store, np.ones(len(steps), bool)))
    for (low, high), cell in zip(RANGES, summary["by_range"].values(), strict=False):
        check_cell(cell, store_queries(store, (steps >= low) & (steps <= high)))
    for fact in ("seed", "kind"):
        codes = store.facts[fact].numpy()[graph]
        for code, cell in zip(np.unique(codes), summary[f"by_{fact}"].values(), strict=True):
            check_cell(cell, store_queries(store, codes == code))
    trained = np.isin(steps, store.metadata.trained_steps)
    check_cell(summary["by_training"]["trained"], store_queries(store, trained))
    queries = store_queries(store, np.ones(len(steps), bool))
    changes = np.array(slow.sensitivity(queries, 12))
    for i, name in enumerate(("pairs", "gains", "losses")):
        assert summary["count_sensitivity"]["by_loop"][name] == changes[:, i].tolist()
        assert summary["count_sensitivity"][name] == changes[:, i].sum()
    curve = summary["stretches"]["all"]["survival"]
    np.testing.assert_allclose(curve, slow.kaplan_meier(queries, 12)[: len(curve)], atol=1e-8)
    reading = slow.reading(queries)
    assert summary["count_reading"]["decrement_error"]["largest"] == pytest.approx(
        reading["largest_decrement"], rel=1e-4
    )
    assert summary["count_reading"]["initial_error"]["largest"] == pytest.approx(reading["largest_initial"], rel=1e-4)
    later = [slow.spent(q) - q.n for q in queries if slow.spent(q)]
    assert summary["count_reading"]["spent"]["minus_steps"]["signed"]["median"] == slow.median(later)
    for index, n in enumerate(summary["by_steps"]["steps"]):
        expected = scores([q for q in queries if q.n == n])
        value = summary["by_steps"]["recovery"][index]
        assert (math.nan if value is None else value) == pytest.approx(expected["recovery"], abs=1e-6, nan_ok=True)


def test_a_model_that_sees_the_count_may_answer_it_differently(store):
    assert summarize(store)["count_sensitivity"]["gains"] == 0  # one trace serves all counts
    own = summarize(synthetic_store(hazard=0.1, counts=range(1, 6), loops=8, shared=False))["count_sensitivity"]
    assert own["gains"] > 0
    assert own["losses"] > 0
    assert sum(map(sum, own["by_pair"]["gains"])) <= own["gains"]


def test_a_store_without_extras_leaves_their_metrics_out(store, tmp_path):
    bare = synthetic_store(hazard=0.1, extras=False)
    summary = summarize(bare)
    assert "first_error_orbit" not in summary
    assert "direct_complete" not in summary["by_range"]["1-6"]
    assert summary["count_reading"] is None
    assert summary["recovery"] is not None
    with pytest.raises(ValueError, match="one without the other"):
        dataclasses.replace(store, estimate=None)
    with pytest.raises(ValueError, match="not finite"):
        dataclasses.replace(store, estimates=torch.full_like(store.estimates, math.nan))
    store.save(tmp_path / "store.safetensors")
    assert summarize(OutcomeStore.load(tmp_path / "store.safetensors")) == summarize(store)
