"""Checks how many bytes attention keeps for the backward pass, for each attention kernel."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from harness.gpu.checks import GROUPED, Check, Found
from zerotools.ops.estimate.activation_memory import (
    EAGER,
    REPEATED,
    SHARED,
    MicroBatch,
    activations_of,
)

SHARE = 0.1
"""Largest relative difference between the kept and the predicted bytes."""
MIB = 1 << 20
SMALL = {"hidden_size": 256, "intermediate_size": 896, "num_attention_heads": 8}
LARGE = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
"""The sizes of Llama 3 8B, with two layers."""
LENGTHS = {"cuda": (2048, 4096), "cpu": (128,)}
TYPES = {"cuda": ("bf16", "fp16", "fp32"), "cpu": ("bf16", "fp32")}
FLEX, BY_SEGMENT = "flex_attention", "by segment"
WAYS = (SHARED, BY_SEGMENT, EAGER)
FUSED = {"flash", "cudnn"}
"""From cuDNN 9.15 on, torch prefers cuDNN's kernel on H100 and B200. It keeps the same bytes as the
flash kernel.
"""
IDS = 24
"""Bytes for each token that exist before the forward pass, and that `activations` also counts."""


class Case(NamedTuple):
    """One case: an attention implementation (`way`), a sequence length and a dtype.

    `attention` is the name of the implementation in the memory estimate. `kernels` are the kernels
    of scaled_dot_product_attention that may run; empty if none of them may run.
    """

    way: str
    length: int
    precision: str
    attention: str
    kernels: frozenset[str]

    def __str__(self) -> str:
        return f"{self.way} in {self.precision}, {self.length} tokens"


def cases(device: str, capability: tuple[int, int], ways: Sequence[str]) -> Iterator[Case]:
    """Yield the cases for `device`; `capability` is the compute capability of a GPU."""
    from zerotoolsd.trainer.allocate_tensors import TORCH_DTYPES
    from zerotoolsd.trainer.model.attention_choice import has_flash

    for precision in TYPES[device]:
        is_flash = device == "cpu" or has_flash(TORCH_DTYPES[precision], capability)
        kernels = frozenset(FUSED if is_flash else {"efficient"})
        for way in ways:
            attention = SHARED if is_flash or way == FLEX else REPEATED
            for length in LENGTHS[device]:
                if way in (EAGER, FLEX):
                    kept = EAGER if way == EAGER else attention
                    yield Case(way, length, precision, kept, frozenset())
                else:
                    yield Case(way, length, precision, attention, kernels)


def attention_memory(device: str, directory: Path) -> Found:
    """Compare the bytes that a model keeps, and the kernels that run, with the estimate."""
    return _compared(device, WAYS)


def flex_memory(device: str, directory: Path) -> Found:
    """Compare the bytes that flex_attention keeps with the estimate, for each length and dtype.

    torch compiles flex_attention for each of these cases.
    """
    return _compared(device, [FLEX])


def _compared(device: str, ways: Sequence[str]) -> Found:
    import torch

    from zerotoolsd.trainer.model.attention_choice import repeat_for

    capability = (0, 0)
    if device == "cuda":
        capability = torch.cuda.get_device_capability()
        repeat_for(capability)
    wrong, memory, large = list[str](), list[str](), list[str]()
    for case in cases(device, capability, ways):
        try:
            held, kernels = _kept(case, device)
        except torch.OutOfMemoryError:
            large.append(str(case))
            continue
        except Exception as error:  # a kernel that fails is one of the things to find
            wrong.append(f"{case}: {' '.join(str(error).split())[:200]}")
            continue
        expected = predicted(case, device)
        line = f"{case}: {expected / MIB:,.2f} MiB predicted, {held / MIB:,.2f} kept"
        memory.append(f"{line} ({', '.join(sorted(kernels)) or 'no fused kernel'})")
        if abs(held - expected) > SHARE * expected:
            wrong.append(line)
        if not (kernels <= case.kernels and bool(kernels) is bool(case.kernels)):
            wrong.append(f"{case}: takes {sorted(kernels)}, expected {sorted(case.kernels)}")
    words = wrong or [f"{len(memory)} cases as predicted"]
    words += [f"the GPU is too small for {', '.join(large)}"] * bool(large)
    return Found("; ".join(words), not wrong if memory else None, memory)


def config_of(device: str) -> dict[str, Any]:
    """Return the config of the model, with four query heads for each key head."""
    sizes = LARGE if device == "cuda" else SMALL
    heads = sizes["num_attention_heads"]
    return {
        **GROUPED,
        **sizes,
        "num_key_value_heads": heads // 4,
        "max_position_embeddings": max(LENGTHS[device]),
    }


def predicted(case: Case, device: str) -> int:
    """Return the bytes of activations that the estimate predicts for `case`."""
    from zerotools.ops.estimate.model_families import architecture_of

    model = architecture_of(config_of(device), "config")
    assert model is not None
    micro = MicroBatch(1, case.length, case.precision, attention=case.attention)
    return activations_of(model, micro).kept - IDS * case.length


def _kept(case: Case, device: str) -> tuple[int, set[str]]:
    """Return (the bytes that a forward pass keeps, the names of the kernels that ran)."""
    import torch

    model, arguments = _model_of(case, device)
    given = [*model.parameters(), *model.buffers(), *arguments.values()]
    names = _names()
    # The first pass also loads what later ones have. What flex compiles, no mode may watch.
    with nullcontext() if case.way == FLEX else names:
        _forward(model, case, arguments)
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        hidden = _forward(model, case, arguments)
        gc.collect()
        held = torch.cuda.memory_allocated() - before
    else:
        from benchmarks.loss.live_bytes import LiveBytes

        with LiveBytes(given) as live:
            hidden = _forward(model, case, arguments)
            gc.collect()
            held = live.now
    assert hidden.requires_grad
    found: set[str] = names.found
    return held, found


def _model_of(case: Case, device: str) -> tuple[Any, dict[str, Any]]:
    """Return a model on `device` with the attention of `case`, and the arguments of a call."""
    import torch
    from transformers import AutoModelForCausalLM

    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.allocate_tensors import TORCH_DTYPES
    from zerotoolsd.trainer.model.meta_model import read_config
    from zerotoolsd.trainer.model.segment_attention import SEGMENTED

    torch.manual_seed(0)
    config = read_config(ModelSpec(config=config_of(device)))
    by_segment = case.way == BY_SEGMENT
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=SHARED if by_segment else case.way
        ).to(TORCH_DTYPES[case.precision])
        arguments = {"input_ids": torch.full((1, case.length), 3)}
        if by_segment:
            model.set_attn_implementation(SEGMENTED)
            places = torch.arange(case.length // 2).repeat(2)[None]
            arguments["position_ids"] = places
    return model.train(), arguments


def _forward(model: Any, case: Case, arguments: dict[str, Any]) -> Any:
    from zerotoolsd.trainer.model.segment_attention import segments_of

    half = case.length // 2
    lengths = [(half, half)] if case.way == BY_SEGMENT else [(case.length,)]
    with segments_of(model, lengths):
        return model.base_model(**arguments, use_cache=False).last_hidden_state


def _names() -> Any:
    """Return a context manager. Its attribute `found` has the names of the kernels of
    scaled_dot_product_attention that ran inside the context.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.found = set[str]()

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = str(func)
            for kind in ("flash", "efficient", "cudnn"):
                if f"_scaled_dot_product_{kind}_attention" in name:
                    self.found.add(kind)
            return func(*args, **(kwargs or {}))

    return Names()


CHECKS = {
    "memory of attention": Check(
        "the estimate within 10 %, by its kernel", 90, attention_memory, shared=True
    ),
    "memory of flex attention": Check(
        "the estimate within 10 %",
        120,
        flex_memory,
        "flex_attention has no backward pass on CPUs",
        shared=True,
    ),
}
