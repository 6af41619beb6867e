"""Requests that share a prompt against native one-at-a-time calls: letters, stops and logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import make_network

from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph_splits import benchmark
from loopformer.bridge import ReentryBridge
from loopformer.carry import FieldCarry
from loopformer.evaluation.native import native_call
from loopformer.evaluation.shared_trace import trace_requests
from loopformer.evaluation.trace import Request, batch_stops, batched_part, controller_stops, run_part, trace_batch
from loopformer.halting import GRUController, HaltingInputs, StopHead
from loopformer.looped import DirectHead, LoopedTransformer
from loopformer.recurrence import FixedPrompt, FullSequence
from loopformer.shared_prefix import Prefix, can_share, shared_length, shared_rollout
from loopformer.state_heads import ClassHead, StateHeads

COUNTS = [12, 1, 3, 14, 6, 101]
CAP = 110


def network_of(recurrence, model_type="qwen2", halting=None, bias=0.0, **parts) -> LoopedTransformer:
    network = make_network(recurrence, model_type, std=0.08, halting=halting, direct_head=DirectHead(), **parts).eval()
    if isinstance(halting, StopHead):
        with torch.no_grad():  # stops at different loops for different queries
            halting.mlp[-1].weight.mul_(20)
            halting.mlp[-1].bias.add_(bias)
    return network


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "mistral"])
@pytest.mark.parametrize("kind", ["fixed", "three slots", "full"])
@pytest.mark.parametrize("halting", ["stop head", "controller", "none"])
@pytest.mark.parametrize("between", ["bridge", "nothing", "fields"])
def test_shared_requests_equal_native_calls(model_type: str, kind: str, halting: str, between: str) -> None:
    if between == "fields" and (kind != "fixed" or model_type != "qwen2"):
        return  # FieldCarry is of one slot, whatever the layers
    recurrence = {"fixed": FixedPrompt(view="full"), "three slots": FixedPrompt(3, "full"), "full": FullSequence()}[
        kind
    ]
    stop = {"stop head": StopHead(), "controller": GRUController(), "none": None}[halting]
    parts: dict[str, Any] = {"bridge": ReentryBridge()} if between == "bridge" else {}
    if between == "fields":
        parts = {"carry": FieldCarry(), "state_heads": StateHeads({"a": ClassHead(26), "b": ClassHead(5)})}
    network = network_of(recurrence, model_type, stop, **parts)
    batcher, graphs = GraphBatcher(network.backbone.tokenizer), benchmark()[[0, 700]]
    counts, cap = COUNTS[:5], 24
    probes = [(graph, column) for graph in range(2) for column in range(5)]
    trace = trace_requests(network, batcher, graphs, counts, cap, cap, probes)
    for graph, column in probes:
        count = counts[column]
        native = native_call(network, batcher, graphs[slice(graph, graph + 1)], count, cap)
        said = native.logits.argmax(-1).tolist()
        torch.testing.assert_close(trace.logits[graph, column], native.logits[:count], atol=1e-5, rtol=0)
        assert trace.stops[graph, column] == native.stop
        letters = trace.letters[graph, column].tolist()
        assert letters[:count] == said[:count]
        assert letters[(native.stop or cap) - 1] == (said[(native.stop or cap) - 1] if stop else said[count - 1])


def test_it_is_not_a_test_of_constant_stops() -> None:
    """The stop head above fires at several loops, before and after N, and sometimes never."""
    stops = set()
    for bias in (-0.3, 0.0):
        network = network_of(FullSequence(), "qwen3", StopHead(), bias)
        graphs = benchmark()[[0, 300, 700, 1100]]
        trace = trace_requests(network, GraphBatcher(network.backbone.tokenizer), graphs, COUNTS[:5], 24, 24)
        stops |= set(trace.stops.flatten().tolist())
    assert len(stops) > 2


@pytest.mark.parametrize("recurrence", [FixedPrompt(view="full"), FullSequence()])
def test_a_part_equals_batched_native_calls(recurrence: FixedPrompt | FullSequence) -> None:
    """Counts of one, two and three digits, long enough that requests drop out."""
    network = network_of(recurrence, halting=StopHead())
    batcher, graphs = GraphBatcher(network.backbone.tokenizer), benchmark()[[0, 500]]
    request = Request(COUNTS, CAP, CAP, probes=())
    shared, native = (
        run(network, batcher, graphs, request, *more) for run, more in ((run_part, [()]), (batched_part, []))
    )
    assert torch.equal(shared.stops, native.stops)
    assert shared.direct is not None
    assert native.direct is not None
    for row, count in enumerate(COUNTS * 2):
        assert torch.equal(shared.letters[row, :count], native.letters[row, :count])
        assert torch.equal(shared.direct[row, :count], native.direct[row, :count])


def test_a_controller_on_shared_states_equals_one_request_per_row() -> None:
    network = network_of(FixedPrompt(), halting=GRUController())
    batcher, graphs = GraphBatcher(network.backbone.tokenizer), benchmark()[[0, 300, 700]]
    batch = batcher.batch(graphs, 1)
    answers = trace_batch(network, batch, 40, keep_answers=True).answers
    assert answers is not None
    ours = controller_stops(network, batcher, graphs, COUNTS, answers)
    one = [batch_stops(network, batcher.batch(graphs, count), answers) for count in COUNTS]
    assert torch.equal(ours, torch.stack(one, 1))
    controller = network.halting
    assert isinstance(controller, GRUController)
    memory, state = torch.randn(5, controller.width), torch.randn(5, network.backbone.hidden_size)
    for a, b in zip(controller.step(memory, state), controller.advance(memory, controller.project(state)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_gru_reads_its_own_first_memory_under_autocast() -> None:
    """Autocast makes the first memory in bfloat16; the cell's weights stay float32."""
    torch.manual_seed(0)
    controller = GRUController(predict_remaining=True)
    controller.build(32)
    state = torch.randn(3, 32)
    with torch.autocast("cpu", torch.bfloat16):
        memory = controller.start(HaltingInputs(torch.randn(3, 32), torch.zeros(3, 1), torch.zeros(3, 1, 32)))
        assert memory.dtype == torch.bfloat16
        stepped, advanced = controller.step(memory, state), controller.advance(memory, controller.project(state))
        remaining = controller.remaining(memory)
    for a, b in zip(stepped, advanced, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b)
    assert remaining is not None
    assert remaining.dtype == torch.float32


def test_only_what_all_requests_have_in_common_is_shared() -> None:
    network = network_of(FixedPrompt(view="full"))
    ids = torch.tensor([[[5, 6, 7, 8, 9], [5, 6, 4, 8, 9]], [[5, 6, 7, 8, 9], [5, 6, 7, 8, 9]]])
    assert shared_length(ids, network) == 2
    assert shared_length(ids[1:], network) == 4  # the answer position is each request's own
    assert shared_length(ids[1:], network_of(FixedPrompt(3, "full"))) == 2


def test_a_recurrence_that_is_not_known_is_not_shared() -> None:
    class Other(FullSequence):
        pass

    network = network_of(Other())
    assert not can_share(network)
    assert can_share(network_of(FullSequence()))
    with pytest.raises(ValueError, match="Other over these layers cannot share"):
        shared_rollout(network, Prefix(network, torch.tensor([[[3, 4, 5], [3, 4, 6]]])))
    batcher = GraphBatcher(network.backbone.tokenizer)
    part = run_part(network, batcher, benchmark()[:1], Request([1, 3], 8, 3, (0,)), [0])
    assert part.letters.shape == (2, 3)
    assert part.logits == {}
