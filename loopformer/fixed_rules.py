"""The recurrence of cells: the string (or tape) is rewritten at every loop, the rules of the prompt stay fixed.

    recurrence:
      class_path: FixedRules
      init_args: {window: 2, prelude: window, recurrent: window}         # brackets
      # init_args: {window: 2, recurrent: [window, full]}                # grammar search: two R layers

Shape legend: B batch, S tokens, T loops, C cells, N = C + 1 cells and answer, M rules, D hidden.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from loopformer.backbone import Backbone, Geometry, run_layers, take_positions
from loopformer.recurrence import Recurrence, Start
from loopformer.recurring_cells import (
    CellMemory,
    Layout,
    Reach,
    gather_rules,
    pass_rules,
    scatter_parts,
    update_answer,
    update_cells,
)


class FixedRules(Recurrence):
    """The cells of the prompt and its answer loop; the rules are a memory made in loop 1.

    What a layer lets a cell see is chosen per layer; `loopformer.recurring_cells` says what "window" and "full" mean.
    The rules pass P, R and C exactly once. C reads out the answer's state.

    Args:
        window: neighbours that a cell sees to either side in a "window" layer.
        recurrent: reach of the R layers, one for all or one each.
        prelude: reach of the P layers; "causal" is the stock model's P over the whole prompt, whose positions grow
            with the string.
        coda: reach of the C layers before the last (in the last, only the answer is computed).
        view: see `Recurrence`.

    Raises:
        ValueError: the window is below 1.
    """

    loops_cells = True

    def __init__(
        self,
        window: int = 2,
        recurrent: Reach | list[Reach] = "window",
        prelude: Reach | Literal["causal"] = "window",
        coda: Reach = "window",
        view: str = "executor",
    ) -> None:
        super().__init__(view)
        if window < 1:
            raise ValueError(f"recurrence.window: a cell sees at least 1 neighbour a side, got {window}")
        self.window = window
        self.recurrent = recurrent
        self.reach_of_prelude = prelude
        self.coda = coda

    def prelude(self, backbone: Backbone, hidden: Tensor, geometry: Geometry, lengths: Tensor) -> Tensor:
        """See `Recurrence.prelude`; tokens keep their columns, padding becomes zero."""
        if self.reach_of_prelude == "causal":
            return run_layers(backbone.prelude, hidden, geometry)
        layout = Layout.of(geometry, lengths, hidden.shape[1])
        memory = CellMemory.of(backbone, hidden, layout, self.window)
        rules = pass_rules(backbone, backbone.prelude, gather_rules(hidden, layout), memory)
        moving = take_positions(hidden, layout.moving)[:, None]
        for layer in backbone.prelude:
            moving = update_cells(layer, moving, memory, self.reach_of_prelude)
        return scatter_parts(hidden, rules, moving[:, 0], layout)

    def first(self, backbone: Backbone, hidden: Tensor, geometry: Geometry, lengths: Tensor) -> Start:
        """See `Recurrence.first`; the memory holds R's and C's keys and values of the rules."""
        layout = Layout.of(geometry, lengths, hidden.shape[1])
        memory = CellMemory.of(backbone, hidden, layout, self.window)
        pass_rules(backbone, backbone.recurrent + backbone.coda, gather_rules(hidden, layout), memory)
        anchor = take_positions(hidden, layout.moving)
        return Start(self.step(backbone, anchor, memory), anchor, memory)

    def step(self, backbone: Backbone, state: Tensor, memory: CellMemory) -> Tensor:
        """See `Recurrence.step`; a state is [B, N, D].

        Raises:
            ValueError: `recurrent` lists another number of layers than R has.
        """
        layers = backbone.recurrent
        reach = self.recurrent if isinstance(self.recurrent, list) else [self.recurrent] * len(layers)
        if len(reach) != len(layers):
            raise ValueError(f"recurrence.recurrent: names {len(reach)} layers, R has {len(layers)}; name each of them")
        groups = state[:, None]
        for layer, kind in zip(layers, reach, strict=True):
            groups = update_cells(layer, groups, memory, kind)
        return groups[:, 0]

    def answer(self, state: Tensor, memory: CellMemory) -> Tensor:
        """See `Recurrence.answer`."""
        del memory
        return state[:, -1]

    def cells(self, state: Tensor, memory: CellMemory) -> Tensor:
        """See `Recurrence.cells`."""
        del memory
        return state[:, :-1]

    def read(self, backbone: Backbone, states: list[Tensor], memory: CellMemory) -> Tensor:
        """See `Recurrence.read`: all loops in one pass, as groups that do not see each other."""
        groups, layers = torch.stack(states, 1), backbone.coda
        for layer in layers[:-1]:
            groups = update_cells(layer, groups, memory, self.coda)
        return update_answer(layers[-1], groups, memory) if layers else groups[:, :, -1]
