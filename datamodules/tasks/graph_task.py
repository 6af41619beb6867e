"""The graph task as a `Procedure`: prompts as text, a scalar reference executor, examples for ordinary models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from datamodules.tasks.graph import Graphs, node_names
from datamodules.tasks.procedure import LabelSet, Procedure
from datamodules.tasks.prompt import VIEWS, find_template


def graph_labels(letters: int = 1) -> LabelSet:
    """Return the label set of the graph task: node names, each with a leading space as its text."""
    names = node_names(letters)
    return LabelSet(names, tuple(f" {name}" for name in names))


@dataclass(frozen=True)
class GraphQuery:
    """One graph and one requested count.

    Attributes:
        sources: source of each rule in displayed order, as labels.
        targets: destination of each rule.
        start: start node.
        count: requested steps.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    start: int
    count: int


def query(graphs: Graphs, row: int, count: int | None = None) -> GraphQuery:
    """Take one graph out of a set; the count defaults to its own depth."""
    return GraphQuery(
        tuple(graphs.sources[row].tolist()),
        tuple(graphs.targets[row].tolist()),
        int(graphs.start[row]),
        int(graphs.depth[row]) if count is None else count,
    )


class GraphTask(Procedure[GraphQuery]):
    """Pointer following over a rule table.

    Args:
        template: name of the wording.
        letters: letters of a node name, 1 or 2.
    """

    views: ClassVar[tuple[str, ...]] = VIEWS

    def __init__(self, template: str = "published", letters: int = 1) -> None:
        self.template = find_template(template)
        self.labels = graph_labels(letters)

    def prompt(self, instance: GraphQuery, view: str) -> str:
        """Return the prompt text of the "full" or the "executor" view.

        Raises:
            ValueError: unknown view.
        """
        if view not in VIEWS:
            raise ValueError(f"view: got {view!r}; use one of {', '.join(VIEWS)}")
        text = self.labels.texts
        sources = [text[node] for node in instance.sources]
        targets = [text[node] for node in instance.targets]
        return self.template.render(view, sources, targets, text[instance.start], str(instance.count))

    def steps(self, instance: GraphQuery) -> int:
        """Return the requested count."""
        return instance.count

    def initial(self, instance: GraphQuery) -> int:
        """Return the start node."""
        return instance.start

    def states(self, instance: GraphQuery) -> list[int]:
        """Follow the edges one by one."""
        table = dict(zip(instance.sources, instance.targets, strict=True))
        states, node = [], instance.start
        for _ in range(instance.count):
            node = table[node]
            states.append(node)
        return states
