"""Where the golden checkpoints lie: files from real runs, kept for ever."""

from __future__ import annotations

import hashlib
import json
import struct
from importlib.util import find_spec
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"

# A job of zerotools 0.1.0: a tied Llama of 7,088 parameters, ZeRO-3 on 2 ranks, bf16, step 3.
JOB = GOLDEN / "zerotools-0.1.0" / "step-00000003"

# One directory per case, with its truth: see golden/README.md.
DEEPSPEED = GOLDEN / "deepspeed-0.19.8"
TORCH = GOLDEN / "torch-2.13.0"
# The same cases by other versions, which `test_golden` and `test_older` read.
OTHER_VERSIONS = frozenset(
    (
        *(f"deepspeed-0.{version}" for version in ("10.3", "12.6", "14.5", "16.9", "18.9")),
        *("torch-2.6.0", "torch-2.15.0"),
    )
)
# One directory per program, with the losses of its own continuation: see tests/golden/foreign_runs.
FOREIGN = GOLDEN / "continued"


def digests(path: Path) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Name -> (dtype, shape, SHA-256 of the bytes) of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    data = memoryview(raw)[8 + length :]
    return {
        name: (
            entry["dtype"],
            tuple(entry["shape"]),
            hashlib.sha256(data[slice(*entry["data_offsets"])]).hexdigest(),
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def every_checkpoint() -> list[Path]:
    """All of them: of cases with a truth the directory `checkpoint`, else what a program wrote.
    Those with a directory `model` alone are quantised weights, and of no run; `OTHER_VERSIONS`
    are left out, and those of Orbax without TensorStore, which reads them."""
    made = sorted(GOLDEN.glob("*/*/checkpoint"))
    unread = "orbax-" if find_spec("tensorstore") is None else "-"
    cases = [
        path
        for path in made
        if path.parents[1].name not in OTHER_VERSIONS
        and not path.parents[1].name.startswith(unread)
    ]
    files = {path.parent for path in made}
    others = (
        path
        for path in sorted(GOLDEN.glob("*/*"))
        if path.is_dir()
        and path not in files
        and not path.parent.name.startswith("datasets-")
        and not path.parent.name.endswith("_runs")  # the programs that wrote them
        and not (path / "model").is_dir()
    )
    return [*cases, *others]
