"""The graph datamodule: configuration, batches, streams and their curriculum, resume, ranks."""

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule, Trainer
from scipy.stats import chisquare
from test_graph_prompts import MERGING, PLAIN

from datamodules.batch import IGNORE
from datamodules.graph import GraphDataModule
from datamodules.graph_evaluation import EvaluationSplit, GeneratedEvaluation
from datamodules.graph_sources import GeneratedSplit, GraphStream, PublishedSplit
from datamodules.tasks.graph import KINDS
from datamodules.tasks.graph_generators import GraphRecipe
from datamodules.tasks.graph_stream import Stage, draw_batch, draw_graphs, growing_graphs

SMALL = [Stage(4, [1], 8), Stage(6, [1, 2], 5)]


def module(train=None, **options):
    return GraphDataModule(
        MERGING, train or PublishedSplit("path-6"), EvaluationSplit("path-6", per_depth=32), **options
    )


def same(one, other):
    return all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("labels", "steps", "initial", "digits")
    ) and all(torch.equal(one.views[v].input_ids, other.views[v].input_ids) for v in one.views)


def test_published_epoch_is_grouped_and_complete():
    data = GraphDataModule(PLAIN, PublishedSplit("path-12", batch_size=4))
    data.setup("fit")
    loader = data.train_dataloader()
    source = loader.source
    rows = [source._order.rows(0, i) for i in range(len(loader))]
    assert sorted(np.concatenate(rows).tolist()) == list(range(30_000))
    assert all(len(set(source.graphs.depth[r])) == 1 for r in rows)
    batch = next(iter(loader))
    assert batch.instance.tolist() == rows[0].tolist()
    assert (batch.labels != IGNORE).all()
    assert set(batch.facts) == {"kind", "seed", "graph", "tail", "period", "reachable"}


def test_published_epochs_have_the_published_number_of_updates():
    cyclic = GraphDataModule(PLAIN, PublishedSplit("cyclic", batch_size=4)).train_dataloader()
    path = GraphDataModule(PLAIN, PublishedSplit("path-6", batch_size=4, group_by_depth=False)).train_dataloader()
    assert len(cyclic) / 4 == 2_250
    assert len(path) / 2 == 3_750


def test_ungrouped_batches_mix_depths():
    loader = module(PublishedSplit("path-6", 4, group_by_depth=False)).train_dataloader()
    assert len(set(next(iter(loader)).steps.tolist())) > 1


@pytest.mark.parametrize(("data", "per_depth", "depths"), [("path-6", 32, 8), ("cyclic", 64, 12)])
def test_validation_has_so_many_of_each_depth(data, per_depth, depths):
    loader = GraphDataModule(PLAIN, validation=EvaluationSplit(data, per_depth=per_depth)).val_dataloader()
    batches = list(loader)
    assert all(len(set(batch.steps.tolist())) == 1 for batch in batches)
    steps = torch.cat([batch.steps for batch in batches])
    assert torch.bincount(steps).tolist() == [0] + [per_depth] * depths
    assert len(set(torch.cat([batch.instance for batch in batches]).tolist())) == per_depth * depths


def test_whole_test_split_and_chosen_depths():
    split = EvaluationSplit("cyclic", "deep", per_depth=None, depths=[13, 64])
    data = GraphDataModule(PLAIN, test=split)
    data.setup("test")
    assert [batch.steps.tolist() for batch in data.test_dataloader()] == [[13] * 32, [64] * 32]
    with pytest.raises(ValueError, match="test: none configured"):
        module().test_dataloader()


def test_generated_data_with_two_letter_names_must_agree():
    recipe = GraphRecipe("path", 1, "train", (2, 3), nodes=8, letters=1, absorbing=True, extra_steps=2)
    data = module(GeneratedSplit(recipe, 12, batch_size=4))
    data.setup("fit")
    assert sorted({int(b.steps[0]) for b in data.train_dataloader()}) == [4, 5]
    two = GraphRecipe("mixture", 1, "train", (2,), nodes=8, letters=2)
    with pytest.raises(ValueError, match="validation: its node names have 1 letters, those of train have 2"):
        module(GeneratedSplit(two, 12))
    evaluation = GeneratedEvaluation(GraphRecipe("mixture", 1, "validation", (2, 3), nodes=8), 10)
    assert sum(len(b) for b in GraphDataModule(PLAIN, validation=evaluation).val_dataloader()) == 10


