"""Sums per graph and requested count of shares that all have the same denominator: the queries.

Legend: I instances (graphs), T largest requested count, C columns, D bootstrap draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from loopformer.evaluation.bootstrap import Floats, percentile_interval, ratio_draws


@dataclass(frozen=True)
class ShareTally:
    """Sums over the queries of each graph and requested count.

    Attributes:
        sums: [I, T + 1, C] int64; columns: queries, then one per name.
        draws: [D, I] how often the bootstrap picked each graph.
        names: what each column after the first sums; the mean over the queries is what is reported.
    """

    sums: Tensor
    draws: Floats
    names: tuple[str, ...]

    def cell(self, graphs: Tensor | None = None, steps: Sequence[int] | None = None) -> dict[str, Any]:
        """Means and their intervals over some graphs and requested counts.

        Args:
            graphs: [I] bool; None for all.
            steps: requested counts; None for all.
        """
        sums = self.sums if steps is None else self.sums[:, list(steps)]
        rows, draws = sums.sum(dim=1), self.draws
        if graphs is not None:
            rows, draws = rows[graphs], draws[:, graphs.numpy()]
        total = rows.sum(dim=0)
        interval = percentile_interval(ratio_draws(draws, rows[:, 1:], rows[:, :1]))
        ends = zip(self.names, np.stack(interval, axis=1), strict=True)
        return {
            "n": total[0],
            "graphs": (rows[:, 0] > 0).sum(),
            **{name: total[column].double() / total[0] for column, name in enumerate(self.names, 1)},
            "intervals": dict(ends),
        }
