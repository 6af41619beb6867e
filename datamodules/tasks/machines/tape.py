"""Finite-state machines over a tape of named cells; coloured graphs are the same machine in other words.

The tape's cells print `symbol name next-name`: what is looked up stands last, right behind the name that finds it. The
state of a run is (state, symbol to read next, name of the cell after it); one loop looks up the rule of (state, symbol)
and the cell of that name, at the same time. START prints the three in such an order that name and state stand as far
before the end of the prompt as before the end of a cell's or a rule's entry, so that whoever learns to read the one
reads the other. The prompt ends with the token that ends an entry; its state is what loops:

    Rules: A s C; C s A; A t A; C t C;
    Tape: s ab ac; t ac ad; s ad ab;
    Start: s A ac;                          loop 1: C, carrying `t ad`; loop 2: C, carrying `s ab`; loop 3: A ...

A cyclic tape runs on for ever. A tape that ends has a last cell `END END END`; the run is over when END is read.

Shape legend: B machines, Q states, K symbols, C cells, T loops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from datamodules.tasks.machines.machine import (
    BoolArray,
    IntArray,
    Links,
    Machines,
    Prompt,
    Run,
    Tables,
    choose,
    draw_suitable,
    name_pool,
    orders,
    take,
)
from datamodules.tasks.machines.words import COLOURS, END_WORD, STATES, SYMBOLS, WORDS, numbers

Maps = Literal["mixture", "function", "permutation"]
MAP_KINDS = ("function", "permutation")
"""What a symbol does to the states; the fact `maps` holds the position in this tuple."""


@dataclass(frozen=True)
class TapeRecipe:
    """How to draw tape machines.

    Attributes:
        states: number of states Q, a random subset of the letters.
        symbols: number of symbols K.
        cells: number of cells C, the END cell of a tape that ends included.
        names: size of the pool from which the cells' names are drawn.
        letters: size of the pool from which the states are drawn, A onwards.
        maps: each symbol maps the states by a random function (runs from different states meet), by a permutation
            (they never do), or machine by machine one or the other.
        colours: call the symbols by colours: a graph whose edges are chosen by the colour given per step.
        end_share: share of machines that end by themselves, where the tape is long enough for the depth.
        links: "cycle" orders the cells in a ring; "random" lets each lead to any cell.
        unseen_names: draw from the names that no training data contain.
        tables: rule tables that may occur.

    Raises:
        ValueError: a value is out of range.
    """

    states: int = 8
    symbols: int = 2
    cells: int = 12
    names: int = 128
    letters: int = 26
    maps: Maps = "mixture"
    colours: bool = False
    end_share: float = 0.0
    links: Links = "cycle"
    unseen_names: bool = False
    tables: Tables = "training"

    def __post_init__(self) -> None:
        for name, value, high in (("states", self.states, 26), ("symbols", self.symbols, 4)):
            if not 1 <= value <= high:
                raise ValueError(f"{name}: got {value}; use 1 to {high}")
        if not self.states <= self.letters <= len(STATES):
            raise ValueError(
                f"letters: got {self.letters} for {self.states} states; use {self.states} to {len(STATES)}"
            )
        if self.links == "random" and self.end_share:
            raise ValueError("end_share: a tape with random links may never come to its end; use 0 or links 'cycle'")
        if self.cells < 2:
            raise ValueError(f"cells: got {self.cells}; use 2 or more")
        if self.cells > len(name_pool(self.names, self.unseen_names)):
            raise ValueError(f"cells: got {self.cells} for {self.names} names; raise names or lower cells")
        if not 0 <= self.end_share <= 1:
            raise ValueError(f"end_share: got {self.end_share}; use a share between 0 and 1")

    def draw(self, rng: np.random.Generator, size: int, depth: int) -> TapeMachines:
        """Draw `size` machines that are asked for `depth` steps."""
        return draw_suitable(size, self.tables, lambda count: _draw(self, rng, count, depth))


@dataclass(frozen=True)
class TapeMachines(Machines):
    """Tape machines of equal sizes, as word numbers.

    Attributes:
        rules: [B, Q * K, 3] state, symbol and next state of each rule in displayed order.
        cells: [B, C, 3] name, symbol and next name of each cell in displayed order.
        start: [B, 3] first state, first symbol, name of the second cell.
        maps: [B] position in `MAP_KINDS`.
    """

    rules: IntArray
    cells: IntArray
    start: IntArray
    maps: IntArray

    def initial(self) -> IntArray:
        """[B] first state."""
        return self.start[:, 0].astype(np.int64)

    def run(self, loops: int) -> Run:
        """Look up rule and cell, loop after loop."""
        rows = np.arange(len(self))
        rule, cell = self._dense_rules(), self._dense_cells()
        state: IntArray
        state, symbol, following = (self.start[:, column].astype(np.int64) for column in range(3))
        visible = np.empty((len(self), loops), dtype=np.int64)
        read = np.empty((len(self), loops + 1), dtype=np.int64)
        ahead = np.empty((len(self), loops + 1), dtype=np.int64)
        read[:, 0], ahead[:, 0] = symbol, following
        for t in range(loops):
            state = rule[rows, state, symbol]
            symbol, following = cell[rows, following].T.astype(np.int64)
            visible[:, t], read[:, t + 1], ahead[:, t + 1] = state, symbol, following
        return Run(visible, {"symbol": read, "next": ahead}, read[:, :-1], np.zeros(visible.shape, dtype=np.bool_))

    def _dense_rules(self) -> IntArray:
        """[B, 26, words] next state by state and symbol; END, which no rule reads, leaves every state as it is."""
        width = int(max(self.rules[:, :, 1].max(), END_WORD)) + 1
        dense = np.tile(np.arange(len(STATES), dtype=np.int16)[:, None], (len(self), 1, width))
        np.put_along_axis(
            dense.reshape(len(self), -1),
            self.rules[:, :, 0].astype(np.int64) * width + self.rules[:, :, 1],
            self.rules[:, :, 2],
            axis=1,
        )
        return dense

    def _dense_cells(self) -> IntArray:
        """[B, words, 2] symbol and next name by name."""
        dense = np.full((len(self), len(WORDS), 2), END_WORD, dtype=np.int16)
        np.put_along_axis(dense, self.cells[:, :, :1].astype(np.int64), self.cells[:, :, 1:], axis=1)
        return dense

    def prompt(self) -> Prompt:
        """Rules, tape and start."""
        rules, cells = self.rules.shape[1], self.cells.shape[1]
        pieces = ["Rules:", "", "", *(";", "", "") * (rules - 1), ";\nTape:", "", "", *(";", "", "") * (cells - 1)]
        # Symbol, name, next name of a cell; first symbol, first state, name of the second cell.
        parts = (self.rules, self.cells[:, :, [1, 0, 2]], self.start[:, [1, 0, 2]])
        words = [part.reshape(len(self), -1) for part in parts]
        return Prompt((*pieces, ";\nStart:", "", "", ""), np.concatenate(words, axis=1), 3 * (rules + cells))

    def restart(self, rng: np.random.Generator) -> TapeMachines:
        """See `Machines.restart`; a tape that ends is entered at the same cell, so that it ends in time."""
        rows = np.arange(len(self))
        state = self.rules[rows, rng.integers(self.rules.shape[1], size=len(self)), :1]
        cell = self.cells[rows, rng.integers(self.cells.shape[1], size=len(self)), 1:]
        return replace(
            self, start=np.concatenate([state, np.where(self.ends[:, None], self.start[:, 1:], cell)], axis=1)
        )

    def table(self) -> IntArray:
        """[B, Q * K * 3] the rules in the order of their states and symbols."""
        key = self.rules[:, :, 0].astype(np.int64) * len(WORDS) + self.rules[:, :, 1]
        ordered = np.take_along_axis(self.rules, np.argsort(key, axis=1)[:, :, None], axis=1)
        return ordered.reshape(len(self), -1)

    def facts(self) -> dict[str, IntArray]:
        """[B] each: kind of the maps, number of cells, whether the tape ends."""
        cells = np.full(len(self), self.cells.shape[1], dtype=np.int64)
        return {"maps": self.maps.astype(np.int64), "length": cells, "ends": self.ends.astype(np.int64)}


def _draw(recipe: TapeRecipe, rng: np.random.Generator, size: int, depth: int) -> TapeMachines:
    symbols = numbers((COLOURS if recipe.colours else SYMBOLS)[: recipe.symbols])
    maps, rules, members = _draw_rules(recipe, rng, size, symbols)
    ends = (rng.random(size) < recipe.end_share) & (depth < recipe.cells)
    names = choose(rng, size, name_pool(recipe.names, recipe.unseen_names), recipe.cells)
    read = symbols[rng.integers(recipe.symbols, size=(size, recipe.cells))]
    following = np.roll(names, -1, axis=1)
    if recipe.links == "random":
        following = take(names, rng.integers(recipe.cells, size=names.shape))
    first = np.where(
        ends, recipe.cells - 1 - depth, 0
    )  # a cyclic tape has no first cell: its names are in random order
    for part in (names, read):
        part[ends, -1] = END_WORD
    following[ends, -2:] = END_WORD
    cells = np.stack([names, read, following], axis=2)
    rows = np.arange(size)
    start = np.stack([members[rows, rng.integers(recipe.states, size=size)], *cells[rows, first, 1:].T], axis=1)
    shown = orders(rng, size, recipe.cells)[:, :, None]
    return TapeMachines(
        depth=np.full(size, depth, dtype=np.int64),
        ends=ends,
        rules=rules,
        cells=np.take_along_axis(cells, shown, axis=1),
        start=start,
        maps=maps,
    )


def _draw_rules(
    recipe: TapeRecipe, rng: np.random.Generator, size: int, symbols: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Kind of the maps [B], rules [B, Q * K, 3] in shuffled order, states [B, Q]."""
    Q, K = recipe.states, len(symbols)
    members = choose(rng, size, numbers(STATES[: recipe.letters]), Q)
    if recipe.maps == "mixture":
        maps = rng.integers(len(MAP_KINDS), size=size)
    else:
        maps = np.full(size, MAP_KINDS.index(recipe.maps))
    targets = np.where(
        _is_function(maps)[:, None, None],
        rng.integers(Q, size=(size, K, Q)),
        orders(rng, size * K, Q).reshape(size, K, Q),
    ).reshape(size, K * Q)
    sources = np.tile(members, (1, K))
    read = np.broadcast_to(np.repeat(symbols, Q), (size, K * Q))
    rules = np.stack([sources, read, take(members, targets)], axis=2)
    return maps, np.take_along_axis(rules, orders(rng, size, K * Q)[:, :, None], axis=1), members


def _is_function(maps: IntArray) -> BoolArray:
    return maps == MAP_KINDS.index("function")