def test_wordings_take_turns_in_training_and_differ_in_evaluation():
    data = GraphDataModule(PLAIN, PublishedSplit(), templates=["published", "arrows"], evaluation_template="sentences")
    data.setup("fit")
    batches = iter(data.train_dataloader())
    widths = [next(batches).views["executor"].input_ids.shape[1] for _ in range(4)]
    assert widths[0] == widths[2] != widths[1] == widths[3]
    assert next(iter(data.val_dataloader())).views["executor"].input_ids.shape[1] not in widths


def test_batch_moves_as_a_whole():
    data = module()
    batch = next(iter(data.train_dataloader()))
    moved = data.transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert moved.views["full"].input_ids.device.type == moved.facts["tail"].device.type == "meta"


def test_stream_is_a_pure_function_of_its_key():
    stage = Stage(9, [3, 5], 16)
    one, again = draw_batch(stage, (1, 2, 0, 0)), draw_batch(stage, (1, 2, 0, 0))
    assert all(np.array_equal(getattr(one, n), getattr(again, n)) for n in ("sources", "targets", "start", "depth"))
    for key in ((2, 2, 0, 0), (1, 3, 0, 0), (1, 2, 1, 0), (1, 2, 0, 1)):
        assert not np.array_equal(one.sources, draw_batch(stage, key).sources)


def test_stream_distribution():
    graphs = draw_graphs(np.random.default_rng(0), 6_000, 12)
    assert chisquare(np.bincount(graphs.kind)).pvalue > 1e-3
    assert chisquare(np.bincount(graphs.start, minlength=26)).pvalue > 1e-3
    assert chisquare(np.bincount(graphs.sources[:, 0], minlength=26)).pvalue > 1e-3
    assert chisquare(np.bincount(graphs.targets[:, 7], minlength=26)).pvalue > 1e-3
    orbits = graphs.orbits()
    kinds = {name: graphs.kind == k for k, name in enumerate(KINDS)}
    assert (np.diff(np.sort(graphs.sources, axis=1), axis=1) > 0).all()
    assert (orbits.period[kinds["full_cycle"]] == 12).all()
    assert (np.sort(graphs.sources, axis=1) == np.sort(graphs.targets, axis=1))[~kinds["random_function"]].all()
    # The cycle through a given node of a random permutation has every length 1..n with the same probability.
    lengths = np.bincount(orbits.period[kinds["permutation"]], minlength=13)[1:]
    assert chisquare(lengths).pvalue > 1e-3
    # Expected number of different states of a random function on n nodes: sum of n!/((n-k)! n^k), k = 1..n.
    expected = sum(np.prod((12 - np.arange(k)) / 12) for k in range(1, 13))
    assert abs(orbits.reachable[kinds["random_function"]].mean() - expected) < 0.2


def test_stream_stages():
    data = module(GraphStream(SMALL, batches_per_epoch=50))
    data.setup("fit")
    assert data.stages == SMALL
    batches = iter(data.train_dataloader())
    first = next(batches)
    assert (len(first), data.stage) == (8, 0)
    data.set_stage(1)
    depths = set()
    for _ in range(20):
        batch = next(batches)
        assert len(batch) == 5
        assert len(set(batch.steps.tolist())) == 1
        depths |= set(batch.steps.tolist())
    assert depths == {1, 2}
    with pytest.raises(ValueError, match="stage: got 2, there are 2 stages"):
        data.set_stage(2)
    with pytest.raises(ValueError, match="there are no stages"):
        module().set_stage(0)


def test_default_curriculum_grows():
    stages = growing_graphs()
    assert [stage.nodes for stage in stages[:6]] == [4, 6, 8, 12, 18, 26]
    assert stages[-1].depths == [1, 2, 3, 4, 5, 6, 8, 10, 12]


