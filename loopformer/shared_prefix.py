"""Many requests on one prompt: everything before the first differing token is computed once for all of them.

Exact by causality: the prompt's tokens never see the request that follows, at no loop, so their states, keys and values
are the same for every request. A rollout keeps B prompts with G requests each. The requests' own tokens (the digits of
the count and what follows) run through the layers as groups that see the prompt and themselves, not each other, and
requests that are done drop out (`keep`).

Shape legend: B prompts, G requests of each, S tokens of the prompt, M tokens of a request, D hidden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain

import torch
from torch import Tensor

from loopformer.backbone import run_layers
from loopformer.looped import LoopedTransformer
from loopformer.recurrence import FixedPrompt, FullSequence
from loopformer.slots import FUSED_LAYERS, BranchMemory, FusedSlots, PromptMemory, record_prompt
from loopformer.state_heads import FieldInputs

SLOTS = FusedSlots()


def can_share(network: LoopedTransformer) -> bool:
    """Whether the network's recurrence and layers are of a kind that shared rollouts know."""
    layers = chain(network.backbone.prelude, network.backbone.recurrent, network.backbone.coda)
    known = type(network.recurrence) in (FixedPrompt, FullSequence)
    return known and all(isinstance(layer, FUSED_LAYERS) for layer in layers)


def shared_length(input_ids: Tensor, network: LoopedTransformer) -> int:
    """Number of leading tokens that all requests of a prompt have in common, the positions that loop left out.

    Args:
        input_ids: [B, G, S + M] without padding.
        network: the model.
    """
    same = (input_ids == input_ids[:, :1]).all(dim=1).all(dim=0)
    slots = network.recurrence.slots if isinstance(network.recurrence, FixedPrompt) else 1
    return min(int(same.long().cumprod(0).sum()), input_ids.shape[2] - slots)


class Prefix:
    """Prompts and requests after P, the common start of every shared rollout.

    Args:
        network: the model.
        input_ids: [B, G, S + M] token ids of all requests, without padding.

    Attributes:
        prompt: [B, S, D] output of P on the prompts.
        requests: [B, G, M, D] output of P on the requests' tokens.
        geometry: masks and positions of the prompts.
        rotary: position embeddings of the requests' tokens, [B, M, E] each.
    """

    def __init__(self, network: LoopedTransformer, input_ids: Tensor) -> None:
        backbone, (B, _, total) = network.backbone, input_ids.shape
        S = shared_length(input_ids, network)
        prompt, requests = backbone.embed(input_ids[:, 0, :S]), backbone.embed(input_ids[:, :, S:])
        self.geometry = backbone.geometry(prompt, None, torch.full((B,), S - 1, device=prompt.device))
        positions = torch.arange(S, total, device=prompt.device)[None]
        cos, sin = backbone.lm.model.rotary_emb(prompt, positions)
        self.rotary = (cos.expand(B, -1, -1), sin.expand(B, -1, -1))
        memory = self.memory(B, S, prompt.device)
        self.prompt = run_layers(backbone.prelude, prompt, self.geometry, memory)
        self.requests = SLOTS(backbone.prelude, requests, memory)

    def memory(self, B: int, S: int, device: torch.device, branches: BranchMemory | None = None) -> PromptMemory:
        """An empty memory of the prompts for the requests' tokens."""
        memory = PromptMemory(torch.ones(B, S, dtype=torch.bool, device=device), self.rotary, branches)
        memory.bias = None  # no padding: there is nothing to hide
        return memory


