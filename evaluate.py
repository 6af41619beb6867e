"""Evaluate saved models on a benchmark, compare evaluations, or look inside a model.

    python evaluate.py --checkpoint checkpoints/tiny-executor-timer --benchmark graph --output results/tiny
    python evaluate.py --checkpoint runs/a/model runs/b/model --output results/a-b
    python evaluate.py --checkpoint runs/grammar_brackets/model --benchmark grammar --output results/brackets
    python evaluate.py --checkpoint DIR_OR_HUB_ID --benchmark grammar --grammar.lane answer,written --output OUT
    python evaluate.py --checkpoint DIR_OR_HUB_ID --benchmark traces --output OUT    # an ordinary model writes the path
    python evaluate.py --checkpoint DIR_OR_HUB_ID --benchmark program --program.part office --output OUT   # or traces
    python evaluate.py --checkpoint runs/fsm/model --benchmark program --program.part machine --output results/fsm
    python evaluate.py compare --runs results/a results/b --reference a --output results/a-b
    python evaluate.py curves --runs seed0=results/fsm0 seed1=results/fsm1 --output fsm.svg
    python evaluate.py mechanism --checkpoint checkpoints/tiny-executor-timer --graph 0 --loops 12 --output results/look

An evaluation writes OUTPUT/summary.json (all numbers), OUTPUT/table.md and what the model said: as integers from which
the numbers can be made again (OUTPUT/outcomes.safetensors), or word for word (OUTPUT/outputs.jsonl). On graphs and
small machines OUTPUT/report.html has the curves and opens without network. A killed evaluation goes on where it was:
finished parts wait in OUTPUT/partial. Several checkpoints get a folder each, and a comparison. `compare` and `curves`
need no model, only the folders of evaluations.
"""

from __future__ import annotations

import loopformer  # noqa: F401  (first: it sets how OpenMP waits, which torch reads when it loads)

# isort: split

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser
from rich.console import Console

from datamodules.graph_batcher import GraphBatcher
from loopformer import checkpoint as checkpoints
from loopformer import language_checkpoint
from loopformer.errors import one_line_errors
from loopformer.evaluation import mechanism as panel
from loopformer.evaluation.compare import COMPARISON, load_runs, run_names, write_comparison
from loopformer.evaluation.controller import sweep_timer
from loopformer.evaluation.curves import read_curves, write_curves
from loopformer.evaluation.figures import Run
from loopformer.evaluation.generated_benchmark import TraceOptions
from loopformer.evaluation.generated_run import run_generated
from loopformer.evaluation.grammar_questions import GrammarOptions
from loopformer.evaluation.grammar_run import run_grammar
from loopformer.evaluation.graph_benchmark import GraphOptions, Timing, evaluate_graphs
from loopformer.evaluation.idle_options import refuse_writers_options
from loopformer.evaluation.lane_run import run_lanes
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.partial import PARTIAL, discard
from loopformer.evaluation.program_benchmark import Place, ProgramOptions, evaluate_program
from loopformer.evaluation.progress import progress_bar
from loopformer.evaluation.report import write_report
from loopformer.evaluation.stop_rules import stop_rules
from loopformer.evaluation.summary import summarize, write_summary
from loopformer.evaluation.tables import difference_table, overall_table, range_table
from loopformer.evaluation.wandb_run import Evaluation, log_evaluation
from loopformer.files import SUMMARY, TABLE, refuse_finished, write_text
from loopformer.tracking import Wandb

BENCHMARKS = {"graph": evaluate_graphs}
TEXT_BENCHMARKS = {"traces": run_generated}  # of ordinary language models
GRAMMAR, PROGRAM = "grammar", "program"
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
STORE, PAGE = "outcomes.safetensors", "report.html"


