"""What Megatron-Core calls on a GPU, on the CPU: install before `megatron` is imported.

Only what has no CPU form is replaced: CUDA's streams, events and random states, Transformer Engine
and Apex, which are not installed. Models, process groups (gloo), optimizers and everything that
writes a checkpoint are Megatron's own.
"""

import contextlib
import functools
import warnings
from types import SimpleNamespace

import numpy as np
import torch
import torch._dynamo  # looks functions up by what they are, before they are replaced

CPU = torch.device("cpu")
_MAKERS = ("empty", "zeros", "ones", "full", "arange", "tensor", "rand", "randn", "empty_like")


class _Event:
    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def _nothing(*args, **kwargs):
    return None


def _on_cpu(value):
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    is_cuda = type(value) is int or (isinstance(value, str) and value.startswith("cuda"))
    return CPU if is_cuda else value


def _made_on_cpu(make):
    @functools.wraps(make)
    def made(*args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return made


def before_import():
    """Replace what is CUDA's in torch."""
    warnings.simplefilter("ignore")
    torch.compile = lambda model=None, **kwargs: model if model else lambda each: each
    cuda = torch.cuda
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.memory_allocated = cuda.memory_reserved = cuda.max_memory_allocated = lambda *args: 0
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.random.get_rng_state = cuda.get_rng_state
    for name in ("synchronize", "manual_seed", "set_rng_state", "set_device", "empty_cache"):
        setattr(cuda, name, _nothing)
    cuda.Stream = cuda.Event = _Event
    cuda.current_stream = cuda.default_stream = lambda *args: _Event()
    cuda.stream = lambda *args: contextlib.nullcontext()
    cuda.get_device_properties = lambda *args: SimpleNamespace(major=0, minor=0)
    cuda.get_device_capability = lambda *args: (0, 0)
    cuda.nvtx.range_push = cuda.nvtx.range_pop = _nothing
    for name in ("FloatTensor", "HalfTensor", "BFloat16Tensor"):
        setattr(cuda, name, getattr(torch, name))
    for name in _MAKERS:
        setattr(torch, name, _made_on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    moved, typed = torch.Tensor.to, torch.Tensor.type

    def to(self, *args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        return moved(self, *map(_on_cpu, args), **kwargs)

    def kind(self, *args, **kwargs):
        named = typed(self, *args, **kwargs)
        return named.replace("torch.", "torch.cuda.") if isinstance(named, str) else named

    torch.Tensor.to, torch.Tensor.type = to, kind
    if not hasattr(np, "product"):
        np.product = np.prod


def after_import(*, has_engine=False):
    """Replace what Megatron takes from Transformer Engine and Apex.

    `has_engine`: `cpu_engine` stands for Transformer Engine.
    """
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import module

    random._set_cuda_rng_state = _nothing
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    module._FLOAT_TYPES = (torch.FloatTensor, torch.float32)
    module._HALF_TYPES = (torch.HalfTensor, torch.float16)
    module._BF16_TYPES = (torch.BFloat16Tensor, torch.bfloat16)
    if not has_engine:
        _without_engine()
    with contextlib.suppress(ImportError, AttributeError):
        from megatron.core import fp8_utils

        fp8_utils._quantize_param_shard_impl = _nothing
    _keep_writing()


def _without_engine():
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    gpt_layer_specs.LNImpl = WrappedTorchNorm
    transformer_block.LayerNormImpl = WrappedTorchNorm
    with contextlib.suppress(ImportError):
        from megatron.core.models import backends

        backends.LNImpl = WrappedTorchNorm
    with contextlib.suppress(ImportError):
        from megatron.core.transformer.moe import moe_utils

        moe_utils.te_general_gemm = None
    with contextlib.suppress(ImportError):
        from megatron.core.transformer import multi_latent_attention

        multi_latent_attention.HAVE_TE = False


def _keep_writing():
    """Before 0.16 an argument of torch's own `_write_item` is not given, which newer ones want."""
    import inspect

    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from torch.distributed.checkpoint import filesystem

    write = filesystem_async._write_item
    if "serialization_format" not in inspect.getsource(filesystem_async):
        filesystem_async._write_item = functools.partial(
            write, serialization_format=filesystem.SerializationFormat.TORCH_SAVE
        )
