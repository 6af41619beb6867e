"""One evaluation on grammar machines from a loaded model to the files in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from loopformer.checkpoint import Checkpoint
from loopformer.evaluation.grammar_benchmark import evaluate_grammar
from loopformer.evaluation.grammar_questions import GrammarOptions
from loopformer.evaluation.grammar_summary import grammar_markdown, grammar_table, summarize_grammar
from loopformer.evaluation.partial import PARTIAL, discard
from loopformer.evaluation.progress import progress_bar
from loopformer.evaluation.summary import write_summary
from loopformer.files import SUMMARY, refuse_finished, write_text


def run_grammar(
    checkpoint: Checkpoint, output: Path, options: GrammarOptions, name: str, overwrite: bool, console: Console
) -> dict[str, Any]:
    """Evaluate, write outcomes.safetensors, table.md and summary.json, print the table.

    Args:
        checkpoint: the model.
        output: folder for the results.
        options: what to evaluate.
        name: how the model is called.
        overwrite: replace results that the folder holds already.
        console: where the table is printed.

    Returns:
        the summary.

    Raises:
        FileExistsError: the folder holds results and `overwrite` is False.
    """
    refuse_finished(output, overwrite)
    with progress_bar(console, "runs") as (advance, begin):
        store = evaluate_grammar(checkpoint, options, advance, begin, output / PARTIAL)
    summary = summarize_grammar(store)
    store.save(output / "outcomes.safetensors", overwrite=True)
    write_text(output / "table.md", grammar_markdown(summary), overwrite=True)
    write_summary(output / SUMMARY, summary, overwrite=True)  # last: it marks the folder as complete
    discard(output / PARTIAL)
    console.print(grammar_table(summary, f"{name}: {summary['instances']:,} runs, percent"))
    console.print(f"written to {output}")
    return summary
