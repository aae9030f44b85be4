"""CRC-32 as `zlib.crc32` computes it, by zlib-ng if that is installed.

zlib-ng uses vector instructions. It is up to twenty times as fast as zlib, which takes more than
half of the processor time of `verify` (benchmarks/results/verify.md).
"""

from __future__ import annotations

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
