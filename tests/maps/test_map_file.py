"""Files of maps: what is read, and what is refused with the line and the nearest word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.maps.small_maps import changed
from zerotools.core.errors import BadRequest
from zerotools.maps import map_file
from zerotools.maps.expressions import SIZES
from zerotools.maps.map_file import LAYOUT_KEYS, FamilyMap, part_names, read_map, with_parts
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped_maps import shipped_map, shipped_maps

ROOT = Path(__file__).resolve().parents[2]


def test_a_map_has_its_layouts_and_abbreviations_in_full() -> None:
    family = changed()
    assert family.name == "toy"
    assert list(family.layouts) == ["other", "twin"]
    assert family.hub["layer.{i}.kv"].shape == ("2 * hidden", "hidden")
    assert family.hub["layer.{i}.bias"].condition == "biased"
    assert family.layouts["other"].also == {"block.{i}.query": "block.{i}.q"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("model_types", "model_typs"), "line 3: model_typs is not known in the map; the nearest"),
        (("stacked =", "staked ="), "staked is not known in layouts.other; the nearest is stacked"),
        (
            ("pairs($L.q", "pears($L.q"),
            r"line 35: block.\{i\}.q: pears\(...\) does not exist; the nea",
        ),
        (("pairs($L.q;", "pairs($L.qq;"), r"layer.\{i\}.qq is not known in \[hf\]; the nearest is"),
        (('"block.{i}.bias" = "$L.bias"', '"block.{j}.bias" = "$L.bias"'), r"the index \{j\}"),
        (("; heads)", ")"), "lacks a semicolon"),
        (("; 1, 2)", "; 1)"), "takes 2 sizes, but has 1"),
        (("pairs($L.q;", "pairs($L.q, $L.kv;"), "takes 1 tensor, but has 2"),
        (("2 * hidden, hidden", "2 ** hidden, hidden"), "Pow|maps do not take"),
        (("hidden_size", "open('x')"), "has Call, which maps do not support"),
        (('same_as = "other"', 'same_as = "othr"'), "same_as = othr"),
        (('"block.{i}.query" = "block.{i}.q"', '"b.query" = "block.{i}.q"'), "the same indices"),
        (('= "block.{i}.q"', '= "block.{i}.qu"'), "the nearest is block"),
        (('"block.{i}.bias" = "$L', '"block.{i+size}.bias" = "$L'), "size is not known in .sizes"),
        (("[short]", 'may_lack = ["n"]\n[short]'), "n is not known in .indices"),
        (("[optional]", '[copies]\n"again" = "hed"\n[optional]'), "hed is not known in .hf.; the"),
        (("[layouts.twin]", "[layouts.hf]"), "remove its second table"),
        (('about = "another program"', "ignored = 3"), "not valid TOML"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_said_with_its_line(change: tuple[str, str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        changed(change)


def test_what_is_not_toml_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"x\.toml is not valid TOML"):
        read_map(b"\xff", "x.toml")
    with pytest.raises(BadRequest, match="has no model_types"):
        read_map(b"[sizes]\n", "x.toml")


def test_the_example_of_the_reference_is_a_map_that_holds() -> None:
    text = (ROOT / "docs/reference/layout-maps.md").read_text("utf-8")
    family = read_map(text.split("```toml\n")[1].split("```")[0].encode(), "example.toml")
    config = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 5}
    for own in ({}, {"attention_bias": True, "tie_word_embeddings": True}):
        for name in ("hf", "other", "twin"):
            made = layout_of_model(family, name, {**config, **own})
            assert set(made.to_hub) == set(made.hub)


def test_every_example_of_the_reference_is_read() -> None:
    text = (ROOT / "docs/reference/layout-maps.md").read_text("utf-8")
    examples = [each.split("```")[0] for each in text.split("```toml\n")[1:]]
    families = [read_map(each.encode(), f"example-{n}.toml") for n, each in enumerate(examples)]
    assert families[1].hub["model.layers.{i}.ffn_norm.weight"].shape == ("hidden",)


def test_the_reference_has_every_word_and_key() -> None:
    text = (ROOT / "docs/reference/layout-maps.md").read_text("utf-8")
    for word in SIZES:
        assert f"| `{word}(" in text
    for key in LAYOUT_KEYS:
        assert f"| `{key}" in text


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
        (HEAD.replace("mlp", "atention"), "", "parts has atention, but .*; the .* attention"),
        (HEAD.replace('"mlp"', "3"), "", "parts has 3, which is not the name of a part"),
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
    with pytest.raises(BadRequest, match="refer to each other, or are too long when expanded"):
        read(f'[short]\n{short}w7 = "x"\nL = "$w0"\n')


def test_parts_that_disagree_are_refused() -> None:
    changed: dict[str, Any] = {"hf": {"a": "1"}}
    map_file._merge(changed, {"hf": {"a": "1", "b": "2"}}, "second")
    assert changed == {"hf": {"a": "1", "b": "2"}}
    with pytest.raises(
        ValueError, match="the part third gives b another value than an earlier part"
    ):
        map_file._merge(changed, {"hf": {"b": "3"}}, "third")


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
