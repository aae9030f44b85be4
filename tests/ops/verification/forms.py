"""A checkpoint in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.ops.verification.damage import SMALL
from zerotools.formats.format import WriteOptions
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion


def made(source: Path, out: Path, how: str) -> Path:
    """`source` in another form."""
    prepared: Any
    if how.startswith("reshard"):
        _, ranks, stage = how.split("-")
        options = WriteOptions(stage=int(stage))
        prepared = reshard.prepare_reshard(source, out, world_size=int(ranks), options=options)
    elif how.startswith("export"):
        prepared = consolidate.prepare_export(
            source, out, consolidate.Options(dtype=how.split("-")[1])
        )
    else:
        prepared = convert.prepare_convert(source, out, how, {})
    assert isinstance(prepared, Conversion)
    perform_conversion(prepared, budget=SMALL, overwrite=False)
    return out