def evaluate(
    checkpoint: list[Path],
    output: Path,
    benchmark: str = "graph",
    graph: GraphOptions = GraphOptions(),  # noqa: B008
    traces: TraceOptions = TraceOptions(),  # noqa: B008
    grammar: GrammarOptions = GrammarOptions(),  # noqa: B008
    program: ProgramOptions = ProgramOptions(),  # noqa: B008
    device: str = "cpu",
    precision: str = "float32",
    name: str | None = None,
    overwrite: bool = False,
    wandb: Wandb = Wandb(mode="disabled"),  # noqa: B008
) -> None:
    """Evaluate saved models.

    Args:
        checkpoint: folders that train.py exported, one or several; for language models one of them, or any Hugging
            Face folder or Hub id.
        output: folder for the results.
        benchmark: "graph" for looped transformers, "traces" for ordinary language models, "grammar" for either, and
            "program", as its part asks.
        graph: options of the graph benchmark.
        traces: options of the benchmark of generated traces.
        grammar: options of the grammar benchmark.
        program: part of the program benchmark, and its options.
        device: torch device, such as cpu or cuda:0.
        precision: float32, or bfloat16 for autocast.
        name: how a single model is called in tables and plots; by default its folder's name.
        overwrite: replace results that the output folder holds already.
        wandb: log each evaluation as a W&B run of its own, in the group of its training run.
    """
    _check_choices(benchmark, precision, device)
    _check_options(benchmark, {"graph": graph, "traces": traces, "grammar": grammar, "program": program})
    several = len(checkpoint) > 1
    if several and (name is not None or benchmark not in BENCHMARKS):
        raise ValueError("checkpoint: several need benchmark graph, and are called by their folders instead of --name")
    names = run_names([_run_folder(path) for path in checkpoint]) if several else [name or _model_name(checkpoint[0])]
    refuse_finished(output, overwrite, SUMMARY, COMPARISON)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    place = Place(str(checkpoint[0]), names[0], output, device, PRECISIONS[precision], overwrite)
    if benchmark in BENCHMARKS:
        _evaluate_graphs(checkpoint, names, place, BENCHMARKS[benchmark], graph, wandb)
        return
    if benchmark == PROGRAM:
        evaluate_program(program, place)
    elif benchmark == GRAMMAR:
        _evaluate_grammar(place, grammar)
    else:
        run_generated(checkpoint[0], output, names[0], traces, device, place.dtype, overwrite)
    _log_written(wandb, place)


def _evaluate_graphs(
    checkpoint: list[Path],
    names: list[str],
    place: Place,
    benchmark: Callable[..., tuple[Any, Timing]],
    options: GraphOptions,
    wandb: Wandb,
) -> None:
    """Run looped models, each in its own folder if there are several, and compare them then."""
    several, output, overwrite = len(checkpoint) > 1, place.output, place.overwrite
    folders = [output / called.replace("/", "-") if several else output for called in names]
    console, runs = Console(), []
    for path, called, folder in zip(checkpoint, names, folders, strict=True):
        model = checkpoints.load(path, place.device)
        if several and not overwrite and (folder / SUMMARY).exists():  # the last evaluation was killed later on
            runs.append(_finished(called, folder, model))
            console.print(f"{called}: evaluated already, see {folder / PAGE}")
            continue
        run, timing = _measure(model, called, benchmark, options, place.dtype, folder, console)
        _write(run, folder)
        _print(run, timing, options, console)
        files = [folder / file for file in (SUMMARY, STORE, PAGE, TABLE)]
        provenance = model.config.get("provenance", {})
        log_evaluation(wandb, Evaluation(called, run.summary, provenance, files, folder), run.store)
        console.print(f"open {folder / PAGE}")
        runs.append(run)
    if several:
        _compare(runs, names[0], output, overwrite, console)


def _check_choices(benchmark: str, precision: str, device: str) -> None:
    known = (*BENCHMARKS, GRAMMAR, *TEXT_BENCHMARKS, PROGRAM)
    if benchmark not in known:
        raise ValueError(f"benchmark: {benchmark!r} is unknown; use one of {', '.join(known)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision: {precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"device: {device!r} is unknown; use one such as cpu or cuda:0") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: {device} is not here; use cpu, or install torch for CUDA")


def _check_options(benchmark: str, options: dict[str, Any]) -> None:
    """Refuse options of the benchmarks that are not run: they would do nothing."""
    for name, given in options.items():
        if name != benchmark and not _same(given, type(given)()):
            raise ValueError(f"{name}: got options of benchmark {name}, but {benchmark} is run; leave them out")


