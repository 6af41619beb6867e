"""Every YAML under configs/ builds; what it prints parses back to itself; the real configs have the published sizes."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from test_checkpoint import NETWORK
from test_looped import QWEN_05B, trainable

import evaluate
from loopformer import checkpoint, language_checkpoint
from loopformer.backbone import ScratchBackbone
from loopformer.cells.matrix import Cell, Job, load_matrix
from loopformer.cli import LoopformerCLI
from loopformer.language_model import LanguageModel

ROOT = Path(__file__).resolve().parents[1]
MATRICES = sorted((ROOT / "configs/ablations").glob("matrix*.yaml"))
CONFIGS = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml") if path not in MATRICES
)
EXPERIMENTS = [path for path in CONFIGS if path.count("/") == 1]
OVERLAYS = [path for path in CONFIGS if path.count("/") > 1]
BASE, TINY, CURRICULUM = "configs/arch4_executor.yaml", "configs/backbone/tiny.yaml", "configs/recipe/curriculum.yaml"
PRETRAINED = "configs/backbone/tiny_pretrained.yaml"
UNDER = {
    "configs/ablations/bridge.yaml": ["configs/arch3b.yaml"],
    "configs/ablations/count_free_prompt.yaml": ["configs/arch3b.yaml"],
    "configs/ablations/cyclic_data.yaml": ["configs/arch3b.yaml"],
    "configs/ablations/direct_loss.yaml": ["configs/arch3b.yaml"],
    "configs/ablations/full_block.yaml": ["configs/arch3b.yaml"],
    "configs/ablations/full_window.yaml": ["configs/grammar_brackets.yaml"],
    "configs/ablations/no_carry.yaml": ["configs/grammar_brackets.yaml"],
    "configs/ablations/no_fields.yaml": ["configs/grammar_brackets.yaml"],
    "configs/ablations/no_noise.yaml": ["configs/grammar_brackets.yaml"],
    "configs/ablations/no_reinjection.yaml": ["configs/grammar_brackets.yaml"],
    "configs/ablations/path_stream.yaml": [BASE, CURRICULUM],
    "configs/ablations/stop_head.yaml": [BASE, "configs/ablations/count_in_prompt.yaml"],
    "configs/recipe/depth_checkpoint.yaml": ["configs/arch1.yaml"],
    "configs/recipe/one_step.yaml": [BASE, CURRICULUM],
    "configs/recipe/trace_curriculum.yaml": ["configs/sft_trace.yaml"],
    PRETRAINED: ["configs/arch3b.yaml"],
    "configs/recipe/office_from_scratch.yaml": ["configs/program_office.yaml"],
    **{
        f"configs/recipe/grammar_sft_{name}.yaml": ["configs/grammar_sft.yaml"]
        for name in ("answers", "moves", "mixed", "brackets", "from_scratch")
    },
    "configs/recipe/permuted_alphabets.yaml": [
        "configs/grammar_brackets.yaml",
        "configs/recipe/two_prelude_layers.yaml",
    ],
    "configs/recipe/eight_layers.yaml": ["configs/grammar_search_written.yaml"],
    "configs/recipe/letters_first.yaml": ["configs/grammar_search.yaml", "configs/recipe/looked_up_letters.yaml"],
    "configs/recipe/local_global.yaml": ["configs/grammar_search.yaml"],
    "configs/recipe/looked_up_letters.yaml": ["configs/grammar_search.yaml"],
    "configs/recipe/half_instructions.yaml": ["configs/program_jumps.yaml"],
    "configs/recipe/two_layers.yaml": ["configs/program_jumps.yaml"],
    "configs/recipe/carried_fields.yaml": ["configs/program_registers.yaml"],
    "configs/recipe/eight_heads.yaml": ["configs/program_registers.yaml"],
    "configs/recipe/from_graph_executor.yaml": ["configs/program_fsm.yaml"],
}
"""The files that an overlay goes on top of; the Architecture 4 executor unless named here."""


def chain(path: str) -> list[str]:
    """The files of a run that uses this one and builds on this machine."""
    if path in EXPERIMENTS:
        stage = "executor" in yaml.safe_load((ROOT / path).read_text())["model"]["init_args"]
        return [path] if stage else [path, TINY]
    experiment, *overlays = UNDER.get(path, [BASE])
    if path == PRETRAINED:
        return [experiment, *overlays, path]
    return [experiment, TINY, *overlays, *([] if path == TINY else [path])]


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    checkpoint.save(tmp_path / "executor", checkpoint.build_network(NETWORK), NETWORK)
    return tmp_path / "executor"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """What base_lm.yaml exports, untrained."""
    config = NETWORK["init_args"]["backbone"]["init_args"]["config"]
    language_checkpoint.save(tmp_path / "base", LanguageModel(ScratchBackbone(config)), {})
    return tmp_path / "base"


def arguments(path: str, executor: Path, base: Path, output: Path) -> list[str]:
    files = chain(path)
    given = [word for file in files for word in ("--config", str(ROOT / file))]
    if "controller" in path or "timer" in path:
        given += ["--model.init_args.executor", str(executor)]
    if path == PRETRAINED:
        given += ["--model.init_args.network.init_args.backbone.init_args.model", str(base)]
    if path == "configs/program_traces.yaml":
        given += ["--data.init_args.train.init_args.count", "8"]  # each program is traced when the data are opened
    if "grammar_sft" in path:
        given += ["--data.init_args.train", "BracketPool"]  # a pool of grammars is drawn when the data are opened
    return [*given, "--output", str(output)]


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    """Our own warnings of settings that have no effect."""
    return [str(w.message) for w in caught if str(w.message).startswith(("losses.", "network.", "optimizer."))]


@pytest.mark.parametrize("path", CONFIGS)
def test_config_builds(path: str, executor: Path, base: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cli = LoopformerCLI(arguments(path, executor, base, tmp_path / "run"))
    assert told(caught) == []
    labels = getattr(cli.datamodule, "labels", None)  # text tasks may have none
    assert (
        labels is None or isinstance(cli.model.network, LanguageModel) or cli.model.network.labels == list(labels.texts)
    )
    assert len(cli.datamodule.train_dataloader()) > 0
    assert sum(p.numel() for p in cli.model.parameters()) < 1_000_000, "an overlay has lost the embedded sizes"
    assert not (tmp_path / "run" / "config.yaml").exists(), "building a run writes no run"
    assert_cards_name_what_evaluates(path, cli.datamodule.benchmarks)


def assert_cards_name_what_evaluates(path: str, benchmarks: tuple[str, ...]) -> None:
    """evaluate.py takes the benchmarks that a model card names; the experiment's own comment says the same."""
    comment = (ROOT / chain(path)[0]).read_text()
    for benchmark in benchmarks:
        words = f"--checkpoint x --output y --benchmark {benchmark}".split()
        parsed = evaluate._parser("run").parse_args(words)
        assert parsed.benchmark == benchmark.split()[0]
        if "evaluate.py" in comment:
            assert f"--benchmark {parsed.benchmark}" in comment
        if parsed.benchmark == "program":
            assert parsed.program.part in comment


