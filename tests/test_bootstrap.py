"""Intervals: draws depend on the strata alone, ratios agree with resampling written out, Wilson with scipy."""

import time

import numpy as np
import pytest
from scipy.stats import binomtest

from loopformer.evaluation.bootstrap import (
    DRAWS,
    paired_difference,
    percentile_interval,
    ratio_draws,
    resampling_counts,
    wilson,
)

STRATA = np.repeat([4, 1, 7], [10, 3, 20])


def test_draws_keep_every_stratum_at_its_size():
    counts = resampling_counts(STRATA)
    assert counts.shape == (DRAWS, len(STRATA))
    for stratum in (1, 4, 7):
        assert (counts[:, stratum == STRATA].sum(axis=1) == (stratum == STRATA).sum()).all()
    # each graph is picked once on average, with the variance 1 - 1/n of a multinomial
    large = counts[:, STRATA == 7]
    np.testing.assert_allclose(large.mean(axis=0), 1, atol=0.1)
    np.testing.assert_allclose(large.var(axis=0), 1 - 1 / 20, atol=0.12)


def test_draws_are_the_same_for_every_model_and_pinned():
    np.testing.assert_array_equal(resampling_counts(STRATA), resampling_counts(STRATA.tolist()))
    assert not np.array_equal(resampling_counts(STRATA, seed=1), resampling_counts(STRATA))
    assert resampling_counts([0, 0, 0, 0], draws=3).tolist() == [[3, 0, 0, 1], [1, 1, 2, 0], [0, 2, 0, 2]]


def test_ratio_agrees_with_resampling_written_out():
    rng = np.random.default_rng(0)
    asked = rng.integers(1, 9, size=len(STRATA))
    right = rng.integers(0, asked + 1)
    counts = resampling_counts(STRATA, draws=50)
    values = ratio_draws(counts, right[:, None], asked[:, None])[:, 0]
    for draw, value in zip(counts, values, strict=True):
        picked = np.repeat(np.arange(len(STRATA)), draw.astype(int))
        assert value == pytest.approx(right[picked].sum() / asked[picked].sum())
    low, high = percentile_interval(values[:, None])
    assert (low[0], high[0]) == tuple(np.percentile(values, [2.5, 97.5]))


def test_an_undefined_draw_is_left_out():
    # the second graph has no query of this kind, and the last draw picked nothing else
    counts = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
    values = ratio_draws(counts, [[1], [0]], [[2], [0]])
    assert np.isnan(values[:, 0]).tolist() == [False, False, True]
    low, high = percentile_interval(np.hstack([values, np.full((3, 1), np.nan)]))
    assert low[0] == high[0] == 0.5
    assert np.isnan(low[1])
    assert np.isnan(high[1])


def test_paired_difference_uses_the_same_draws():
    rng = np.random.default_rng(1)
    asked = np.full((len(STRATA), 1), 256)
    first = rng.integers(100, 257, size=asked.shape)
    counts = resampling_counts(STRATA)
    estimate, interval = paired_difference(counts, (first, asked), (first - 5, asked))
    # a constant gap has no uncertainty when paired, though each model alone has
    np.testing.assert_allclose([estimate, interval.low, interval.high], 5 / 256)
    alone = percentile_interval(ratio_draws(counts, first, asked))
    assert alone.high - alone.low > 0.01
    with pytest.raises(ValueError, match="pair equal benchmarks"):
        paired_difference(counts, (first, asked), (first[1:], asked[1:]))


@pytest.mark.parametrize(("successes", "total"), [(0, 10), (10, 10), (3, 7), (1349, 1350), (0, 1)])
def test_wilson_agrees_with_scipy(successes, total):
    expected = binomtest(successes, total).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson([successes], [total]), [[expected.low], [expected.high]], atol=1e-12)


def test_wilson_of_no_trials_is_undefined():
    assert np.isnan(wilson([0], [0])).all()


def test_coverage_of_a_known_share():
    """With 60 independent graphs the interval holds the true share about 95 times in 100."""
    strata = np.repeat(np.arange(3), 20)
    counts = resampling_counts(strata, draws=500)
    rng = np.random.default_rng(2)
    share = rng.beta(8, 2, size=(60, 400))  # mean 0.8, correlated queries within a graph
    right = rng.binomial(32, share)
    low, high = percentile_interval(ratio_draws(counts, right, np.full((60, 1), 32)))
    assert 0.90 < ((low <= 0.8) & (high >= 0.8)).mean() < 0.98


def test_the_whole_benchmark_takes_seconds():
    strata = np.repeat(np.arange(9), 150)
    start = time.perf_counter()
    counts = resampling_counts(strata)
    percentile_interval(ratio_draws(counts, np.ones((1350, 256)), np.ones((1350, 256))))
    assert time.perf_counter() - start < 30  # about half a second on one idle core


def test_groups_are_drawn_as_a_whole() -> None:
    """Six graphs in two strata; two of the first stratum are one group, and all of the second."""
    strata, groups = [0, 0, 0, 1, 1, 1], [7, 3, 7, 5, 5, 5]
    drawn = resampling_counts(strata, 200, groups=groups)
    assert np.array_equal(drawn[:, 0], drawn[:, 2])
    assert (drawn[:, 3:] == 1).all(), "a stratum of one group is always drawn as it is"
    assert np.array_equal(drawn[:, 0] + drawn[:, 1], np.full(200, 2))
    assert set(drawn[:, 1]) == {0, 1, 2}
    assert np.array_equal(resampling_counts(strata, 200, groups=range(6)), resampling_counts(strata, 200))
