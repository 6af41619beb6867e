"""The outcome store: everything an evaluation saw of a model, as small integers in one file.

Tables, intervals and plots are made from it alone, so a metric can be recomputed or added without the model. The file
is safetensors with one JSON string (`OutcomeMetadata`) under the metadata key `loopformer_outcomes` and these tensors:

    letters    int16 [R, L]  letter read through the coda at each loop
    reference  int16 [R, L]  state after each step, IGNORE (-100) where there is none
    direct     int16 [R, L]  letter of the direct readout *
    row        int32 [Q]     trace of each query
    instance   int32 [Q]     instance (graph) of each query
    steps      int32 [Q]     requested count N
    stops      int32 [Q]     first loop whose stop probability is at least 0.5, 0 where none is by the cap
    stratum    int16 [I]     seed-and-kind stratum of each instance, from which the bootstrap resamples
    fact.NAME  int32 [I]     facts of each instance, for breakdowns (kind, seed, tail, period, reachable, ...)
    initial    int16 [I]     state before the first loop *
    successors int16 [I, K]  state that follows each letter, where a step depends on the state alone *
    estimates  float32 [E, L + 1]  estimate of the remaining steps at loops 0..L, of a stop rule that makes one *
    estimate   int32 [Q]     row of `estimates` of each query *
    converged  int16 [R, V]  first loop whose state changed by less than each of `convergence.TOLERANCES`, 0 for none *

R traces, L loops, Q queries, I instances, K labels, E different countdowns, V tolerances; * marks what may be left out.
An executor that does not see the count has one trace per instance, shared by all its queries; for any other R = Q. A
timer that reads the request alone has one countdown per requested count. Loops that a query did not need (after its
requested count, once it has stopped) repeat the last letter that was read.

Format 2 added the last five tensors. Files of format 1 are read; what needs those tensors is then left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from loopformer.evaluation.convergence import TOLERANCES
from loopformer.evaluation.store_file import FACT, StoreFile, check_shapes, take_facts
from loopformer.metrics.functional import IGNORE, MISSING, QueryOutcome, query_outcome

FORMAT = 2
KEY = "loopformer_outcomes"
FILE = StoreFile(KEY, (1, FORMAT), "an outcome store")

SCHEMA: dict[str, tuple[torch.dtype, str]] = {
    "letters": (torch.int16, "RL"),
    "reference": (torch.int16, "RL"),
    "direct": (torch.int16, "RL"),
    "row": (torch.int32, "Q"),
    "instance": (torch.int32, "Q"),
    "steps": (torch.int32, "Q"),
    "stops": (torch.int32, "Q"),
    "stratum": (torch.int16, "I"),
    "initial": (torch.int16, "I"),
    "successors": (torch.int16, "IK"),
    "estimates": (torch.float32, "EM"),
    "estimate": (torch.int32, "Q"),
    "converged": (torch.int16, "RV"),
}

OPTIONAL = ("direct", "initial", "successors", "estimates", "estimate", "converged")
"""Tensors that a store may leave out."""

CHUNK = 2**20
"""Letters of the queries that are scored together."""


@dataclass(frozen=True)
class OutcomeMetadata:
    """What was evaluated.

    Attributes:
        benchmark: name of the benchmark or split.
        labels: names of the K letters, by index.
        loops: loops of every trace, L.
        cap: last loop at which the model may stop, C <= L.
        digests: SHA-256 by name: model, config, graphs.
        trained_steps: requested counts seen in training; empty where that is unknown.
        fact_values: names of the codes of a fact, such as kind.
    """

    benchmark: str
    labels: tuple[str, ...]
    loops: int
    cap: int
    digests: dict[str, str] = field(default_factory=dict)
    trained_steps: tuple[int, ...] = ()
    fact_values: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OutcomeStore:
    """The outcomes of one model on one benchmark; the module describes each tensor.

    Raises:
        ValueError: on construction, in one line that names the field and the fix, if shapes or values do not fit.
    """

    metadata: OutcomeMetadata
    letters: Tensor
    reference: Tensor
    row: Tensor
    instance: Tensor
    steps: Tensor
    stops: Tensor
    stratum: Tensor
    facts: dict[str, Tensor] = field(default_factory=dict)
    direct: Tensor | None = None
    initial: Tensor | None = None
    successors: Tensor | None = None
    estimates: Tensor | None = None
    estimate: Tensor | None = None
    converged: Tensor | None = None

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_values(self)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under its name in the file."""
        named = {name: getattr(self, name) for name in SCHEMA if getattr(self, name) is not None}
        return named | {FACT + name: column for name, column in self.facts.items()}

    def outcomes(self, readout: str = "letters", chunk: int | None = None) -> Iterator[tuple[slice, QueryOutcome]]:
        """Yield the outcomes of the queries, chunk by chunk, with the slice of queries each belongs to.

        Args:
            readout: "letters" (coda) or "direct".
            chunk: queries at a time; by default `CHUNK` letters, which bounds the memory at some tens of megabytes.

        Raises:
            ValueError: if the store has no such readout.
        """
        predictions = {"letters": self.letters, "direct": self.direct}.get(readout)
        if predictions is None:
            raise ValueError(f"readout {readout!r} is not in the store: choose letters, or direct where it was saved.")
        horizon = int(self.steps.max())
        chunk = chunk or max(1, CHUNK // horizon)
        for start in range(0, len(self.steps), chunk):
            part = slice(start, min(start + chunk, len(self.steps)))
            rows, instance = self.row[part].long(), self.instance[part].long()
            yield (
                part,
                query_outcome(
                    predictions[rows],
                    self.reference[rows, :horizon],
                    self.steps[part],
                    self.stops[part],
                    self.metadata.cap,
                    direct=None if self.direct is None else self.direct[rows],
                    initial=None if self.initial is None else self.initial[instance],
                    successors=None if self.successors is None else self.successors[instance],
                    estimates=None if self.estimate is None else self._estimates(part),
                    instance=instance,
                ),
            )

    def _estimates(self, part: slice) -> Tensor:
        assert self.estimates is not None
        assert self.estimate is not None
        return self.estimates[self.estimate[part].long()]

    def save(self, path: Path | str, overwrite: bool = False) -> None:
        """Write the store to one file, atomically.

        Raises:
            FileExistsError: if the file exists and `overwrite` is false.
        """
        FILE.save(path, self.tensors(), self.metadata, overwrite)

    @classmethod
    def load(cls, path: Path | str) -> OutcomeStore:
        """Read and validate a store.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: in one line that names the field and the fix, if the file is not a sound store of this version.
        """
        path = Path(path)
        tensors, metadata = FILE.load(path, OutcomeMetadata)
        missing = [name for name in SCHEMA if name not in tensors and name not in OPTIONAL]
        if missing:
            raise ValueError(f"{path} lacks the tensor {missing[0]}: write it again with OutcomeStore.save.")
        facts = take_facts(tensors)
        unknown = sorted(set(tensors) - set(SCHEMA))
        if unknown:
            raise ValueError(f"{path} holds the unknown tensor {unknown[0]}: facts are called {FACT}NAME.")
        try:
            return cls(metadata=metadata, facts=facts, **tensors)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _check_shapes(store: OutcomeStore) -> None:
    loops = store.metadata.loops
    sizes: dict[str, int] = {"L": loops, "K": len(store.metadata.labels), "M": loops + 1, "V": len(TOLERANCES)}
    check_shapes(store.tensors(), SCHEMA, sizes)
    for dim, what in (("R", "traces"), ("Q", "queries"), ("I", "instances"), ("L", "loops")):
        if sizes[dim] < 1:
            raise ValueError(f"{dim} = {sizes[dim]}: the store needs at least one of its {what}.")


def _check_values(store: OutcomeStore) -> None:
    meta = store.metadata
    letters = len(meta.labels)
    if not 1 <= meta.cap <= meta.loops:
        raise ValueError(f"cap is {meta.cap}, outside 1..{meta.loops}: run at least as many loops as the cap.")
    limits = {
        "letters": (0, letters - 1),
        "direct": (0, letters - 1),
        "row": (0, len(store.letters) - 1),
        "instance": (0, len(store.stratum) - 1),
        "steps": (1, meta.loops),
        "stops": (MISSING, meta.cap),
        "stratum": (0, torch.iinfo(torch.int16).max),
        "initial": (0, letters - 1),
        "successors": (0, letters - 1),
        "converged": (MISSING, meta.loops),
    }
    if (store.estimates is None) != (store.estimate is None):
        raise ValueError("estimates and estimate are given one without the other: store both or neither.")
    if store.estimates is not None:
        limits["estimate"] = (0, len(store.estimates) - 1)
        if not bool(torch.isfinite(store.estimates).all()):
            raise ValueError("estimates holds a number that is not finite: check the stop rule.")
    for name, (low, high) in limits.items():
        tensor = getattr(store, name)
        if tensor is None:
            continue
        smallest, largest = (int(v) for v in tensor.aminmax())
        if smallest < low or largest > high:
            value = smallest if smallest < low else largest
            raise ValueError(f"{name} holds {value}, outside {low}..{high}: check how the outcomes were collected.")
    known = store.reference[store.reference != IGNORE]
    if known.numel() and (int(known.min()) < 0 or int(known.max()) >= letters):
        raise ValueError(f"reference holds a value outside 0..{letters - 1} that is not {IGNORE}: check the labels.")
    if bool((store.reference[store.row.long(), store.steps.long() - 1] == IGNORE).any()):
        raise ValueError("reference has no state at the requested count of some query: store it up to every N.")
    for name, names in meta.fact_values.items():
        codes = store.facts.get(name)
        if codes is None or int(codes.min()) < 0 or int(codes.max()) >= len(names):
            raise ValueError(f"fact_values of {name} do not name every code of {FACT}{name}: add the missing names.")
