"""Makes cases with an older DeepSpeed: `python -m tests.golden.deepspeed_runs.older DIR VERSION`.

It runs in an environment with torch 2.6, the last that DeepSpeed 0.10 works with, and without
triton, with the directory of that DeepSpeed first in PYTHONPATH. Each case is a directory below
`DIR/deepspeed-VERSION`. Ranks are forked from this process, which has imported everything.

What a CPU of today lacks has stand-ins: Intel's bindings, which versions up to 0.12 import although
gloo carries everything, names that torch has removed from its elastic agent, operators that would
be compiled, and how gradients are sorted and parts are gathered.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.elastic.agent.server import api

from .forking import fork_ranks

NAMES = (
    "z0-fp32-w2",
    "z0-bf16-w2",
    "z1-fp32-w3",
    "z2-bf16-w2",
    "z2-fp32-w3-tiny-group",
    "z3-bf16-w2",
    "z3-bf16-w3-sub-groups",
    "bf16-optimizer-w2",
    "experts-z1-fp32-w4-round-robin",
    "experts-z2-bf16-w2",
    "pipeline-z0-bf16-w2",
    "pipeline-z1-fp32-w4",
)
"""The cases of every older version: each layout that has changed between them."""
NEEDS_INTEL = (0, 13)


def stand_in(version: str) -> None:
    """Puts stand-ins where DeepSpeed looks, and imports it."""
    if tuple(map(int, version.split(".")[:2])) < NEEDS_INTEL:
        for name in ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"):
            sys.modules[name] = ModuleType(name)
        api.log, api._get_socket_with_port = api.logger, None
    # It writes into views, which autograd forbids, and older versions call it outside no_grad.
    dist.all_gather_into_tensor = torch.no_grad()(dist.all_gather_into_tensor)
    import deepspeed.comm.torch
    import deepspeed.ops.op_builder as builders
    from deepspeed.accelerator import get_accelerator

    if deepspeed.__version__.strip() != version:
        raise SystemExit(f"DeepSpeed {deepspeed.__version__} was found, not {version}")
    # By its path: `deepspeed.comm` has an attribute `torch` that is torch itself.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.runtime.engine.split_half_float_double_sparse = by_type
    sys.modules["deepspeed.comm.torch"].TorchBackend.all_gather_coalesced = gather_each
    flat = SimpleNamespace(flatten=_flatten_dense_tensors, unflatten=_unflatten_dense_tensors)
    get_accelerator()._communication_backend_name = "gloo"
    if hasattr(builders, "UtilsBuilder"):
        builders.UtilsBuilder.load = lambda self, verbose=False: flat


def by_type(tensors: Sequence[Tensor]) -> list[tuple[str, list[Tensor]]]:
    """Gradients by their types, which versions up to 0.12 do not know by their names on a CPU."""
    kinds = dict.fromkeys(tensor.type() for tensor in tensors)
    return [(kind, [each for each in tensors if each.type() == kind]) for kind in kinds]


def gather_each(
    backend: Any, outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: Any, **_: bool
) -> Any:
    """What MiCS gathers at once, one after another: gloo has no way to do it at once."""
    for output, own in zip(outputs, inputs, strict=True):
        dist.all_gather_into_tensor(output, own, group=group)
    return SimpleNamespace(wait=lambda: None)


def generate(name: str, root: Path) -> None:
    """One case, anew."""
    from . import rank
    from .cases import ALL_CASES
    from .generate import remove_scripts

    directory = root / name
    fork_ranks(rank.main, name, ALL_CASES[name].world_size, directory)
    remove_scripts(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("version")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    stand_in(options.version)
    # Once, before the forks: engines import the others.
    import torch._dynamo
    import torch._functorch.aot_autograd  # noqa: F401

    from . import parallel  # noqa: F401

    for name in options.names or NAMES:
        try:
            generate(name, options.out / f"deepspeed-{options.version}")
            print(name, flush=True)
        except RuntimeError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