class Recorder(LightningModule):
    """Reads batches, advances the curriculum at step 3, learns nothing."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch, _batch_idx):
        self.seen.append(batch)
        return self.weight * batch.steps.sum()

    def on_train_batch_end(self, *_):
        if self.trainer.global_step == 3 and self.trainer.datamodule.stages:
            self.trainer.datamodule.set_stage(1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(data, tmp_path, steps, resume=None):
    model = Recorder()
    trainer = Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        limit_val_batches=0,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, datamodule=data, ckpt_path=resume)
    return model, trainer


@pytest.mark.parametrize("stop", [2, 4, 7])
@pytest.mark.parametrize("source", [lambda: GraphStream(SMALL, batches_per_epoch=4), lambda: PublishedSplit("path-6")])
def test_training_resumes_with_the_same_batches_and_stage(tmp_path, source, stop):
    whole, _ = run(module(source()), tmp_path, 10)
    first, trainer = run(module(source()), tmp_path, stop)
    trainer.save_checkpoint(tmp_path / "stop.ckpt")
    data = module(source())
    second, _ = run(data, tmp_path, 10, resume=tmp_path / "stop.ckpt")
    seen = first.seen + second.seen
    assert len(seen) == len(whole.seen) == 10
    assert all(same(a, b) for a, b in zip(seen, whole.seen, strict=True))
    assert torch.equal(whole.weight, second.weight)
    assert data.stage == (1 if data.stages else 0)


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    _, trainer = run(module(GraphStream(SMALL, batches_per_epoch=4)), tmp_path, 2)
    trainer.save_checkpoint(tmp_path / "stop.ckpt")
    with pytest.raises(ValueError, match="an epoch of 4 batches, this one has 5"):
        run(module(GraphStream(SMALL, batches_per_epoch=5)), tmp_path, 4, resume=tmp_path / "stop.ckpt")


def test_ranks_share_the_data():
    data = module(PublishedSplit("path-6", 7))
    train = [data.train_batches(rank, 4) for rank in range(4)]
    assert len({len(source) for source in train}) == 1
    instances = torch.cat([s.batch(1, i).instance for s in train for i in range(0, len(s), 50)])
    assert len(set(instances.tolist())) == len(instances)
    evaluation = [data.validation.open(data.batcher, rank, 3) for rank in range(3)]
    rows = [i for s in evaluation for p in range(len(s)) for i in s.batch(0, p).instance.tolist()]
    assert sorted(rows) == list(range(256))
    stream = module(GraphStream(SMALL))
    assert not same(stream.train_batches(0, 2).batch(0, 0), stream.train_batches(1, 2).batch(0, 0))


def test_configuration_composes_the_parts():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(GraphDataModule, "data", skip={"tokenizer"}, instantiate=False)
    config = {
        "train": {
            "class_path": "datamodules.graph_sources.GraphStream",
            "init_args": {"stages": [{"nodes": 4, "depths": [1]}, {"nodes": 6, "depths": [1, 2], "batch_size": 5}]},
        },
        "validation": {
            "class_path": "datamodules.graph_evaluation.EvaluationSplit",
            "init_args": {"data": "path-6", "per_depth": 32},
        },
        "test": {
            "class_path": "datamodules.graph_evaluation.GeneratedEvaluation",
            "init_args": {"recipe": {"kind": "mixture", "seed": 1, "split": "x", "depths": [1, 2]}, "size": 4},
        },
    }
    made = parser.instantiate(parser.parse_object({"data": config}))
    data = GraphDataModule(PLAIN, **vars(made.data))
    assert data.stages == [Stage(4, [1], 64), Stage(6, [1, 2], 5)]
    assert len(data.validation.graphs()) == 256
    assert data.test.graphs().depth.tolist() == [1, 2, 1, 2]
    with pytest.raises(Exception, match="dpeth"):
        parser.parse_object({"data": {"validation": {**config["validation"], "init_args": {"dpeth": 3}}}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PublishedSplit("path-7"), "train.data: got 'path-7'"),
        (lambda: PublishedSplit(batch_size=0), "train.batch_size: got 0"),
        (lambda: GeneratedSplit(GraphRecipe("mixture", 1, "x", (1,)), 0), "train.size: got 0"),
        (lambda: GraphStream([]), "train.stages: the list is empty"),
        (lambda: GraphStream(batches_per_epoch=0), "train.batches_per_epoch: got 0"),
        (lambda: Stage(0, [1]), "stages.nodes: got 0"),
        (lambda: Stage(4, []), "stages.depths: got"),
        (lambda: Stage(4, [1], 0), "stages.batch_size: got 0"),
        (lambda: draw_graphs(np.random.default_rng(0), 1, 27), "nodes: got 27"),
        (lambda: EvaluationSplit("path-6", "test"), "validation: got data 'path-6' and split 'test'"),
        (lambda: EvaluationSplit(per_depth=0), "validation.per_depth: got 0"),
        (lambda: EvaluationSplit(batch_size=0), "validation.batch_size: got 0"),
        (lambda: EvaluationSplit(depths=[13]).graphs(), r"validation.depths: cyclic validation has no depth \[13\]"),
        (lambda: GeneratedEvaluation(GraphRecipe("mixture", 1, "x", (1,)), 0), "validation.size: got 0"),
        (lambda: GraphDataModule(PLAIN, templates=[]), "templates: the list is empty"),
        (lambda: GraphDataModule(PLAIN, templates=["poem"]), "template: got 'poem'"),
        (lambda: GraphDataModule(PLAIN, seed=-1), "seed: got -1"),
    ],
)
def test_errors_name_the_field(make, message):
    with pytest.raises(ValueError, match=message):
        make()
