"""Evaluate a saved model on a benchmark.

    python evaluate.py --checkpoint checkpoints/tiny-executor-timer --benchmark graph --output results/tiny
    python evaluate.py --checkpoint DIR --output OUT --graph.fresh true --graph.counts 8192
    python evaluate.py --checkpoint DIR_OR_HUB_ID --benchmark traces --output OUT    # an ordinary model writes the path

Writes OUT/summary.json (all numbers), OUT/outcomes.safetensors (everything the model said, from which the numbers can
be made again), OUT/table.md and, for looped models, OUT/report.html (curves and tables, opens without network).
"""

from __future__ import annotations

import loopformer  # noqa: F401  (first: it sets how OpenMP waits, which torch reads when it loads)

# isort: split

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jsonargparse import auto_cli
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils.logging import disable_progress_bar

from datamodules.graph_batcher import GraphBatcher
from loopformer import checkpoint as checkpoints
from loopformer import language_checkpoint
from loopformer.errors import one_line_errors
from loopformer.evaluation.controller import sweep_timer
from loopformer.evaluation.figures import Run
from loopformer.evaluation.generated_benchmark import TraceOptions, evaluate_traces
from loopformer.evaluation.generated_summary import generated_markdown, generated_table, summarize_generated
from loopformer.evaluation.graph_benchmark import GraphOptions, evaluate_graphs
from loopformer.evaluation.report import markdown_table, rich_table, write_report
from loopformer.evaluation.summary import summarize, write_summary

BENCHMARKS = {"graph": evaluate_graphs}
TEXT_BENCHMARKS = {"traces": evaluate_traces}  # of ordinary language models
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


def evaluate(
    checkpoint: Path,
    output: Path,
    benchmark: str = "graph",
    graph: GraphOptions = GraphOptions(),  # noqa: B008
    traces: TraceOptions = TraceOptions(),  # noqa: B008
    device: str = "cpu",
    precision: str = "float32",
    name: str | None = None,
    overwrite: bool = False,
) -> None:
    """Evaluate a saved model.

    Args:
        checkpoint: folder that train.py exported; for benchmark "traces" also any Hugging Face folder or Hub id.
        output: folder for the results.
        benchmark: "graph" for looped transformers, "traces" for ordinary language models.
        graph: options of the graph benchmark.
        traces: options of the benchmark of generated traces.
        device: torch device, such as cpu or cuda:0.
        precision: float32, or bfloat16 for autocast.
        name: how the model is called in tables and plots; by default its folder's name.
        overwrite: replace results that the output folder holds already.
    """
    known = (*BENCHMARKS, *TEXT_BENCHMARKS)
    if benchmark not in known:
        raise ValueError(f"benchmark: {benchmark!r} is unknown; use one of {', '.join(known)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision: {precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
    if not overwrite and (output / "summary.json").exists():
        raise FileExistsError(f"output: {output} holds results already; choose another folder or --overwrite true")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if benchmark in TEXT_BENCHMARKS:
        _evaluate_text(checkpoint, output, benchmark, traces, device, PRECISIONS[precision], name, overwrite)
        return
    model = checkpoints.load(checkpoint, device)
    console = Console()
    with _progress(console) as (advance, begin), _autocast(device, PRECISIONS[precision]):
        store, timing = BENCHMARKS[benchmark](model, graph, advance=advance, begin=begin)
    summary = summarize(store)
    summary["timing"] = vars(timing)
    summary["controller"] = sweep_timer(model.network, GraphBatcher(model.network.backbone.tokenizer))
    run = Run(name or _run_name(checkpoint), store, summary)
    store.save(output / "outcomes.safetensors", overwrite)
    write_report(output / "report.html", [run], overwrite)
    (output / "table.md").write_text(markdown_table(summary))
    write_summary(output / "summary.json", summary, overwrite)  # last: it marks the folder as complete
    console.print(rich_table(summary, f"{run.name}: {summary['queries']:,} queries"))
    console.print(f"native check: {timing.native_checks} calls agree; shared evaluation took {timing.shared:.1f} s")
    if (timer := summary["controller"]) is not None:
        console.print(
            f"timer alone: exact stop at {timer['exact_stop']:.2%} of the counts 1 to {timer['counts']:,}, "
            f"numbers to {timer['readings']:,} read within {timer['reading_error']:.2g}"
        )
    if timing.native is not None:
        ratio = timing.native / timing.shared
        console.print(
            f"one by one the queries would take {timing.native:,.0f} s, {ratio:,.0f} times longer "
            f"(extrapolated from {graph.native_sample} native calls)"
        )
    console.print(f"open {output / 'report.html'}")


def _evaluate_text(
    checkpoint: Path,
    output: Path,
    benchmark: str,
    options: TraceOptions,
    device: str,
    dtype: torch.dtype | None,
    name: str | None,
    overwrite: bool,
) -> None:
    """Evaluate an ordinary language model; the numbers follow from what it wrote, kept word for word."""
    disable_progress_bar()  # the library's own, for files of weights
    model = language_checkpoint.load(checkpoint, device)
    console = Console()
    with _progress(console) as (advance, begin), _autocast(device, dtype):
        store, seconds = TEXT_BENCHMARKS[benchmark](model, options, advance=advance, begin=begin)
    summary = summarize_generated(store)
    summary["timing"] = {"generation": seconds}
    store.save(output / "outcomes.safetensors", overwrite)
    (output / "table.md").write_text(generated_markdown(summary))
    write_summary(output / "summary.json", summary, overwrite)  # last: it marks the folder as complete
    title = f"{name or _run_name(checkpoint)}, style {summary['style']}: {summary['queries']:,} queries"
    console.print(generated_table(summary, title))
    console.print(f"generation took {seconds:.1f} s; open {output / 'table.md'}")


@contextmanager
def _progress(console: Console) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Show a bar; gives a function that advances it and one that sets its total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("queries", total=None)
        yield lambda n: progress.advance(bar, n), lambda total: progress.update(bar, total=total)


def _autocast(device: str, dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None)


def _run_name(checkpoint: Path) -> str:
    """A folder's name; exported models are all called `model`, so their runs lend them theirs."""
    folder = checkpoint.resolve()
    return "/".join(folder.parts[-3:-1]) if folder.name == "model" else folder.name


def main() -> None:
    """Run the command line."""
    with one_line_errors():
        auto_cli(evaluate, description=__doc__, as_positional=False, exit_on_error=False, allow_abbrev=False)


if __name__ == "__main__":
    main()
