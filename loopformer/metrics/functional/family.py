"""Families of ratios: several metrics that are quotients of sums over queries, defined side by side.

Legend: B queries, T largest requested count, C columns.

A family turns the outcome of each query into one row of numbers. The rows of any set of queries (a batch, a process, a
graph, a range of counts) add up, and every metric of the family is a quotient of two of the sums. So one table serves
all its metrics, all breakdowns and the bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from loopformer.metrics.functional.outcomes import QueryOutcome


@dataclass(frozen=True)
class Ratio:
    """A metric as a quotient of two columns.

    Attributes:
        numerator: name of a column.
        denominator: name of a column; its sum is the n of the metric.
    """

    numerator: str
    denominator: str


@dataclass(frozen=True)
class Family:
    """Metrics that share one table of sums.

    Attributes:
        name: name of the family.
        columns: names of the C columns, in order.
        ratios: the metrics by name.
        tally: returns the columns of each query, [B] numbers or bools by name.
        needs: optional fields of `QueryOutcome` that `tally` reads.
        dtype: of the sums; int64 keeps counts exact.
    """

    name: str
    columns: tuple[str, ...]
    ratios: Mapping[str, Ratio]
    tally: Callable[[QueryOutcome], dict[str, Tensor]]
    needs: tuple[str, ...] = ()
    dtype: torch.dtype = torch.int64

    def available(self, outcome: QueryOutcome) -> bool:
        """Whether the outcome holds what the family reads."""
        return all(getattr(outcome, field) is not None for field in self.needs)

    def rows(self, outcome: QueryOutcome) -> Tensor:
        """[B, C] numbers of each query.

        Raises:
            ValueError: if the outcome lacks a field that the family reads.
        """
        for field in self.needs:
            if getattr(outcome, field) is None:
                raise ValueError(f"outcome lacks {field}, which {self.name} needs: pass {field} to query_outcome().")
        columns = self.tally(outcome)
        return torch.stack([columns[name].to(self.dtype) for name in self.columns], dim=1)

    def counts(self, outcome: QueryOutcome, horizon: int) -> Tensor:
        """[T + 1, C] sums of the rows by requested count.

        Args:
            outcome: the outcome of a batch.
            horizon: largest requested count T. A query beyond it fails as an index out of range.
        """
        rows = self.rows(outcome)
        return rows.new_zeros(horizon + 1, rows.shape[1]).index_add_(0, outcome.steps, rows)

    def value(self, sums: Tensor, name: str) -> Tensor:
        """[...] the metric called `name`; nan where its denominator is zero.

        Args:
            sums: [..., C] sums of `rows`.
            name: a key of `ratios`.
        """
        above, below = self.pair(name)
        return sums[..., above].double() / sums[..., below]

    def pair(self, name: str) -> tuple[int, int]:
        """Columns of the numerator and the denominator of a metric."""
        ratio = self.ratios[name]
        return self.columns.index(ratio.numerator), self.columns.index(ratio.denominator)
