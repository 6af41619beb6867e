"""Generated traces: strict parse, categories against a slow reading of the protocol, metrics, store and summary."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from loopformer.evaluation.generated_store import KEY, GeneratedMetadata, GeneratedStore, pack_texts
from loopformer.evaluation.generated_summary import generated_markdown, summarize_generated
from loopformer.metrics import GeneratedShare, generated_metrics
from loopformer.metrics.functional import (
    GENERATED_RATES,
    Ending,
    generated_outcome,
    generated_rows,
    pack_paths,
    parse_letter,
    parse_path,
)

NAMES = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (" K Q B", [10, 16, 1]),
        ("K Q B", [10, 16, 1]),
        ("K", [10]),
        ("", None),
        (" ", None),
        ("  K Q", None),
        ("K  Q", None),
        ("K Q ", None),
        ("K Q\n", None),
        ("\nK Q", None),
        ("KQB", None),
        ("K, Q, B", None),
        ("k q b", None),
        ("K q", None),
        ("K Q B.", None),
        ("The answer is K", None),
        ("K Q B because", None),
        ("K Q\nB", None),
        ("AB", None),
        ("Ä", None),
    ],
)
def test_strict_parse_of_paths(text, path):
    assert parse_path(text, NAMES) == path


@pytest.mark.parametrize(
    ("text", "letter"),
    [("K", [10]), (" K\n", [10]), ("K Q", None), ("k", None), ("K.", None), ("", None), ("Answer: K", None)],
)
def test_parse_of_direct_answers(text, letter):
    assert parse_letter(text, NAMES) == letter


def outcome_of(texts, ended, reference, steps):
    letters, written = pack_paths([parse_path(text, NAMES) for text in texts])
    rows = torch.full((len(reference), max(map(len, reference))), -100)
    for i, row in enumerate(reference):
        rows[i, : len(row)] = torch.tensor(row)
    return generated_outcome(letters, written, torch.tensor(ended), rows, torch.tensor(steps))


def test_every_category():
    cases = [  # the reference is always B C D at N = 3: text, ended, ending, last letter, strict, every letter
        (" B C D", True, Ending.EXACT, True, True, True),
        (" X C D", True, Ending.EXACT, True, True, False),
        (" B C X", True, Ending.EXACT, False, False, False),
        (" B C", True, Ending.EARLY, False, False, False),
        (" D", True, Ending.EARLY, True, False, False),
        (" B C D E", True, Ending.LATE, False, False, False),
        (" B C D A D", True, Ending.LATE, True, False, False),
        ("BCD", True, Ending.MALFORMED, False, False, False),
        ("", True, Ending.MALFORMED, False, False, False),
        (" B C D", False, Ending.BUDGET, True, False, False),
        (" B C D and", False, Ending.BUDGET, False, False, False),
    ]
    texts, ended, endings, last, strict, path = zip(*cases, strict=True)
    outcome = outcome_of(texts, ended, [[1, 2, 3]] * len(cases), [3] * len(cases))
    assert outcome.ending.tolist() == list(endings)
    assert outcome.last_correct.tolist() == list(last)
    assert GENERATED_RATES["strict"](outcome).tolist() == list(strict)
    assert GENERATED_RATES["strict_path"](outcome).tolist() == list(path)
    rows = generated_rows(outcome)
    apart = [list(GENERATED_RATES).index(name) + 1 for name in ("exact_stop", "early", "late", "malformed", "budget")]
    assert rows[:, apart].sum(1).tolist() == [1] * len(cases), "every response ends in exactly one way"


def test_nothing_well_formed_and_different_lengths():
    outcome = outcome_of(["", "no"], [True, False], [[1], [2]], [1, 1])
    assert outcome.ending.tolist() == [Ending.MALFORMED, Ending.BUDGET]
    assert not outcome.last_correct.any()
    assert not outcome.path_correct.any()
    mixed = outcome_of([" B", " C D E F G"], [True, True], [[1], [2, 3, 4, 5, 6]], [1, 5])
    assert GENERATED_RATES["strict_path"](mixed).all()


def random_responses(seed, size=200, horizon=6):
    """Texts that are right, cut, lengthened, wrong or broken, with a slow score of each."""
    rng = random.Random(seed)
    texts, ended, reference, steps, scores = [], [], [], [], []
    for _ in range(size):
        count = rng.randint(1, horizon)
        path = [rng.randrange(3) for _ in range(horizon + 1)]
        written = path[: max(0, count + rng.choice((-1, 0, 0, 0, 1)))]
        if written and rng.random() < 0.3:
            written[rng.randrange(len(written))] = rng.randrange(3)
        text = " ".join(NAMES[label] for label in written) + ("?" if rng.random() < 0.1 else "")
        end = rng.random() < 0.9
        formed = bool(written) and not text.endswith("?")
        last = formed and written[-1] == path[count - 1]
        exact = end and formed and len(written) == count
        scores.append(
            {
                "last_letter": last,
                "exact_stop": exact,
                "strict": exact and last,
                "strict_path": exact and written == path[:count],
                "early": end and formed and len(written) < count,
                "late": end and formed and len(written) > count,
                "malformed": end and not formed,
                "budget": not end,
            }
        )
        texts.append(text)
        ended.append(end)
        reference.append(path[:horizon])
        steps.append(count)
    return texts, ended, reference, steps, scores


def test_metrics_equal_a_slow_reading():
    metrics = generated_metrics(6, groups={"odd": (1, 3, 5), "six": (6,)}, prefix="val/")
    everything = []
    for seed in range(3):
        texts, ended, reference, steps, scores = random_responses(seed)
        metrics.update(outcome_of(texts, ended, reference, steps))
        everything += zip(steps, scores, strict=True)
    values = metrics.compute()
    for suffix, counts in (("", range(1, 7)), ("/odd", (1, 3, 5)), ("/six", (6,))):
        chosen = [score for n, score in everything if n in counts]
        for name in GENERATED_RATES:
            expected = sum(score[name] for score in chosen) / len(chosen)
            assert float(values[f"val/{name}{suffix}"]) == pytest.approx(expected), (name, suffix)
            assert 0 < expected < 1, "the cases must tell the shares apart"


def test_metric_refuses_what_it_cannot_count():
    with pytest.raises(ValueError, match="rate_name"):
        GeneratedShare("nonsense", 3)
    with pytest.raises(ValueError, match="horizon"):
        GeneratedShare("strict", 0)
    with pytest.raises(ValueError, match=r"outside 1\.\.3"):
        GeneratedShare("strict", 3, steps=(4,))
    assert torch.isnan(GeneratedShare("strict", 3).compute())


def make_store(style="trace"):
    texts, ended, reference, steps, _ = random_responses(7, size=90)
    if style == "direct":
        texts = [text[-1:] for text in texts]
    text, text_end = pack_texts(texts)
    return GeneratedStore(
        metadata=GeneratedMetadata("traces", style, NAMES, 40, {"model": "ab"}, (1, 2, 4), {"kind": ("x", "y", "z")}),
        text=text,
        text_end=text_end,
        ended=torch.tensor(ended).to(torch.uint8),
        tokens=torch.full((90,), 5, dtype=torch.int32),
        instance=torch.arange(90, dtype=torch.int32),
        steps=torch.tensor(steps, dtype=torch.int32),
        reference=torch.tensor(reference, dtype=torch.int16),
        stratum=(torch.arange(90) % 9).to(torch.int16),
        facts={"kind": (torch.arange(90) % 3).int(), "period": torch.ones(90, dtype=torch.int32)},
    )


def test_store_round_trip_and_summary(tmp_path):
    store = make_store()
    path = tmp_path / "new" / "outcomes.safetensors"
    store.save(path)
    loaded = GeneratedStore.load(path)
    assert loaded.metadata == store.metadata
    texts, _, _, steps, scores = random_responses(7, size=90)
    assert loaded.texts() == texts
    summary = summarize_generated(loaded)
    assert summary == json.loads(json.dumps(summary)) == summarize_generated(store)
    assert summary["queries"] == 90
    for name in GENERATED_RATES:
        assert summary[name] == pytest.approx(sum(score[name] for score in scores) / 90, abs=1e-8)
        low, high = summary["intervals"][name]
        assert low <= summary[name] <= high
    held = [score["strict"] for n, score in zip(steps, scores, strict=True) if n == 3]
    assert summary["by_training"]["held_out"]["strict"] == pytest.approx(sum(held) / len(held), abs=1e-8)
    assert set(summary["by_kind"]) == {"x", "y", "z"}
    assert summary["by_steps"]["n"] == [steps.count(n) for n in range(1, 7)]
    assert generated_markdown(summary).splitlines()[2].startswith("| all | 90 |")
    with pytest.raises(FileExistsError):
        store.save(path)


def test_direct_answers_ask_for_one_letter():
    summary = summarize_generated(make_store("direct"))
    store = make_store("direct")
    right = [
        text.strip() == NAMES[row[n - 1]]
        for text, row, n in zip(store.texts(), store.reference.tolist(), store.steps.tolist(), strict=True)
    ]
    assert summary["last_letter"] == pytest.approx(sum(right) / 90, abs=1e-8)
    assert summary["strict"] == summary["strict_path"]


def test_unsound_stores_are_told(tmp_path):
    store = make_store()
    for change, message in (
        ({"steps": store.steps + 6}, "steps holds"),
        ({"tokens": store.tokens * 0}, "tokens holds 0"),
        ({"ended": store.ended.int()}, "ended is torch.int32"),
        ({"stratum": store.stratum[:9]}, "stratum has I = 9"),
        ({"text_end": store.text_end.flip(0)}, "text_end"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(store, **change)
    path = tmp_path / "outcomes.safetensors"
    with pytest.raises(FileNotFoundError):
        GeneratedStore.load(path)
    store.save(path)
    tensors = load_file(path)
    save_file(tensors, path)
    with pytest.raises(ValueError, match="not a store of generated traces"):
        GeneratedStore.load(path)
    save_file(tensors, path, metadata={KEY: json.dumps({"format": 99})})
    with pytest.raises(ValueError, match="format 99"):
        GeneratedStore.load(path)
    path.write_bytes(b"garbage")
    with pytest.raises(ValueError, match="truncated or not safetensors"):
        GeneratedStore.load(path)
