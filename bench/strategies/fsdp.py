"""Fully sharded data parallel (torch's fully_shard): parameters, gradients and optimizer state split over the ranks."""

from typing import Any

from bench.plugins import Strategy


def wrap(model: Any, case: Any, place: Any) -> Any:
    """The model sharded block by block, then as a whole: a block is gathered just before it runs.

    Blocks are compiled one by one: the gathering between them is no part of a graph.
    """
    from functools import partial

    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    from bench.recipe import compiled
    from bench.strategies._sync_bn import convert

    if case.sync_bn:
        model = convert(model, place.accelerated)
    model = model.to(place.device)
    # the group that there is, on this rank's kind of device: torch would take CUDA in any build that has it
    group: Any = torch.distributed.group.WORLD
    mesh = DeviceMesh.from_group(group, place.device.type)
    shard = partial(fully_shard, mesh=mesh)
    found = blocks(model)
    if case.compile is not False:  # blocks share a forward: one graph each, where they differ
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, 2 * len(found))
    for parent, name, block in found:
        part = compiled(case, block)
        setattr(parent, name, part)
        shard(part)
    return shard(model if found else compiled(case, model))


def blocks(model: Any) -> list[tuple[Any, str, Any]]:
    """What is gathered at a time: elements of the model's sequences and module lists that have parameters.

    Transformer blocks in a ModuleList, the blocks of a ResNet's layers and the layers of a plain Sequential are
    such; what lies inside a block belongs to it.
    """
    from torch import nn

    sequences = (nn.ModuleList, nn.Sequential)
    found: list[tuple[Any, str, Any]] = []

    def visit(module: Any) -> None:
        for name, child in module.named_children():
            if isinstance(child, sequences) or not isinstance(module, sequences):
                visit(child)
            elif any(True for _ in child.parameters()):
                found.append((module, name, child))

    visit(model)
    return found


PLUGIN = Strategy(
    "parameters, gradients and optimizer state split over the ranks (fully_shard)",
    wrap,
    collective=True,
    compiles=True,
    sharded=True,
    wrappers=("FSDPModule",),
)
