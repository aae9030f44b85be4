"""`convert --to megatron`: runs of Megatron in its newest form, and models of the Hub as runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.formats.megatron.golden import Digest, read_digests, run_of
from tests.ops.conversions.test_mapped import convert as convert_to_dcp
from tests.ops.conversions.test_mapped import of_role, trained
from tests.ops.conversions.test_megatron_mapped import DENSE, EXPERTS, config_dir
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.training_state import Scalar
from zerotools.io.distcp.metadata import read_metadata
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest

NEW = "megatron-core-0.16.1"
WHOLE = {"vocab_size": 32}  # the rows that the run has padded to, so that none is padding
SIZES = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "group_query_attention",
    "kv_channels",
    "num_experts",
    "padded_vocab_size",
    "untie_embeddings_and_output_weights",
    "swiglu",
    "normalization",
    "add_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "multi_latent_attention",
)
TO_MEGATRON = MapRequest(to="megatron", arguments={"vocab_multiple": 8})


def written(
    source: Path, out: Path, options: dict[str, Any] | None = None, **more: Any
) -> Conversion:
    conversion = convert.prepare_convert(source, out, "megatron", options or {}, **more)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    return conversion


def hub_model(case: str, tree: Mapping[str, Any], where: Path) -> Path:
    """A golden run as a model of the Hub."""
    base = config_dir({**tree, **WHOLE, "max_position_embeddings": 16}, where / "base")
    wanted = consolidate.Options(dtype="bf16", mapping=MapRequest(to="hf"))
    hub = consolidate.prepare_export(
        run_of(f"{NEW}/{case}"), where / "hub", wanted, config_dir=base
    )
    perform_conversion(hub, budget=MemoryBudget(), overwrite=False)
    return where / "hub"


def tensors(path: Path) -> dict[Key, Digest]:
    """All that the run has, with norms as zerotools writes them."""
    found = read_digests(formats.read(path))
    names = {key.name for key in found}
    return {Key(_as_written(key.name, names), key.role): each for key, each in found.items()}


def _as_written(name: str, names: set[str]) -> str:
    layer, dot, rest = name.partition(".mlp.linear_fc1.layer_norm_weight")
    if dot and not rest and f"{layer}.mlp.linear_fc1.weight" not in names:
        return f"{layer}.pre_mlp_layernorm.weight"
    for old, new in (
        (".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight"),
        (".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight"),
        (".q_layernorm.weight", ".linear_q_up_proj.layer_norm_weight"),
        (".kv_layernorm.weight", ".linear_kv_up_proj.layer_norm_weight"),
    ):
        before, found, _ = name.partition(old)
        if found and before + new.replace("layer_norm_weight", "weight") in names:
            return before + new
    return name


@pytest.mark.parametrize(
    "case",
    [
        f"{NEW}/dense-tp2-dp2-buckets",
        f"{NEW}/per-layer-tp2-reshardable",
        f"{NEW}/tied-pp2-plain",
        f"{NEW}/moe-ep2-tp2",
        f"{NEW}/moe-singleton-ep2",
        f"{NEW}/mla-tp2-ep2",
        f"{NEW}/legacy-tp2-pp2",
        f"{NEW}/legacy-moe-ep2-tp2",
        "megatron-core-0.15.2/dense-tp2-model-space",
    ],
)
def test_a_run_keeps_every_byte(case: str, tmp_path: Path) -> None:
    conversion = written(run_of(case), tmp_path / "out")
    assert tensors(tmp_path / "out") == tensors(run_of(case))
    source, made = (formats.read(path) for path in (run_of(case), tmp_path / "out"))
    ours, theirs = formats.training_of(made), formats.training_of(source)
    if any(key.role == "exp_avg" for key in source.tensors):
        assert (made.origin.step, made.root.name) == (10, "iter_0000010")
        assert {*ours.scalars.values()} == {*theirs.scalars.values()} == {Scalar(2)}
        assert len(ours.scalars) == len(theirs.scalars)
        assert [g.options for g in ours.groups] == [g.options for g in theirs.groups]
        assert "exp_avg" not in {dropped.what for dropped in conversion.target.dropped}
    else:
        assert (made.origin.step, made.root.name) == (0, "release")
    assert made.aliases == source.aliases


@pytest.mark.parametrize("case", ["dense-tp2-pp2", "moe-ep2-tp2", "mla-tp2-ep2"])
def test_all_that_megatron_saves_of_a_model_is_there(case: str, tmp_path: Path) -> None:
    written(run_of(f"{NEW}/{case}"), tmp_path / "out")
    made = read_metadata(next((tmp_path / "out").glob("*/.metadata")))
    real = read_metadata(run_of(f"{NEW}/{case}") / "iter_0000010" / ".metadata")
    for flat, saved in real.tensors.items():
        ours = made.tensors[flat]
        assert (ours.dtype, ours.shape) == (saved.dtype, saved.shape), flat
    assert {key for key in real.blobs if not key.startswith("rng_state")} <= {*made.blobs}


@pytest.mark.parametrize(
    ("case", "tree"),
    [
        ("dense-tp2-pp2", DENSE),
        ("legacy-tp2-pp2", {**DENSE, "tie_word_embeddings": True}),
        ("moe-singleton-ep2", EXPERTS),
    ],
)
def test_a_model_of_the_hub_is_the_run_that_it_came_from(
    case: str, tree: Mapping[str, Any], tmp_path: Path
) -> None:
    run = run_of(f"{NEW}/{case}")
    hub = hub_model(case, tree, tmp_path)
    conversion = written(hub, tmp_path / "out", mapping=TO_MEGATRON)
    source = formats.read(run)
    has_masters = any(key.role == "param16" for key in source.tensors)
    weights = {
        Key(key.name, "param"): digest
        for key, digest in tensors(run).items()
        if key.role in (("param16", "buffer") if has_masters else ("param", "buffer"))
    }
    assert tensors(tmp_path / "out") == weights
    assert any("only weights" in note for note in conversion.notes)
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").read_text() == "release"
    _assert_says_the_same_sizes(run, tmp_path / "out" / "release")


def _assert_says_the_same_sizes(run: Path, made: Path) -> None:
    ours = TorchFile.open(made, "common.pt").tree["args"].state
    theirs = formats.training_of(formats.read(run)).client["args"]
    for name in SIZES:
        assert ours[name] == theirs[name], name
    if theirs["num_experts"]:
        assert ours["moe_ffn_hidden_size"] == theirs["moe_ffn_hidden_size"]
    else:
        assert ours["ffn_hidden_size"] == theirs["ffn_hidden_size"]


def test_files_are_as_large_as_asked(tmp_path: Path) -> None:
    written(run_of(f"{NEW}/dense-tp2-pp2"), tmp_path / "out", {"max_shard_bytes": 8192})
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*/*.distcp")]
    assert len(sizes) > 3
    assert max(sizes) < 12_000
    assert tensors(tmp_path / "out") == tensors(run_of(f"{NEW}/dense-tp2-pp2"))


def test_names_of_the_hub_are_refused(tmp_path: Path) -> None:
    hub = hub_model("dense-tp2-pp2", DENSE, tmp_path)
    with pytest.raises(BadRequest, match="add --map-to megatron"):
        convert.prepare_convert(hub, tmp_path / "out", "megatron", {})


def test_a_directory_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(BadRequest, match="exists; choose another output"):
        written(run_of(f"{NEW}/dense-tp2-pp2"), tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_no_model_type_without_a_map(tmp_path: Path) -> None:
    base = config_dir({**DENSE, "model_type": "mamba"}, tmp_path / "base")
    with pytest.raises(Unsupported, match="no map exists for models of type mamba"):
        convert.prepare_convert(
            run_of(f"{NEW}/dense-tp2-pp2"),
            tmp_path / "out",
            "megatron",
            {},
            config_dir=base,
            mapping=TO_MEGATRON,
        )


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (f"{NEW}/dense-tp2-pp2", "Megatron-Core already loads at any tensor"),
        (f"{NEW}/legacy-tp2-pp2", "makes a torch_dist checkpoint from it"),
    ],
)
def test_reshard_says_that_there_is_nothing_to_do(case: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=said):
        reshard.prepare_reshard(run_of(case), tmp_path / "out", world_size=3)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_torch_reads_all_of_it(tmp_path: Path) -> None:
    import argparse

    import torch
    import torch.distributed.checkpoint as dcp

    hub = hub_model("moe-singleton-ep2", EXPERTS, tmp_path)
    written(hub, tmp_path / "out", {"max_shard_bytes": 8192}, mapping=TO_MEGATRON)
    made = tmp_path / "out" / "release"
    reader = dcp.FileSystemReader(made)
    metadata = reader.read_metadata().state_dict_metadata
    state: dict[str, Any] = {
        key: torch.empty(each.size, dtype=each.properties.dtype)
        for key, each in metadata.items()
        if hasattr(each, "size")
    }
    dcp.load(state, storage_reader=reader, no_dist=True)
    stacked = state["decoder.layers.mlp.experts.experts.linear_fc2.weight"]
    single = read_digests(formats.read(tmp_path / "out"))
    for layer, expert in ((0, 0), (1, 3)):
        name = f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc2.weight"
        assert single[Key(name, "param")][1] == tuple(stacked[layer, expert].shape)
    first = state["decoder.layers.pre_mlp_layernorm.weight"]
    assert torch.equal(first, state["decoder.layers.mlp.linear_fc1.layer_norm_weight"])
    with torch.serialization.safe_globals([argparse.Namespace]):
        common = torch.load(made / "common.pt", weights_only=True)
    assert isinstance(common["args"], argparse.Namespace)
    assert common["args"].params_dtype == torch.bfloat16
    assert json.loads((made / "metadata.json").read_text())["sharded_backend"] == "torch_dist"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_run_of_fsdp_goes_there_and_back_with_its_optimizer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    trained("mixtral", tmp_path)
    there = {"config_dir": tmp_path, "mapping": MapRequest(to="megatron")}
    conversion = written(tmp_path / "dcp", tmp_path / "there", {"expert_parallel": 1}, **there)
    assert {dropped.what for dropped in conversion.target.dropped} <= {"client", "buffer"}
    assert (tmp_path / "there" / "iter_0000001" / "common.pt").exists()
    convert_to_dcp(tmp_path / "there", tmp_path / "back", "hf-fused", tmp_path)
    for role in ("param", "exp_avg", "exp_avg_sq"):
        first, last = (of_role(tmp_path / name, role) for name in ("dcp", "back"))
        assert first.keys() == last.keys()
        assert all(first[n].tobytes() == last[n].tobytes() for n in last)
    training = formats.training_of(formats.read(tmp_path / "there"))
    assert [(g.options["wd_mult"], g.options["lr"]) for g in training.groups] == [
        (1.0, 0.001),
        (0.0, 0.001),
    ]
