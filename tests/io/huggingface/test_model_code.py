"""Code of a model that its configs name: it is found, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerotools.io.huggingface.model_code import lacking_code
from zerotools.io.huggingface.model_sidecars import model_sidecars, of_other_kinds, sidecar_kind

AUTO_MAP = {"AutoConfig": "configuration_foo.FooConfig", "AutoModel": "modeling_foo.FooModel"}
MODELING = "from .configuration_foo import FooConfig\n\ndef late():\n    from .deep import x\n"


def directory(path: Path, config: object, **code: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for name, text in code.items():
        (path / f"{name}.py").write_text(text)
    return path


def test_the_code_of_a_model_and_what_it_imports(tmp_path: Path) -> None:
    place = directory(
        tmp_path / "m",
        {"auto_map": AUTO_MAP},
        modeling_foo=MODELING,
        configuration_foo="import os\nfrom numpy import array\n",
        deep="import .deeper\n",
        deeper="from .modeling_foo import FooModel\n",
        train="secret = 1\n",
    )
    names = {"configuration_foo", "modeling_foo", "deep", "deeper"}
    found = model_sidecars(place)
    assert set(found) == {"config.json", *(f"{name}.py" for name in names)}
    assert lacking_code(found) == []


def test_the_code_of_tokenizer_processor_and_pipeline(tmp_path: Path) -> None:
    tree = {"custom_pipelines": {"pair": {"impl": "pair.Pair", "pt": ["AutoModel"]}}}
    place = directory(tmp_path / "m", tree, pair="", tokenization_foo="", processing_foo="")
    tokenizer = {"auto_map": {"AutoTokenizer": ["tokenization_foo.FooTokenizer", None]}}
    (place / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    processor = {"inner": [{"auto_map": {"AutoProcessor": "processing_foo.FooProcessor"}}]}
    (place / "preprocessor_config.json").write_text(json.dumps(processor))
    found = model_sidecars(place)
    code = {name for name in found if name.endswith(".py")}
    assert code == {"pair.py", "processing_foo.py", "tokenization_foo.py"}
    kinds = {sidecar_kind(name): name for name in sorted(code)}
    assert kinds == {
        "config": "pair.py", "processor": "processing_foo.py", "tokenizer": "tokenization_foo.py"
    }  # fmt: skip
    assert set(of_other_kinds(found, ["config.json", "preprocessor_config.json"])) == {
        "tokenization_foo.py", "tokenizer_config.json"
    }  # fmt: skip


@pytest.mark.parametrize(
    "named", ["user/repo--modeling_foo.FooModel", "../modeling_foo.FooModel", "modeling_foo", 7]
)
def test_a_name_that_is_no_file_of_the_model(named: object, tmp_path: Path) -> None:
    place = directory(tmp_path / "m", {"auto_map": {"AutoModel": named}}, modeling_foo="")
    assert set(model_sidecars(place)) == {"config.json"}
    assert lacking_code(model_sidecars(place)) == []


def test_code_that_is_not_there_is_named(tmp_path: Path) -> None:
    place = directory(tmp_path / "m", {"auto_map": AUTO_MAP}, modeling_foo="")
    assert lacking_code(model_sidecars(place)) == ["configuration_foo.py"]


@pytest.mark.parametrize("text", ["{", '{"auto_map": [1]}', "[" * 100_000, "[]"])
def test_a_config_that_names_nothing(text: str, tmp_path: Path) -> None:
    place = directory(tmp_path / "m", {}, modeling_foo="")
    (place / "config.json").write_text(text)
    assert set(model_sidecars(place)) == {"config.json"}


def test_a_link_to_code_elsewhere_is_not_followed(tmp_path: Path) -> None:
    place = directory(tmp_path / "m", {"auto_map": {"AutoModel": "settings.Model"}})
    (tmp_path / "settings.py").write_text("password = 1")
    (place / "settings.py").symlink_to(tmp_path / "settings.py")
    assert set(model_sidecars(place)) == {"config.json"}
    assert lacking_code(model_sidecars(place)) == ["settings.py"]
