"""Files that hold every tensor whole: state dicts, training files, Hugging Face shards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.elements import assert_true, elements
from tests.formats.torchfile.saving import Saved
from tests.golden_files import TORCH
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key, Opaque, TensorRef
from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotools.formats.torchfile.read import read as read_torchfile
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.resume_from_other_program.foreign_run import read_run

W = np.arange(12, dtype=np.float32).reshape(3, 4)


def save(path: Path, tree: Any = None) -> Checkpoint:
    """Save a tree with arrays in it, and read it."""
    made = Saved()

    def stored(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return made.tensor(value)
        if isinstance(value, dict):
            return {key: stored(part) for key, part in value.items()}
        return [stored(part) for part in value] if isinstance(value, list) else value

    return read_torchfile(made.write(path, stored(tree)))


def names(checkpoint: Checkpoint) -> list[str]:
    return [str(key) for key in checkpoint.tensors]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "legacy.pt", "nested.pt", "protocol-4.pt"])
def test_a_golden_state_dict(name: str) -> None:
    case = TORCH / "state-dicts"
    checkpoint = formats.read(case / "checkpoint" / name)
    assert_true(checkpoint, case / "truth.safetensors")
    assert checkpoint.aliases == {"head.weight": "embed.weight"}
    assert checkpoint.problems == ()


def test_a_directory_with_a_pytorch_model_bin() -> None:
    case = TORCH / "state-dicts"
    assert_true(formats.read(case / "checkpoint"), case / "truth.safetensors")


@pytest.mark.parametrize("name", ["checkpoint.pt", "legacy.pt"])
def test_a_golden_training_file(name: str) -> None:
    """Nothing says which parameter is number 3, and nothing is guessed."""
    case = TORCH / "training-file"
    checkpoint = formats.read(case / "checkpoint" / name)
    assert_true(checkpoint, case / "truth.safetensors", roles={"param", "buffer"})
    assert checkpoint.origin.notes[0] == f"took the weights below 'model' in {name}"
    assert "no file has the names" in checkpoint.origin.notes[1]
    assert Key("optimizer.state.0", "exp_avg") in checkpoint.tensors
    assert checkpoint.state["epoch"] == 1
    assert len(checkpoint.state["param_groups"]) == 2


def test_nested_dicts_have_dotted_names(tmp_path: Path) -> None:
    found = save(tmp_path / "a.pt", {"net": {"0": {"w": W}}, "head": {"b": W[0]}, "epoch": 3})
    assert names(found) == ["net.0.w", "head.b"]
    assert found.state == {"epoch": 3}
    assert found.origin.notes == ()


@pytest.mark.parametrize("wrapper", ["model", "state_dict", "model_state_dict", "module"])
def test_a_wrapper_is_taken_off_and_said(tmp_path: Path, wrapper: str) -> None:
    found = save(tmp_path / "a.pt", {"ema": {"w": W}, wrapper: {"w": W}, "lists": [1, {"a": 2}]})
    assert names(found) == ["w", "ema.w (state)"]
    assert found.origin.notes == (
        f"took the weights below {wrapper!r} in a.pt",
        "the other tensors are not weights: ema",
    )
    assert found.state == {
        "ema": {"w": TensorRef(Key("ema.w", "state"))},
        "lists": [1, {"a": 2}],
    }


def test_a_tensor_beside_a_section_called_model_is_part_of_the_same_dict(tmp_path: Path) -> None:
    assert names(save(tmp_path / "a.pt", {"model": {"w": W}, "b": W})) == ["model.w", "b"]


@pytest.mark.parametrize(
    "beside", [{"loss": np.array(0.5)}, {"rng": np.zeros(16, np.uint8), "step": np.array(3)}]
)
def test_a_loss_or_a_generator_s_state_beside_a_model_is_not_a_weight(
    tmp_path: Path, beside: dict[str, Any]
) -> None:
    found = save(tmp_path / "a.pt", {"model_state_dict": {"w": W}, **beside})
    assert names(found) == ["w", *(f"{name} (state)" for name in beside)]
    said = f"the other tensors are not weights: {', '.join(sorted(beside))}"
    assert found.origin.notes[-1] == said


def test_what_lies_beside_model_and_optimizer_is_not_a_weight(tmp_path: Path) -> None:
    tree = {**_training([{"params": [0, 1]}], {0: 2 * W}), "losses": W[0]}
    assert "losses (state)" in names(save(tmp_path / "a.pt", tree))


def _training(groups: list[dict[str, Any]], moments: dict[int, Any]) -> dict[str, Any]:
    state = {n: {"exp_avg": value, "step": 7} for n, value in moments.items()}
    optimizer = {"state": state, "param_groups": groups}
    return {"model": {"a": W, "count": np.array(3), "b": W[0]}, "optimizer": optimizer}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([{"params": [0, 1]}], ["a (exp_avg)", "b (exp_avg)"]),
        ([{"params": [1], "param_names": ["b"]}, {"params": [0], "param_names": ["a"]}], None),
        ([{"params": [0]}, {"params": [1]}], ["a (exp_avg)", "b (exp_avg)"]),
        ([{"params": [1, 0]}], ["a (exp_avg)", "b (exp_avg)"]),
        ([{"params": [0, 1, 2]}], ["optimizer.state.0 (exp_avg)"]),
    ],
)
def test_whose_state_a_number_is(
    tmp_path: Path, groups: list[dict[str, Any]], expected: list[str] | None
) -> None:
    found = save(tmp_path / "a.pt", _training(groups, {0: 2 * W, 1: 3 * W[0]}))
    moments = names(found)[3:]
    assert moments[: len(expected or [])] == (expected or [])
    if expected is None:
        assert set(moments) == {"a (exp_avg)", "b (exp_avg)"}
        assert elements(found, Key("b", "exp_avg")).tolist() == (3 * W[0]).tolist()
    assert found.state["optimizer"] == {"0": {"step": 7}, "1": {"step": 7}}


def test_two_weights_of_one_shape_leave_their_state_without_names(tmp_path: Path) -> None:
    """An optimizer may have got them in any order, such as reversed or sorted layers."""
    tree = _training([{"params": [0, 1, 2]}], {0: 2 * W, 1: 3 * W[0], 2: 4 * W})
    tree["model"]["c"] = W
    found = save(tmp_path / "a.pt", tree)
    assert [name for name in names(found) if name.endswith("(exp_avg)")] == [
        f"optimizer.state.{number} (exp_avg)" for number in range(3)
    ]
    assert any("no file has the names" in note for note in found.origin.notes)


def test_an_optimizer_in_a_list_and_two_optimizers(tmp_path: Path) -> None:
    one = {"state": {0: {"m": W}}, "param_groups": [{"params": [0]}]}
    found = save(tmp_path / "a.ckpt", {"state_dict": {"w": W}, "optimizer_states": [one]})
    assert names(found) == ["w", "w (m)"]
    two = save(tmp_path / "b.pt", {"model": {"w": W}, "opt_d": one, "opt_g": one})
    assert names(two) == ["w", "opt_d.state.0.m (state)", "opt_g.state.0.m (state)"]


def test_the_state_of_several_optimizers_is_not_left_out_silently(tmp_path: Path) -> None:
    one = {"state": {0: {"m": W}}, "param_groups": [{"params": [0]}]}
    several: list[dict[str, Any]] = [
        {"opt_d": one, "opt_g": one},
        {"optimizer_states": [one, one]},  # Lightning
        {"optimizers": {"d": one, "g": one}},
    ]
    for number, optimizers in enumerate(several):
        path = tmp_path / f"{number}.pt"
        found = save(path, {"model": {"w": W}, **optimizers})
        with pytest.raises(Unsupported, match=rf"has several optimizers \({', '.join(optimizers)}"):
            formats.format_of(found).numbered_state(found)
        with pytest.raises(Unsupported, match="several optimizers"):
            prepare_convert(path, tmp_path / "out", "torch", {})
        with pytest.raises(Unsupported, match="several optimizers"):
            read_run(path)
        prepare_convert(path, tmp_path / "out", "torch", {"weights_only": True})
    single = save(tmp_path / "a.pt", {"model": {"w": W}, "optimizers": {"adam": one}})
    assert names(single) == ["w", "w (m)"]


def test_hugging_face_shards_with_and_without_an_index(tmp_path: Path) -> None:
    save(tmp_path / "pytorch_model-00001-of-00002.bin", {"a": W})
    save(tmp_path / "pytorch_model-00002-of-00002.bin", {"b": W[1]})
    (tmp_path / "config.json").write_text("{}")
    for _ in range(2):
        found = formats.read(tmp_path)
        assert (names(found), set(found.model_sidecars)) == (["a", "b"], {"config.json"})
        assert elements(found, Key("b", "param")).tolist() == W[1].tolist()
        where = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
        index = tmp_path / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": where}))
    assert names(formats.read(index)) == ["a", "b"]
    (problem,) = formats.read(tmp_path / where["a"]).problems
    assert "is one of the 2 files of a model" in problem.message
    (tmp_path / where["b"]).unlink()
    with pytest.raises(BadFile, match=r"00002-of-00002\.bin is missing"):
        formats.read(tmp_path)
    index.unlink()
    with pytest.raises(BadFile, match=r"00002-of-00002\.bin is missing"):
        formats.read(tmp_path)


def test_files_that_the_numbers_in_the_names_call_for(tmp_path: Path) -> None:
    first, third = (f"pytorch_model-0000{n}-of-00003.bin" for n in (1, 3))
    save(tmp_path / first, {"a": W})
    save(tmp_path / third, {"c": W[1]})
    with pytest.raises(
        BadFile, match=r"00002-of-00003\.bin is missing: according to the other names"
    ):
        formats.read(tmp_path)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": first, "c": third}}))
    with pytest.raises(
        BadFile, match=r"00002-of-00003\.bin is missing: according to the other names"
    ):
        formats.read(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        ({"a": "../1.bin"}, "below its directory"),
        ({"b": "1.bin"}, "holds a, but the index does not list it there"),
        ({}, "no weight_map"),
    ],
)
def test_an_index_that_disagrees(tmp_path: Path, weight_map: Any, said: str) -> None:
    save(tmp_path / "1.bin", {"a": W})
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BadFile, match=said):
        read_torchfile(tmp_path)


def test_a_name_that_no_shard_holds_is_a_problem_of_that_tensor_alone(tmp_path: Path) -> None:
    save(tmp_path / "1.bin", {"a": W})
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.bin", "b": "1.bin"}}))
    found = read_torchfile(tmp_path)
    assert [key.name for key in found.tensors] == ["a"]
    (problem,) = found.problems
    assert problem.tensor == "b"
    assert problem.is_unread


@pytest.mark.parametrize(
    ("tree", "error", "said"),
    [
        ("", Unsupported, "placeholder of Azure's Nebula"),
        (Opaque("mine", "Net", state={"w": 1}), Unsupported, r"a pickled mine\.Net, not weights"),
        ([W], BadFile, "holds a list, not a state dict"),
        ({"epoch": 3}, BadFile, "holds no tensors"),
        ({"a": {"b": W}, "a.b": W}, BadFile, r"two tensors that are both called a\.b"),
    ],
)
def test_what_is_no_state_dict(
    tmp_path: Path, tree: Any, error: type[ZerotoolsError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        save(tmp_path / "a.pt", tree)
    assert "a.pt" in str(caught.value)


def test_a_second_model_of_accelerate_is_said_not_to_be_read(tmp_path: Path) -> None:
    save(tmp_path / "pytorch_model.bin", {"a": W})
    save(tmp_path / "pytorch_model_1.bin", {"a": W + 1})
    found = formats.read(tmp_path)
    assert "not read, because pytorch_model.bin was taken: pytorch_model_1.bin" in (
        found.origin.notes
    )


def test_several_models_in_a_directory(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "adapter_model.bin"):
        save(tmp_path / name, {"a": W})
    with pytest.raises(
        BadRequest, match=r"pass the path of one of adapter_model\.bin, pytorch_model\.bin"
    ):
        formats.read(tmp_path)


@pytest.mark.parametrize("depth", [31, 60, 5000])
def test_a_tree_that_is_nested_without_end(tmp_path: Path, depth: int) -> None:
    made = Saved()
    tree: Any = {"w": made.tensor(W)}
    for _ in range(depth):
        tree = {"a": tree}
    path = made.write(tmp_path / "deep.pt", tree)
    if depth < 32:
        assert len(read_torchfile(path).tensors) == 1
        return
    with pytest.raises(BadFile, match="more than 32 levels deep"):
        read_torchfile(path)


def test_a_tree_that_shares_its_parts(tmp_path: Path) -> None:
    """2^28 leaves in a file of a few hundred bytes."""
    made = Saved()
    tree: Any = {"w": made.tensor(W)}
    for _ in range(28):
        tree = {"a": tree, "b": tree}
    path = made.write(tmp_path / "bomb.pt", {"x": tree})
    with pytest.raises(BadFile, match="contain one another without end"):
        read_torchfile(path)


def test_one_ranks_pieces_in_the_place_of_a_whole_model(tmp_path: Path) -> None:
    """As older releases of accelerate save an adapter in FSDP2 with FULL_STATE_DICT."""
    ranks = TORCH / "fsdp2-verl-w3" / "checkpoint"
    shutil.copy(ranks / "model_world_size_3_rank_0.pt", tmp_path / "pytorch_model_fsdp.bin")
    with pytest.raises(BadFile, match=r"pytorch_model_fsdp.bin holds only one rank's part"):
        formats.read(tmp_path)
