"""The matrix file: which configs and overrides make a cell, and the commands that run it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SOURCES = ("executor", "initial")
"""Fields that name a cell above, whose exported model a cell needs."""


@dataclass(frozen=True)
class Cell:
    """One experiment of a matrix.

    Attributes:
        name: names its folder.
        configs: config files in order, later ones on top; the first is the experiment.
        overrides: single fields on top of the files, by dotted name.
        executor: cell over whose exported executor this stage is trained, seed by seed; None for a run of its own.
        initial: cell whose exported model this training starts from, seed by seed; None for new weights.
    """

    name: str
    configs: tuple[str, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    executor: str | None = None
    initial: str | None = None


@dataclass(frozen=True)
class Job:
    """A cell with one seed, and where it runs.

    Attributes:
        cell: the experiment.
        seed: seed of the weights and of the data's order.
        root: folder of all cells.
    """

    cell: Cell
    seed: int
    root: Path

    @property
    def name(self) -> str:
        """Cell and seed, as in the folder's name."""
        return f"{self.cell.name}/seed{self.seed}"

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.root / self.cell.name / f"seed{self.seed}"

    @property
    def model(self) -> Path:
        """Folder of the exported model; it appears when training is over."""
        return self.folder / "model"

    @property
    def executor(self) -> Path | None:
        """Folder of the exported executor that this stage needs."""
        return None if self.cell.executor is None else self._model_of(self.cell.executor)

    @property
    def initial(self) -> Path | None:
        """Folder of the exported model that this training starts from."""
        return None if self.cell.initial is None else self._model_of(self.cell.initial)

    def _model_of(self, cell: str) -> Path:
        return self.root / cell / f"seed{self.seed}" / "model"

    @property
    def summary(self) -> Path:
        """File of the evaluation's numbers; evaluate.py writes it last."""
        return self.folder / "evaluation" / "summary.json"

    def train_command(self, overrides: Sequence[str] = ()) -> list[str]:
        """Arguments of `python` that train this cell, without --resume."""
        words = ["train.py", *(word for path in self.cell.configs for word in ("--config", path))]
        if self.executor is not None:
            words += ["--model.init_args.executor", str(self.executor)]
        if self.initial is not None:
            words += ["--model.init_args.initial", "ExportedWeights"]
            words += ["--model.init_args.initial.init_args.source", str(self.initial)]
        words += [f"--{name}={_plain(value)}" for name, value in self.cell.overrides.items()]
        words += [*overrides, "--seed_everything", str(self.seed), "--data.init_args.seed", str(self.seed)]
        return [*words, "--output", str(self.folder)]

    def evaluate_command(self, options: Sequence[str] = ()) -> list[str]:
        """Arguments of `python` that evaluate the exported model."""
        words = ["evaluate.py", "--checkpoint", str(self.model), "--output", str(self.summary.parent)]
        return [*words, "--name", self.name, *options]


def load_matrix(path: Path, root: Path, extra: Sequence[str] = ()) -> dict[str, Cell]:
    """Read a matrix file.

    Args:
        path: YAML file with `cells` (name -> list of files, or {configs, overrides, executor, initial}) and optionally
            `common`, files for every cell.
        root: folder to which the named files are relative.
        extra: further files for every cell. They and the common ones come right after a cell's experiment, so that its
            own overlays stay last; stages over an executor take neither, since their backbone is the executor's.

    Returns:
        The cells by name, in the file's order.

    Raises:
        ValueError: the file cannot be read, or a cell is not well formed; names the cell, the value and the fix.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"--matrix: {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict) or not isinstance(document.get("cells"), dict) or not document["cells"]:
        raise ValueError(f"--matrix: {path} has no mapping 'cells'; give name: [file, ...] for each cell")
    if unknown := set(document) - {"cells", "common"}:
        raise ValueError(f"--matrix: {path} has unknown fields {sorted(unknown)}; use 'cells' and 'common'")
    common = document.get("common", [])
    if not isinstance(common, list) or not all(isinstance(file, str) for file in common):
        raise ValueError(f"--matrix: common is {common}; list files")
    shared = [*common, *extra]
    cells: dict[str, Cell] = {}
    for name, given in document["cells"].items():
        cell = cells[str(name)] = _read_cell(str(name), given, shared, cells)
        for file in cell.configs:
            if not (root / file).is_file():
                raise ValueError(f"cell {name}: {file} does not exist; name files relative to {root}")
    return cells


def _read_cell(name: str, given: Any, shared: list[str], before: Mapping[str, Cell]) -> Cell:
    fields = {"configs": given} if isinstance(given, list) else given
    if not isinstance(fields, dict) or set(fields) - {"configs", "overrides", *SOURCES}:
        raise ValueError(f"cell {name}: got {given}; use a list of files, or configs, overrides, executor and initial")
    configs, overrides = fields.get("configs"), fields.get("overrides", {})
    if not isinstance(configs, list) or not configs or not all(isinstance(file, str) for file in configs):
        raise ValueError(f"cell {name}: configs is {configs}; list at least the experiment's file")
    if not isinstance(overrides, dict) or not all(isinstance(field, str) for field in overrides):
        raise ValueError(f"cell {name}: overrides is {overrides}; give a mapping of dotted names to values")
    if "/" in name or name.startswith("."):
        raise ValueError(f"cell {name}: the name is a folder's; leave out '/' and a leading '.'")
    sources = {source: None if fields.get(source) is None else str(fields[source]) for source in SOURCES}
    for source, cell in sources.items():
        if cell is not None and cell not in before:
            raise ValueError(f"cell {name}: {source} {cell!r} is no cell above it; move or add it")
    if sources["executor"] is None:
        configs = [configs[0], *shared, *configs[1:]]
    return Cell(name, tuple(configs), overrides, **sources)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
