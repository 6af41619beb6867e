"""Graphs: published digests, the reference executor, orbits, generator options."""

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.tasks.graph import CYCLIC_KINDS, KINDS, Graphs, node_names
from datamodules.tasks.graph_generators import GraphRecipe, example_seed, generate
from datamodules.tasks.graph_splits import SPLITS, benchmark, first_per_depth, fresh, published
from datamodules.tasks.graph_task import GraphTask, query

BENCHMARK = "bbc4971fe0fd10540865936cd33849a679cd532410440e0524462b0128c04178"
SHARED_BENCHMARK = Path(__file__).parents[2] / "shared" / "data" / "graph_benchmark.csv"

DIGESTS = {
    ("path-6", "train"): "e3d526c24ed1f85900ecff68ff49a5c04d1ba2a27222655a2d9fd4a93cae96f4",
    ("path-6", "validation"): "8d6a6ecb6967fef577bdb51b84e16c53bde467d4e684073ce6032eca6cc590f4",
    ("path-12", "train"): "c07739c74d42c621937204c8d759552c6ede6eb798ff732d769afe9b120974c3",
    ("cyclic", "train"): "ba76aaf959a0ccb72f8052c589fe54a7d010394e1c2ea4ddc54b7c23b4c80f5b",
}


def test_benchmark_digest():
    assert hashlib.sha256(benchmark().csv().encode()).hexdigest() == BENCHMARK


def test_benchmark_equals_the_published_file():
    if not SHARED_BENCHMARK.exists():
        pytest.skip(f"no {SHARED_BENCHMARK}")
    assert benchmark().csv().encode() == SHARED_BENCHMARK.read_bytes()


@pytest.mark.parametrize(("data", "split"), DIGESTS)
def test_published_digests(data, split):
    assert published(data, split).digest() == DIGESTS[data, split]


def test_split_sizes():
    sizes = {(data, split): len(published(data, split)) for data in SPLITS for split in SPLITS[data]}
    assert sizes == {
        ("path-6", "train"): 30_000,
        ("path-6", "validation"): 1_000,
        ("path-12", "train"): 30_000,
        ("path-12", "validation"): 1_000,
        ("cyclic", "train"): 36_000,
        ("cyclic", "validation"): 128 * 12,
        ("cyclic", "test"): 128 * 12,
        ("cyclic", "deep"): 32 * 52,
    }
    assert len(benchmark()) == 1_350


def test_no_rule_table_repeats_anywhere():
    sets = [published(data, split) for data in SPLITS for split in SPLITS[data]] + [benchmark()]
    distinct = [graphs[np.unique(graphs.index, return_index=True)[1]] for graphs in sets[:-1]] + [sets[-1]]
    tables = [graphs.tables() for graphs in distinct]
    assert [len(t) for t in tables] == [len(graphs) for graphs in distinct]
    assert len(set.union(*tables)) == sum(map(len, tables))


def slow_run(graphs: Graphs, row: int, loops: int) -> list[int]:
    table = {int(a): int(b) for a, b in zip(graphs.sources[row], graphs.targets[row], strict=True)}
    state, states = int(graphs.start[row]), []
    for _ in range(loops):
        state = table[state]
        states.append(state)
    return states


def slow_orbit(graphs: Graphs, row: int) -> tuple[int, int]:
    run = [int(graphs.start[row]), *slow_run(graphs, row, 60)]
    for t, state in enumerate(run):
        if state in run[:t]:
            return run.index(state), t - run.index(state)
    raise AssertionError


recipes = st.builds(
    lambda kind, seed, nodes, letters: GraphRecipe(kind, seed, "any", (1, 2, 3), nodes=nodes, letters=letters),
    st.sampled_from(["mixture", *KINDS]),
    st.integers(0, 10_000),
    st.integers(5, 26),
    st.sampled_from([1, 2]),
)


@settings(max_examples=40, deadline=None)
@given(recipes)
def test_states_and_orbits_equal_a_scalar_executor(recipe):
    graphs = generate(recipe, 6)
    states, orbits, facts = graphs.states(40), graphs.orbits(), graphs.facts()
    for row in range(6):
        assert states[row].tolist() == slow_run(graphs, row, 40)
        assert (orbits.tail[row], orbits.period[row]) == slow_orbit(graphs, row)
        assert facts["reachable"][row] == len({int(graphs.start[row]), *states[row].tolist()})
        assert GraphTask(letters=recipe.letters).states(query(graphs, row, 40)) == states[row].tolist()


def test_kinds_have_their_shape():
    graphs = generate(GraphRecipe("mixture", 5, "shape", (1,), nodes=12), 300)
    orbits = graphs.orbits()
    kind = [KINDS[k] for k in graphs.kind]
    assert set(kind) == set(CYCLIC_KINDS)
    for row, name in enumerate(kind):
        if name != "random_function":
            assert sorted(graphs.targets[row]) == sorted(graphs.sources[row])
            assert orbits.tail[row] == 0
        if name == "full_cycle":
            assert orbits.period[row] == 12