def _same(a: Any, b: Any) -> bool:
    """Whether two values are alike, objects without an equality of their own by their attributes."""
    if type(a) is not type(b) or not hasattr(a, "__dict__"):
        return bool(a == b)
    return vars(a).keys() == vars(b).keys() and all(_same(value, vars(b)[name]) for name, value in vars(a).items())


def _log_written(options: Wandb, place: Place) -> None:
    """Log an evaluation from the files that it has written."""
    config = Path(place.checkpoint) / checkpoints.CONFIG
    told = yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {}
    summary = json.loads((place.output / SUMMARY).read_text(encoding="utf-8"))
    files = sorted(path for path in place.output.iterdir() if path.is_file())
    log_evaluation(options, Evaluation(place.name, summary, told.get("provenance", {}), files, place.output))


def _finished(name: str, folder: Path, model: checkpoints.Checkpoint) -> Run:
    """Read an evaluation that is there already.

    Raises:
        FileExistsError: it is of another model.
    """
    store = OutcomeStore.load(folder / STORE)
    if {key: store.metadata.digests.get(key) for key in model.digests()} != model.digests():
        raise FileExistsError(
            f"output: {folder} holds results of another model; choose another folder or --overwrite true"
        )
    return Run(name, store, json.loads((folder / SUMMARY).read_text(encoding="utf-8")))


def _evaluate_grammar(place: Place, options: GrammarOptions) -> None:
    """Ask an ordinary model in lanes, run a looped one."""
    if language_checkpoint.is_language_model(place.checkpoint):
        run_lanes(place, options)
        return
    refuse_writers_options(options, place.checkpoint)
    model = checkpoints.load(place.checkpoint, place.device)
    with place.autocast():
        run_grammar(model, place.output, options, place.name, place.overwrite, Console())


def compare(runs: list[str], output: Path, reference: str | None = None, overwrite: bool = False) -> None:
    """Compare evaluations of the same queries.

    Args:
        runs: folders that evaluations wrote, PATH or NAME=PATH each, two or more.
        output: folder for the comparison.
        reference: name of the run with which the others are compared; by default the first.
        overwrite: replace a comparison that the output folder holds already.
    """
    refuse_finished(output, overwrite, SUMMARY, COMPARISON)
    loaded = load_runs(runs)
    _compare(loaded, reference or loaded[0].name, output, overwrite, Console())


def curves(
    runs: list[str], output: Path, metric: str = "complete", title: str | None = None, overwrite: bool = False
) -> None:
    """Draw a share by the length of the run, of one evaluation or several, into one figure.

    Args:
        runs: folders that evaluations wrote, PATH or NAME=PATH each.
        output: the figure: .svg, .png or .pdf.
        metric: a share that the summaries hold, such as complete, strict or exact_stop.
        title: written above the figure.
        overwrite: replace the figure if it exists already.
    """
    if not overwrite and output.exists():
        raise FileExistsError(f"output: {output} exists already; choose another file or --overwrite true")
    write_curves(output, read_curves(runs, metric), metric, title, overwrite)
    Console().print(f"open {output}")


def mechanism(
    checkpoint: Path,
    output: Path,
    graph: int = 0,
    loops: int = 12,
    count: int | None = None,
    device: str = "cpu",
    overwrite: bool = False,
) -> None:
    """Look inside a model on one graph of the benchmark, loop by loop.

    Args:
        checkpoint: folder that train.py exported.
        output: folder for the panel.
        graph: number of the graph in the benchmark, from 0.
        loops: loops to run, whatever the stop rule says.
        count: requested count in the prompt; by default the number of loops.
        device: torch device.
        overwrite: replace a panel that the output folder holds already.
    """
    chosen = panel.choose_graph(graph)
    model = checkpoints.load(checkpoint, device)
    batcher = GraphBatcher(model.network.backbone.tokenizer)
    found, attention = panel.trace_mechanism(model.network, batcher, chosen, loops if count is None else count, loops)
    panel.write_mechanism(output, _model_name(checkpoint), found, attention, overwrite)
    Console().print(f"open {output / 'mechanism.html'}")


