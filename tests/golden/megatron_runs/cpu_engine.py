"""A stand-in for Transformer Engine, which needs a GPU: its modules by their formulas, on the CPU.

Megatron-Core's own wrappers of these modules, the layers that Megatron-Bridge and mcore-bridge make
of those, and everything that is saved are the programs' own. `install` goes before `megatron`.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
import torch.nn.functional as F
from torch.nn import Parameter

VERSION = "2.10.0"


def _parameter(*shape, dtype=None):
    return Parameter(torch.zeros(shape, dtype=dtype))


class _Stated(torch.nn.Module):
    """Without fp8 the extra state of a module of Transformer Engine is empty."""

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        pass


class Norm(_Stated):
    def __init__(
        self, hidden_size, eps=1e-5, zero_centered_gamma=False, params_dtype=None, **options
    ):
        super().__init__()
        self.weight = _parameter(hidden_size, dtype=params_dtype)
        self.eps, self.offset = eps, 1 if zero_centered_gamma else 0
        self.sequence_parallel = False

    def forward(self, x):
        return _rms(x, self.weight + self.offset, self.eps)


def _rms(x, weight, eps):
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (scaled * weight.float()).to(x.dtype)


class Linear(_Stated):
    def __init__(
        self, in_features, out_features, *, tp_group=None, tp_size=1, bias=True,
        return_bias=False, parallel_mode=None, params_dtype=None, **options
    ):  # fmt: skip
        super().__init__()
        self.parallel_mode, self.tp_size, self.tp_group = parallel_mode, tp_size, tp_group
        rows = out_features // (tp_size if parallel_mode == "column" else 1)
        columns = in_features // (tp_size if parallel_mode == "row" else 1)
        self.in_features, self.out_features = columns, rows
        self.use_bias, self.return_bias = bias, return_bias
        self.weight = _parameter(rows, columns, dtype=params_dtype)
        if parallel_mode:
            _cut(self.weight, 0 if parallel_mode == "column" else 1)
        if bias:
            self.bias = _parameter(rows, dtype=params_dtype)
            if parallel_mode == "column":
                _cut(self.bias, 0)

    def forward(self, x, is_first_microbatch=None):
        bias = self.bias if self.use_bias else None
        made = F.linear(x, self.weight, None if self.return_bias else bias)
        if self.parallel_mode == "row" and self.tp_size > 1:
            torch.distributed.all_reduce(made, group=self.tp_group)
        return (made, bias) if self.return_bias else made


def _cut(parameter, dim):
    parameter.tensor_model_parallel = True
    parameter.partition_dim, parameter.partition_stride = dim, 1


class LayerNormLinear(Linear):
    def __init__(
        self, in_features, out_features, eps=1e-5, zero_centered_gamma=False,
        normalization="RMSNorm", return_layernorm_output=False, **options
    ):  # fmt: skip
        if normalization != "RMSNorm":
            raise NotImplementedError(normalization)
        super().__init__(in_features, out_features, **options)
        self.layer_norm_weight = _parameter(in_features, dtype=options.get("params_dtype"))
        self.eps, self.offset = eps, 1 if zero_centered_gamma else 0
        self.return_layernorm_output = return_layernorm_output

    def forward(self, x, is_first_microbatch=None):
        normed = _rms(x, self.layer_norm_weight + self.offset, self.eps)
        made = super().forward(normed)
        if not self.return_layernorm_output:
            return made
        return (*made, normed) if isinstance(made, tuple) else (made, normed)


class GroupedLinear(_Stated):
    """Experts of a rank: `weight0`, `weight1`, ..., each applied to its share of the tokens."""

    def __init__(
        self, num_gemms, in_features, out_features, *, tp_size=1, bias=True, return_bias=False,
        parallel_mode=None, params_dtype=None, **options
    ):  # fmt: skip
        super().__init__()
        self.num_gemms, self.use_bias, self.return_bias = num_gemms, bias, return_bias
        self.fp8_meta, self.fp8, self.fp8_calibration = {"fp8_checkpoint": False}, False, False
        rows = out_features // (tp_size if parallel_mode == "column" else 1)
        columns = in_features // (tp_size if parallel_mode == "row" else 1)
        for number in range(num_gemms):
            setattr(self, f"weight{number}", _parameter(rows, columns, dtype=params_dtype))
            if bias:
                setattr(self, f"bias{number}", _parameter(rows, dtype=params_dtype))

    def init_fp8_metadata(self, num_gemms=1):
        pass

    def forward(self, x, m_splits, is_first_microbatch=None):
        shares = torch.split(x, [int(count) for count in m_splits])
        biases = [getattr(self, f"bias{n}", None) for n in range(self.num_gemms)]
        made = [
            F.linear(share, getattr(self, f"weight{n}"), None if self.return_bias else biases[n])
            for n, share in enumerate(shares)
        ]
        joined = torch.cat(made)
        return (joined, biases) if self.return_bias else joined


class DotProductAttention(_Stated):
    """Causal softmax(q k scale) v, with a window and a softmax offset; q is (s, b, heads, size)."""

    def __init__(
        self, num_attention_heads, kv_channels, num_gqa_groups=None, softmax_scale=None,
        window_size=None, softmax_type="vanilla", tp_size=1, **options
    ):  # fmt: skip
        super().__init__()
        self.softmax_scale, self.window = softmax_scale, window_size
        self.softmax_type = softmax_type
        if softmax_type == "learnable":
            self.softmax_offset = _parameter(num_attention_heads // tp_size)

    def forward(self, query, key, value, attention_mask=None, **options):
        groups = query.shape[2] // key.shape[2]
        key, value = (each.repeat_interleave(groups, 2) for each in (key, value))
        scale = self.softmax_scale or query.shape[-1] ** -0.5
        scores = torch.einsum("qbhd,kbhd->bhqk", query, key).float() * scale
        length = scores.shape[-1]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        if self.window is not None and self.window[0] >= 0:
            seen &= torch.ones(length, length, dtype=torch.bool).triu(-self.window[0])
        scores = scores.masked_fill(~seen, float("-inf"))
        if self.softmax_type == "learnable":
            sink = self.softmax_offset.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(-1)[..., :length].to(value.dtype)
        made = torch.einsum("bhqk,kbhd->qbhd", weights, value)
        return made.reshape(*made.shape[:2], -1)


class _Unused:
    """Stands for a class that Megatron makes others of, and of which no instance is made."""


_UNUSED = {
    "common.recipe": ("DelayedScaling", "Format", "Float8CurrentScaling"),
    "pytorch.fp8": ("FP8GlobalStateManager", "fp8_autocast", "fp8_model_init"),
    "pytorch.ops": ("Sequential", "FusibleOperation"),
    "pytorch.tensor": ("QuantizedTensor",),
    "pytorch.router": (
        "fused_compute_score_for_moe_aux_loss",
        "fused_moe_aux_loss",
        "fused_topk_with_score_function",
    ),
    "pytorch.distributed": ("CudaRNGStatesTracker", "activation_recompute_forward", "checkpoint"),
}
"""Names that are imported by others, which is all that is done with them here."""


def install():
    """`import transformer_engine` finds these modules."""
    own = (Linear, LayerNormLinear, GroupedLinear, DotProductAttention)
    norms = {"LayerNorm": Norm, "RMSNorm": Norm}
    _module("transformer_engine", __version__=VERSION)
    _module("transformer_engine.common")
    _module("transformer_engine.pytorch", **norms, **{each.__name__: each for each in own})
    for name, members in _UNUSED.items():
        _module(f"transformer_engine.{name}", **dict.fromkeys(members, _Unused))


def _module(name, **members):
    module = ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
