"""LightningDataModule of the graph task for ordinary language models: traces, answers, documents of several questions.

data:
  class_path: datamodules.graph_text.GraphTextDataModule
  init_args:
    style: steps
    train: {class_path: PublishedSplit, init_args: {data: cyclic, batch_size: 16}}
    validation: {class_path: EvaluationSplit, init_args: {data: cyclic, per_depth: 64}}
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from datamodules.batch import IGNORE
from datamodules.graph_evaluation import EvaluationSource
from datamodules.graph_module import GraphSourcesDataModule
from datamodules.graph_sources import TrainSource
from datamodules.tasks.graph import Graphs, IntArray
from datamodules.tasks.graph_task import query
from datamodules.tasks.graph_text import GraphTexts, GraphTextStyle
from datamodules.tasks.procedure import LabelSet, TextExample
from datamodules.text import Objective, TextBatch, TextEncoder


class GraphTextBatcher:
    """Batches of graphs as text.

    Args:
        tokenizer: the model's tokenizer.
        texts: style and wording.
        objective: which tokens the loss counts.
        questions: questions about each table, of the same count from other starts; more than 1 in style "trace" only.
        generated: [G] instances that are also validated by generation; None for none of them.

    Raises:
        ValueError: fewer than 1 question, or several in a style that is one message.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: GraphTexts,
        objective: Objective = "response",
        questions: int = 1,
        generated: IntArray | None = None,
    ) -> None:
        if questions < 1:
            raise ValueError(f"questions: got {questions}; ask at least 1")
        if questions > 1 and texts.is_message:
            raise ValueError(f"questions: style {texts.style!r} asks one; use 1, or style 'trace'")
        self.encoder = TextEncoder(tokenizer)
        self.texts, self.objective, self.questions, self._generated = texts, objective, questions, generated

    def batch(
        self,
        graphs: Graphs,
        counts: int | IntArray | None = None,
        *,
        instance: IntArray | None = None,
        facts: dict[str, IntArray] | None = None,
        loops: int | None = None,
    ) -> TextBatch:
        """Build a batch; see `GraphBatcher.batch` for the arguments.

        Raises:
            ValueError: a count below 1, or a number of loops.
        """
        if loops is not None:
            raise ValueError("train.loops: a written path has as many steps as are requested; leave it out")
        steps = np.array(np.broadcast_to(graphs.depth if counts is None else counts, len(graphs)), dtype=np.int64)
        if steps.size and steps.min() < 1:
            raise ValueError(f"counts: got {steps.min()}; ask for 1 step or more")
        loops = int(steps.max(initial=1))
        labels = graphs.states(loops).astype(np.int64)
        labels[np.arange(loops) >= steps[:, None]] = IGNORE
        rows = np.arange(len(graphs)) if instance is None else instance
        starts = self._further_starts(graphs)
        return self.encoder.batch(
            [self._document(graphs, row, int(steps[row]), starts[row]) for row in range(len(graphs))],
            self.objective,
            generated=None if self._generated is None else self._generated[rows],
            labels=labels,
            steps=steps,
            instance=rows,
            facts=graphs.facts() if facts is None else facts,
        )

    def _document(self, graphs: Graphs, row: int, count: int, starts: IntArray) -> list[TextExample]:
        asked = query(graphs, row, count)
        example = self.texts.example(asked)
        document = [self.encoder.message(example) if self.texts.is_message else example]
        further = [replace(asked, start=start) for start in starts.tolist()]
        return document + [self.texts.further(question) for question in further]

    def _further_starts(self, graphs: Graphs) -> IntArray:
        """[B, questions - 1] starts of the further questions, drawn from the tables' own bytes: a pure function."""
        digest = hashlib.sha256(graphs.sources.tobytes() + graphs.targets.tobytes()).digest()
        rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
        size, rules = graphs.sources.shape
        picks = rng.integers(rules, size=(size, self.questions - 1))
        return np.take_along_axis(graphs.sources, picks, axis=1)


class GraphTextDataModule(GraphSourcesDataModule):
    """Loads graphs as text for ordinary language models.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        style: "trace" (the prompt, then the whole path), "steps" or "direct" (a message with worked examples).
        objective: "response" for fine-tuning, "all" for language modelling.
        questions: questions about each training table (style "trace").
        train: where training graphs come from; default the published cyclic split, 16 graphs of one depth a batch.
        validation: what is evaluated during training; default 64 graphs at each of 1-12 of the cyclic data.
        test: what `trainer.test` evaluates; None for nothing.
        generated: how many of the validation graphs of each depth are also validated by generation.
        template: wording of the four-line prompt.
        seed: order of the training data, or the seed of the stream. Not negative.

    Attributes:
        labels: names and texts of the labels.
        texts: what writes the examples.

    Raises:
        ValueError: an option is out of range or does not go with the others.
    """

    benchmarks = ("traces",)

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        style: GraphTextStyle = "trace",
        objective: Objective = "response",
        questions: int = 1,
        train: TrainSource | None = None,
        validation: EvaluationSource | None = None,
        test: EvaluationSource | None = None,
        generated: int = 4,
        template: str = "published",
        seed: int = 0,
    ) -> None:
        super().__init__(train, validation, test, seed)
        if generated < 0:
            raise ValueError(f"generated: got {generated}; use 0 or more graphs of each depth")
        self.texts = GraphTexts(style, template, self.train_source.letters)
        self.generated = generated
        self._tokenizer, self._objective = tokenizer, objective
        self._train = GraphTextBatcher(tokenizer, self.texts, objective, questions)

    @property
    def style(self) -> GraphTextStyle:
        """Style of the text, which an evaluation of the trained model repeats."""
        return self.texts.style

    @property
    def labels(self) -> LabelSet:
        """Names and texts of the labels."""
        return self.texts.task.labels

    def train_renderers(self) -> list[GraphTextBatcher]:
        """What writes the training batches."""
        return [self._train]

    def evaluation_renderer(self, source: EvaluationSource) -> GraphTextBatcher:
        """What writes the evaluation batches: one question a table, the first graphs of each depth generated."""
        depth = source.graphs().depth
        flags = np.zeros(len(depth), dtype=bool)
        for count in np.unique(depth):
            flags[np.flatnonzero(depth == count)[: self.generated]] = True
        return GraphTextBatcher(self._tokenizer, self.texts, self._objective, generated=flags)
