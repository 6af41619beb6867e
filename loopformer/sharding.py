"""Fully sharded training (FSDP2) through Lightning's own strategy, on any accelerator.

    python train.py --config configs/arch4_executor.yaml --trainer.devices 8 --trainer.strategy fully_sharded

Parameters, gradients and optimiser state are split over the processes; a rollout gathers the parameters once, since
every layer of R is used at every loop.
"""

from __future__ import annotations

from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from loopformer.looped import LoopedTransformer


class FullySharded(ModelParallelStrategy):
    """Shards over all processes; training checkpoints are whole files that any number of processes can resume from."""

    def __init__(self) -> None:
        super().__init__(save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """Give all processes to data parallelism; Lightning's default would split single layers instead."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        self._tensor_parallel_size = 1
        super().setup_environment()


StrategyRegistry.register("fully_sharded", FullySharded)


def shard(network: LoopedTransformer, mesh: DeviceMesh | None) -> None:
    """Shard a network over the data-parallel dimension of `mesh`, once; nothing without a mesh.

    The network is one unit: its rollout reaches into single layers, which a unit per layer would find empty.
    """
    if mesh is None or isinstance(network, FSDPModule):
        return
    fully_shard(network, mesh=mesh["data_parallel"])
    register_fsdp_forward_method(network, "rollout")


def gather(network: nn.Module) -> None:
    """Give a sharded network whole parameters again, on every process, for an export after training.

    All processes must call it. It does nothing to a network that is not sharded.
    """
    if not isinstance(network, FSDPModule):
        return
    network.reshard()
    whole: dict[nn.Parameter, nn.Parameter] = {
        p: nn.Parameter(p.full_tensor(), p.requires_grad) for p in network.parameters() if isinstance(p, DTensor)
    }
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            module.register_parameter(name, whole.get(parameter, parameter))
