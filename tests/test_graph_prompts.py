"""Prompts: text, compiled token ids against the tokenizer, refusals."""

import os
import re

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from datamodules.batch import IGNORE, NO_DIGIT
from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph import node_names
from datamodules.tasks.graph_generators import GraphRecipe, generate
from datamodules.tasks.graph_splits import benchmark, published
from datamodules.tasks.graph_task import GraphQuery, GraphTask, query
from datamodules.tasks.procedure import LabelSet, Procedure
from datamodules.tasks.prompt import TEMPLATES

MERGED = r"Rules: \(|\) \(|\)\nStart:|\nSteps: |\nAnswer:"
LETTER = r" [A-Z](?![a-z])"


def tokenizer(pattern, texts=()):
    """A WordLevel tokenizer whose words are the matches of `pattern`, else single characters."""
    letters = [f" {name}" for name in (*node_names(1), *node_names(2))]
    words = [*map(chr, range(32, 127)), "\n", *letters, *map(str, range(10, 300))]
    words += ["Rules: (", ") (", ")\nStart:", "\nSteps: ", "\nAnswer:", *texts]
    core = Tokenizer(
        models.WordLevel({word: i + 1 for i, word in enumerate(dict.fromkeys(words))} | {"<unk>": 0}, "<unk>")
    )
    core.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{pattern}|[\s\S]"), behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")


PLAIN, MERGING = tokenizer(LETTER), tokenizer(f"{MERGED}|{LETTER}")


def whole(tok, text):
    return tok(text, add_special_tokens=False)["input_ids"]


def real_tokenizer():
    path = os.environ.get("LOOPFORMER_QWEN")
    if not path:
        pytest.skip("LOOPFORMER_QWEN is not set")
    return AutoTokenizer.from_pretrained(path)


def test_text_of_both_views():
    q = GraphQuery(sources=(10, 1, 16), targets=(16, 10, 1), start=10, count=2)
    task = GraphTask()
    assert task.prompt(q, "full") == "Rules: ( K, Q) ( B, K) ( Q, B)\nStart: K\nSteps: 2\nAnswer:"
    assert task.prompt(q, "executor") == "Rules: ( K, Q) ( B, K) ( Q, B)\nStart: K\nAnswer:"
    assert task.initial(q) == 10
    assert task.steps(q) == 2
    assert [task.labels.names[s] for s in task.states(q)] == ["Q", "B"]
    assert task.example(q, "answer").completion == " B"
    assert task.example(q, "steps").completion == " Q B"
    assert task.example(q, "trace") == task.example(q, "steps")
    with pytest.raises(ValueError, match="view: got 'short'"):
        task.prompt(q, "short")
    with pytest.raises(ValueError, match="style: got 'poem'"):
        task.example(q, "poem")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("tok", [PLAIN, MERGING], ids=["plain", "merging"])
def test_compiled_ids_equal_the_tokenizer(tok, template):
    batcher, task = GraphBatcher(tok, template), GraphTask(template)
    graphs, counts = benchmark()[::300], np.array([1, 12, 256, 9_999, 40])
    batch = batcher.batch(graphs, counts)
    for view, made in batch.views.items():
        for row in range(5):
            ids = whole(tok, task.prompt(query(graphs, row, int(counts[row])), view))
            assert made.input_ids[row, : made.lengths[row]].tolist() == ids
            for name, label in zip(batcher.labels.texts, batcher.label_ids.tolist(), strict=True):
                assert whole(tok, task.prompt(query(graphs, row, int(counts[row])), view) + name) == [*ids, label]
        assert made.input_ids.shape[1] == made.lengths.max()
    batcher.check(graphs)


def test_contents_of_a_batch():
    graphs, counts = benchmark()[[0, 500, 1_000]], np.array([3, 12, 1])
    batch = GraphBatcher(PLAIN).batch(graphs, counts, instance=np.array([7, 8, 9]))
    assert len(batch) == 3
    states = graphs.states(12)
    for row, n in enumerate(counts):
        assert batch.labels[row].tolist() == states[row, :n].tolist() + [IGNORE] * (12 - n)
    assert batch.initial.tolist() == graphs.start.tolist()
    assert batch.steps.tolist() == [3, 12, 1]
    assert batch.instance.tolist() == [7, 8, 9]
    digit = {d: whole(PLAIN, str(d))[0] for d in range(10)}
    assert batch.digits.tolist() == [[digit[3], NO_DIGIT], [digit[1], digit[2]], [digit[1], NO_DIGIT]]
    assert {name: values.tolist() for name, values in batch.facts.items()} == {
        name: values.tolist() for name, values in graphs.facts().items()
    }
    assert all(t.dtype == torch.int64 for t in (batch.labels, batch.steps, batch.digits, *batch.facts.values()))


def test_counts_default_to_the_depth_and_zero_is_refused():
    graphs = published("path-6", "validation")[:8]
    assert GraphBatcher(PLAIN).batch(graphs).steps.tolist() == list(range(1, 9))
    with pytest.raises(ValueError, match="counts: got 0"):
        GraphBatcher(PLAIN).batch(graphs, 0)


def test_batch_of_no_graphs():
    batch = GraphBatcher(PLAIN).batch(benchmark()[:0], 5)
    assert len(batch) == 0
    assert batch.labels.shape[0] == 0


