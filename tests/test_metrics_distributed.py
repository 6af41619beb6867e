"""Metrics in real processes: uneven and empty ranks give exactly the numbers of one process."""

import pickle
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from test_metrics import random_queries, select

from loopformer.metrics import execution_metrics, query_outcome

RANKS = 2
SPLITS = {"even": 100, "uneven": 150, "single query": 199, "empty": 200}
"""How many of the 200 queries the first process sees; the second sees the others."""


def collection():
    return execution_metrics(9, 12, panels=(4, 6), groups={"odd": (1, 3, 5, 7, 9), "eight": (8,)})


def work(rank, port, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    metrics, values = collection(), {}
    for seed, (name, cut) in enumerate(SPLITS.items()):
        metrics.reset()  # nothing of the round before, synchronised or not, may stay behind
        mine = torch.arange(200)[:cut] if rank == 0 else torch.arange(200)[cut:]
        for index in (part for part in mine.split(64) if len(part)):  # ranks also differ in their number of batches
            metrics.update(query_outcome(*select(random_queries(seed), index)))
        values[name] = metrics.compute()
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
    single.update(query_outcome(*random_queries(list(SPLITS).index(split))))
    for rank in results:
        values, expected = rank[split], single.compute()
        assert values.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(values[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
