"""Checkpoints in other layouts: weights, masters, moments and numbers, groups and ties."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.maps.small_maps import CONFIG, TEXT
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.weights.convert_layout import (
    MapRequest,
    config_of,
    mapped_checkpoint,
    mapped_training,
)

HUB: dict[str, tuple[int, ...]] = {"embed": (10, 4), "head": (10, 4)}
for layer in range(2):
    HUB |= {f"layer.{layer}.q": (4, 4), f"layer.{layer}.kv": (8, 4)}
    HUB |= {f"layer.{layer}.expert.{number}.w": (3, 4) for number in range(3)}
ROLES = ("param", "param16", "exp_avg", "exp_avg_sq")


def toy(root: Path, roles: tuple[str, ...] = ROLES, **config: Any) -> Checkpoint:
    """A run of the small map's model, every tensor of other numbers."""
    root.mkdir(exist_ok=True)
    (root / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (root / "toy.toml").write_text(TEXT)
    data, tensors = b"", {}
    for number, (role, name) in enumerate((r, n) for r in roles for n in HUB):
        array = np.arange(np.prod(HUB[name]), dtype="f4") + 1000 * number
        chunk = Chunk(Box.whole(HUB[name]), "data", len(data))
        tensors[Key(name, role)] = Tensor(dtypes.FLOAT32, HUB[name], (chunk,))
        data += array.tobytes()
    (root / "data").write_bytes(data)
    return Checkpoint(
        root,
        tensors,
        Origin("toy", root),
        files={"data": len(data)},
        model_sidecars={"config.json": root / "config.json"},
    )


def request(checkpoint: Checkpoint, to: str = "other", source: str | None = None) -> MapRequest:
    return MapRequest(to=to, file=checkpoint.root / "toy.toml", source=source)


def arrays_of(checkpoint: Checkpoint) -> dict[Key, np.ndarray]:
    return load_tensors(checkpoint, {key: each.dtype for key, each in checkpoint.tensors.items()})


def test_masters_copies_and_moments_move_alike_and_come_back(tmp_path: Path) -> None:
    source = toy(tmp_path)
    there = mapped_checkpoint(source, request(source))
    assert there.notes[0] == "the tensors have the layout hf of the map toy"
    assert "top.in is padded from 10 to 128 rows" in there.notes[1]
    assert {key.role for key in there.checkpoint.tensors} == set(ROLES)
    made = arrays_of(there.checkpoint)
    before = arrays_of(source)
    for role in ROLES:
        q = [before[Key(f"layer.{n}.q", role)][[0, 1, 2, 3]] for n in range(2)]
        assert (made[Key("block.q", role)] == np.stack(q)).all()
        kv = [before[Key(f"layer.{n}.kv", role)][[0, 1, 4, 5, 2, 3, 6, 7]] for n in range(2)]
        assert (made[Key("block.kv", role)] == np.stack(kv)).all()
    back = mapped_checkpoint(there.checkpoint, request(source, "hf"))
    after = arrays_of(back.checkpoint)
    assert set(after) == set(before)
    assert all(after[key].tobytes() == before[key].tobytes() for key in before)
    assert "left out 118 rows of padding of top.in" in back.notes


def test_a_layout_that_it_has_already_is_said_and_changes_nothing(tmp_path: Path) -> None:
    source = toy(tmp_path)
    same = mapped_checkpoint(source, request(source, "hf"))
    assert not same.is_changed
    assert same.notes == ("the checkpoint already has the layout hf: its tensors stay as they are",)
    there = mapped_checkpoint(source, request(source))
    assert not mapped_checkpoint(there.checkpoint, request(source, "twin")).is_changed


def test_a_layout_that_is_said_is_checked(tmp_path: Path) -> None:
    source = toy(tmp_path)
    assert mapped_checkpoint(source, request(source, source="hf")).is_changed
    with pytest.raises(BadRequest, match="does not fit the layout other of the map toy"):
        mapped_checkpoint(source, request(source, "hf", source="other"))
    with pytest.raises(BadRequest, match="no layout othr; the nearest is other"):
        mapped_checkpoint(source, request(source, "othr"))


def test_a_shape_that_config_contradicts_is_said_with_both(tmp_path: Path) -> None:
    source = toy(tmp_path, vocab_size=11)
    with pytest.raises(BadRequest, match=r"embed has shape \[10, 4\], but .* gives it \[11, 4\]"):
        mapped_checkpoint(source, request(source))


def test_tensors_that_no_rule_knows_are_refused(tmp_path: Path) -> None:
    source = toy(tmp_path)
    stray = source.tensors[Key("layer.0.q", "param")]
    more = replace(source, tensors={**source.tensors, Key("layer.0.qq", "param"): stray})
    with pytest.raises(
        BadRequest, match=r"has 1 tensor that the layout does not have \(layer.0.qq; the nearest"
    ):
        mapped_checkpoint(more, request(source))
    more = replace(source, tensors={**source.tensors, Key("stray", "exp_avg"): stray})
    with pytest.raises(BadRequest, match=r"has stray \(exp_avg\), but no weight stray"):
        mapped_checkpoint(more, request(source))


def test_state_that_some_parts_lack_is_refused(tmp_path: Path) -> None:
    source = toy(tmp_path)
    tensors = dict(source.tensors)
    del tensors[Key("layer.1.expert.2.w", "exp_avg")]
    with pytest.raises(BadRequest, match=r"layer.1.expert.2.w|has no exp_avg"):
        mapped_checkpoint(replace(source, tensors=tensors), request(source))


def test_state_of_another_shape_moves_with_a_plain_name_only(tmp_path: Path) -> None:
    source = toy(tmp_path, ("param",))
    row = Tensor(dtypes.FLOAT32, (4,), (Chunk(Box.whole((4,)), "data", 0),))
    with pytest.raises(Unsupported, match=r"layer.0.kv \(row\) has shape \[4\], but its weight"):
        mapped_checkpoint(replace(source, tensors=source.tensors | {Key("layer.0.kv", "row"): row}),
               request(source))  # fmt: skip
    made = mapped_checkpoint(replace(source, tensors={**source.tensors, Key("embed", "row"): row}),
                  request(source))  # fmt: skip
    assert made.checkpoint.tensors[Key("top.in", "row")] is row


def test_a_tie_gets_the_names_of_the_layout(tmp_path: Path) -> None:
    source = toy(tmp_path, ("param",), tied=True)
    tensors = {key: each for key, each in source.tensors.items() if key.name != "head"}
    tied = replace(source, tensors=tensors, aliases={"head": "embed"})
    there = mapped_checkpoint(tied, request(source)).checkpoint
    assert there.aliases == {"top.out": "top.in"}
    assert Key("top.out", "param") not in there.tensors
    assert mapped_checkpoint(there, request(source, "hf")).checkpoint.aliases == {"head": "embed"}
    untold = mapped_checkpoint(replace(tied, aliases={}), request(source)).checkpoint
    assert untold.aliases == {"top.out": "top.in"}


def test_a_tie_that_config_does_not_say_is_written_under_both_names(tmp_path: Path) -> None:
    source = toy(tmp_path, ("param", "exp_avg"))
    tensors = {key: each for key, each in source.tensors.items() if key.name != "head"}
    tied = replace(source, tensors=tensors, aliases={"head": "embed"})
    there = mapped_checkpoint(tied, request(source)).checkpoint
    assert there.aliases == {}
    made = arrays_of(there)
    assert (made[Key("top.out", "param")] == made[Key("top.in", "param")]).all()
    assert Key("top.out", "exp_avg") not in made
    with pytest.raises(BadRequest, match="lacks 1 tensor"):
        mapped_checkpoint(replace(tied, aliases={"other": "embed"}), request(source))


def test_without_a_config_no_map_is_made(tmp_path: Path) -> None:
    source = replace(toy(tmp_path), model_sidecars={})
    with pytest.raises(BadRequest, match=r"has no config.json, .* pass --config-dir"):
        mapped_checkpoint(source, request(source))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BadFile, match="is not a JSON object"):
        config_of(tmp_path / "config.json", tmp_path)
    unknown = toy(tmp_path, model_type="qwen9")
    with pytest.raises(
        Unsupported, match="no map exists for models of type qwen9; the nearest is qw"
    ):
        mapped_checkpoint(unknown, MapRequest(to="megatron"))


