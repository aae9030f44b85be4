from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import BadFile
from zerotools.ops.quantised.quantisation_config import Blocks, quantisation_config


def blocks(directory: Path, size: Any) -> Blocks:
    path = directory / "config.json"
    settings = {"quant_method": "fp8", "weight_block_size": size}
    path.write_text(json.dumps({"quantization_config": settings}))
    found = quantisation_config(path)
    assert found is not None
    return found.blocks()


def test_blocks_are_those_that_the_config_names(tmp_path: Path) -> None:
    assert blocks(tmp_path, [128, 64]) == ((128, 64),)
    assert blocks(tmp_path, None) == ()


@pytest.mark.parametrize("size", ["x", [0, 0], [128], [128, -1], [128, 128.0], 128, [True, 1]])
def test_blocks_that_are_none_are_refused(tmp_path: Path, size: Any) -> None:
    with pytest.raises(BadFile, match=r"config.json: weight_block_size is .*two numbers"):
        blocks(tmp_path, size)