@pytest.mark.parametrize("path", [path for path in CONFIGS if "/ablations/" not in path])  # those: as cells, below
def test_printed_config_parses_back_to_itself(path: str, executor: Path, base: Path, tmp_path: Path) -> None:
    first = printed(arguments(path, executor, base, tmp_path / "run"))
    again = tmp_path / "printed.yaml"
    again.write_text(first)
    assert printed(["--config", str(again)]) == first


def real_size(config: dict[str, Any]) -> Any:
    """A network at its real size, from the Qwen2 configuration alone: no weights are fetched."""
    backbone = config["init_args"]["backbone"]
    assert backbone["init_args"]["model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    split = backbone["init_args"]["split"]
    config["init_args"]["backbone"] = {
        "class_path": "ScratchBackbone",
        "init_args": {"config": QWEN_05B, "split": split},
    }
    with torch.device("meta"):
        return checkpoint.build_network(config)


def test_real_architecture_4_has_the_published_size() -> None:
    network = real_size(yaml.safe_load((ROOT / BASE).read_text())["model"]["init_args"]["network"])
    assert trainable(network) == 180_108_059
    assert trainable(network.halting) == 332_417


def printed(given: list[str]) -> str:
    """What --print_config prints; nothing is instantiated."""
    text = io.StringIO()
    with redirect_stdout(text), pytest.raises(SystemExit):
        LoopformerCLI([*given, "--print_config"])
    return text.getvalue()


def cells(matrix: Path) -> dict[str, Cell]:
    return load_matrix(matrix, ROOT)


def cell_arguments(cell: Cell, output: Path, executor: Path | None = None) -> list[str]:
    """What train.py gets, with absolute paths and an executor that exists."""
    words = Job(cell, 1, output).train_command()[1:]
    if executor is not None and cell.executor is not None:
        words[words.index("--model.init_args.executor") + 1] = str(executor)
    return [str(ROOT / word) if word.startswith("configs/") else word for word in words]


CELLS = [(matrix, name) for matrix in MATRICES for name in cells(matrix)]
SIZES = {
    "arch1": 270_336,
    "arch1_depth": 270_336,
    "arch2": 387_073,
    "arch3a": 387_073,
    "arch3b": 387_073,
    "arch3b_cyclic_data": 387_073,
    "arch3b_count_free_prompt": 270_336 + 332_417,
    "arch3b_bridge": 387_073 + 803_712,
    "arch3b_direct_loss": 387_073 + 23_322,
    "arch3b_full_block": 178_948_608 + 116_737,
    "arch4": 180_108_059,
    "arch4_count_in_prompt": 180_108_059,
    "arch4_stop_head": 180_108_059 - 332_417 + 116_737,
    "arch4_no_bridge": 180_108_059 - 803_712,
    "arch4_bridge_scale_only": 180_108_059 - 803_712,
    "arch4_lora": 180_108_059 - 178_948_608 + 270_336,
    "arch4_everything": 180_108_059 - 178_948_608 + 494_032_768,
    "arch4_no_direct_loss": 180_108_059 - 23_322,
}
"""Trainable parameters of the cells on the real backbone; the others have those of Architecture 4."""


def test_every_architecture_and_ablation_is_in_a_matrix() -> None:
    named = {file for matrix in MATRICES for cell in cells(matrix).values() for file in cell.configs}
    wanted = {path for path in CONFIGS if path.startswith(("configs/arch", "configs/ablations/"))}
    assert len(wanted) > 20
    assert sorted(wanted - named) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, cell in cells(MATRICES[0]).items() if cell.executor is None])
