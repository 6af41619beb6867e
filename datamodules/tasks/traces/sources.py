"""Where programs come from: parts that a configuration composes by class name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any

from datamodules.tasks.traces.corpus import FEATURES, generate
from datamodules.tasks.traces.long_runs import LONG_RUNS, long_run
from datamodules.tasks.traces.programs import Program, Refused
from datamodules.tasks.traces.published import read


class ProgramSource(ABC):
    """A finite list of programs."""

    @abstractmethod
    def programs(self) -> list[Program | Refused]:
        """Return the programs, and by name and reason what is none."""

    def told(self) -> dict[str, Any]:
        """Return class and options as a configuration has them, JSON types, for the record of an evaluation."""
        return {
            "class_path": type(self).__name__,
            "init_args": {name: _plain(value) for name, value in vars(self).items() if not name.startswith("_")},
        }


def _plain(value: object) -> Any:
    """Return an option as JSON has it."""
    if isinstance(value, ProgramSource):
        return value.told()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


class GeneratedPrograms(ProgramSource):
    """Programs of the generated corpus.

    Args:
        count: number of programs.
        seed: seed of the corpus; training and evaluation take different ones.
        features: kinds of statement that may occur; default all.
        statements: fewest and most statements at the top of a function.

    Raises:
        ValueError: a count below 1, an unknown feature, or an empty range of statements.
    """

    def __init__(
        self, count: int, seed: int = 0, features: list[str] | None = None, statements: tuple[int, int] = (2, 6)
    ) -> None:
        if count < 1:
            raise ValueError(f"count: got {count}; it must be 1 or more")
        self.count, self.seed, self.statements = count, seed, statements
        self.features = FEATURES if features is None else tuple(features)
        generate(seed, 0, self.features, statements)  # checks the options

    def programs(self) -> list[Program | Refused]:
        """Write the programs."""
        return [generate(self.seed, index, self.features, self.statements) for index in range(self.count)]


class PublishedPrograms(ProgramSource):
    """The functions of a published collection.

    Args:
        collection: "cruxeval" or "mbpp".
        source: path or Hub id; default the collection's own Hub id.
        split: split of a Hub collection.
        first: keep so many; default all.
    """

    def __init__(
        self, collection: str = "cruxeval", source: str | None = None, split: str = "test", first: int | None = None
    ) -> None:
        self.collection, self.source, self.split, self.first = collection, source, split, first

    def programs(self) -> list[Program | Refused]:
        """Read the collection.

        Raises:
            ValueError: unknown collection or unreadable source.
        """
        return read(self.collection, self.source, self.split)[: self.first]


class LongPrograms(ProgramSource):
    """Programs of given run lengths: Collatz, binary counters, nested loops.

    Args:
        steps: line events at least, of each program.
        families: families of programs; default all.
        per_length: programs of each family and length.
        seed: seed of their arguments.

    Raises:
        ValueError: an unknown family, a length or number of programs below 1, or nothing asked for.
    """

    def __init__(self, steps: list[int], families: list[str] | None = None, per_length: int = 1, seed: int = 0) -> None:
        if not steps or per_length < 1:
            raise ValueError(f"steps: got {steps} with per_length {per_length}; ask for at least one program")
        self.steps, self.families = steps, list(LONG_RUNS) if families is None else families
        self.per_length, self.seed = per_length, seed
        self.programs()  # checks the options

    def programs(self) -> list[Program | Refused]:
        """Make the programs; the same program is made once."""
        made = [
            long_run(family, steps, self.seed + number)
            for family in self.families
            for steps in self.steps
            for number in range(self.per_length)
        ]
        return list({(one.source, one.call): one for one in made}.values())


class JoinedPrograms(ProgramSource):
    """Several sources one after the other.

    Args:
        sources: the sources.
    """

    def __init__(self, sources: list[ProgramSource]) -> None:
        self.sources: Sequence[ProgramSource] = sources

    def programs(self) -> list[Program | Refused]:
        """Return the programs of all."""
        return list(chain.from_iterable(source.programs() for source in self.sources))
