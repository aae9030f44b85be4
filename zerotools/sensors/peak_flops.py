"""The peak floating-point operations per second of a GPU, by its name.

The values are for dense matrix products (no 2:4 sparsity), in units of 10^12 per second. The 16-bit
values are for tensor cores with fp32 accumulation. The fp32 values are without tensor cores, which
is torch's default. Sources are NVIDIA's papers: the datasheets of V100, V100S, T4, A10, A30, A40,
A100, L4, L40, L40S, H100, H200, GH200, HGX B200, and RTX 6000 Ada; the GA102 whitepaper (RTX 3090
and 3090 Ti, RTX A6000); the Ada whitepaper (RTX 4080 and 4090). If a datasheet has only the value
for sparse matrices, half of this value is used.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TERA = 1e12


class Peak(NamedTuple):
    """The peak operations per second of a GPU, in units of 10^12.

    `half` is for fp16, and for bf16 if the GPU supports it. `fp32` is None if it is unknown.
    """

    half: float
    fp32: float | None
    has_bf16: bool = True


_PEAKS: tuple[tuple[str, Peak], ...] = (
    (r"Tesla V100-SXM[23]-\d+GB(-LS)?", Peak(125, 15.7, has_bf16=False)),
    (r"Tesla V100-PCIE-\d+GB", Peak(112, 14, has_bf16=False)),
    (r"Tesla V100S-PCIE-\d+GB", Peak(130, 16.4, has_bf16=False)),
    (r"(Tesla )?T4", Peak(65, 8.1, has_bf16=False)),
    (r"A10", Peak(125, 31.2)),
    (r"A30", Peak(165, 10.3)),
    (r"A40", Peak(149.7, 37.4)),
    (r"A[18]00[- ](SXM4-|PCIE-)?\d+GB( PCIe)?", Peak(312, 19.5)),
    (r"L4", Peak(121, 30.3)),
    (r"L40", Peak(181, 90.5)),
    (r"L40S", Peak(362, 91.6)),
    (r"H100 80GB HBM3", Peak(989.4, 66.9)),
    (r"H100 PCIe", Peak(756.5, 51.2)),
    (r"H[12]00 NVL", Peak(835.5, 60)),
    (r"H200", Peak(989.4, 66.9)),
    (r"GH200 \d+GB", Peak(989.4, 66.9)),
    (r"B200", Peak(2250, None)),
    (r"RTX A6000", Peak(154.8, 38.7)),
    (r"RTX 6000 Ada Generation", Peak(364.2, 91.1)),
    (r"GeForce RTX 3090", Peak(71, 35.6)),
    (r"GeForce RTX 3090 Ti", Peak(80, 40)),
    (r"GeForce RTX 4080", Peak(97.5, 48.7)),
    (r"GeForce RTX 4090", Peak(165.2, 82.6)),
)


def peak_flops(name: str, precision: str) -> float | None:
    """Return the peak operations per second of a GPU. `name` is its name in the driver, and
    `precision` is "fp32", "bf16" or "fp16".

    Return None if the peak is unknown, as for parts of a GPU (MIG) and laptop GPUs.
    """
    bare = name.removeprefix("NVIDIA ")
    found = next((peak for form, peak in _PEAKS if re.fullmatch(form, bare)), None)
    if found is None or (precision == "bf16" and not found.has_bf16):
        return None
    peak = found.fp32 if precision == "fp32" else found.half
    return None if peak is None else peak * TERA
