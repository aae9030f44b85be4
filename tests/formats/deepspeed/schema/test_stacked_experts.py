"""What `ds_autoep_layers` says, and what it cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.deepspeed.schema.stacked_experts import (
    ExpertBlock,
    StackedExperts,
    stacked_experts_of,
)

PATH = Path("run/mp_rank_00_model_states.pt")
PREFIX = "model.layers.0.mlp.experts"


def layer(*ranks: list[int], **changes: Any) -> dict[str, Any]:
    """An entry of four experts, placed on `ranks` where there are any."""
    found: dict[str, Any] = {"expert_key_prefix": PREFIX, "num_experts": 4, "ep_size": 2}
    if ranks:
        listed = [{"rank": rank, "experts": own} for rank, own in enumerate(ranks)]
        found["expert_placement"] = {"version": 1, "ranks": listed}
    return found | changes


def test_experts_are_placed_as_listed_or_one_behind_another() -> None:
    for entry, firsts in (
        (layer(), (0, 2)),
        (layer([0, 1], [2, 3]), (0, 2)),
        (layer([2, 3], [0, 1]), (2, 0)),
    ):
        blocks = stacked_experts_of(PATH, [entry]).blocks(f"{PREFIX}.w2")
        assert blocks == tuple(ExpertBlock(first, 2, 4) for first in firsts)
    assert stacked_experts_of(PATH, None) == stacked_experts_of(PATH, []) == StackedExperts()


def test_names_of_files_are_of_one_expert() -> None:
    experts = stacked_experts_of(PATH, [layer()])
    assert experts.of_file(f"{PREFIX}.w1.3") == (f"{PREFIX}.w1", ExpertBlock(3, 1, 4))
    for name in (f"{PREFIX}.w1", f"{PREFIX}.w1.4", f"{PREFIX}.w1.x", "model.layers.1.mlp.w1.0"):
        assert experts.of_file(name) is None
    assert experts.whole_shape(f"{PREFIX}.w1", (2, 6, 8)) == (4, 6, 8)
    assert experts.whole_shape("model.norm.weight", (2,)) == (2,)


def test_second_names_of_a_router_are_its_own() -> None:
    experts = stacked_experts_of(PATH, [layer()])
    first, second = "model.layers.0.mlp.router.gate.weight", "model.layers.0.mlp.gate.gate.weight"
    others = ["model.layers.0.mlp.shared_experts.gate_proj.weight", "model.norm.weight"]
    assert experts.routers([first, second, *others]) == {second: first}
    assert experts.routers([second, *others]) == {}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("damaged", "is not a list of layers"),
        ({"moe_layer_id": 0}, "a layer without expert_key_prefix"),
        (layer(num_experts=None), "num_experts of .* is None"),
        (layer(ep_size=True), "ep_size of .* is True"),
        (layer([0, 1], [2, 3], ep_size=3), r"on ranks \[0, 1\], and its ep_size is 3"),
        (layer([0, 1], [1, 2]), "not each of the 4 experts .* is on one"),
        (layer([0, 1], [2]), "not each of the 4 experts"),
        (layer(num_experts=5), "not each of the 5 experts"),
    ],
)
def test_what_contradicts_itself_is_damage(entry: Any, said: str) -> None:
    with pytest.raises(BadFile, match=said):
        stacked_experts_of(PATH, [entry])


@pytest.mark.parametrize("ranks", [([0, 2], [1, 3]), ([0, 1, 2], [3])])
def test_other_placements_are_refused_by_name(ranks: tuple[list[int], ...]) -> None:
    with pytest.raises(Unsupported, match=r"has experts \[\d.*report it"):
        stacked_experts_of(PATH, [layer(*ranks)])
