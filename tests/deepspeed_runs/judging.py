"""Golden cases, resharded and handed to real DeepSpeed; what it then holds is compared bit for bit.

Needs no torch itself: the ranks that `judge.py` describes run as processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED, digests
from zerotools.core.checkpoint import Checkpoint
from zerotools.formats import read
from zerotools.formats.deepspeed.lay_out import lay_out

from .launch import launch

# Those whose engines are Hugging Face's, or that are universal, pipelines and the like.
OTHER_ENGINES = ("universal", "pipeline", "tensor-parallel", "experts", "z0-", "hf-trainer")
# Refused, with a sentence: elastic state has no hyper-parameters.
REFUSED = ("elastic",)


def judged_cases() -> list[str]:
    """Golden cases that real DeepSpeed can judge."""
    return sorted(
        path.parent.name
        for path in DEEPSPEED.glob("*/truth.json")
        if not path.parent.name.startswith(OTHER_ENGINES)
        and not any(word in path.parent.name for word in REFUSED)
    )


def reshard(source: Checkpoint, out: Path, ranks: int) -> Checkpoint:
    """Write `source` for `ranks` ranks, and read it again."""
    return read(write(source, lay_out(source, out, world_size=ranks)))


def differences(names: Iterable[str], ranks: int, directory: Path) -> list[str]:
    """Reshard golden cases to `ranks`, let DeepSpeed load them in one launch; what is not equal."""
    cases = list(names)
    for name in cases:
        (directory / name).mkdir()
        reshard(read(DEEPSPEED / name / "checkpoint"), directory / name / "given", ranks)
    launch("tests.deepspeed_runs.judge", cases, ranks, directory)
    return [found for name in cases for found in _differences(name, ranks, directory / name)]


def _differences(name: str, ranks: int, directory: Path) -> Iterator[str]:
    live = digests(directory / "truth.safetensors")
    for key, expected in digests(DEEPSPEED / name / "truth.safetensors").items():
        if live.get(key) != expected and not _is_excluded(name, key):
            yield f"{name} at {ranks} ranks: the engine has another {key}"
    source, again = read(DEEPSPEED / name / "checkpoint"), read(directory / "again")
    before, after = contents(source), contents(again)
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            yield f"{name} at {ranks} ranks: what DeepSpeed saved again has another {key}"
    back = reshard(again, directory / "back", source.origin.world_size or 1)
    if contents(back) != before:
        yield f"{name} from {ranks} ranks back is not what it was"


def _is_excluded(name: str, key: str) -> bool:
    """Frozen weights that `exclude_frozen_parameters` kept out of the checkpoint."""
    return "exclude-frozen" in name and "lora" not in key
