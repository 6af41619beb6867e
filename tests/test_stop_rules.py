"""Stop rules side by side: known answers, and an independent scalar re-scoring on random outcomes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from outcome_cases import synthetic_store
from test_evaluate import network_config

from datamodules.graph_batcher import GraphBatcher
from loopformer import checkpoint
from loopformer.evaluation.convergence import TOLERANCES, Convergence, relative_change
from loopformer.evaluation.mechanism import choose_graph
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.stop_rules import repeat_stops, stop_distribution, stop_rules
from loopformer.evaluation.trace import Request, batched_part, run_part
from loopformer.shared_prefix import can_share


def with_convergence(store: OutcomeStore) -> OutcomeStore:
    loops = torch.randint(0, store.metadata.loops + 1, (len(store.letters), len(TOLERANCES)), dtype=torch.int16)
    return replace(store, converged=loops)


def scalar(store: OutcomeStore, rule: str, q: int) -> int:
    """The stop of one query, by the definition."""
    letters, n, stop = store.letters[int(store.row[q])].tolist(), int(store.steps[q]), int(store.stops[q])
    target, cap = int(store.reference[int(store.row[q]), n - 1]), store.metadata.cap
    ran = cap if len(store.letters) < len(store.steps) else n
    if rule == "forced":
        return n
    if rule == "learned":
        return stop
    if rule == "oracle":
        return n if letters[n - 1] == target else next((t for t in range(1, cap + 1) if letters[t - 1] == target), 0)
    if rule == "repeat":
        return next((t for t in range(2, ran + 1) if letters[t - 1] == letters[t - 2]), 0)
    settled = int(store.converged[int(store.row[q]), TOLERANCES.index(0.05)])  # type: ignore[index]
    return settled if settled <= ran else 0


@pytest.mark.parametrize("shared", [True, False])
def test_rules_agree_with_a_scalar_rescoring(shared: bool) -> None:
    torch.manual_seed(3)
    store = with_convergence(synthetic_store(hazard=0.2, wrong_stop=0.4, per_stratum=2, shared=shared))
    found = stop_rules(store)
    assert list(found) == ["forced", "learned", "oracle", "repeat", "converged"]
    queries = range(len(store.steps))
    for rule, values in found.items():
        stops = [scalar(store, rule, q) for q in queries]
        counts = dict.fromkeys(("exact_stop", "missing_stop", "returned", "end_to_end", "strict"), 0)
        for q, s in zip(queries, stops, strict=True):
            n, row = int(store.steps[q]), int(store.row[q])
            letters, reference = store.letters[row], store.reference[row]
            counts["exact_stop"] += s == n
            counts["missing_stop"] += s == 0
            counts["returned"] += int(letters[(s or store.metadata.cap) - 1]) == int(reference[n - 1])
            counts["end_to_end"] += s == n and bool(letters[n - 1] == reference[n - 1])
            counts["strict"] += s == n and bool((letters[:n] == reference[:n]).all())
        for name, count in counts.items():
            assert values[name] == pytest.approx(count / len(stops)), (rule, name)
            low, high = values["intervals"][name]
            assert low <= values[name] <= high
        errors = torch.tensor([s - int(store.steps[q]) for q, s in zip(queries, stops, strict=True) if s]).double()
        assert values["stop_error"]["median"] == pytest.approx(float(errors.quantile(0.5)))


def test_the_oracle_is_a_ceiling() -> None:
    found = stop_rules(with_convergence(synthetic_store(hazard=0.2, wrong_stop=0.4)))
    for share in ("returned", "end_to_end"):
        assert all(found["oracle"][share] >= values[share] for values in found.values())


def test_rules_that_a_store_cannot_tell_are_left_out() -> None:
    store = synthetic_store(loops=14)
    mute = replace(store, stops=torch.zeros_like(store.stops))
    assert list(stop_rules(mute)) == ["forced", "oracle", "repeat"]


def test_repeats() -> None:
    letters = torch.tensor([[1, 2, 2, 2], [1, 1, 3, 4], [1, 2, 3, 4]])
    assert repeat_stops(letters).tolist() == [3, 2, 0]


def test_distribution_counts_every_stop() -> None:
    store = synthetic_store(wrong_stop=0.5)
    found = dict(stop_distribution(store))
    assert sum(found.values()) == int((store.stops > 0).sum())
    assert found[0] == int((store.stops == store.steps).sum())


def test_convergence_finds_the_first_small_change_across_chunks() -> None:
    sizes = [1.0, 2.0, 2.3, 2.35, 2.9, 2.91]  # relative changes .5, .130, .021, .190, .0034
    states = torch.tensor(sizes)[None, :, None].expand(2, -1, 3).clone()
    states[1] = torch.tensor([1.0, -1, 1, -1, 1, -1])[:, None]  # never settles
    change = relative_change(states)
    assert change[0].tolist() == pytest.approx([abs(b - a) / b for a, b in itertools.pairwise(sizes)], rel=1e-5)
    watch = Convergence(states[:, 0])
    for part in (states[:, 1:3], states[:, 3:4], states[:, 4:]):
        watch.update(part)
    expected = [next((t for t, c in enumerate(change[0].tolist(), 1) if c < tolerance), 0) for tolerance in TOLERANCES]
    assert expected == [2, 2, 3, 3, 5, 5]
    assert watch.stops.tolist() == [expected, [0] * len(TOLERANCES)]


@pytest.mark.parametrize(("recurrence", "halting"), [("FixedPrompt", None), ("FullSequence", "StopHead")])
def test_shared_and_batched_traces_settle_alike(recurrence: str, halting: str | None) -> None:
    config = network_config(halting, "full")
    config["init_args"] |= {"recurrence": {"class_path": recurrence, "init_args": {"view": "full"}}, "bridge": None}
    torch.manual_seed(2)
    network = checkpoint.build_network(config).eval()
    batcher, graphs = GraphBatcher(network.backbone.tokenizer), choose_graph(0)
    counts = [3, 9, 12]
    request = Request(counts, 20, 20 if halting else 12, [])
    shared, batched = (run(network, batcher, graphs, request) for run in (partial(run_part, probed=[]), batched_part))
    assert can_share(network)
    within = torch.tensor(counts)[:, None]
    settled = [torch.where(part.converged <= within, part.converged, 0).tolist() for part in (shared, batched)]
    assert settled[0] == settled[1]
    assert any(any(row) for row in settled[0]), "the widest tolerance is met: the test can fail"
