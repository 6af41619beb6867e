"""The command line of train.py: LightningCLI with one run folder, exact resume and offline logging.

This is the one module of loopformer that knows of the callbacks: it puts a run together.
"""

from __future__ import annotations

import csv
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities import rank_zero_only
from transformers.utils.logging import disable_progress_bar

from callbacks.artifact import ModelArtifact
from callbacks.export import ExportModel, command_line
from callbacks.generation import GenerationMetrics
from callbacks.guard import NonFiniteGuard
from callbacks.metrics import ExecutionMetrics
from callbacks.random_state import RandomState
from callbacks.tables import ValidationTables
from loopformer import parts  # noqa: F401  (short class names)
from loopformer.causal_lm import CausalLMModule
from loopformer.executor import ExecutorModule
from loopformer.files import write_text
from loopformer.initialized import InitializedModule
from loopformer.tracking import Experiment, Wandb
from loopformer.wandb_logger import RunLogger

CONFIG = "config.yaml"


class RunError(ValueError):
    """A user's mistake found while a run is put together."""


class LoopformerCLI(LightningCLI):
    """Parses and builds a run; `fit` trains it."""

    def __init__(self, args: list[str] | None = None) -> None:
        super().__init__(
            L.LightningModule,
            L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            run=False,
            save_config_callback=None,
            auto_configure_optimizers=False,
            parser_kwargs={"exit_on_error": False},
            seed_everything_default=0,
            args=args,
            trainer_defaults={"callbacks": [RichProgressBar(leave=True)]},
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the run's own options."""
        parser.add_argument("--output", type=str, default="runs/default", help="folder of this run")
        parser.add_argument("--resume", type=bool, default=False, help="continue the run in --output")
        parser.add_argument("--wandb", type=Wandb, default=Wandb(), help="W&B logging")
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {
                "checkpoint.save_last": True,
                "checkpoint.auto_insert_metric_name": False,
                "checkpoint.filename": "step-{step:06d}",
                "checkpoint.enable_version_counter": False,
                "trainer.logger": None,
                "trainer.enable_model_summary": False,
                "trainer.use_distributed_sampler": False,
                "trainer.num_sanity_val_steps": 0,
            }
        )
        parser.link_arguments("output", "trainer.default_root_dir")
        parser.link_arguments("output", "checkpoint.dirpath", compute_fn=_checkpoint_folder)
        parser.link_arguments("model", "data.init_args.tokenizer", compute_fn=_tokenizer, apply_on="instantiate")

    def before_instantiate_classes(self) -> None:
        """Refuse to overwrite a run, and set defaults that need the whole config."""
        os.environ.setdefault("WANDB_SILENT", "true")
        _set_up_messages()
        folder = Path(self.config.output)
        last = _last_checkpoint(folder)
        if self.config.resume and not last.is_file():
            raise RunError(f"--resume: {last} does not exist; start the run without --resume")
        # Other ranks start after rank 0 has written the folder's config.
        if not self.config.resume and getattr(rank_zero_only, "rank", 0) == 0:
            _refuse_run(folder)
        if self.config.trainer.gradient_clip_val is not None:
            raise RunError(
                "trainer.gradient_clip_val: executor and controller are clipped apart; "
                "set model.init_args.optimizer.clip"
            )

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Build the trainer with the callbacks and loggers that every run has."""
        given = self.config.trainer.logger
        if given is None or given is True:
            kwargs["logger"] = self._loggers()
        return super().instantiate_trainer(**kwargs)

    def _loggers(self) -> list[Logger]:
        folder, options = Path(self.config.output), self.config.wandb
        csv_logger, rows = self._csv_logger(folder)
        loggers: list[Logger] = [csv_logger]
        mode = os.environ.get("WANDB_MODE", options.mode)
        if mode == "disabled" or self.config.trainer.fast_dev_run:
            return loggers
        folder.mkdir(parents=True, exist_ok=True)
        id_file = folder / "wandb_id"
        run_id = id_file.read_text().strip() if id_file.exists() else os.urandom(4).hex()
        write_text(id_file, run_id, overwrite=True)
        experiment = self.experiment()
        logger = RunLogger(
            folder,
            resumed=self.config.resume,
            name=f"{folder.parent.name}/{folder.name}",
            id=run_id,
            resume="allow" if mode == "online" else None,
            offline=mode != "online",
            project=options.project,
            group=options.group or experiment.group,
            tags=list(dict.fromkeys([*experiment.tags, *options.tags])),
            entity=options.entity,
            job_type="train",
            config={**self.plain_config(), "experiment": experiment.as_config()},
        )
        for step, row in rows:  # those that W&B's own files hold already are passed over
            logger.log_metrics(row, step)
        return [*loggers, logger]

    def experiment(self) -> Experiment:
        """Name the experiment after its YAML files."""
        return Experiment.of(self.plain_config(), [str(path) for path in self.config.get("config") or []])

    def _csv_logger(self, folder: Path) -> tuple[CSVLogger, list[tuple[int, dict[str, Any]]]]:
        """Log to metrics.csv; a resumed run carries on below the rows that its checkpoint has seen, returned too."""
        path, rows = folder / "metrics.csv", []
        if self.config.resume and path.is_file():
            reached = torch.load(_last_checkpoint(folder), map_location="cpu", weights_only=True)["global_step"]
            with path.open(newline="") as file:
                table = [(int(row.pop("step")), row) for row in csv.DictReader(file)]
            rows = [(step, _numbers(row)) for step, row in table if step < reached]
        logger = CSVLogger(folder, name="", version="", flush_logs_every_n_steps=50)
        for step, row in rows:  # the logger starts its file anew
            logger.log_metrics(row, step)
        if rows:
            logger.save()
        return logger, rows

    def plain_config(self) -> dict[str, Any]:
        """Return the parsed config as plain types."""
        parsed: dict[str, Any] = yaml.safe_load(self.parser.dump(self.config, skip_none=False, skip_validation=True))
        return parsed

    def fit(self) -> None:
        """Save the config, train (or continue), export."""
        folder = Path(self.config.output)
        config = self.plain_config()
        self._add_run_callbacks(config)
        if self.trainer.is_global_zero and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._save_config(folder / CONFIG, config)
        resume = str(_last_checkpoint(folder)) if self.config.resume else None
        if resume is None and isinstance(self.model, InitializedModule):
            self.model.load_initial()
        try:
            self.trainer.fit(self.model, datamodule=self.datamodule, ckpt_path=resume, weights_only=True)
        except Exception:
            if resume is None and self.trainer.global_step == 0:  # no run has begun: the folder stays free for it
                (folder / CONFIG).unlink(missing_ok=True)
            raise

    def _add_run_callbacks(self, config: dict[str, Any]) -> None:
        network = config["model"]["init_args"].get("network")
        provenance: dict[str, Any] = {"command": command_line(), "seed": config["seed_everything"]}
        provenance["trained_counts"] = list(getattr(self.datamodule, "trained_counts", []))
        provenance["benchmarks"] = list(self.datamodule.benchmarks)
        if self.datamodule.recipes:
            provenance["recipes"] = {machine: dict(recipe) for machine, recipe in self.datamodule.recipes.items()}
        provenance["experiment"] = self.experiment().as_config()
        for logger in self.trainer.loggers:
            if isinstance(logger, RunLogger):
                provenance["wandb"] = {"run": logger.version, "project": self.config.wandb.project}
        added: list[L.Callback] = [RandomState(), NonFiniteGuard()]
        if isinstance(self.model, ExecutorModule):
            metrics = ExecutionMetrics()
            added += [metrics, ValidationTables(metrics)]
        if isinstance(self.model, CausalLMModule) and hasattr(self.datamodule, "labels"):
            added.append(GenerationMetrics())
        if not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            model = str(Path(config["output"]) / "model")
            added.append(ExportModel(model, network, provenance))
            if self.config.wandb.artifacts:
                added.append(ModelArtifact(model))
        # ModelCheckpoint stays last: what it saves must hold every other callback's final state of the step.
        self.trainer.callbacks[:0] = added  # type: ignore[attr-defined]

    def _save_config(self, path: Path, config: dict[str, Any]) -> None:
        if path.exists():
            before = yaml.safe_load(path.read_text())
            changed = [k for k in ("model", "data", "seed_everything") if before.get(k) != config.get(k)]
            if changed:
                warnings.warn(f"--resume: {', '.join(changed)} differ from {path}, which stays as it is", stacklevel=2)
            return
        write_text(path, yaml.safe_dump(config, sort_keys=False))


def _refuse_run(folder: Path) -> None:
    if not (folder / CONFIG).exists():
        return
    fix = "choose another folder, or continue it with --resume=true"
    if not _last_checkpoint(folder).is_file():
        fix = "it has no checkpoint to continue from: choose another folder, or remove this one"
    raise RunError(f"--output: {folder} holds a run already; {fix}")


def _set_up_messages() -> None:
    """Show our own messages; silence notices that are wrong for this project. What a user can act on stays."""
    logging.basicConfig(format="%(message)s")
    for name in ("callbacks", "loopformer.initial"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # devices found, advertisements
    disable_progress_bar()  # the library's own, one for each file of weights
    for message in (
        r"Found \d+ module\(s\) in eval mode",  # the frozen backbone is in eval mode on purpose
        r"Experiment logs directory .* exists and is not empty",  # it holds this run's other files
        r"It is recommended to use `self\.log\(.*sync_dist",  # the metrics have exchanged those values themselves
        r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's own affair
    ):
        warnings.filterwarnings("ignore", message=message)


def _numbers(row: dict[str, str]) -> dict[str, Any]:
    return {name: float(value) for name, value in row.items() if value}


def _checkpoint_folder(output: str) -> str:
    return str(Path(output) / "checkpoints")


def _last_checkpoint(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def _tokenizer(model: Any) -> Any:
    return model.network.backbone.tokenizer
