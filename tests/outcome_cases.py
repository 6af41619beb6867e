"""Synthetic outcome stores for the tests of the evaluation: small graphs, errors with a hazard, mostly exact stops."""

import numpy as np
import torch

from loopformer.evaluation.outcomes import OutcomeMetadata, OutcomeStore

LABELS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def synthetic_store(
    seed=0, hazard=0.01, wrong_stop=0.05, per_stratum=4, counts=range(1, 15), loops=20, shared=True, extras=True
):
    """Outcomes on permutations of 26 letters that do not depend on `seed`, so that models can be compared.

    `extras` adds all that a store may leave out: the direct readout, the world, and a countdown for each count.
    """
    graphs, letters, counts = 9 * per_stratum, len(LABELS), list(counts)
    rng, world = np.random.default_rng(seed), np.random.default_rng(7)
    rules = np.stack([world.permutation(letters) for _ in range(graphs)])
    state = start = world.integers(letters, size=graphs)
    states = []
    for _ in range(loops):
        state = rules[np.arange(graphs), state]
        states.append(state)
    instance, steps = np.repeat(np.arange(graphs), len(counts)), np.tile(counts, graphs)
    reference = np.stack(states, axis=1)[np.arange(graphs) if shared else instance]
    wrong = np.zeros(reference.shape, dtype=bool)
    for t in range(loops):
        before = wrong[:, t - 1] if t else wrong[:, 0]
        wrong[:, t] = rng.random(len(wrong)) < np.where(before, 0.8, hazard)
    traces = np.where(wrong, (reference + rng.integers(1, letters, size=wrong.shape)) % letters, reference)
    off = rng.choice([-3, -1, 1, 2], size=len(steps))
    stops = np.where(rng.random(len(steps)) < wrong_stop, np.clip(steps + off, 0, loops), steps)
    again = rng.random(traces.shape) < 0.9  # the direct head mostly says the same
    direct = np.where(again, traces, rng.integers(letters, size=traces.shape))
    ideal = np.array(counts)[:, None] - np.arange(loops + 1)
    estimates = ideal + 0.1 * rng.standard_normal(ideal.shape)
    more = {
        "direct": torch.tensor(direct, dtype=torch.int16),
        "initial": torch.tensor(start, dtype=torch.int16),
        "successors": torch.tensor(rules, dtype=torch.int16),
        "estimates": torch.tensor(estimates, dtype=torch.float32),
        "estimate": torch.tensor(np.tile(np.arange(len(counts)), graphs), dtype=torch.int32),
    }
    stratum = np.repeat(np.arange(9), per_stratum)
    columns = {
        "kind": stratum % 3,
        "seed": np.array([307, 311, 313])[stratum // 3],
        "tail": world.integers(0, 12, size=graphs),
        "period": world.integers(1, 27, size=graphs),
    }
    return OutcomeStore(
        metadata=OutcomeMetadata(
            benchmark="synthetic <graphs>",
            labels=LABELS,
            loops=loops,
            cap=loops,
            digests={"model": "ab" * 32, "config": "cd" * 32, "graphs": "ef" * 32},
            trained_steps=(1, 2, 3, 4, 5, 6, 8, 10, 12),
            fact_values={"kind": ("random_function", "permutation", "full_cycle")},
        ),
        letters=torch.tensor(traces, dtype=torch.int16),
        reference=torch.tensor(reference, dtype=torch.int16),
        row=torch.tensor(instance if shared else np.arange(len(steps)), dtype=torch.int32),
        instance=torch.tensor(instance, dtype=torch.int32),
        steps=torch.tensor(steps, dtype=torch.int32),
        stops=torch.tensor(stops, dtype=torch.int32),
        stratum=torch.tensor(stratum, dtype=torch.int16),
        facts={name: torch.tensor(column, dtype=torch.int32) for name, column in columns.items()},
        **(more if extras else {}),
    )
