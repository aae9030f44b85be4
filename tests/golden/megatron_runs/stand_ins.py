"""What Megatron-Bridge and mcore-bridge need to run on a CPU: `install` goes before all of
their imports."""

import importlib
import sys

from ..program_runs.absent import pretend
from . import cpu_engine, stubs

ABSENT = (
    "causal_conv1d",
    "datasets",
    "hydra",
    "mamba_ssm",
    "mlflow",
    "modelopt",
    "modelscope",
    "nvidia_resiliency_ext",
    "open_clip",
    "qwen_vl_utils",
    "tensorboard",
    "timm",
    "wandb",
)


def install() -> None:
    """Stand-ins for CUDA, Transformer Engine, and packages that are imported and not used."""
    stubs.before_import()
    cpu_engine.install()
    pretend(*ABSENT)
    importlib.import_module("megatron.core")
    stubs.after_import(has_engine=True)
    boards = importlib.import_module("tensorboard")
    for name in ("torch.utils.tensorboard", "torch.utils.tensorboard.writer"):
        sys.modules[name] = boards
    _scatter_whole_pieces()


def _scatter_whole_pieces() -> None:
    """gloo takes a piece's elements as they lie in memory, whatever its strides."""
    import torch.distributed as dist

    scatter = dist.scatter

    def scatter_whole(output, pieces, **options):
        scatter(output, pieces and [each.contiguous() for each in pieces], **options)

    dist.scatter = scatter_whole
