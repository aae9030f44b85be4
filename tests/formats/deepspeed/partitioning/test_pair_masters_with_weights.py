from __future__ import annotations

from zerotools.formats.deepspeed.partitioning.pair_masters_with_weights import layers_of_ties

TIED = "tied_modules.embed.weight"
NAMES = [f"{layer}.weight" for layer in range(6)]


def test_tied_layers_lie_between_the_named_ones_of_other_stages() -> None:
    stages = [{TIED, "1.weight", "2.weight"}, {TIED, "3.weight"}]
    assert layers_of_ties(stages, NAMES) == [{0}, {4, 5}]


def test_stages_beside_one_another_may_have_what_nobody_names() -> None:
    stages = [{"0.weight"}, {TIED, "2.weight"}, {"5.weight"}]
    assert layers_of_ties(stages, NAMES) == [{1}, {1, 3, 4}, {3, 4}]


def test_one_stage_may_have_all() -> None:
    assert layers_of_ties([{TIED, "x"}], ["0.weight", "7.bias", "other"]) == [{0, 7}]
