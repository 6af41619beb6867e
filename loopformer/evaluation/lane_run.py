"""One evaluation of an ordinary language model in the grammar lanes, from its folder to the files of results."""

from __future__ import annotations

from itertools import product
from typing import Any

from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from loopformer import language_checkpoint
from loopformer.evaluation.grammar_questions import GrammarOptions, made_with
from loopformer.evaluation.lane_benchmark import Asked, ask_lanes, items_digest
from loopformer.evaluation.lane_outputs import left_out, score_outputs, write_results
from loopformer.evaluation.lane_summary import markdown
from loopformer.evaluation.partial import PARTIAL, discard
from loopformer.evaluation.program_benchmark import Place
from loopformer.evaluation.progress import progress_bar
from loopformer.files import OUTPUTS, refuse_finished, write_json_lines


def run_lanes(place: Place, options: GrammarOptions) -> dict[str, Any]:
    """Let the model write, score it, write outputs.jsonl, scores.jsonl, table.md and summary.json; return the summary.

    Args:
        place: the model, and where its results go.
        options: lanes, puzzles and budgets.

    Raises:
        ValueError: the options do not go with the model (names option and fix).
        FileExistsError: there are results already and `place.overwrite` is False.
    """
    refuse_finished(place.output, place.overwrite)  # before the model writes for nothing
    disable_progress_bar()  # the library's own, for files of weights
    model = language_checkpoint.load(place.checkpoint, place.device)
    console = Console()
    with progress_bar(console, "replies") as (advance, begin), place.autocast():
        outputs, items, asked = ask_lanes(model, options, advance, begin, place.output / PARTIAL)
    more = {
        "name": place.name,
        "checkpoint": model.source,
        "digests": {**model.digests(), "items": items_digest(items)},
        **_told(asked, options),
        "made": {suite: made for suite in asked.suites if (made := made_with(suite, options)) is not None},
        "left_out": left_out(product(asked.lanes, asked.suites, [asked.notation_name]), items),
        "trained_steps": list(model.provenance.get("trained_counts", ())),
    }
    write_json_lines(place.output / OUTPUTS, (one.record() for one in outputs), overwrite=True)
    summary = write_results(place.output, score_outputs(outputs, items), more, overwrite=True)
    discard(place.output / PARTIAL)
    console.print(markdown(summary), soft_wrap=True, markup=False)
    console.print(f"written to {place.output}")
    return summary


def _told(asked: Asked, options: GrammarOptions) -> dict[str, Any]:
    """How the model was asked, for the summary."""
    return {
        "notation": asked.notation_name,
        "listing": asked.listing,
        "pairs": options.pairs,
        "max_new_tokens": options.max_new_tokens or "twice the reference and 64 more",
        "thinking_tokens": options.thinking_tokens,
    }
