"""Text for ordinary models: masks, documents, chat rendering, the graph styles and their datamodule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from datamodules.batch import IGNORE
from datamodules.graph_evaluation import EvaluationSplit
from datamodules.graph_sources import GraphStream, PublishedSplit
from datamodules.graph_text import GraphTextBatcher, GraphTextDataModule
from datamodules.tasks.graph_splits import published
from datamodules.tasks.graph_stream import Stage
from datamodules.tasks.graph_task import GraphTask, query
from datamodules.tasks.graph_text import STYLES, WORKED, GraphTexts
from datamodules.tasks.procedure import TextExample
from datamodules.text import TextEncoder
from loopformer.tokenizer import tiny_tokenizer

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"


def chat_tokenizer():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_masks_by_hand():
    tokenizer = tiny_tokenizer()
    k, q, end = (tokenizer.convert_tokens_to_ids(token) for token in (" K", " Q", "<end>"))
    a, b = tokenizer.convert_tokens_to_ids(["a", "b"])
    documents = [[TextExample("ab", " K Q")], [TextExample("a", " Q"), TextExample("b", " K")]]
    batch = TextEncoder(tokenizer).batch(documents)
    assert batch.input_ids[0, :5].tolist() == [a, b, k, q, end]
    assert batch.input_ids[1].tolist() == [a, q, end, b, k, end]
    assert batch.lengths.tolist() == [5, 6]
    expected = [[0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 1, 1]]
    assert batch.loss_mask.int().tolist() == batch.answer_mask.int().tolist() == expected
    assert batch.prompts() == [[a, b], [a]]
    assert batch.answers() == [[k, q, end], [q, end]]
    everything = TextEncoder(tokenizer).batch(documents, "all")
    assert everything.loss_mask.int().tolist() == [[0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]]
    assert everything.answer_mask.int().tolist() == expected
    first = batch.select(torch.tensor([True, False]))
    assert len(first) == 1
    assert first.answers() == [[k, q, end]]


def test_bad_text_is_refused():
    tokenizer = tiny_tokenizer()
    for documents in ([[]], [[TextExample("", " K")]]):
        with pytest.raises(ValueError, match="every one needs a prompt"):
            TextEncoder(tokenizer).batch(documents)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no end token"):
        TextEncoder(tokenizer)


def test_worked_examples_say_what_the_reference_says():
    task = GraphTask()
    assert [worked.count for worked in WORKED] == [1, 2, 3]
    for worked in WORKED:
        asked = worked.query(task.labels.names)
        assert len(set(asked.sources)) == 6
        assert set(asked.targets) <= set(asked.sources)
    prompt = GraphTexts("steps").example(query(published("cyclic", "train"), 0)).prompt
    for lines in ("Steps: 1\nAnswer: D\n", "Steps: 2\nAnswer: R H\n", "Steps: 3\nAnswer: S N X\n"):
        assert lines in prompt
    direct = GraphTexts("direct").example(query(published("cyclic", "train"), 0)).prompt
    for lines in ("Steps: 1\nAnswer: D\n", "Steps: 2\nAnswer: H\n", "Steps: 3\nAnswer: X\n"):
        assert lines in direct


@pytest.mark.parametrize("style", STYLES)
def test_styles_end_in_the_very_prompt_of_the_looped_models(style):
    graphs = published("cyclic", "train")
    asked = query(graphs, 8)  # 12 steps
    prompt = GraphTask().prompt(asked, "full")
    path = GraphTask().example(asked, "steps").completion
    example = GraphTexts(style).example(asked)
    assert example.prompt.endswith(prompt)
    assert (example.prompt == prompt) == (style == "trace")
    assert example.completion == (path[-2:] if style == "direct" else path)


def test_chat_template_and_plain_fallback():
    graphs = published("cyclic", "train")[:1]
    texts = GraphTexts("steps")
    example = texts.example(query(graphs, 0))
    plain, chat = tiny_tokenizer(), chat_tokenizer()
    (row,) = GraphTextBatcher(plain, texts).batch(graphs).prompts()
    assert plain.decode(row) == example.prompt
    batch = GraphTextBatcher(chat, texts).batch(graphs)
    assert chat.decode(batch.prompts()[0]) == f"<user>{example.prompt}</><assistant>"
    assert chat.decode(batch.answers()[0]) == example.completion.lstrip() + "<end>"
    raw = GraphTextBatcher(chat, GraphTexts("trace")).batch(graphs)
    assert chat.decode(raw.prompts()[0]) == GraphTask().prompt(query(graphs, 0), "full")


def test_documents_ask_several_questions_about_one_table():
    graphs = published("cyclic", "train")[:4]
    batcher = GraphTextBatcher(tiny_tokenizer(), GraphTexts("trace"), "all", questions=3)
    batch = batcher.batch(graphs, 2)
    tokenizer, following = tiny_tokenizer(), graphs.successors()
    for row in range(4):
        text = tokenizer.decode(batch.input_ids[row, : batch.lengths[row]])
        assert text.count("Rules:") == 1
        questions = text.split("\nStart: ")[1:]
        assert len(questions) == 3
        for question in questions:
            start, rest = question.split("\nSteps: 2\nAnswer: ")
            first, second = rest.removesuffix("<end>").split(" ")
            once = following[row, ord(start) - 65]
            assert (first, second) == (graphs.names[once], graphs.names[following[row, once]])
    again = batcher.batch(graphs, 2)
    assert torch.equal(batch.input_ids, again.input_ids), "a pure function of its graphs"
    starts = batcher._further_starts(published("cyclic", "train")[:600])
    positions = (published("cyclic", "train")[:600].sources[:, :, None] == starts[:, None]).argmax(1)
    assert len(np.unique(positions)) == 26, "no position of the table is favoured"


def test_labels_steps_and_facts():
    graphs = published("cyclic", "train")[:9]
    batch = GraphTextBatcher(tiny_tokenizer(), GraphTexts("trace")).batch(graphs)
    assert batch.steps.tolist() == graphs.depth.tolist()
    assert (batch.labels != IGNORE).sum(1).tolist() == graphs.depth.tolist()
    assert batch.answer_lengths.tolist() == (graphs.depth + 1).tolist()
    assert set(batch.facts) == {"kind", "seed", "graph", "tail", "period", "reachable"}


def test_published_recipe():
    data = GraphTextDataModule(
        chat_tokenizer(), "steps", train=PublishedSplit("cyclic", 16), validation=EvaluationSplit(batch_size=16)
    )
    loader = data.train_dataloader()
    assert len(loader) == 2_250
    batch = next(iter(loader))
    assert len(set(batch.steps.tolist())) == 1
    assert data.cohorts == {"trained": [1, 2, 3, 4, 5, 6, 8, 10, 12], "held_out": [7, 9, 11]}
    small = GraphTextDataModule(tiny_tokenizer(), validation=EvaluationSplit(per_depth=8, batch_size=3), generated=2)
    batches = list(small.val_dataloader())
    steps = torch.cat([batch.steps for batch in batches])
    generated = torch.cat([batch.generated for batch in batches])
    assert steps.bincount()[1:].tolist() == [8] * 12
    assert steps[generated].bincount()[1:].tolist() == [2] * 12


def test_stream_resumes_and_follows_its_stages():
    def stream():
        return GraphTextDataModule(tiny_tokenizer(), train=GraphStream([Stage(4, [1], 3), Stage(6, [2], 3)], 10))

    data = stream()
    source = iter(data.train_dataloader())
    next(source)
    data.set_stage(1)
    state = data.state_dict()
    expected = next(source)
    assert expected.steps.tolist() == [2, 2, 2]
    resumed = stream()
    resumed.load_state_dict(state)
    assert torch.equal(next(iter(resumed.train_dataloader())).input_ids, expected.input_ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "essay"}, "style: got 'essay'"),
        ({"style": "steps", "questions": 2}, "questions: style 'steps' asks one"),
        ({"questions": 0}, "questions: got 0"),
        ({"generated": -1}, "generated: got -1"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        GraphTextDataModule(tiny_tokenizer(), **options)
