"""The words of a page: what one benchmark asks by a requested count is the length of a run in another."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, Mapping[str, str]] = {
    # Nobody requests how many moves a grammar machine makes.
    "grammar": {
        "bootstrap over graphs": "bootstrap over structures (over puzzles, if the stores do not tell them)",
        "requested count": "run length",
        "Requested count": "Run length",
        "the count": "the run length",
        "Counts in": "Run lengths in",
        "graphs": "puzzles",
        "letter": "move",
    }
}
"""By benchmark, what stands in a text written for graphs, and what is said instead, in this order."""


def in_words_of(benchmark: str, text: str) -> str:
    """Return a text that was written for graphs in the words of another benchmark.

    Args:
        benchmark: name of the benchmark, as an outcome store tells it.
        text: words of the page alone: names of runs in it would change as well.
    """
    for said, instead in WORDS.get(benchmark, {}).items():
        text = text.replace(said, instead)
    return text
