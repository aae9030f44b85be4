"""What is left of a run whose adapters were saved alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import zerotools
from tests.ops.exports import model, noise
from tests.ops.exports import weights_of as written_in
from tests.ops.weights.test_add_base_model_weights import (
    CONFIG,
    ON_HUB,
    PLAIN,
    WEIGHTS,
    adapter,
    saved,
)
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


@pytest.mark.parametrize("is_named", [False, True])
def test_the_config_is_that_of_the_base_model_as_in_an_export(
    tmp_path: Path, is_named: bool
) -> None:
    config = json.dumps({"model_type": "mine", "tie_word_embeddings": True})
    table = {"embed_tokens.weight": noise(5, 4, seed=4)}
    base = model(tmp_path / "base", {**WEIGHTS, **table}, config__json=config)
    names = {f"base_model.model.lm_head.lora_{half}.weight" for half in "AB"}
    halves = {name: noise(2, 4) if "_A" in name else noise(5, 2) for name in sorted(names)}
    run = adapter(tmp_path / "run", **halves)
    if is_named:
        named = {**CONFIG, "base_model_name_or_path": str(base)}
        (run / "adapter_config.json").write_text(json.dumps(named))
    zerotools.consolidate(run, tmp_path / "export", base=base)
    assert zerotools.salvage(run, tmp_path / "rest", base=base).is_complete
    wanted, found = written_in(tmp_path / "export"), written_in(tmp_path / "rest")
    assert "lm_head.weight" in found
    assert {n: t.tobytes() for n, t in found.items()} == {n: t.tobytes() for n, t in wanted.items()}
    configs = [json.loads((tmp_path / d / "config.json").read_text()) for d in ("export", "rest")]
    assert configs[0] == configs[1]
    assert configs[1]["tie_word_embeddings"] is False
