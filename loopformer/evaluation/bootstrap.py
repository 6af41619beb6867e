"""Intervals: stratified bootstrap over graphs, and Wilson intervals of single rates.

Legend: D draws, I instances (graphs), M quantities.

A draw is a vector of counts: how often each graph was picked. A ratio over a draw is then the weighted sum of per-graph
numerators over that of denominators, so all draws of all quantities are two matrix products.

Source: evaluation protocol, uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

DRAWS = 2_000
SEED = 239
LEVEL = 0.95

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """An interval of one quantity or, as arrays, of many.

    Attributes:
        low: lower end.
        high: upper end.
    """

    low: Floats
    high: Floats


def resampling_counts(
    strata: ArrayLike, draws: int = DRAWS, seed: int = SEED, groups: ArrayLike | None = None
) -> Floats:
    """Resample whole graphs with replacement within each stratum.

    The result depends on nothing but the strata, the number of draws and the seed, so models evaluated on the same
    graphs share their draws and their differences can be paired.

    Args:
        strata: [I] stratum of each graph.
        draws: number of draws D.
        seed: seed of the generator.
        groups: [I] number of the group of each graph, within one stratum, that is drawn as a whole; None to draw every
            graph on its own.

    Returns:
        [D, I] how often each graph was picked, as floats for the matrix products that follow.
    """
    strata = np.asarray(strata)
    if groups is not None:
        _, first, group = np.unique(np.asarray(groups), return_index=True, return_inverse=True)
        return resampling_counts(strata[first], draws, seed)[:, group]
    generator = np.random.default_rng(seed)
    counts = np.zeros((draws, len(strata)))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        picks = generator.integers(len(members), size=(draws, len(members)))
        cells = picks + np.arange(draws)[:, None] * len(members)
        counts[:, members] = np.bincount(cells.ravel(), minlength=draws * len(members)).reshape(draws, -1)
    return counts


def ratio_draws(counts: Floats, numerators: ArrayLike, denominators: ArrayLike) -> Floats:
    """[D, M] ratio of sums in each draw, nan where a draw has nothing in the denominator.

    Args:
        counts: [D, I] from `resampling_counts`.
        numerators: [I, M] sums over the queries of each graph.
        denominators: [I, M] or [I, 1] number of queries of each graph that they stand for.
    """
    above = counts @ np.asarray(numerators, dtype=np.float64)
    below = counts @ np.asarray(denominators, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return above / below


def percentile_interval(values: Floats, level: float = LEVEL) -> Interval:
    """Percentile interval of draws, leaving out undefined ones.

    Args:
        values: [D, M] value of each draw.
        level: coverage, 0.95 for the percentiles 2.5 and 97.5.

    Returns:
        [M] ends; nan where no draw is defined.
    """
    tail = 50 * (1 - level)
    low, high = np.percentile(values, [tail, 100 - tail], axis=0)
    for column in np.flatnonzero(np.isnan(low)):  # rare, and numpy's nanpercentile is slow for whole tables
        defined = values[~np.isnan(values[:, column]), column]
        if defined.size:
            low[column], high[column] = np.percentile(defined, [tail, 100 - tail])
    return Interval(low, high)


def paired_difference(
    counts: Floats, first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike], level: float = LEVEL
) -> tuple[Floats, Interval]:
    """Difference of two models on the same graphs, with its interval from the same draws.

    Args:
        counts: [D, I] from `resampling_counts`.
        first: [I, M] numerators and [I, M] or [I, 1] denominators of one model.
        second: those of the other, which is subtracted.
        level: coverage.

    Returns:
        [M] difference of the ratios, and its interval.

    Raises:
        ValueError: if the models were not evaluated on the same number of graphs.
    """
    sizes = [len(np.asarray(part)) for part in (*first, *second)]
    if set(sizes) != {counts.shape[1]}:
        raise ValueError(
            f"numbers of graphs {sizes} differ from {counts.shape[1]} in the draws: pair equal benchmarks."
        )
    once = np.ones((1, counts.shape[1]))
    estimate = (ratio_draws(once, *first) - ratio_draws(once, *second))[0]
    return estimate, percentile_interval(ratio_draws(counts, *first) - ratio_draws(counts, *second), level)


def wilson(successes: ArrayLike, totals: ArrayLike, level: float = LEVEL) -> Interval:
    """Wilson score interval of each rate, nan where there are no trials.

    Args:
        successes: number of successes, of any shape.
        totals: number of independent trials, of the same shape.
        level: coverage.
    """
    successes, totals = np.asarray(successes, dtype=np.float64), np.asarray(totals, dtype=np.float64)
    z = ndtri((1 + level) / 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = successes / totals
        centre = (share + z**2 / (2 * totals)) / (1 + z**2 / totals)
        half = z / (1 + z**2 / totals) * np.sqrt(share * (1 - share) / totals + z**2 / (4 * totals**2))
    # at no or only successes the end is exact; rounding would put it a hair beyond
    low = np.where(successes == 0, np.where(totals > 0, 0.0, np.nan), centre - half)
    high = np.where(successes == totals, np.where(totals > 0, 1.0, np.nan), centre + half)
    return Interval(low, high)


def grouped_interval(rows: Sequence[tuple[str, float, int]]) -> list[float] | None:
    """Interval of a ratio of sums by a bootstrap that draws whole groups.

    Args:
        rows: (group, value, weight) each; the ratio is that of all values to all weights.

    Returns:
        lower and upper end; None for fewer than two groups.
    """
    names = sorted({name for name, _, _ in rows})
    if len(names) < 2:
        return None
    place = {name: at for at, name in enumerate(names)}
    sums = np.zeros((len(names), 2))
    for name, value, weight in rows:
        sums[place[name]] += (value, weight)
    draws = ratio_draws(_unstratified(len(names)), sums[:, :1], sums[:, 1:])
    low, high = percentile_interval(draws)
    return [float(low[0]), float(high[0])]


def wider(*intervals: Sequence[float] | None) -> list[float] | None:
    """Return the interval that covers several of one quantity; None if none is known.

    Args:
        intervals: lower and upper end each, None where one is undefined.
    """
    known = [ends for ends in intervals if ends is not None]
    return [min(low for low, _ in known), max(high for _, high in known)] if known else None


@lru_cache(maxsize=8)
def _unstratified(groups: int) -> Floats:
    return resampling_counts(np.zeros(groups))
