"""What Orbax saved is what its live program held; damage is refused in one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401 - teaches numpy bfloat16
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.formats.elements import assert_true, elements
from tests.golden_files import GOLDEN
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.format import UnfinishedCheckpoint
from zerotools.ops.conversions import consolidate, convert
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify
from zerotools.ops.weights.convert_layout import MapRequest

tensorstore = pytest.importorskip("tensorstore")

ORBAX = GOLDEN / "orbax-0.12.8"
CASES = sorted(path for path in GOLDEN.glob("orbax-*/*") if path.is_dir())
QUERY = Key("decoder.layers.self_attention.query.kernel", "param")
ONE = MemoryBudget(workers=1)
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 160,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "tie_word_embeddings": False,
}


@pytest.fixture(params=["ocdbt", "plain"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ORBAX / request.param / "checkpoint", tmp_path / "run"))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ORBAX / "ocdbt" / "checkpoint", tmp_path / "run")) / "1" / "items"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ORBAX / "plain" / "checkpoint", tmp_path / "run")) / "1" / "items"


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_it_is_what_the_live_program_held(case: Path) -> None:
    checkpoint = formats.read(case / "checkpoint")
    assert_true(checkpoint, case / "truth.safetensors")
    found = inspect(checkpoint)
    assert ([*found.problems], found.incomplete) == ([], ())
    assert found.step == {"weights": None, "deepseek-v3": 2}.get(case.name, 1)


@pytest.mark.parametrize("version", ["orbax-0.11.0", "orbax-0.12.8"])
def test_kernels_and_moments_in_bfloat16_keep_their_bits(tmp_path: Path, version: str) -> None:
    """0.11 writes no commit_success.txt on a disk."""
    case = GOLDEN / version / "bf16"
    options = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-4}
    done = convert.prepare_convert(case / "checkpoint", tmp_path / "out", "dcp", options)
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=ONE, overwrite=False, verify=True)
    made = formats.read(tmp_path / "out")
    assert_true(made, case / "truth.safetensors")
    kinds = {str(made.tensors[Key(QUERY.name, role)].dtype) for role in ("param", "exp_avg_sq")}
    assert kinds == {"bfloat16"}
    exported = consolidate.prepare_export(
        case / "checkpoint", tmp_path / "model", consolidate.Options()
    )
    assert isinstance(exported, Conversion)
    perform_conversion(exported, budget=ONE, overwrite=False, verify=True)
    wanted = load_file(case / "truth.safetensors")
    for name, array in load_file(tmp_path / "model" / "model.safetensors").items():
        assert array.tobytes() == wanted[f"{name}|param"].tobytes()


def test_an_array_that_devices_shard_has_a_chunk_for_each() -> None:
    tensor = formats.read(ORBAX / "ocdbt" / "checkpoint").tensors[QUERY]
    assert [chunk.box.start[0] for chunk in tensor.chunks] == [0, 2, 4, 6]


def test_the_state_of_optax_is_named_by_its_weight() -> None:
    checkpoint = formats.read(ORBAX / "ocdbt-zarr3" / "checkpoint")
    training = formats.training_of(checkpoint)
    (group,) = training.groups
    assert QUERY.name in group.params
    assert len(group.params) == 12
    assert {key.role for key in checkpoint.tensors} == {"param", "exp_avg", "exp_avg_sq", "state"}
    assert training.scalars[Key(QUERY.name, "step")].value == 1
    assert training.steps == 1


def test_every_element_is_read_by_verify(run: Path) -> None:
    found = carry_out_verify(prepare_verify(run), budget=ONE)
    assert (found.findings, len(found.checkpoint.tensors) > 1) == ((), True)


def test_it_becomes_a_dcp_with_the_optimizer(tmp_path: Path) -> None:
    source, out = ORBAX / "ocdbt-zarr3", tmp_path / "out"
    options = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-4}
    done = convert.prepare_convert(source / "checkpoint", out, "dcp", options)
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=ONE, overwrite=False, verify=True)
    assert_true(formats.read(out), source / "truth.safetensors")


def test_a_run_of_maxtext_becomes_a_model_with_the_biases_of_its_routers(tmp_path: Path) -> None:
    """MaxText 0.2.5 saves them outside of the weights, with layers along dimension 0."""
    case = GOLDEN / "orbax-maxtext-0.2.5" / "deepseek-v3"
    options = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    done = convert.prepare_convert(
        case / "checkpoint",
        tmp_path / "out",
        "dcp",
        options,
        config_dir=case,
        mapping=MapRequest(to="hf"),
    )
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=ONE, overwrite=False, verify=True)
    made, truth = formats.read(tmp_path / "out"), load_file(case / "truth.safetensors")
    block = "decoder.moe_layers.DeepSeekMoeBlock_0.MoeBlock_0"
    biases = truth[f"nnx_aux.model.{block}.gate.bias|buffer"]
    assert biases.any()
    for number, bias in enumerate(biases, 1):
        gate = f"model.layers.{number}.mlp.gate"
        assert np.array_equal(elements(made, Key(f"{gate}.e_score_correction_bias", "param")), bias)
        for role in ("param", "exp_avg", "exp_avg_sq"):
            kernel = truth[f"{block}.gate.kernel|{role}"][:, number - 1].T
            assert np.array_equal(elements(made, Key(f"{gate}.weight", role)), kernel)


@pytest.mark.parametrize("layout", ["maxtext", "maxtext-pairs"])
def test_a_model_of_maxtext_becomes_one_of_the_hub(
    database: Path, tmp_path: Path, layout: str
) -> None:
    """Against `LLAMA31_MAXTEXT_TO_HF_PARAM_HOOK_FN` of MaxText's `param_mapping.py`."""
    (database / "config.json").write_text(json.dumps(CONFIG))
    options = consolidate.Options(dtype="fp32", mapping=MapRequest(to="hf", source=layout))
    done = consolidate.prepare_export(database, tmp_path / "out", options)
    perform_conversion(done, budget=ONE, overwrite=False, verify=True)
    made = load_file(tmp_path / "out" / "model.safetensors")
    truth = load_file(ORBAX / "ocdbt" / "truth.safetensors")
    for number in range(3):
        for name, new in (("query", "q"), ("key", "k"), ("value", "v")):
            kernel = truth[f"decoder.layers.self_attention.{name}.kernel|param"][:, number]
            if name == "query":
                kernel = kernel * np.float32(np.sqrt(4))
            if name != "value" and layout == "maxtext-pairs":
                kernel = np.concatenate((kernel[..., ::2], kernel[..., 1::2]), -1)
            found = made[f"model.layers.{number}.self_attn.{new}_proj.weight"]
            assert np.array_equal(found, kernel.reshape(8, -1).T)
        out = truth["decoder.layers.self_attention.out.kernel|param"][:, number]
        found = made[f"model.layers.{number}.self_attn.o_proj.weight"]
        assert np.array_equal(found, out.reshape(-1, 8).T)
        norm = truth["decoder.layers.pre_self_attention_layer_norm.scale|param"][:, number]
        found = made[f"model.layers.{number}.input_layernorm.weight"]
        assert np.array_equal(found, norm.astype(np.float32))
    assert np.array_equal(made["lm_head.weight"], truth["decoder.logits_dense.kernel|param"].T)


