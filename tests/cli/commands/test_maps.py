"""`zerotools maps`, and `--map-to` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.golden_files import GOLDEN
from tests.maps.hub_models import written
from tests.maps.small_maps import CONFIG, TEXT
from zerotools.cli.main import build, run

Zerotools = Callable[..., tuple[int, str, str]]


@pytest.fixture
def zerotools(capsys: pytest.CaptureFixture[str]) -> Zerotools:
    """`zerotools("maps", "list")` is (exit status, stdout, stderr)."""

    def invoke(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run(build(), [*map(str, arguments)])
        return (status, *capsys.readouterr())

    return invoke


def test_list_has_every_map_with_its_layouts(zerotools: Zerotools) -> None:
    status, out, _ = zerotools("maps", "list")
    assert status == 0
    assert "llama  Llama, Mistral, Qwen2 and Qwen3" in out
    assert "  titan  torchtitan's Llama 3" in out
    found = json.loads(zerotools("maps", "list", "--json")[1])["maps"]
    assert {"hf", "maxtext", "maxtext-pairs", "meta", "titan", "megatron"} == set(
        next(each for each in found if each["name"] == "llama")["layouts"]
    )


def test_show_has_the_tensors_of_both_sides_with_shapes(
    zerotools: Zerotools, tmp_path: Path
) -> None:
    written(tmp_path)
    status, out, _ = zerotools("maps", "show", "llama", "--config", tmp_path, "--only", "megatron")
    assert status == 0
    assert "  decoder.layers.self_attention.linear_qkv.weight [2, 32, 16]" in out
    assert "    model.layers.1.self_attn.q_proj.weight [16, 16]" in out
    shown = zerotools("maps", "show", "--config", tmp_path / "config.json", "--json")[1]
    layouts = {"maxtext", "maxtext-pairs", "meta", "titan", "megatron"}
    assert layouts == set(json.loads(shown)["layouts"])
    status, _, err = zerotools("maps", "show", "llama")
    assert (status, "maps show needs --config FILE" in err) == (2, True)
    status, out, _ = zerotools("maps", "show", "llama", "--toml")
    assert "[layouts.megatron.tensors]" in out


def test_check_proves_the_layouts_and_finds_that_of_a_checkpoint(
    zerotools: Zerotools, tmp_path: Path
) -> None:
    held = written(tmp_path / "titan", "titan")
    status, out, _ = zerotools("maps", "check", "--config", tmp_path / "titan")
    assert status == 0
    assert "megatron: 9 tensors; the layout covers the whole model and can be inverted" in out
    check = ("maps", "check", "llama", tmp_path / "titan", "--config", tmp_path / "titan")
    status, out, _ = zerotools(*check)
    assert status == 0
    assert "meta: found in the checkpoint: 21 tensors" in out
    stray = held.pop("layers.1.attention.wq.weight")
    held["layers.1.attention.wqq.weight"] = stray
    held["norm.weight"] = np.zeros(3, "f4")
    save_file(held, tmp_path / "titan" / "model.safetensors")
    status, out, _ = zerotools(*check)
    assert status == 1
    assert "meta: 1 of 21 tensors missing, 1 unknown, 1 of another shape" in out
    assert "    missing: layers.1.attention.wq.weight" in out
    assert "    unknown: layers.1.attention.wqq.weight" in out
    assert "norm.weight has shape [3], but config.json gives it [16]" in out
    found = json.loads(zerotools(*check, "--json")[1])
    meta = next(each for each in found["layouts"] if each["name"] == "meta")
    assert meta["missing"] == ["layers.1.attention.wq.weight"]


def test_check_knows_what_a_run_of_megatron_was_started_with(
    zerotools: Zerotools, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 30}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    run = GOLDEN / "megatron-core-0.16.1" / "dense-tp2-pp2" / "checkpoint"
    check = ("maps", "check", "llama", run, "--config", config)
    status, out, _ = zerotools(*check)
    assert (status, "megatron: found in the checkpoint: 15 tensors" in out) == (0, True)
    config.write_text(json.dumps({"model_type": "llama", **sizes, **heads, "rope_theta": 5e5}))
    status, _, err = zerotools(*check)
    assert (status, "rope_theta = 500000, and the run was trained with" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ("show", "lama", "--config", "{}"),
            2,
            "the map lama does not exist; the nearest is llama",
        ),
        (("show", "mine.toml", "--config", "{}"), 2, "the file mine.toml does not exist"),
        (("check", "{}/mine", "--config", "{}"), 2, "mine does not exist"),
        (("show", "llava"), 4, "the map llava changes only names (LLaVA, "),
        (("check", "qwen2_vl", "--config", "{}"), 4, "the map qwen2_vl changes only names"),
        (("show", "llava", "--toml"), 4, "use it with --map-to hf or --map-to memory"),
        (("check", "llama"), 2, "maps check needs --config FILE"),
        (("show",), 2, "name a map or its file"),
        (("show", "{}", "--config", "{}"), 2, "name the map first, then the checkpoint"),
        (("check", "{}", "--config", "{}"), 0, ""),
        (("check", "{}"), 0, ""),
        (("show", "--toml"), 2, "name the map"),
        (("show", "llama", "--config", "{}", "--only", "titn"), 2, "the nearest is titan"),
        (("show", "phi3", "--config", "{}"), 0, ""),
        (("check", "llama", "--config", "{}", "--map-arg", "x"), 2, "is not NAME=NUMBER"),
        (
            ("show", "--config", "{}", "--only", "megatron", "--map-arg", "vocab_multiple=0"),
            2,
            "1 or more",
        ),
        (("show", "llama", "--config", "{}", "--only", "TITAN"), 2, "the nearest is titan"),
    ],
)
def test_what_is_refused_is_one_sentence(
    zerotools: Zerotools, tmp_path: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    written(tmp_path)
    found = zerotools("maps", *(each.replace("{}", str(tmp_path)) for each in arguments))
    assert found[0] == status, found
    assert said in found[2]


def test_a_config_that_no_map_is_for_names_the_nearest(
    zerotools: Zerotools, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "lama"}')
    status, _, err = zerotools("maps", "check", "--config", tmp_path)
    assert status == 4
    assert "no map exists for models of type lama; the nearest is llama" in err


def test_consolidate_there_and_back_is_the_same_file(zerotools: Zerotools, tmp_path: Path) -> None:
    written(tmp_path / "hf")
    for source, out, to in (
        ("hf", "mg", "megatron"),
        ("mg", "titan", "titan"),
        ("titan", "b", "hf"),
    ):
        status, _, err = zerotools(
            "consolidate", tmp_path / source, tmp_path / out, "--map-to", to, "--dtype", "fp32",
            "--verify",
        )  # fmt: skip
        assert status == 0, err
    assert "note: the tensors have the layout meta of the map llama" in err
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "b"))
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_the_layout_that_it_has_is_said_and_written(zerotools: Zerotools, tmp_path: Path) -> None:
    written(tmp_path / "hf")
    for command in (("consolidate",), ("convert", "--to", "safetensors")):
        out = tmp_path / command[0]
        status, _, err = zerotools(*command, tmp_path / "hf", out, "--map-to", "hf")
        assert status == 0
        assert "note: the checkpoint already has the layout hf: its tensors stay as they are" in err
        assert (out / "model.safetensors").is_file()


def test_a_map_of_the_users_own_is_read_and_its_typos_are_said(
    zerotools: Zerotools, tmp_path: Path
) -> None:
    held = {"embed": (10, 4), "head": (10, 4)}
    for layer in range(2):
        held |= {f"layer.{layer}.q": (4, 4), f"layer.{layer}.kv": (8, 4)}
        held |= {f"layer.{layer}.expert.{number}.w": (3, 4) for number in range(3)}
    (tmp_path / "toy").mkdir()
    save_file(
        {name: np.ones(shape, "f4") for name, shape in held.items()},
        tmp_path / "toy" / "model.safetensors",
    )
    (tmp_path / "toy" / "config.json").write_text(json.dumps(CONFIG))
    own = tmp_path / "own.toml"
    own.write_text(TEXT)
    asked = ("consolidate", tmp_path / "toy", tmp_path / "out", "--map-to", "other", "--map", own)
    status, _, err = zerotools(*asked)
    assert status == 0, err
    assert "block.experts" in load_file_names(tmp_path / "out")
    own.write_text(TEXT.replace("stacked =", "staked ="))
    status, _, err = zerotools(*asked, "--overwrite")
    assert status == 2
    assert "own.toml, line 30: staked is not known in layouts.other" in err
    assert "the nearest is stacked" in err


def load_file_names(folder: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "np") as file:
        return set(file.keys())


def test_rows_that_are_no_padding_are_refused_with_the_numbers(
    zerotools: Zerotools, tmp_path: Path
) -> None:
    held = written(tmp_path / "mg", "megatron")
    asked = ("consolidate", tmp_path / "mg", tmp_path / "out", "--map-to", "hf", "--dtype", "fp32")
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        held[name] = np.ones((130, 16), "f4")
    save_file(held, tmp_path / "mg" / "model.safetensors")
    status, _, err = zerotools(*asked)
    assert status == 2
    assert (
        "embedding.word_embeddings.weight has 130 rows, but config.json has a vocabulary of 20"
        in err
    )
    assert not (tmp_path / "out").exists()
    status, _, err = zerotools(*asked, "--map-arg", "vocab_multiple=130")
    assert status == 0, err
    assert "left out 110 rows of padding of output_layer.weight" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--map-from", "hf"), "--map-from needs --map-to"),
        (("--map", "own.toml"), "--map needs --map-to"),
        (("--map-arg", "a=1"), "--map-arg needs --map-to"),
        (("--map-to", "titan", "--map-arg", "a=b"), "--map-arg 'a=b' is not NAME=NUMBER"),
        (("--map-to", "titan", "--map-from", "megatron"), "does not fit the layout megatron"),
        (("--map-to", "titan", "--adapter-only"), "has no tensor of a LoRA adapter"),
        (
            ("--map-to", "titan", "--dtype", "mxfp8"),
            "convert to hf with --map-to first, and quantise the result",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    zerotools: Zerotools, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    written(tmp_path / "hf")
    status, _, err = zerotools("consolidate", tmp_path / "hf", tmp_path / "out", *options)
    assert status == 2
    assert any(each in err for each in said.split("|")), err


def test_no_map_goes_to_a_job(zerotools: Zerotools, tmp_path: Path) -> None:
    written(tmp_path / "hf")
    status, _, err = zerotools(
        "convert", tmp_path / "hf", tmp_path / "out", "--to", "job", "--map-to", "titan"
    )
    assert status == 2
    assert "--map-to and --to job exclude each other" in err
