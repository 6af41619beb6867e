"""Evaluate a saved model on a benchmark.

    python evaluate.py --checkpoint checkpoints/tiny-executor-timer --benchmark graph --output results/tiny
    python evaluate.py --checkpoint DIR --output OUT --graph.fresh true --graph.counts 8192
    python evaluate.py --checkpoint runs/grammar_brackets/model --benchmark grammar --output results/brackets
    python evaluate.py --checkpoint runs/program_fsm/model --benchmark machine --machine.task fsm --output results/fsm

Writes OUT/summary.json (all numbers), OUT/outcomes.safetensors (everything the model said, from which the numbers can
be made again), OUT/report.html (curves and tables, opens without network) and OUT/table.md.
"""

from __future__ import annotations

import loopformer  # noqa: F401  (first: it sets how OpenMP waits, which torch reads when it loads)

# isort: split

from pathlib import Path

import torch
from jsonargparse import auto_cli
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from datamodules.graph_batcher import GraphBatcher
from loopformer import checkpoint as checkpoints
from loopformer.errors import one_line_errors
from loopformer.evaluation.controller import sweep_timer
from loopformer.evaluation.figures import Run
from loopformer.evaluation.grammar_benchmark import GrammarOptions
from loopformer.evaluation.grammar_run import run_grammar
from loopformer.evaluation.graph_benchmark import GraphOptions, evaluate_graphs
from loopformer.evaluation.machine_benchmark import MachineOptions
from loopformer.evaluation.machine_run import run_machines
from loopformer.evaluation.report import markdown_table, rich_table, write_report
from loopformer.evaluation.summary import summarize, write_summary

BENCHMARKS = {"graph": evaluate_graphs, "grammar": run_grammar, "machine": run_machines}
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


def evaluate(
    checkpoint: Path,
    output: Path,
    benchmark: str = "graph",
    graph: GraphOptions = GraphOptions(),  # noqa: B008
    grammar: GrammarOptions = GrammarOptions(),  # noqa: B008
    machine: MachineOptions = MachineOptions(),  # noqa: B008
    device: str = "cpu",
    precision: str = "float32",
    name: str | None = None,
    overwrite: bool = False,
) -> None:
    """Evaluate a saved model.

    Args:
        checkpoint: folder that train.py exported.
        output: folder for the results.
        benchmark: name of the benchmark.
        graph: options of the graph benchmark.
        grammar: options of the grammar benchmark.
        machine: options of the machine benchmark.
        device: torch device, such as cpu or cuda:0.
        precision: float32, or bfloat16 for autocast.
        name: how the model is called in tables and plots; by default its folder's name.
        overwrite: replace results that the output folder holds already.
    """
    if benchmark not in BENCHMARKS:
        raise ValueError(f"benchmark: {benchmark!r} is unknown; use one of {', '.join(BENCHMARKS)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision: {precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
    if not overwrite and (output / "summary.json").exists():
        raise FileExistsError(f"output: {output} holds results already; choose another folder or --overwrite true")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = checkpoints.load(checkpoint, device)
    dtype = PRECISIONS[precision]
    console = Console()
    if benchmark == "grammar":
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None):
            run_grammar(model, output, grammar, name or _run_name(checkpoint), overwrite, console)
        return
    if benchmark == "machine":
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None):
            run_machines(model, output, machine, name or _run_name(checkpoint), overwrite, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("queries", total=None)
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None):
            store, timing = evaluate_graphs(
                model,
                graph,
                advance=lambda n: progress.advance(bar, n),
                begin=lambda total: progress.update(bar, total=total),
            )
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
