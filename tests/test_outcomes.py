"""The outcome store and its summary: round trip, refusals, and agreement with a slow re-scoring of the queries."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from outcome_cases import synthetic_store
from safetensors.torch import load_file, save_file
from test_metrics import assert_scores, slow_scores

from loopformer.evaluation.bootstrap import ratio_draws, resampling_counts
from loopformer.evaluation.outcomes import KEY, OutcomeStore
from loopformer.evaluation.summary import RANGES, summarize, write_summary
from loopformer.metrics.functional import IGNORE


@pytest.fixture(scope="module")
def store():
    return synthetic_store()


@pytest.fixture(scope="module")
def summary(store):
    return summarize(store)


def slow(store, keep=None):
    """Re-score the chosen queries from the words of the protocol."""
    keep = torch.ones(len(store.steps), dtype=torch.bool) if keep is None else keep
    rows = store.row[keep].long()
    parts = store.letters[rows], store.reference[rows], store.steps[keep], store.stops[keep]
    return slow_scores(*(part.tolist() for part in parts), horizon=int(store.steps.max()))


def assert_cell(cell, expected):
    shares = ("forced_final", "complete", "exact_stop", "early_stop", "late_stop", "missing_stop", "returned")
    for name in (*shares, "wrong_time", "end_to_end", "strict", "correct_prefix"):
        assert cell[name] == pytest.approx(expected[name], abs=1e-8), name


@pytest.mark.parametrize("shared", [True, False])
def test_round_trip(tmp_path, shared):
    store = synthetic_store(shared=shared)
    path = tmp_path / "new" / "outcomes.safetensors"
    store.save(path)
    loaded = OutcomeStore.load(path)
    assert loaded.metadata == store.metadata
    assert loaded.tensors().keys() == store.tensors().keys()
    assert all(torch.equal(tensor, loaded.tensors()[name]) for name, tensor in store.tensors().items())
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file stays


def test_refuses_to_overwrite_unless_told(tmp_path, store):
    path = tmp_path / "outcomes.safetensors"
    store.save(path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        store.save(path)
    store.save(path, overwrite=True)


def test_a_failed_write_leaves_the_old_file(tmp_path, store, monkeypatch):
    path = tmp_path / "outcomes.safetensors"
    store.save(path)
    before = path.read_bytes()

    def fail(tensors, temporary, metadata):
        temporary.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("loopformer.evaluation.store_file.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        store.save(path, overwrite=True)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def rewrite(path, tensors=(), drop=(), metadata=None):
    """Change a stored file behind the back of OutcomeStore."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        text = json.loads(file.metadata()[KEY])
    text = {name: value for name, value in (text | (metadata or {})).items() if value is not None}
    named = {name: tensor.clone() for name, tensor in (load_file(path) | dict(tensors)).items() if name not in drop}
    save_file(named, path, metadata={KEY: json.dumps(text)})