def _measure(
    model: checkpoints.Checkpoint,
    name: str,
    benchmark: Callable[..., tuple[Any, Timing]],
    options: GraphOptions,
    dtype: torch.dtype | None,
    folder: Path,
    console: Console,
) -> tuple[Run, Timing]:
    """Run a benchmark under a progress bar and summarize what came out."""
    with progress_bar(console) as (advance, begin), _autocast(model, dtype):
        store, timing = benchmark(model, options, advance=advance, begin=begin, partial_results=folder / PARTIAL)
    summary = summarize(store)
    summary["stop_rules"] = stop_rules(store)
    summary["timing"] = vars(timing)
    summary["controller"] = sweep_timer(model.network, GraphBatcher(model.network.backbone.tokenizer))
    return Run(name, store, summary), timing


def _autocast(model: checkpoints.Checkpoint, dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast(model.network.label_ids.device.type, dtype, enabled=dtype is not None)


def _write(run: Run, folder: Path) -> None:
    run.store.save(folder / STORE, overwrite=True)
    write_report(folder / PAGE, [run], overwrite=True)
    write_text(folder / TABLE, range_table(run).markdown(), overwrite=True)
    write_summary(folder / SUMMARY, run.summary, overwrite=True)  # last: it marks the folder as complete
    discard(folder / PARTIAL)


def _print(run: Run, timing: Timing, options: GraphOptions, console: Console) -> None:
    console.print(range_table(run).rich(f"{run.name}: {run.summary['queries']:,} queries"))
    console.print(f"native check: {timing.native_checks} calls agree; shared evaluation took {timing.shared:.1f} s")
    if (timer := run.summary["controller"]) is not None:
        console.print(
            f"timer alone: exact stop at {timer['exact_stop']:.2%} of the counts 1 to {timer['counts']:,}, "
            f"numbers to {timer['readings']:,} read within {timer['reading_error']:.2g}"
        )
    if timing.native is not None:
        ratio = timing.native / timing.shared
        console.print(
            f"one by one the queries would take {timing.native:,.0f} s, {ratio:,.0f} times longer "
            f"(extrapolated from {options.native_sample} native calls)"
        )


def _compare(runs: Sequence[Run], reference: str, output: Path, overwrite: bool, console: Console) -> None:
    comparison = write_comparison(output, runs, reference, overwrite)
    console.print(overall_table(runs).rich())
    console.print(difference_table(comparison).rich(f"difference to {reference}"))
    console.print(f"open {output / PAGE}")


def _run_folder(checkpoint: Path) -> Path:
    """The folder that names a model: exported models are all called `model`, so their runs lend them theirs."""
    folder = checkpoint.resolve()
    return folder.parent if folder.name == "model" else folder


def _model_name(checkpoint: Path) -> str:
    folder = checkpoint.resolve()
    return "/".join(folder.parts[-3:-1]) if folder.name == "model" else folder.name


COMMANDS: dict[str, Callable[..., None]] = {
    "run": evaluate,
    "compare": compare,
    "curves": curves,
    "mechanism": mechanism,
}
LISTS: dict[str, dict[str, type]] = {
    "run": {"checkpoint": Path},
    "compare": {"runs": str},
    "curves": {"runs": str},
    "mechanism": {},
}
"""Options of each command that take one value or several, and the type of each."""


def _parser(command: str) -> ArgumentParser:
    prog = "evaluate.py" if command == "run" else f"evaluate.py {command}"
    parser = ArgumentParser(prog=prog, description=__doc__, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="YAML file with these options")
    for option, kind in LISTS[command].items():
        parser.add_argument(f"--{option}", type=kind, nargs="+", required=True, help="one folder or several")
    parser.add_function_arguments(COMMANDS[command], as_positional=False, skip=set(LISTS[command]))
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    named = bool(given) and not given[0].startswith("-")
    command, rest = (given[0], given[1:]) if named else ("run", given)
    with one_line_errors():
        if command not in COMMANDS:
            raise ValueError(f"{command!r} is no command; use one of {', '.join(COMMANDS)}")
        parser = _parser(command)
        options = vars(parser.instantiate(parser.parse_args(rest)))
        options.pop("config", None)
        COMMANDS[command](**options)


if __name__ == "__main__":
    main()
