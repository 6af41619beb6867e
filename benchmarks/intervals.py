"""How long do all bootstrap intervals of one model over the whole benchmark take, against resampling written out?

    python -m benchmarks.intervals

345,600 queries of 1,350 graphs at 256 requested counts, with random outcomes and every metric there is. The naive way
draws graphs, collects the queries of each draw and averages; a few of its draws of a single share stand for all.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from loopformer.evaluation.outcomes import OutcomeMetadata, OutcomeStore
from loopformer.evaluation.summary import summarize
from loopformer.evaluation.tally import Tally, count_store
from loopformer.metrics.functional import RATES

GRAPHS, COUNTS, LOOPS, LETTERS = 1350, 256, 272, 26
NAIVE_DRAWS = 3


def random_store() -> OutcomeStore:
    """Outcomes with first errors everywhere, mostly exact stops, and everything a store may hold."""
    rng = np.random.default_rng(0)
    rules = np.stack([rng.permutation(LETTERS) for _ in range(GRAPHS)])
    state = start = rng.integers(LETTERS, size=GRAPHS)
    states = []
    for _ in range(LOOPS):
        state = rules[np.arange(GRAPHS), state]
        states.append(state)
    reference = np.stack(states, 1)
    noise = rng.integers(LETTERS, size=(2, *reference.shape))
    letters, direct = (np.where(rng.random(reference.shape) < 0.01, other, reference) for other in noise)
    steps = np.tile(np.arange(1, COUNTS + 1), GRAPHS)
    stops = np.where(rng.random(len(steps)) < 0.9, steps, rng.integers(LOOPS + 1, size=len(steps)))
    estimates = (
        np.arange(1, COUNTS + 1)[:, None] - np.arange(LOOPS + 1) + 0.1 * rng.standard_normal((COUNTS, LOOPS + 1))
    )
    stratum = np.repeat(np.arange(9), GRAPHS // 9)
    facts = {"kind": stratum % 3, "seed": stratum // 3, "reachable": rng.integers(1, 27, size=GRAPHS)}

    def short(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int16)

    def whole(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return OutcomeStore(
        metadata=OutcomeMetadata("random", tuple(map(str, range(LETTERS))), LOOPS, LOOPS, trained_steps=(1, 2, 4, 8)),
        letters=short(letters),
        reference=short(reference),
        direct=short(direct),
        row=whole(np.repeat(np.arange(GRAPHS), COUNTS)),
        instance=whole(np.repeat(np.arange(GRAPHS), COUNTS)),
        steps=whole(steps),
        stops=whole(stops),
        stratum=short(stratum),
        facts={name: whole(values) for name, values in facts.items()},
        initial=short(start),
        successors=short(rules),
        estimates=torch.tensor(estimates, dtype=torch.float32),
        estimate=whole(np.tile(np.arange(COUNTS), GRAPHS)),
    )


def all_intervals(tally: Tally, store: OutcomeStore) -> int:
    """Every interval of a summary: all metrics overall, by group, and the shares by count. Returns how many."""
    cells = [tally.cell()]
    cells += [tally.cell(steps=range(low, high + 1)) for low, high in ((1, 6), (7, 12), (13, 32), (33, 64), (65, 256))]
    for codes in store.facts.values():
        cells += [tally.cell(graphs=codes == code) for code in codes.unique().tolist()]
    by_steps = tally.interval(tally.sums, list(RATES))
    return sum(len(cell["intervals"]) for cell in cells) + by_steps.low.size


def naive_seconds(store: OutcomeStore) -> float:
    """Seconds of one draw of one share over all queries, graph by graph."""
    exact, instance = (store.stops == store.steps).numpy(), store.instance.numpy()
    rng, begin = np.random.default_rng(0), time.process_time()
    for _ in range(NAIVE_DRAWS):
        picked = rng.integers(GRAPHS, size=GRAPHS)
        np.concatenate([exact[instance == graph] for graph in picked]).mean()
    return (time.process_time() - begin) / NAIVE_DRAWS


def main() -> None:
    """Print the times of the processor, so other programs do not count."""
    torch.set_num_threads(1)
    store = random_store()
    begin = time.process_time()
    tally = count_store(store, [6, 12, 32, 256])
    counted = time.process_time() - begin
    begin = time.process_time()
    number = all_intervals(tally, store)
    seconds = time.process_time() - begin
    print(f"{len(store.steps):,} queries: one pass over them {counted:.1f} s, {number:,} intervals {seconds:.1f} s")
    begin = time.process_time()
    summarize(store)
    print(f"the whole summary: {time.process_time() - begin:.1f} s")
    naive = naive_seconds(store) * 2000
    print(f"naive resampling of one share: {naive:,.0f} s, so {naive * number / seconds:,.0f} times longer for as many")


if __name__ == "__main__":
    main()
