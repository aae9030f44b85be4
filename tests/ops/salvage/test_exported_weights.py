"""What is left of a run whose adapters were saved alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.ops.weights.test_add_base_model_weights import ON_HUB, PLAIN, saved
from tests.ops.weights.test_lora_merge import OTHER, UP
from zerotools.core.boxes import Box
from zerotools.core.hub_layout import HubBlock
from zerotools.formats import FORMATS
from zerotools.ops.salvage.exported_weights import Naming, weights_of


@pytest.mark.parametrize("name", [PLAIN.name, ON_HUB])
def test_a_weight_whose_adapter_has_a_hole_is_not_taken_from_the_base(
    tmp_path: Path, name: str
) -> None:
    block = HubBlock(name, (9, 5), Box.whole((9, 5)))
    source = saved(tmp_path, name, hub={} if name == PLAIN.name else {PLAIN.name: (block,)})
    half = replace(source.tensors[UP], chunks=tuple(source.tensors[UP].chunks)[:1])
    source = replace(source, tensors={**source.tensors, UP: half})
    naming = Naming(str, lambda _: True)
    found = weights_of(source, naming, tmp_path / "scratch", FORMATS)
    assert set(found.masters.tensors) == {OTHER}
    assert PLAIN.name in found.lost