def test_real_cells_have_their_sizes(name: str, tmp_path: Path) -> None:
    cell = cells(MATRICES[0])[name]
    config = yaml.safe_load(printed(cell_arguments(cell, tmp_path)))
    assert config["data"]["init_args"]["seed"] == config["seed_everything"] == 1
    network = real_size(config["model"]["init_args"]["network"])
    assert trainable(network) == SIZES.get(name, SIZES["arch4"])


@pytest.mark.slow
@pytest.mark.parametrize(("matrix", "name"), CELLS, ids=[f"{m.stem}-{name}" for m, name in CELLS])
def test_printed_cells_parse_back_to_themselves(matrix: Path, name: str, executor: Path, tmp_path: Path) -> None:
    first = printed(cell_arguments(cells(matrix)[name], tmp_path, executor))
    again = tmp_path / "printed.yaml"
    again.write_text(first)
    assert printed(["--config", str(again)]) == first


@pytest.mark.slow
@pytest.mark.parametrize(("matrix", "name"), CELLS, ids=[f"{m.stem}-{name}" for m, name in CELLS])
def test_cells_build_on_a_tiny_backbone(matrix: Path, name: str, executor: Path, base: Path, tmp_path: Path) -> None:
    cell = load_matrix(matrix, ROOT, [TINY] if matrix == MATRICES[0] else [])[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        words = cell_arguments(cell, tmp_path / "runs", executor)
        if str(ROOT / PRETRAINED) in words:
            words += ["--model.init_args.network.init_args.backbone.init_args.model", str(base)]
        cli = LoopformerCLI(words)
    assert told(caught) == []
    if cell.executor is None:
        assert type(cli.model.network.adaptation).__name__ == last_adaptation(cell)


def last_adaptation(cell: Cell) -> str:
    """The class that the last file to name an adaptation names."""
    found = "none"
    for file in cell.configs:
        network = yaml.safe_load((ROOT / file).read_text()).get("model", {}).get("init_args", {}).get("network", {})
        found = network.get("init_args", {}).get("adaptation", {}).get("class_path", found)
    return found


def test_half_instructions_keep_every_field(executor: Path, base: Path, tmp_path: Path) -> None:
    path = "configs/recipe/half_instructions.yaml"
    cli = LoopformerCLI(arguments(path, executor, base, tmp_path / "run"))
    under = yaml.safe_load((ROOT / "configs/program_jumps.yaml").read_text())["model"]["init_args"]["network"]
    wanted = set(under["init_args"]["state_heads"]["init_args"]["heads"]) | {"phase"}
    assert set(cli.model.network.state_heads.sizes) == wanted


def test_overlays_state_only_differences() -> None:
    """A field that an overlay repeats with the value below it would rot silently."""

    def repeated(over: Any, under: Any, where: str) -> list[str]:
        if where.endswith(".heads"):
            return []  # one value to the command line: an overlay that adds a head names them all
        if isinstance(over, dict) and isinstance(under, dict):
            if "class_path" in over and over.get("class_path") != under.get("class_path"):
                return []
            return [r for k in over if k in under for r in repeated(over[k], under[k], f"{where}.{k}")]
        return [where] if over == under and not where.endswith("class_path") else []

    for path in OVERLAYS:
        base = yaml.safe_load((ROOT / UNDER.get(path, [BASE])[0]).read_text())
        assert repeated(yaml.safe_load((ROOT / path).read_text()), base, "") == [], path