def test_a_map_that_does_not_exist_is_a_bad_request(tmp_path: Path) -> None:
    asked = MapRequest(to="other", file=tmp_path / "lost.toml")
    with pytest.raises(BadRequest, match=r"lost\.toml cannot be read: No such file"):
        _ = asked.text
    with pytest.raises(BadRequest, match=r"lost\.toml cannot be read: No such file"):
        mapped_checkpoint(toy(tmp_path), asked)


ONE_STEP = {Key(name, "step"): Scalar(3.0) for name in HUB}


def trained(*groups: tuple[str, ...], **more: Any) -> TrainingState:
    made = tuple(ParamGroup(each, {"lr": number}) for number, each in enumerate(groups))
    return TrainingState(groups=made, scalars=ONE_STEP, **more)


def test_groups_and_numbers_get_the_new_names(tmp_path: Path) -> None:
    source = toy(tmp_path)
    experts = tuple(name for name in HUB if "expert" in name)
    rest = tuple(reversed([name for name in HUB if "expert" not in name and name != "embed"]))
    training = trained(rest, experts, frozen=frozenset({"embed"}))
    made = mapped_checkpoint(source, request(source))
    found = mapped_training(source, training, made.origins)
    assert [group.options for group in found.groups] == [{"lr": 0}, {"lr": 1}]
    assert found.groups[0].params == ("block.kv", "block.q", "top.out")
    assert found.groups[1].params == ("block.experts",)
    assert found.frozen == {"top.in"}
    assert found.scalars[Key("block.experts", "step")] == Scalar(3.0)
    assert not found.is_ordered


def test_parts_of_different_groups_or_steps_are_refused(tmp_path: Path) -> None:
    source = toy(tmp_path)
    made = mapped_checkpoint(source, request(source))
    names = tuple(name for name in HUB if name != "layer.1.q")
    with pytest.raises(BadRequest, match=r"layer.0.q and layer.1.q are parts of block.q"):
        mapped_training(source, trained(names, ("layer.1.q",)), made.origins)
    late = {**ONE_STEP, Key("layer.1.q", "step"): Scalar(4.0)}
    training = replace(trained(tuple(HUB)), scalars=late)
    with pytest.raises(BadRequest, match=r"the parts of block.q have step 3.0 and 4.0"):
        mapped_training(source, training, made.origins)
    with pytest.raises(Unsupported, match="has numbers instead of names"):
        mapped_training(source, trained(unnamed={"0": 0}), made.origins)