def test_path_does_not_revisit_within_its_depth():
    graphs = published("path-6", "train")
    orbits = graphs.orbits()
    assert (orbits.reachable > graphs.depth).all()


def test_paired_split_meets_every_depth():
    graphs = published("cyclic", "validation")
    assert graphs.depth[:13].tolist() == [*range(1, 13), 1]
    assert graphs.index[:13].tolist() == [0] * 12 + [1]
    assert (graphs.sources[:12] == graphs.sources[0]).all()


def test_seed_rule_is_literal():
    digest = hashlib.sha256(b"pointer-v1:61:train:3:0").digest()
    assert example_seed(61, "train", 3, 0) == int.from_bytes(digest[:8], "big")
    rng = random.Random(example_seed(7, "s", 0, 0))
    expected = rng.sample(range(26), 26)
    graph = generate(GraphRecipe("permutation", 7, "s", (1,)), 1)
    assert graph.successors()[0].tolist() == expected


def test_attempt_rises_where_a_table_is_taken():
    recipe = GraphRecipe("permutation", 7, "s", (1,))
    first = generate(recipe, 3)
    again = generate(recipe, 3, avoid=first[:1].tables())
    assert again.tables().isdisjoint(first[:1].tables())
    assert (again.targets[1:] == first.targets[1:]).all()
    rng = random.Random(example_seed(7, "s", 0, 1))
    assert again.successors()[0].tolist() == rng.sample(range(26), 26)


def test_small_node_sets_never_repeat_a_table_and_run_out_with_a_named_error():
    graphs = generate(GraphRecipe("full_cycle", 1, "small", (1,), nodes=3), 500)
    assert len(graphs.tables()) == 500
    with pytest.raises(ValueError, match=r"nodes: no unused rule table among 1 nodes.*raise nodes"):
        generate(GraphRecipe("full_cycle", 1, "small", (1,), nodes=1), 27)


def test_fresh_graphs_avoid_what_they_are_told():
    graphs = fresh(50, seeds=(1, 2, 3), avoid=benchmark().tables())
    assert len(graphs) == 450
    assert graphs.tables().isdisjoint(benchmark().tables())
    strata = {(int(s), int(k)) for s, k in zip(graphs.seed, graphs.kind, strict=True)}
    assert strata == {(s, k) for s in (1, 2, 3) for k in range(3)}


def test_first_per_depth():
    graphs = first_per_depth(published("path-6", "validation"), 32)
    assert np.bincount(graphs.depth).tolist() == [0] + [32] * 8
    assert set(graphs.index.tolist()) == set(range(256))
    with pytest.raises(ValueError, match="per_depth: asked for 200 examples at depth 1"):
        first_per_depth(published("path-6", "validation"), 200)


def test_absorbing_path_stays_at_its_end():
    recipe = GraphRecipe("path", 3, "end", (4, 7), absorbing=True, extra_steps=5)
    graphs = generate(recipe, 20)
    assert graphs.depth.tolist() == [9, 12] * 10
    states = graphs.states(12)
    for row in range(20):
        end = int(graphs.depth[row]) - 5
        assert len(set(states[row, :end].tolist())) == end
        assert (states[row, end - 1 :] == states[row, end - 1]).all()


def test_two_letter_names():
    graphs = generate(GraphRecipe("full_cycle", 3, "long", (300,), nodes=676, letters=2), 1)
    assert (graphs.orbits().period == 676).all()
    assert node_names(2)[27] == "BB"
    assert len(graphs.spell(graphs.sources[0])) == 2 * 676


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tree"}, "kind: got 'tree'"),
        ({"nodes": 27}, "nodes: got 27"),
        ({"depths": ()}, "depths: got"),
        ({"kind": "path", "depths": (26,)}, "at most 25 steps"),
        ({"kind": "path", "paired": True}, "paired: a path"),
        ({"absorbing": True}, "absorbing: only a path ends"),
        ({"extra_steps": 1}, "extra_steps: got 1"),
        ({"letters": 3}, "letters: got 3"),
    ],
)
def test_recipe_errors_name_the_field(change, message):
    options = {"kind": "mixture", "seed": 0, "split": "x", "depths": (1,), **change}
    with pytest.raises(ValueError, match=message):
        GraphRecipe(**options)


def test_unknown_published_data():
    with pytest.raises(ValueError, match="data: got 'path-7'"):
        published("path-7", "train")
    with pytest.raises(ValueError, match="split: 'path-6' has no 'test'"):
        published("path-6", "test")
