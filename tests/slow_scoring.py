"""The protocol's metrics scored once more, one query and one loop at a time, in plain Python.

Written from the words of the evaluation protocol, without looking at the vectorised code: it shares nothing with it.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field


@dataclass
class Query:
    """One request: letters p and d (direct) and estimates m by loop, reference x, all from loop 1 (m from loop 0)."""

    p: list[int]
    x: list[int]
    n: int
    s: int
    start: int = 0
    f: list[int] = field(default_factory=list)
    d: list[int] = field(default_factory=list)
    m: list[float] = field(default_factory=list)
    graph: int = 0

    def wrong(self, t):
        return self.p[t - 1] != self.x[t - 1]

    @property
    def first(self):
        return next((t for t in range(1, self.n + 1) if self.wrong(t)), None)


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def stretches(q):
    """(length, censored) of every maximal run of wrong loops."""
    found, length = [], 0
    for t in range(1, q.n + 1):
        if q.wrong(t):
            length += 1
        elif length:
            found.append((length, False))
            length = 0
    return [*found, (length, True)] if length else found


def after_an_error(queries):
    moves = [(q, t) for q in queries for t in range(1, q.n) if q.wrong(t)]
    runs = [run for q in queries for run in stretches(q)]
    return {
        "wrong_loop_fraction": mean(q.wrong(t) for q in queries for t in range(1, q.n + 1)),
        "recovery": mean(not q.wrong(t + 1) for q, t in moves),
        "wrong_stretches": mean(len(stretches(q)) for q in queries),
        "stretch_censored": mean(censored for _, censored in runs),
        "stretch_length": mean(length for length, censored in runs if not censored),
        "stretch_length_censored": mean(length for length, censored in runs if censored),
    }


def kaplan_meier(queries, horizon):
    runs = [run for q in queries for run in stretches(q)]
    alive, curve = 1.0, []
    for length in range(1, horizon + 1):
        at_risk = sum(run >= length for run, _ in runs)
        ended = sum(run == length and not censored for run, censored in runs)
        alive = alive * (1 - ended / at_risk) if at_risk else math.nan
        curve.append(alive)
    return curve


def kind(q):
    t = q.first
    visited = [q.start, *q.x]  # visited[t] is x_t
    orbit, state = set(), q.start
    while state not in orbit:
        orbit.add(state)
        state = q.f[state]
    said = q.p[t - 1]
    if said == visited[t - 1]:
        return "repeats"
    if said in visited[: t - 1]:
        return "earlier"
    return "orbit" if said in orbit else "outside"


def world(queries):
    failed = [q for q in queries if q.first is not None]
    scores = {
        f"first_error_{name}": mean(kind(q) == name for q in failed)
        for name in ("repeats", "earlier", "orbit", "outside")
    }
    moves = [(q, t) for q in queries for t in range(1, q.n) if q.wrong(t)]
    scores["transition_consistency"] = mean(q.p[t] == q.f[q.p[t - 1]] for q, t in moves)
    scores["transition_consistency_unrecovered"] = mean(q.p[t] == q.f[q.p[t - 1]] for q, t in moves if q.p[t] != q.x[t])
    return scores


def readouts(queries):
    failed = [(q, q.first) for q in queries if q.first is not None]
    whole = [all(q.d[t] == q.x[t] for t in range(q.n)) for q in queries]
    return {
        "readout_direct_right": mean(q.d[t - 1] == q.x[t - 1] for q, t in failed),
        "readout_both_same": mean(q.d[t - 1] == q.p[t - 1] for q, t in failed),
        "readout_both_different": mean(q.d[t - 1] not in (q.p[t - 1], q.x[t - 1]) for q, t in failed),
        "direct_complete": mean(whole),
        "both_complete": mean(w and q.first is None for w, q in zip(whole, queries, strict=True)),
    }


def spent(q):
    return next((t for t in range(1, len(q.m)) if q.m[t] <= 0.5), 0)


def reading(queries):
    first = [q.m[0] - q.n for q in queries]
    steps = [(q.m[t - 1] - q.m[t]) - 1 for q in queries for t in range(1, q.n + 1)]
    return {
        "initial_estimate_error": mean(first),
        "initial_estimate_absolute_error": mean(map(abs, first)),
        "decrement_error": mean(steps),
        "decrement_absolute_error": mean(map(abs, steps)),
        "spent_exact": mean(spent(q) == q.n for q in queries),
        "spent_early": mean(0 < spent(q) < q.n for q in queries),
        "spent_late": mean(spent(q) > q.n for q in queries),
        "spent_missing": mean(spent(q) == 0 for q in queries),
        "spent_at_stop": mean(spent(q) > 0 and spent(q) == q.s for q in queries),
        "largest_initial": max(map(abs, first), default=0.0),
        "largest_decrement": max(map(abs, steps), default=0.0),
    }


def sensitivity(queries, horizon):
    """[pairs, gains, losses] by loop, over pairs of requests N < N' on one graph."""
    found = [[0, 0, 0] for _ in range(horizon)]
    for a in queries:
        for b in queries:
            if a.graph == b.graph and a.n < b.n:
                for t in range(1, a.n + 1):
                    found[t - 1][0] += 1
                    found[t - 1][1] += a.wrong(t) and not b.wrong(t)
                    found[t - 1][2] += b.wrong(t) and not a.wrong(t)
    return found


def stop_errors(queries):
    errors = [q.s - q.n for q in queries if q.s]
    return {"n": len(errors), "signed": errors, "absolute": [abs(e) for e in errors]}


def median(values):
    return statistics.median(values) if values else math.nan
