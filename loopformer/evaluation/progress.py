"""The progress bar of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(
    console: Console, counted: str = "queries"
) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Show a bar of what is counted; gives a function that advances it and one that sets its total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(counted, total=None)
        yield lambda n: progress.advance(bar, n), lambda total: progress.update(bar, total=total)
