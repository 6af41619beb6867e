"""Metrics in real processes: uneven and empty ranks give exactly the numbers of one process."""

import pickle
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from test_error_metrics import LOOPS, H, outcome_of, random_queries
from torchmetrics import MetricCollection

from loopformer.metrics import (
    CountGains,
    CountLosses,
    LargestDecrementError,
    LargestReadingError,
    StretchSurvival,
    execution_metrics,
)

RANKS = 2
SPLITS = {"even": 100, "uneven": 150, "single query": 199, "empty": 200}
"""How many of the 200 queries the first process sees; the second sees the others."""


def collection():
    """Every metric there is."""
    options = {"direct": True, "world": True, "estimates": True}
    metrics = execution_metrics(H, LOOPS, panels=(4, 6), groups={"odd": (1, 3, 5, 7, 9), "eight": (8,)}, **options)
    single = {
        "stretch_survival": StretchSurvival(H),
        "gains": CountGains(12, H),
        "losses": CountLosses(12, H),
        "largest_reading": LargestReadingError(),
        "largest_decrement": LargestDecrementError(),
    }
    return [metrics, MetricCollection(single, compute_groups=False)]


def update(metrics, outcome):
    for part in metrics:
        part.update(outcome)


def compute(metrics):
    return {name: value for part in metrics for name, value in part.compute().items()}


def work(rank, port, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    metrics, values = collection(), {}
    for seed, (name, cut) in enumerate(SPLITS.items()):
        for part in metrics:
            part.reset()  # nothing of the round before, synchronised or not, may stay behind
        mine = torch.arange(200)[:cut] if rank == 0 else torch.arange(200)[cut:]
        for index in (part for part in mine.split(64) if len(part)):  # ranks also differ in their number of batches
            update(metrics, outcome_of(random_queries(seed, 200), index))
        values[name] = compute(metrics)
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(values))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, args=(port, str(folder)), nprocs=RANKS)
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(RANKS)]


@pytest.mark.parametrize("split", SPLITS)
def test_two_processes_equal_one(results, split):
    single = collection()
    update(single, outcome_of(random_queries(list(SPLITS).index(split), 200)))
    for rank in results:
        values, expected = rank[split], compute(single)
        assert values.keys() == expected.keys()
        for name, value in expected.items():
            # Counts are exact; float64 sums of estimates may differ in the last digit, by the order of adding.
            tolerance = 1e-7 if "estimate" in name or "decrement" in name else 0
            torch.testing.assert_close(values[name], value, rtol=tolerance, atol=tolerance, equal_nan=True, msg=name)
