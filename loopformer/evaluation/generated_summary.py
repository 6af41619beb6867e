"""The numbers of one evaluation of generated traces: shares with intervals, by count, range, kind and the rest.

Legend: Q queries, I instances (graphs), T largest requested count, R shares, D bootstrap draws.

Shares are defined in `loopformer.metrics.functional.generated`; nothing is defined here.
"""

from __future__ import annotations

from typing import Any

import torch
from rich.table import Table

from loopformer.evaluation.bootstrap import percentile_interval, ratio_draws, resampling_counts, wilson
from loopformer.evaluation.generated_store import GeneratedStore
from loopformer.evaluation.share_tally import ShareTally
from loopformer.evaluation.summary import breakdowns, plain
from loopformer.metrics.functional import GENERATED_RATES, generated_rows

COLUMNS = {
    "last_letter": "Last letter",
    "exact_stop": "Exact stop",
    "strict": "Strict",
    "strict_path": "Strict, every letter",
    "early": "Early",
    "late": "Late",
    "malformed": "Malformed",
    "budget": "Budget",
}
SUCCESSES = ("last_letter", "exact_stop", "strict", "strict_path")
"""The shares that are shown with intervals."""


def summarize_generated(store: GeneratedStore) -> dict[str, Any]:
    """Summarize one evaluation.

    Returns:
        A document of plain JSON types in a fixed order of keys, undefined numbers being None. Shares are fractions of
        all queries; `intervals` hold the 95% bootstrap ends [low, high]; `by_*` break down.
    """
    meta = store.metadata
    present = sorted(set(store.steps.tolist()))
    graphs, horizon = len(store.stratum), present[-1]
    sums = torch.zeros(graphs * (horizon + 1), 1 + len(GENERATED_RATES), dtype=torch.int64)
    sums.index_add_(0, store.instance.long() * (horizon + 1) + store.steps.long(), generated_rows(store.outcome()))
    draws = resampling_counts(store.stratum.numpy())
    tally = ShareTally(sums.view(graphs, horizon + 1, -1), draws, tuple(GENERATED_RATES))
    overall = tally.cell()
    document: dict[str, Any] = plain(
        {
            "format": 1,
            "benchmark": meta.benchmark,
            "style": meta.style,
            "max_new_tokens": meta.max_new_tokens,
            "digests": dict(sorted(meta.digests.items())),
            "labels": list(meta.labels),
            "trained_steps": list(meta.trained_steps),
            "queries": overall.pop("n"),
            **overall,
            "tokens": store.tokens.double().mean(),
            **breakdowns(tally, store.facts, meta.fact_values, present, meta.trained_steps),
            "by_steps": _by_steps(tally, present),
        }
    )
    return document


def _by_steps(tally: ShareTally, present: list[int]) -> dict[str, Any]:
    """Lists over the requested counts that occur, with bootstrap and Wilson intervals."""
    totals = tally.sums[:, present].sum(0)  # [C, 1 + R]
    bootstrap, single = {}, {}
    for column, name in enumerate(GENERATED_RATES, 1):
        draws = ratio_draws(tally.draws, tally.sums[:, present, column], tally.sums[:, present, 0])
        bootstrap[name] = percentile_interval(draws)._asdict()
        single[name] = wilson(totals[:, column].numpy(), totals[:, 0].numpy())._asdict()
    return {
        "steps": present,
        "n": totals[:, 0],
        **{name: totals[:, column].double() / totals[:, 0] for column, name in enumerate(GENERATED_RATES, 1)},
        "intervals": bootstrap,
        "wilson": single,
    }


def table_rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the plain table: all queries, trained and other counts, each range; shares in percent."""
    header = ["N", "queries", *(f"{name.lower()} %" for name in COLUMNS.values())]
    cells = [("all", {"n": summary["queries"], **summary})]
    cells += [(name.replace("_", " "), cell) for name, cell in summary["by_training"].items()]
    cells += list(summary["by_range"].items())
    return header, [[label, f"{cell['n']:,}", *(_share(cell, name) for name in COLUMNS)] for label, cell in cells]


def generated_markdown(summary: dict[str, Any]) -> str:
    """The plain table of a summary as Markdown."""
    header, rows = table_rows(summary)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def generated_table(summary: dict[str, Any], title: str | None = None) -> Table:
    """The plain table of a summary for the terminal."""
    header, rows = table_rows(summary)
    table = Table(title=title)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _share(cell: dict[str, Any], name: str) -> str:
    low, high = cell["intervals"][name]
    interval = f" [{100 * low:.2f}, {100 * high:.2f}]" if name in SUCCESSES else ""
    return f"{100 * cell[name]:.2f}{interval}"
