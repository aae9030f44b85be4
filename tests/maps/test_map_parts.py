"""What maps have in common: parts that are taken, words filled in, and what goes before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.maps import map_parts
from zerotools.maps.map_file import FamilyMap, read_map
from zerotools.maps.map_parts import part_names, with_parts
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped import shipped_map, shipped_maps

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ROOT / "zerotools" / "maps" / "families"
HEAD = 'model_types = ["mine"]\nparts = ["decoder", "attention", "norms", "mlp"]\n'


def read(more: str = "", head: str = HEAD) -> FamilyMap:
    return read_map((head + more).encode(), "mine.toml")


def test_a_map_of_parts_alone_is_a_whole_map() -> None:
    family, llama = read(), shipped_map("llama")
    assert family.hub["model.layers.{i}.mlp.gate_proj.weight"].shape == ("ffn", "hidden")
    assert set(family.hub) == set(llama.hub)
    assert list(family.layouts) == ["megatron"]
    assert family.layouts["megatron"].tensors.keys() == llama.layouts["megatron"].tensors.keys()


def test_a_key_of_the_map_goes_before_that_of_a_part() -> None:
    own = '[sizes]\nqk_norm = "special"\nspecial = "version > 1"\n'
    family = read(own + '[hf]\n"$L.self_attn.q_norm.weight" = "heads * head if special"\n')
    assert family.hub["model.layers.{i}.self_attn.q_norm.weight"].shape == ("heads * head",)
    assert family.hub["model.layers.{i}.self_attn.k_norm.weight"].shape == ("head",)
    names = list(family.sizes)
    assert names.index("special") < names.index("qk_norm"), "sizes are not in their order"


def test_words_are_those_of_the_place_then_of_the_map_then_of_the_part() -> None:
    tree = {
        "parts": ["norms", {"parts": ["norms"], "D": "mtp.{i}"}],
        "short": {"first_too": "$D.first_norm"},
    }
    made, words = with_parts(tree)
    also = made["layouts"]["megatron"]["also"]
    assert also["decoder.layers.{i}.first_norm"].startswith("decoder.layers.{i}.self_attention")
    assert also["mtp.{i}.first_norm"] == "mtp.{i}.self_attention.linear_qkv.layer_norm_weight"
    assert words["D"] == "decoder.layers.{i}"


@pytest.mark.parametrize(
    ("head", "more", "said"),
    [
        (HEAD.replace("mlp", "atention"), "", "atention is not known in parts; the .* attention"),
        (HEAD.replace('"mlp"', "3"), "", "parts has 3, and must have names"),
        ('model_types = ["x"]\nparts = "mlp"\n', "", "parts must be a list"),
        (HEAD, '[short]\ndense = "$denes"\n', r"\$denes is not defined in \[short\].*\$dense"),
        (HEAD, '[short]\nL = "$D"\nD = "$L"\n', "refer to each other"),
        (HEAD, '[sizes]\nhead = "kv"\nkv = "head"\n', "the sizes .* depend on each other"),
        (HEAD, '[hf]\n"$Q.weight" = "hidden"\n', r"\$Q is not defined"),
    ],
)
def test_a_mistake_is_said(head: str, more: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        read(more, head)


def test_words_that_grow_without_end_are_refused() -> None:
    short = "".join(f'w{n} = "{f"$w{n + 1}" * 40}"\n' for n in range(7))
    with pytest.raises(BadRequest, match="refer to each other, or become too long"):
        read(f'[short]\n{short}w7 = "x"\nL = "$w0"\n')


def test_parts_that_disagree_are_refused() -> None:
    changed: dict[str, Any] = {"hf": {"a": "1"}}
    map_parts._merge(changed, {"hf": {"a": "1", "b": "2"}}, "second")
    assert changed == {"hf": {"a": "1", "b": "2"}}
    with pytest.raises(ValueError, match="the part third has another b than the parts before it"):
        map_parts._merge(changed, {"hf": {"b": "3"}}, "third")


def test_every_part_is_taken_and_plain_families_are_short() -> None:
    texts = {name: (FAMILIES / f"{name}.toml").read_text("utf-8") for name in shipped_maps()}
    for part in part_names():
        assert any(f'"{part}"' in text for text in texts.values()), part
    assert all(len(text.splitlines()) <= 40 for text in texts.values())
    reference = (ROOT / "docs/reference/layout-maps.md").read_text("utf-8")
    for part in part_names():
        assert f"| `{part}` |" in reference


def test_a_part_that_a_model_lacks_makes_nothing() -> None:
    config = {"num_hidden_layers": 1, "hidden_size": 4, "num_attention_heads": 2, "vocab_size": 3}
    made = layout_of_model(read(), "megatron", {**config, "intermediate_size": 6})
    assert not any(name.endswith("bias") for name in made.tensors)