def test_moments_of_weights_that_are_multiplied_follow_them(tmp_path: Path) -> None:
    """The gradient of w' = c w is g / c; here c is 2, the root of the size of a head."""
    source = ORBAX / "ocdbt" / "checkpoint"
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    options = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-4}
    mapping = MapRequest(to="hf", source="maxtext")
    done = convert.prepare_convert(
        source, tmp_path / "out", "dcp", options, config_dir=tmp_path, mapping=mapping
    )
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=ONE, overwrite=False, verify=True)
    made, truth = formats.read(tmp_path / "out"), load_file(source.parent / "truth.safetensors")
    for role, factor in (("param", 2), ("exp_avg", 0.5), ("exp_avg_sq", 0.25)):
        for number in range(3):
            query = truth[f"{QUERY.name}|{role}"][:, number].reshape(8, -1).T
            name = f"model.layers.{number}.self_attn.q_proj.weight"
            assert np.array_equal(elements(made, Key(name, role)), query * np.float32(factor))


def test_the_newest_step_of_a_run_is_taken(run: Path) -> None:
    shutil.copytree(run / "1", run / "20")
    shutil.copytree(run / "1", run / "30.orbax-checkpoint-tmp")
    found = formats.detect(run)
    assert (found.path, found.notes) == (
        run / "20" / "items",
        ("took 20, the newest of 2 checkpoints",),
    )


