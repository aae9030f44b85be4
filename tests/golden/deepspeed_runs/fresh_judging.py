"""Golden cases by way of torch DCP, which knows nothing of DeepSpeed, back to real DeepSpeed; what
it then holds is compared bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED, digests
from zerotools.formats import read, training_of
from zerotools.formats.dcp.lay_out_converted import lay_out_dcp
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.writing.lay_out_converted import lay_out_zero

from .launch import launch

GIVEN, AGAIN, TRUTH = "given", "again", "truth.safetensors"


def differences(names: Iterable[str], ranks: int, directory: Path) -> list[str]:
    """Convert golden cases to DCP and back, for `ranks` ranks of their own stage, and let DeepSpeed
    load them in one launch; what is not equal."""
    cases = list(names)
    for name in cases:
        (directory / name).mkdir()
        _there_and_back(name, ranks, directory / name)
    told = [(name, name, {}) for name in cases]
    (directory / "moves.json").write_text(json.dumps(told))
    launch("tests.golden.deepspeed_runs.judge", ["moves.json"], ranks, directory)
    return [found for name in cases for found in _differences(name, directory / name)]


def _there_and_back(name: str, ranks: int, directory: Path) -> None:
    source = read(DEEPSPEED / name / "checkpoint")
    training = training_of(source)
    target = lay_out_dcp(source, training, directory / "dcp", world_size=2, style="torch")
    there = read(write(source, target))
    settings = ZeroSettings(ds_config=training.ds_config)
    write(
        there,
        lay_out_zero(
            there, training_of(there), directory / GIVEN, world_size=ranks, settings=settings
        ),
    )


def _differences(name: str, directory: Path) -> Iterator[str]:
    live = digests(directory / TRUTH)
    for key, expected in digests(DEEPSPEED / name / TRUTH).items():
        if live.get(key) != expected:
            yield f"{name}: the engine has another {key}"
    before = contents(read(DEEPSPEED / name / "checkpoint"))
    after = contents(read(directory / AGAIN))
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            yield f"{name}: what DeepSpeed saved again has another {key}"
