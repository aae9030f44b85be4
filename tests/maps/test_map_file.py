"""Files of maps: what is read, and what is refused with the line and the nearest word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.maps.small_maps import changed
from zerotools.core.errors import BadRequest
from zerotools.maps.map_file import LAYOUT_KEYS, read_map
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.tensor_expressions import SIZES

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
        (("hidden_size", "open('x')"), "has Call, which maps do not take"),
        (('same_as = "other"', 'same_as = "othr"'), "same_as othr"),
        (('"block.{i}.query" = "block.{i}.q"', '"b.query" = "block.{i}.q"'), "different indices"),
        (('= "block.{i}.q"', '= "block.{i}.qu"'), "the nearest is block"),
        (('"block.{i}.bias" = "$L', '"block.{i+size}.bias" = "$L'), "size is not known in .sizes"),
        (("[short]", 'may_lack = ["n"]\n[short]'), "n is not known in .indices"),
        (("[optional]", '[copies]\n"again" = "hed"\n[optional]'), "hed is not known in .hf.; the"),
        (("[layouts.twin]", "[layouts.hf]"), "has no separate table"),
        (('about = "another program"', "ignored = 3"), "not TOML"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_said_with_its_line(change: tuple[str, str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        changed(change)


def test_what_is_not_toml_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"x\.toml is not TOML"):
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