def test_a_save_that_was_not_renamed_is_refused(run: Path) -> None:
    left = (run / "1").rename(run / "1.orbax-checkpoint-tmp")
    with pytest.raises(UnfinishedCheckpoint, match=r"its name has \.orbax-checkpoint-tmp; take an"):
        formats.read(left)


def test_a_run_with_only_unfinished_saves_is_refused(run: Path) -> None:
    (run / "1").rename(run / "1.orbax-checkpoint-tmp")
    with pytest.raises(UnfinishedCheckpoint, match=r"1\.orbax-checkpoint-tmp is a save that Orbax"):
        formats.read(run)


@pytest.mark.parametrize("place", ["1/items", "1", ""])
def test_an_item_without_its_tree_is_refused_from_each_directory(
    database: Path, place: str
) -> None:
    (database / "_METADATA").unlink()
    with pytest.raises(
        UnfinishedCheckpoint, match=r"items is a save .* has manifest\.ocdbt but no"
    ):
        formats.read(database.parents[1] / place)


def test_a_step_without_its_commit_file_is_refused(run: Path) -> None:
    (run / "1" / "commit_success.txt").unlink()
    with pytest.raises(UnfinishedCheckpoint, match=r"items has commit_success\.txt, but the step"):
        formats.read(run / "1")


def test_a_database_that_was_not_joined_is_refused(database: Path) -> None:
    (database / "manifest.ocdbt").unlink()
    with pytest.raises(UnfinishedCheckpoint, match=r"has ocdbt\.process_0 but no manifest\.ocdbt"):
        formats.read(database)


@pytest.mark.parametrize("place", ["1", ""])
def test_such_a_database_is_refused_from_each_directory(database: Path, place: str) -> None:
    (database / "manifest.ocdbt").unlink()
    with pytest.raises(UnfinishedCheckpoint, match=r"has ocdbt\.process_0 but no manifest\.ocdbt"):
        formats.read(database.parents[1] / place)


def test_the_newest_finished_step_is_taken(database: Path) -> None:
    run = database.parents[1]
    shutil.copytree(run / "1", run / "2")
    (run / "2" / "items" / "manifest.ocdbt").unlink()
    assert formats.detect(run).path == run / "1" / "items"


def test_a_step_that_was_begun_and_not_committed_is_refused(run: Path) -> None:
    for place in (run / "1", run / "1" / "items"):
        (place / "commit_success.txt").unlink()
    assert formats.detect(run).path == run / "1" / "items"  # as older releases leave it
    path = run / "1" / "_CHECKPOINT_METADATA"
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit_timestamp_nsecs": None}))
    with pytest.raises(UnfinishedCheckpoint, match="_METADATA has no time of the commit"):
        formats.read(run)


def test_a_newer_version_of_the_database_is_not_damage(database: Path) -> None:
    path = database / "manifest.ocdbt"
    data = bytearray(path.read_bytes())
    data[12] = 9
    path.write_bytes(data)
    with pytest.raises(Unsupported, match=r"cannot be read: it was written in version 9 of its"):
        formats.read(database)


def test_a_newer_version_of_zarr_is_not_damage(plain: Path) -> None:
    path = plain / "params.params.token_embedder.embedding" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), "zarr_format": 4}))
    with pytest.raises(Unsupported, match=r"cannot be opened: it was written in version 4 of its"):
        formats.read(plain)


def test_a_damaged_manifest_is_refused(database: Path) -> None:
    path = database / "manifest.ocdbt"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(BadFile, match=r"manifest\.ocdbt is damaged: its checksum is wrong; copy"):
        formats.read(database)


def test_a_lost_node_is_refused(database: Path) -> None:
    for path in (database / "d").iterdir():
        path.unlink()
    with pytest.raises(BadFile, match=r"items/d/\S+ is missing, but the OCDBT database lists it"):
        formats.read(database)


def test_lost_elements_are_found_and_no_output_is_kept(database: Path, tmp_path: Path) -> None:
    """The values lie in the files of the processes; the description of the arrays is elsewhere."""
    for path in (database / "ocdbt.process_0" / "d").iterdir():
        path.unlink()
    found = carry_out_verify(prepare_verify(database), budget=ONE)
    assert "is missing, but the OCDBT database lists it" in found.findings[0].message
    done = consolidate.prepare_export(database, tmp_path / "out", consolidate.Options())
    assert isinstance(done, Conversion)
    with pytest.raises(BadFile, match=r"is missing, but the OCDBT database lists it"):
        perform_conversion(done, budget=ONE, overwrite=False, verify=False)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_lost_chunk_is_a_hole(plain: Path) -> None:
    (plain / "params.params.token_embedder.embedding" / "2.0").unlink()
    found = inspect(formats.read(plain))
    assert "token_embedder.embedding lacks 1 chunk (2.0, ...)" in next(iter(found.problems)).message
    assert found.incomplete[0] == Key("token_embedder.embedding", "param")


