"""Evaluates an ordinary language model on a text benchmark and writes its results."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from loopformer import language_checkpoint
from loopformer.evaluation.generated_benchmark import TraceOptions, evaluate_traces
from loopformer.evaluation.generated_summary import generated_markdown, generated_table, summarize_generated
from loopformer.evaluation.partial import PARTIAL, discard
from loopformer.evaluation.progress import progress_bar
from loopformer.evaluation.summary import write_summary
from loopformer.files import SUMMARY, refuse_finished, write_text


def run_generated(
    checkpoint: Path,
    output: Path,
    name: str,
    options: TraceOptions,
    device: str,
    dtype: torch.dtype | None,
    overwrite: bool,
) -> None:
    """Evaluate an ordinary language model; the numbers follow from what it wrote, kept word for word.

    Args:
        checkpoint: folder that train.py exported, a Hugging Face folder, or a Hub id.
        output: folder for outcomes.safetensors, table.md and summary.json.
        name: how the model is called.
        options: of the benchmark of generated traces.
        device: torch device.
        dtype: of autocast, None for none.
        overwrite: replace results that the folder holds already.

    Raises:
        FileExistsError: the folder holds results and `overwrite` is false.
    """
    refuse_finished(output, overwrite)
    disable_progress_bar()  # the library's own, for files of weights
    model = language_checkpoint.load(checkpoint, device)
    console = Console()
    precision = torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None)
    with progress_bar(console) as (advance, begin), precision:
        store, seconds = evaluate_traces(model, options, advance, begin, output / PARTIAL)
    summary = summarize_generated(store)
    summary["timing"] = {"generation": seconds}
    store.save(output / "outcomes.safetensors", overwrite=True)
    write_text(output / "table.md", generated_markdown(summary), overwrite=True)
    write_summary(output / SUMMARY, summary, overwrite=True)  # last: it marks the folder as complete
    discard(output / PARTIAL)
    console.print(generated_table(summary, f"{name}, style {summary['style']}: {summary['queries']:,} queries"))
    console.print(f"generation took {seconds:.1f} s; open {output / 'table.md'}")