class SharedRollout(ABC):
    """Loops 1, 2, 3, ... of G requests on each of B prompts; made in loop 1.

    Args:
        network: the model.
        prefix: prompts and requests after P.

    Attributes:
        state: [B, G, L, D] what loops of each request.
        anchor: [B, G, L, D] output of P at the same positions.
    """

    state: Tensor
    anchor: Tensor

    def __init__(self, network: LoopedTransformer, prefix: Prefix) -> None:
        self.network = network
        self.backbone = network.backbone
        self.prefix = prefix

    @abstractmethod
    def step(self) -> None:
        """Advance by one loop."""

    @abstractmethod
    def read(self, groups: int) -> Tensor:
        """[B, groups, D] what C makes of the answers of the first requests, before the final norm."""

    def answers(self) -> Tensor:
        """[B, G, D] R's answer states."""
        return self.state[:, :, -1]

    def keep(self, groups: Tensor) -> None:
        """Go on with some requests of each prompt: groups [B, G'] in their new order."""
        rows = torch.arange(len(groups), device=groups.device)[:, None]
        self.state, self.anchor = self.state[rows, groups], self.anchor[rows, groups]

    def _entering(self, state: Tensor, anchor: Tensor) -> Tensor:
        """[B, (G,) L, D] What enters the next loop. A carry that works without cells reads the answers alone."""
        flat, inputs = state.flatten(0, -3), None
        if self.network.carry is not None:
            inputs = FieldInputs(answers=flat[:, -1:])
        return self.network.entering(flat, anchor.flatten(0, -3), inputs).view_as(state)


class SharedFixedPrompt(SharedRollout):
    """The slots of each request loop; the prompt and the request's other tokens are memories made in loop 1."""

    def __init__(self, network: LoopedTransformer, prefix: Prefix) -> None:
        super().__init__(network, prefix)
        assert isinstance(network.recurrence, FixedPrompt)
        slots, backbone = network.recurrence.slots, network.backbone
        B, S, _ = prefix.prompt.shape
        self.branches = BranchMemory(slots)
        self.memory = prefix.memory(B, S, prefix.prompt.device, self.branches)
        looped = run_layers(backbone.recurrent, prefix.prompt, prefix.geometry, self.memory)
        record_prompt(backbone.coda, looped, prefix.geometry, self.memory)
        requests = SLOTS(backbone.recurrent, prefix.requests, self.memory)
        SLOTS(backbone.coda, requests, self.memory)
        self.branches.recording = False
        cos, sin = prefix.rotary
        self.memory.rotary = (cos[:, -slots:], sin[:, -slots:])
        self.state, self.anchor = requests[:, :, -slots:], prefix.requests[:, :, -slots:]

    def step(self) -> None:
        """See `SharedRollout.step`."""
        self.state = SLOTS(self.backbone.recurrent, self._entering(self.state, self.anchor), self.memory)

    def read(self, groups: int) -> Tensor:
        """See `SharedRollout.read`."""
        return SLOTS(self.backbone.coda, self.state[:, :groups], self.memory)[:, :, -1]

    def keep(self, groups: Tensor) -> None:
        """See `SharedRollout.keep`."""
        super().keep(groups)
        self.branches.select(groups)


class SharedFullSequence(SharedRollout):
    """Every token loops: the prompts' once, those of each request against the prompts' keys of the same loop."""

    def __init__(self, network: LoopedTransformer, prefix: Prefix) -> None:
        super().__init__(network, prefix)
        self.prompt, self.state, self.anchor = prefix.prompt, prefix.requests, prefix.requests
        self._loop()

    def step(self) -> None:
        """See `SharedRollout.step`."""
        self.prompt = self._entering(self.prompt, self.prefix.prompt)
        self.state = self._entering(self.state, self.anchor)
        self._loop()

    def _loop(self) -> None:
        memory = self._memory()
        self.prompt = run_layers(self.backbone.recurrent, self.prompt, self.prefix.geometry, memory)
        self.state = SLOTS(self.backbone.recurrent, self.state, memory)

    def read(self, groups: int) -> Tensor:
        """See `SharedRollout.read`."""
        memory = self._memory()
        record_prompt(self.backbone.coda, self.prompt, self.prefix.geometry, memory)
        return SLOTS(self.backbone.coda, self.state[:, :groups], memory)[:, :, -1]

    def _memory(self) -> PromptMemory:
        B, S, _ = self.prompt.shape
        return self.prefix.memory(B, S, self.prompt.device)


def shared_rollout(network: LoopedTransformer, prefix: Prefix) -> SharedRollout:
    """Start the rollout that fits the network's recurrence.

    Raises:
        ValueError: the recurrence or a layer is of a kind that cannot share (`can_share`).
    """
    if not can_share(network):
        raise ValueError(
            f"network: {type(network.recurrence).__name__} over these layers cannot share prompts; run it per request"
        )
    kind = SharedFixedPrompt if isinstance(network.recurrence, FixedPrompt) else SharedFullSequence
    return kind(network, prefix)