def test_a_damaged_chunk_is_refused(plain: Path) -> None:
    (plain / "params.params.token_embedder.embedding" / "2.0").write_bytes(b"no zstd")
    checkpoint = formats.read(plain)
    with pytest.raises(BadFile, match=r"the array params\.\S+embedding cannot be read"):
        elements(checkpoint, Key("token_embedder.embedding", "param"))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"tree_metadata": {"a": {}}}', '{"tree_metadata": 1}']
)
def test_another_version_is_refused(plain: Path, text: str) -> None:
    (plain / "_METADATA").write_text(text)
    with pytest.raises(BadFile, match=r"_METADATA is not a tree as Orbax describes it"):
        formats.read(plain)


def test_a_name_may_have_slashes_as_those_of_haiku(run: Path) -> None:
    item = next(run.rglob("_METADATA")).parent
    wanted = elements(formats.read(item), Key("decoder.decoder_norm.scale", "param")).tolist()
    old, new = "decoder_norm", "norm/~/1%2F"
    tree = json.loads((item / "_METADATA").read_text())
    for entry in tree["tree_metadata"].values():
        for each in entry["key_metadata"]:
            each["key"] = each["key"].replace(old, new)
    (item / "_METADATA").write_text(json.dumps(tree))
    files = {"driver": "file", "path": f"{item}/"}
    is_database = (item / "manifest.ocdbt").is_file()
    spec = {"driver": "ocdbt", "base": files} if is_database else files
    store = tensorstore.KvStore.open(spec).result()
    for name in store.list().result():
        if old.encode() in name:
            store[name.replace(old.encode(), new.encode())] = store[name]
            del store[name]
    after = formats.read(item)
    assert not after.problems
    assert elements(after, Key(f"decoder.{new}.scale", "param")).tolist() == wanted


def test_a_number_of_chunks_that_no_array_has_is_refused(plain: Path) -> None:
    path = plain / "params.params.token_embedder.embedding" / ".zarray"
    tree = {**json.loads(path.read_text()), "shape": [10**9, 10**6], "chunks": [1, 1]}
    path.write_text(json.dumps(tree))
    with pytest.raises(BadFile, match=r"has 1000000000000000 chunks, but zerotools reads at most"):
        formats.read(plain)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a//b", ".", "a\0"])
def test_a_name_that_leads_out_of_the_directory_is_refused(plain: Path, name: str) -> None:
    tree = json.loads((plain / "_METADATA").read_text())
    next(iter(tree["tree_metadata"].values()))["key_metadata"] = [{"key": name, "key_type": 2}]
    (plain / "_METADATA").write_text(json.dumps(tree))
    with pytest.raises(BadFile, match="is not a path below its directory"):
        formats.read(plain)


def test_an_unknown_type_is_refused(plain: Path) -> None:
    path = plain / "params.params.token_embedder.embedding" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": "int4"}))
    with pytest.raises(Unsupported, match=r"the array params\.\S+embedding: element type 'int4'"):
        formats.read(plain)


def test_a_checkpoint_that_changes_is_refused(plain: Path, tmp_path: Path) -> None:
    done = consolidate.prepare_export(plain, tmp_path / "out", consolidate.Options())
    assert isinstance(done, Conversion)
    chunk = plain / "params.params.token_embedder.embedding" / "2.0"
    chunk.write_bytes(chunk.read_bytes() + b" ")
    with pytest.raises(BadFile, match=r"changed while it was read"):
        perform_conversion(done, budget=ONE, overwrite=False, verify=False)


def test_without_tensorstore_the_package_is_named(plain: Path) -> None:
    code = (
        "import sys; sys.modules['tensorstore'] = None\n"
        "from pathlib import Path; from zerotools import formats\n"
        "formats.read(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, plain], capture_output=True, text=True, check=False
    )
    assert "needs tensorstore, which is not installed; run" in done.stderr
