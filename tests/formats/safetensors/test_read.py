from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.formats.safetensors.files import entry, file_bytes, write_file
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.safetensors.read import read as read_safetensors


def _index(root: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (root / "model.safetensors.index.json").write_text(text)


def _names(path: Path) -> list[str]:
    return [key.name for key in read_safetensors(path).tensors]


def test_one_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.safetensors", {"a": b"12", "b": b"345"})
    checkpoint = read_safetensors(path)
    (chunk,) = checkpoint.tensors[Key("b", "param")].chunks
    data = checkpoint.path_of(chunk).read_bytes()
    assert data[chunk.offset :] == b"345"
    assert checkpoint.files == {"x.safetensors": len(data)}
    assert checkpoint.model_sidecars == {}


def test_an_index_says_which_files_and_in_which_order(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", {"b": b"1"})
    write_file(tmp_path / "2.safetensors", {"a": b"2"})
    write_file(tmp_path / "other.safetensors", {"z": b"3"})
    _index(tmp_path, {"b": "1.safetensors", "a": "2.safetensors"})
    assert _names(tmp_path) == ["b", "a"]


def test_without_an_index_all_files_are_read(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", {"b": b"1"})
    write_file(tmp_path / "2.safetensors", {"a": b"2"})
    assert _names(tmp_path) == ["b", "a"]


def test_a_single_model_file_comes_before_a_stale_index(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", {"a": b"1"})
    _index(tmp_path, {"b": "gone.safetensors"})
    assert _names(tmp_path) == ["a"]


def test_config_and_tokenizer_are_companions(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", {"a": b"1"})
    for name in ("config.json", "tokenizer.json", "README.md", "optimizer.pt"):
        (tmp_path / name).touch()
    assert set(read_safetensors(tmp_path).model_sidecars) == {"config.json", "tokenizer.json"}


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        ({"a": "gone.safetensors"}, "gone.safetensors is missing"),
        ({"a": "../1.safetensors"}, "below its directory"),
        ({"a": "/etc/passwd"}, "below its directory"),
        ({"a": 3}, "below its directory"),
        ({"b": "1.safetensors"}, "holds a, but the index does not list it there"),
        ({}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_an_index_that_disagrees(tmp_path: Path, weight_map: object, said: str) -> None:
    write_file(tmp_path / "1.safetensors", {"a": b"1"})
    _index(tmp_path, weight_map)
    with pytest.raises(BadFile, match=said):
        read_safetensors(tmp_path)


def test_a_name_that_no_file_holds_is_a_problem_of_that_tensor_alone(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", {"a": b"1"})
    _index(tmp_path, {"a": "1.safetensors", "b": "1.safetensors"})
    found = read_safetensors(tmp_path)
    assert [key.name for key in found.tensors] == ["a"]
    (problem,) = found.problems
    assert (problem.tensor, problem.is_unread, problem.file) == ("b", True, None)
    assert "which the index lists; export the rest with --exclude b" in problem.message


def test_an_entry_of_no_type_is_a_problem_of_that_tensor_alone(tmp_path: Path) -> None:
    """torchtitan's export of tied models, until 2026-06."""
    tied = entry("", [], 1, 1)
    header = {"embed": entry("U8", [1], 0, 1), "lm_head.weight": tied, "__metadata__": {}}
    (tmp_path / "1.safetensors").write_bytes(file_bytes(header, b"7"))
    _index(tmp_path, {"embed": "1.safetensors", "lm_head.weight": "1.safetensors"})
    found = read_safetensors(tmp_path)
    assert [key.name for key in found.tensors] == ["embed"]
    (problem,) = found.problems
    assert problem.tensor == "lm_head.weight"
    assert problem.is_unread
    assert "element type ''" in problem.message
    (tmp_path / "1.safetensors").write_bytes(file_bytes({"lm_head.weight": entry("", [], 0, 0)}))
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(Unsupported, match="element type ''"):  # nothing else to read
        read_safetensors(tmp_path)


def test_an_index_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(BadFile, match="not JSON"):
        read_safetensors(tmp_path)


def _numbered(root: Path, count: int) -> list[str]:
    names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    for name in names:
        write_file(root / name, {name[6:11]: b"1"})
    return names


@pytest.mark.parametrize("lost", [0, 4, 8])
def test_a_numbered_file_that_is_lost(tmp_path: Path, lost: int) -> None:
    names = _numbered(tmp_path, 9)
    assert len(_names(tmp_path)) == 9
    (tmp_path / names[lost]).unlink()
    with pytest.raises(
        BadFile, match=f"{names[lost]} is missing: according to the other names, .* 9"
    ):
        read_safetensors(tmp_path)


def test_files_that_are_numbered_from_0(tmp_path: Path) -> None:
    for number in (0, 1):
        write_file(tmp_path / f"m-{number}-of-2.safetensors", {str(number): b"1"})
    assert _names(tmp_path) == ["0", "1"]
    (tmp_path / "m-1-of-2.safetensors").unlink()
    with pytest.raises(BadFile, match=r"m-1-of-2\.safetensors is missing"):
        read_safetensors(tmp_path)


def test_an_index_that_lacks_a_numbered_file(tmp_path: Path) -> None:
    names = _numbered(tmp_path, 3)
    _index(tmp_path, {"00001": names[0], "00003": names[2]})
    with pytest.raises(BadFile, match=f"{names[1]} is missing: according to the other names,"):
        read_safetensors(tmp_path)
    more = "model-00004-of-00003.safetensors"
    write_file(tmp_path / more, {"x": b"1"})
    _index(tmp_path, {f"0000{n}": name for n, name in enumerate(names, 1)})
    with pytest.raises(BadFile, match=f"does not list {more}, which belongs"):
        read_safetensors(tmp_path)


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    _numbered(tmp_path, 2)
    write_file(tmp_path / "model.safetensors", {"a": b"1"})
    (note,) = read_safetensors(tmp_path).origin.notes
    assert "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors" in note


def test_one_file_of_several_is_not_a_model(tmp_path: Path) -> None:
    name = _numbered(tmp_path, 2)[0]
    (problem,) = read_safetensors(tmp_path / name).problems
    assert "is one of the 2 files of a model; name its directory" in problem.message
    assert problem.file == name


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", {"a": b"1"})
    write_file(tmp_path / "2.safetensors", {"a": b"2"})
    with pytest.raises(BadFile, match="which another file also holds"):
        read_safetensors(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="has no"):
        read_safetensors(tmp_path)
    with pytest.raises(BadRequest, match="does not exist"):
        read_safetensors(tmp_path / "gone")