def test_files_that_are_no_sound_store_are_told(tmp_path, store):
    path = tmp_path / "outcomes.safetensors"
    with pytest.raises(FileNotFoundError, match="does not exist"):
        OutcomeStore.load(path)
    store.save(path)
    whole = path.read_bytes()
    cases = [
        (lambda: path.write_bytes(whole[: len(whole) // 2]), "truncated or not safetensors"),
        (lambda: path.write_bytes(b""), "truncated or not safetensors"),
        (lambda: save_file(store.tensors(), path), f"no {KEY} metadata"),
        (lambda: save_file(store.tensors(), path, metadata={KEY: "[1"}), "not a JSON object"),
        (lambda: rewrite(path, metadata={"format": 99}), "format 99, this code reads 1 and 2"),
        (lambda: rewrite(path, metadata={"cap": None}), "field cap is missing or unknown"),
        (lambda: rewrite(path, metadata={"capp": 3}), "field capp is missing or unknown"),
        (lambda: rewrite(path, drop=["stops"]), "lacks the tensor stops"),
        (lambda: rewrite(path, {"extra": store.steps}), "unknown tensor extra"),
        (lambda: rewrite(path, {"steps": store.steps.long()}), "steps is torch.int64, expected torch.int32"),
        (lambda: rewrite(path, {"steps": store.steps[:, None]}), r"steps has shape \[504, 1\], expected \[Q\]"),
        (lambda: rewrite(path, {"stops": store.stops[1:]}), "stops has Q = 503, the store has Q = 504"),
        (lambda: rewrite(path, {"fact.kind": store.facts["kind"][1:]}), "fact.kind has I = 35"),
        (lambda: rewrite(path, metadata={"loops": 19}), "letters has L = 20, the store has L = 19"),
    ]
    for spoil, message in cases:
        path.write_bytes(whole)
        spoil()
        with pytest.raises(ValueError, match=message) as error:
            OutcomeStore.load(path)
        assert "\n" not in str(error.value)
        assert str(path) in str(error.value)


def spoiled(tensor, value):
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("letters", 26, r"letters holds 26, outside 0\.\.25"),
        ("letters", -1, "letters holds -1"),
        ("reference", 26, "reference holds a value outside"),
        ("reference", IGNORE, "no state at the requested count"),
        ("row", 36, r"row holds 36, outside 0\.\.35"),
        ("instance", -1, "instance holds -1"),
        ("steps", 0, r"steps holds 0, outside 1\.\.20"),
        ("stops", 21, r"stops holds 21, outside 0\.\.20"),
        ("stratum", -1, "stratum holds -1"),
    ],
)
def test_values_out_of_range_are_told(store, name, value, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(store, **{name: spoiled(getattr(store, name), value)})


def test_metadata_that_does_not_fit_is_told(store):
    meta = store.metadata
    with pytest.raises(ValueError, match="cap is 21"):
        dataclasses.replace(store, metadata=dataclasses.replace(meta, cap=21))
    with pytest.raises(ValueError, match="fact_values of kind"):
        dataclasses.replace(store, metadata=dataclasses.replace(meta, fact_values={"kind": ("one",)}))
    empty = store.steps[:0]
    with pytest.raises(ValueError, match="at least one of its queries"):
        dataclasses.replace(store, row=empty, instance=empty, steps=empty, stops=empty, estimate=empty)


def test_readouts(store):
    with pytest.raises(ValueError, match="'direct' is not in the store"):
        next(dataclasses.replace(store, direct=None).outcomes("direct"))
    perfect = dataclasses.replace(store, direct=store.reference)
    assert all(outcome.final_correct.all() for _, outcome in perfect.outcomes("direct"))
    chunks = list(store.outcomes(chunk=100))
    assert torch.cat([outcome.steps for _, outcome in chunks]).equal(store.steps.long())
    assert chunks[-1][0] == slice(500, 504)


def test_summary_agrees_with_a_slow_scoring(store, summary):
    expected = slow(store)
    assert summary["queries"] == len(store.steps)
    assert_cell(summary, expected)
    curves = {"loop_accuracy": summary["loop_accuracy"], "hazard": summary["hazard"]["pooled"]["hazard"]}
    np.testing.assert_allclose(curves["loop_accuracy"], expected["loop_accuracy"], atol=1e-8)
    np.testing.assert_allclose(curves["hazard"], expected["hazard"], atol=1e-8)
    for sign, prefix in (("signed", ""), ("absolute", "absolute_")):
        for name in ("p10", "median", "p90"):
            assert summary["stop_error"][sign][name] == pytest.approx(expected[f"{prefix}stop_error_{name}"])


def test_breakdowns_agree_with_a_slow_scoring(store, summary):
    assert list(summary["by_range"]) == ["1-6", "7-12", "13-32"]
    for (low, high), cell in zip(RANGES, summary["by_range"].values(), strict=False):
        assert_cell(cell, slow(store, (store.steps >= low) & (store.steps <= high)))
    assert list(summary["by_kind"]) == ["random_function", "permutation", "full_cycle"]
    for code, cell in enumerate(summary["by_kind"].values()):
        assert_cell(cell, slow(store, (store.facts["kind"] == code)[store.instance.long()]))
    assert list(summary["by_seed"]) == ["307", "311", "313"]
    assert set(summary["by_tail"]) <= {"0", "1-4", "5-8", "9-25"}
    assert sum(cell["n"] for cell in summary["by_period"].values()) == summary["queries"]
    trained = torch.isin(store.steps, torch.tensor(store.metadata.trained_steps))
    assert_cell(summary["by_training"]["trained"], slow(store, trained))
    assert_cell(summary["by_training"]["held_out"], slow(store, ~trained & (store.steps < 12)))
    assert_cell(summary["by_training"]["beyond"], slow(store, store.steps > 12))


def test_panels_and_counts_agree_with_a_slow_scoring(store, summary):
    assert list(summary["survival"]) == ["6", "12"]
    for n, panel in summary["survival"].items():
        expected = slow(store, store.steps == int(n))
        np.testing.assert_allclose(panel["survival"], expected["survival"][: int(n)], atol=1e-8)
        hazard = summary["hazard"][n]["hazard"]
        np.testing.assert_allclose(hazard, expected["hazard"][: int(n)], atol=1e-8)
        assert (np.array(panel["low"]) <= panel["survival"]).all()
        assert (np.array(panel["high"]) >= panel["survival"]).all()
    by_steps = summary["by_steps"]
    assert by_steps["steps"] == list(range(1, 15))
    for index, n in enumerate(by_steps["steps"]):
        expected = slow(store, store.steps == n)
        assert by_steps["strict"][index] == pytest.approx(expected["strict"], abs=1e-8)
        assert by_steps["stop_error"]["p90"][index] == pytest.approx(expected["stop_error_p90"])
        for kind in ("intervals", "wilson"):
            ends = by_steps[kind]["strict"]
            assert ends["low"][index] - 1e-8 <= expected["strict"] <= ends["high"][index] + 1e-8


def test_intervals_resample_whole_graphs(store, summary):
    strict = torch.zeros(36)
    for part, outcome in store.outcomes():
        hits = (outcome.stop == outcome.steps) & (outcome.first_error > outcome.steps)
        strict.index_add_(0, store.instance[part].long(), hits.float())
    draws = ratio_draws(resampling_counts(store.stratum.numpy()), strict[:, None], torch.full((36, 1), 14))
    np.testing.assert_allclose(summary["intervals"]["strict"], np.percentile(draws, [2.5, 97.5]), atol=1e-8)


def test_shared_traces_and_own_traces_give_the_same_summary(store, summary):
    rows = store.row.long()
    own = dataclasses.replace(
        store,
        letters=store.letters[rows],
        direct=store.direct[rows],
        reference=store.reference[rows],
        row=torch.arange(len(rows), dtype=torch.int32),
    )
    assert summarize(own) == summary


def test_undefined_numbers_are_null(tmp_path):
    store = synthetic_store(hazard=1.0)
    never = dataclasses.replace(store, stops=torch.zeros_like(store.stops))
    summary = summarize(never)
    assert summary["stop_error"]["signed"]["median"] is None
    assert summary["missing_stop"] == 1
    assert summary["hazard"]["pooled"]["hazard"][:2] == [1.0, None]
    path = tmp_path / "summary.json"
    write_summary(path, summary)
    assert json.loads(path.read_text()) == summary
    assert list(json.loads(path.read_text())) == list(summary)
    with pytest.raises(FileExistsError):
        write_summary(path, summary)


def test_assertion_helper_sees_a_difference(store):
    """The helper shared with the metric tests must not pass by accident."""
    with pytest.raises(AssertionError):
        assert_scores({"strict": torch.tensor(0.5)}, {"strict": 0.6})