def test_fewer_nodes_and_two_letter_names():
    graphs = generate(GraphRecipe("mixture", 2, "s", (2,), nodes=30, letters=2), 3)
    tok = tokenizer(r" [A-Z][A-Z]")
    batcher = GraphBatcher(tok, letters=2)
    batcher.check(graphs)
    assert len(batcher.label_ids) == 676
    with pytest.raises(ValueError, match="letters: graphs have 1, the batcher has 2"):
        batcher.batch(benchmark()[:1])
    small = generate(GraphRecipe("mixture", 2, "s", (2,), nodes=4), 3)
    GraphBatcher(MERGING).check(small)
    with pytest.raises(ValueError, match="template 'published': ' AA' is not one token"):
        GraphBatcher(PLAIN, letters=2)


@pytest.mark.parametrize(
    ("tok", "message"),
    [
        (tokenizer(rf"\( K|{LETTER}", ["( K"]), r"'published': ' K' is not one token of its own in the rules"),
        (tokenizer(rf"(?<=\() (?=K)|{LETTER}"), r"'published': ' K' is not one token of its own in the rules"),
        (tokenizer(rf", K\)|{LETTER}", [", K)"]), r"'published': ' K' is not one token of its own in the rules"),
        (tokenizer(rf"Start: K|{LETTER}", ["Start: K"]), "' K' is not one token of its own in the rules or start"),
        (tokenizer(rf": K|{LETTER}", [": K"]), "' K' is not one token of its own as the answer of the full view"),
        (tokenizer(rf"\d+|{LETTER}"), "is not one token of its own in a count of 2"),
        (tokenizer(r" [A-Y](?![a-z])"), "' Z' is not one token of its own as the answer"),
        (tokenizer(r" [A-Z](?![a-z])| Z"), None),
    ],
)
def test_merged_tokens_are_refused_with_symbol_template_and_fix(tok, message):
    if message is None:
        GraphBatcher(tok).check(benchmark()[:2])
        return
    with pytest.raises(ValueError, match=message) as error:
        GraphBatcher(tok).check(benchmark()[:2])
    assert re.search("use a template .* or a tokenizer", str(error.value))
    assert "\n" not in str(error.value)


def test_merge_of_two_certain_digits_is_found_by_the_check():
    batcher = GraphBatcher(tokenizer(rf"42|{LETTER}"))
    with pytest.raises(ValueError, match="count 42 tokenises differently as a whole"):
        batcher.check(benchmark()[:2])


def test_unknown_symbols_are_refused():
    core = Tokenizer(models.WordLevel({"<unk>": 0, **{d: i + 1 for i, d in enumerate("0123456789")}}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{LETTER}|[\s\S]"), behavior="isolated")
    with pytest.raises(ValueError, match="shares its token"):
        GraphBatcher(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"))


def test_unknown_template():
    with pytest.raises(ValueError, match="template: got 'poem'; use one of published"):
        GraphBatcher(PLAIN, "poem")


def test_label_sets_are_checked():
    with pytest.raises(ValueError, match="1 names but 2 texts"):
        LabelSet(("A",), (" A", " B"))
    with pytest.raises(ValueError, match=r"LabelSet\.texts: a value occurs twice"):
        LabelSet(("A", "B"), (" A", " A"))


class Countdown(Procedure[int]):
    """Counts down from an instance to 0, with the parity as a named field."""

    views = ("full",)
    labels = LabelSet(tuple("0123"), tuple(" 0 1 2 3".replace(" ", "|").split("|")[1:]))
    fields = {"parity": LabelSet(("even", "odd"), (" even", " odd"))}  # noqa: RUF012

    def prompt(self, instance, _view):
        return f"Count down from {instance}:"

    def steps(self, instance):
        return instance

    def initial(self, instance):
        return instance

    def states(self, instance):
        return range(instance - 1, -1, -1)

    def field_states(self, instance):
        return {"parity": [n % 2 for n in range(instance, -1, -1)]}


def test_a_procedure_with_fields_writes_them_in_its_trace():
    task = Countdown()
    assert task.example(2, "trace").completion == "1; parity: odd\n0; parity: even"
    assert task.example(2, "steps").completion == "10"
    assert task.facts(2) == {}


@pytest.mark.real_weights
def test_qwen_ids_and_lengths():
    tok = real_tokenizer()
    batcher = GraphBatcher(tok)
    expected = [362, 425, 356, 422, 468, 434, 479, 472, 358, 619, 730, 444, 386, 451, 506, 393, 1207, 431, 328, 350]
    assert batcher.label_ids.tolist() == [*expected, 547, 647, 467, 1599, 809, 1863]
    assert batcher.digit_ids.tolist() == list(range(15, 25))
    batch = batcher.batch(benchmark()[:3], np.array([1, 12, 256]))
    assert batch.views["full"].lengths.tolist() == [143, 144, 145]
    assert batch.views["executor"].lengths.tolist() == [138, 138, 138]


@pytest.mark.real_weights
@pytest.mark.parametrize("template", TEMPLATES)
def test_qwen_compiled_ids_equal_the_tokenizer(template):
    GraphBatcher(real_tokenizer(), template).check(benchmark()[::100])
