"""What flat keys mean, by the paths that planner_data records and by the optimizers there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from zerotools.core import dtypes
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.dcp.name_flat_keys import NamedKeys, name_tensors
from zerotools.io.distcp.metadata import Item, Metadata, SavedTensor

Path = tuple[str | int, ...]
_ITEM = Item("__0_0.distcp", 0, 1000)
_OPTIONS = ("param_groups", "lr")


def named(paths: Iterable[Path], *, recorded: bool = True, section: str | None = None) -> NamedKeys:
    """The names of float tensors at these paths; what lies below param_groups is a value."""
    known = {".".join(map(str, path)): path for path in paths}
    values = {flat for flat in known if "param_groups." in flat and flat.endswith(".lr")}
    tensor = SavedTensor(dtypes.FLOAT32, (4,), ())
    return name_tensors(
        Metadata(
            {flat: tensor for flat in known if flat not in values},
            dict.fromkeys(values, _ITEM),
            known if recorded else None,
        ),
        "ckpt",
        section,
    )


def flat(*keys: str) -> Mapping[str, Key]:
    """The keys of a state dict that was flat when it was saved."""
    return named((key,) for key in keys).keys


@pytest.mark.parametrize(
    ("paths", "key", "meant"),
    [
        ([("model.a.w",), ("optim.a.w.step",)], "model.a.w", Key("a.w", "param")),
        ([("model.a.w",), ("optim.a.w.step",)], "optim.a.w.step", Key("a.w", "step")),
        ([("model", "a.w"), ("x",)], "model.a.w", Key("a.w", "param")),
        ([("model", "a.w"), ("x",)], "x", Key("x", "state")),
        ([("model", "model.a.w")], "model.model.a.w", Key("model.a.w", "param")),
        (
            [("optimizer", "state", "a.w", "exp_avg"), ("optimizer", "param_groups", 0, "lr")],
            "optimizer.state.a.w.exp_avg",
            Key("a.w", "exp_avg"),
        ),
        ([("optim", "a.w", "my.state")], "optim.a.w.my.state", Key("a.w", "my.state")),
        ([("model", "w"), ("train_state", "at")], "train_state.at", Key("train_state.at", "state")),
        ([("model.l.0.w",), ("lm_head.w",)], "model.l.0.w", Key("model.l.0.w", "param")),
        ([("l.0.w",), ("optimizer", "state", "l.0.w", "step")], "l.0.w", Key("l.0.w", "param")),
        ([("model", "a", "b", "w"), ("model", "c", "w")], "model.a.b.w", Key("a.b.w", "param")),
        ([("model", "model", "w"), ("model", "h", "w")], "model.model.w", Key("model.w", "param")),
        ([("models", 0, "w"), ("models", 1, "w")], "models.1.w", Key("models.1.w", "param")),
    ],
)  # fmt: skip
def test_what_a_flat_key_means(paths: list[Path], key: str, meant: Key) -> None:
    assert named(paths).keys[key] == meant


def test_submodules_called_as_sections_are_weights_of_a_bare_state_dict() -> None:
    names = ("net.0.weight", "optim.weight", "optim.0.bias", "scheduler.weight", "model.state.w")
    assert flat(*names) == {name: Key(name, "param") for name in names}


def test_a_flattened_optimizer_beside_the_weights_is_state() -> None:
    keys = flat("a.w", "state.w", "state.a.w.step", "state.state.w.m.0", "param_groups.a.w.lr")
    assert keys["state.a.w.step"] == Key("a.w", "step")
    assert keys["state.state.w.m.0"] == Key("state.w", "m.0")
    assert keys["state.w"] == Key("state.w", "param")


def test_sections_that_a_program_wrote_into_its_keys_are_found_by_the_optimizer() -> None:
    keys = flat(
        "my.model.w", "my.head", "optimizer.state.my.model.w.m", "optimizer.param_groups.w.lr"
    )
    assert keys["my.model.w"] == Key("my.model.w", "param")
    assert keys["optimizer.state.my.model.w.m"] == Key("my.model.w", "m")
    keys = flat("net.w", "net.b", "opt.w.m", "opt.b.m")
    assert keys["net.w"] == Key("w", "param")
    assert keys["opt.b.m"] == Key("b", "m")


def test_without_paths_a_checkpoint_of_sections_is_split() -> None:
    def key(*keys: str) -> Key:
        return named([(each,) for each in keys], recorded=False).keys["model.a"]

    assert key("model.a", "optimizer.state.a.step") == Key("a", "param")
    assert key("model.a", "head") == Key("model.a", "param")
    assert key("model.a") == Key("a", "param")


def test_two_flat_keys_never_become_one() -> None:
    paths = [("model", "a"), ("optim", "state", "a", "m"), ("optimizer", "state", "a", "m")]
    keys = named([*paths, ("optim", "param_groups.a.lr"), ("optimizer", "param_groups.a.lr")]).keys
    assert len(set(keys.values())) == 3


def test_which_of_two_optimizers_of_the_same_names_trains_is_not_guessed() -> None:
    def states(*words: str) -> list[Key]:
        paths = [
            path
            for word in words
            for path in ((word, "state", "a", "m"), (word, "param_groups", 0, "lr"))
        ]
        keys = named([("model", "a"), *paths]).keys
        return [keys[f"{word}.state.a.m"] for word in words]

    assert states("outer_optimizer", "optimizer") == [
        Key("outer_optimizer.state.a.m", "state"),
        Key("a", "m"),
    ]
    assert {key.role for key in states("optimizer_a", "outer_optimizer")} == {"state"}


def test_state_that_an_optimizer_calls_a_weight_is_no_weight() -> None:
    paths = [("model", "a.w"), ("optimizer", "state", "a.w", "param"), ("optimizer", *_OPTIONS)]
    assert named(paths).keys["optimizer.state.a.w.param"].role == "state"


def test_an_optimizer_below_optim_is_known_by_its_groups() -> None:
    state: Path = ("optim", "state.a.w.step")
    assert named([state]).keys["optim.state.a.w.step"] == Key("state.a.w", "step")
    groups: Path = ("optim", "param_groups.a.w.lr")
    assert named([state, groups]).keys["optim.state.a.w.step"] == Key("a.w", "step")


def test_state_that_lies_deep_is_state_too() -> None:
    above = tuple("abcdefghijklm")
    paths = [(*above, "model", "w"), (*above, "optim", "state", "w", "m")]
    keys = named([*paths, (*above, "optim", "param_groups", 0, "lr")]).keys
    assert set(keys.values()) == {Key("w", "param"), Key("w", "m")}


def test_a_submodule_called_param_groups_is_no_optimizer() -> None:
    assert set(flat("param_groups.weight", "a.param_groups.b").values()) == {
        Key("param_groups.weight", "param"),
        Key("a.param_groups.b", "param"),
    }
    tracked = {"b.param_groups.lr": SavedTensor(dtypes.INT64, (), ())}
    tensor = SavedTensor(dtypes.FLOAT32, (4,), ())
    bare = {"b.param_groups.weight": tensor, "b.weight": tensor, **tracked}
    keys = name_tensors(Metadata(bare, {}, {key: (key,) for key in bare}), "ckpt").keys
    assert keys == {name: Key(name, "param") for name in bare}
    keys = named([("param_groups", "weight"), ("param_groups", "bias")]).keys
    assert {key.role for key in keys.values()} == {"param"}


def test_a_path_that_disagrees_with_its_key_is_not_believed() -> None:
    tensor = SavedTensor(dtypes.FLOAT32, (4,), ())
    metadata = Metadata({"a": tensor, "b": tensor}, {}, {"a": ("model", "b"), "b": ()})
    assert name_tensors(metadata, "ckpt").keys == {"a": Key("a", "param"), "b": Key("b", "param")}


def test_paths_without_end_and_sections_without_number_take_no_time() -> None:
    with pytest.raises(BadFile, match="has 2001 levels, but zerotools reads at most 32"):
        named([(*map(str, range(2000)), f"w{i}") for i in range(20)])
    wide: list[Path] = [(f"optim{n}", "state", "w", "m") for n in range(1000)]
    wide += [(f"optim{n}", "param_groups", "w", "lr") for n in range(1000)]
    wide += [(f"m{n}", "w") for n in range(1000)]
    assert len(named(wide).keys) == 2000


def test_a_section_that_is_not_there_is_refused_with_those_that_are() -> None:
    paths: list[Path] = [("model", "w"), ("ema", "w")]
    assert named(paths, section="ema").keys["ema.w"] == Key("w", "param")
    with pytest.raises(BadRequest, match=r"no section called 'emma'.*model \(1 tensor, 4 el.*ema"):
        named(paths, section="emma")
    assert named([("a", "b", "w"), ("c", "w")], section="b").keys["a.b.w"] == Key("w", "param")
    with pytest.raises(BadRequest, match="several sections called 'b'"):
        named([("a", "b", "w"), ("c", "b", "w")], section="b")
