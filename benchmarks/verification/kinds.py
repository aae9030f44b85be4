"""Six kinds of checkpoint of one run, at two of its steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from zerotools.formats.format import WriteOptions
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, perform
from zerotools.ops.execution.workers import MemoryBudget

RUN = Path(__file__).parents[2] / "tests/golden/deepspeed-0.19.8/z2-bf16-w2-tags/checkpoint"


@dataclass(frozen=True)
class Kind:
    """`write` makes one of a tag of the run; `peer` is the loader of its own library."""

    name: str
    peer: str
    write: Callable[[Path, Path], None]


def make(name: str, step: int, work: Path) -> Path:
    """The checkpoint of a kind, of one step, in `work`."""
    out = work / f"{name}-{step}"
    KINDS[name].write(RUN / f"global_step{step}", out)
    (out / ".zerotools-output.json").unlink(missing_ok=True)
    for tag in list(out.glob("global_step*")):  # the same name at both steps
        tag.rename(out / "tag")
    for hint in out.glob("latest*"):
        hint.write_text("tag")
    return out


def _copied(tag: Path, out: Path) -> None:
    shutil.copytree(tag, out / "tag")


def _written(conversion: object) -> None:
    assert isinstance(conversion, Conversion)
    perform(conversion, budget=MemoryBudget(), overwrite=False)


def _zero3(tag: Path, out: Path) -> None:
    _written(reshard.prepare(tag, out, world_size=3, options=WriteOptions(stage=3)))


def _converted(to: str) -> Callable[[Path, Path], None]:
    return lambda tag, out: _written(convert.prepare(tag, out, to, {}))


def _exported(tag: Path, out: Path) -> None:
    options = consolidate.Options(dtype="bf16", max_shard_bytes=200)
    _written(consolidate.prepare(tag, out, options))


def _legacy(tag: Path, out: Path) -> None:
    """As torch wrote files before 1.6: all of them without a checksum."""
    torch = import_module("torch")
    (out / "tag").mkdir(parents=True)
    for file in sorted(tag.iterdir()):
        tree = torch.load(file, map_location="cpu", weights_only=False)
        torch.save(tree, out / "tag" / file.name, _use_new_zipfile_serialization=False)


_ZERO_TO_FP32 = "DeepSpeed's zero_to_fp32"
KINDS = {
    kind.name: kind
    for kind in (
        Kind("zero2", _ZERO_TO_FP32, _copied),
        Kind("zero3", _ZERO_TO_FP32, _zero3),
        # zero_to_fp32 maps files into memory, which torch refuses of these, sound or not.
        Kind("legacy", "torch.load of every file", _legacy),
        Kind("universal", "torch.load of every file", _converted("universal")),
        Kind("dcp", "torch's dcp_to_torch_save", _converted("dcp")),
        Kind("safetensors", "transformers' load_state_dict of every shard", _exported),
    )
}
