"""What Megatron-Core saved is what its live program held, by layer and by expert."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest

from tests.formats.megatron.golden import cases, read_case, read_digests, run_of, truth_of
from tests.golden_files import GOLDEN
from tests.io.torchzip.archives import zip_bytes
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile
from zerotools.ops.conversions import consolidate, convert
from zerotools.ops.conversions.conversion import Conversion, prove_coverage
from zerotools.ops.inspection.inspect import inspect

BUCKETS = "megatron-core-0.16.1/dense-tp2-dp2-buckets"
PLAIN = "megatron-core-0.16.1/tied-pp2-plain"
MLA = "megatron-core-0.16.1/mla-tp2-ep2"
DENSE = "megatron-core-0.16.1/dense-tp2-pp2"
NAMED = [case for case in cases() if not re.search("/legacy|fsdp", case)]


@pytest.mark.parametrize("case", NAMED)
def test_it_is_what_the_live_program_held(case: str) -> None:
    checkpoint = read_case(case)
    assert read_digests(checkpoint) == truth_of(case)
    found = inspect(checkpoint)
    step = json.loads((GOLDEN / case / "truth.json").read_text())["iteration"]
    assert (found.problems, found.incomplete, found.step) == ((), (), step)


def test_of_flat_buckets_that_nothing_proves_the_weights_are_read_alone(tmp_path: Path) -> None:
    """Without arguments nothing says how ranks shared the weights."""
    run = Path(shutil.copytree(run_of(BUCKETS), tmp_path / "run"))
    common = {"common/data.pkl": pickle.dumps({"iteration": 10}, 2), "common/version": b"3\n"}
    (run / "iter_0000010" / "common.pt").write_bytes(zip_bytes(common))
    checkpoint = formats.read(run)
    truth = truth_of(BUCKETS)
    weights = {Key(k.name, "param"): d for k, d in truth.items() if k.role == "param16"}
    assert read_digests(checkpoint) == weights
    done = convert.prepare_convert(run, tmp_path / "out", "dcp", {"world_size": 2})
    assert isinstance(done, Conversion)
    dropped = {each.what: each.why for each in done.target.dropped}
    assert "flat buffers in the order" in dropped["optimizer state"]
    assert any("left out" in note for note in inspect(checkpoint).notes)


def test_flat_state_of_which_nothing_tells_the_shape_is_left_out(tmp_path: Path) -> None:
    case = "megatron-core-0.12.3/dense-tp2-model-space"
    run = Path(shutil.copytree(run_of(case), tmp_path / "run"))
    metadata = run / "iter_0000010" / ".metadata"
    whole = metadata.read_bytes()
    assert whole.count(b"mcore_data") == 1
    metadata.write_bytes(whole.replace(b"mcore_data", b"other_data"))
    checkpoint = formats.read(run)
    weights = {Key(k.name, "param"): d for k, d in truth_of(case).items() if k.role == "param16"}
    assert read_digests(checkpoint) == weights
    assert any("does not have the shape of its weight." in note for note in checkpoint.origin.notes)


def test_a_tied_output_layer_is_an_alias() -> None:
    checkpoint = read_case(PLAIN)
    assert checkpoint.aliases == {"output_layer.weight": "embedding.word_embeddings.weight"}


def test_what_is_said_of_the_run() -> None:
    origin = read_case(MLA).origin
    assert (origin.title, origin.step, origin.world_size) == ("Megatron torch_dist", 10, 4)
    assert str(origin.precision) == "bfloat16"
    assert "saved with TP 2, PP 1, EP 2, ETP 1, DP 2" in origin.notes
    assert any("3 layers" in note and "latent attention" in note for note in origin.notes)
    assert any("37 extra states" in note for note in origin.notes)
    assert "each layer has separate keys" in origin.notes
    stacked = "layers are stacked in the files; here each layer has its own tensor"
    assert stacked in read_case(DENSE).origin.notes
    halves = "each layer has separate keys, and each half of a gated layer"
    assert halves in read_case("megatron-core-0.16.1/singleton-tp2").origin.notes


def test_a_lost_file_is_named_and_its_layers_are_holes(tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_of(DENSE), tmp_path / "run"))
    lost = run / "iter_0000010" / "__2_0.distcp"
    lost.unlink()
    found = inspect(formats.read(run))
    assert found.missing == ("__2_0.distcp",)
    lost_names = {key.name for key in found.incomplete}
    assert "decoder.layers.1.mlp.linear_fc1.weight" in lost_names
    assert not any(".layers.0." in name for name in lost_names)
    export = consolidate.prepare_export(run, tmp_path / "out", consolidate.Options())
    with pytest.raises(BadFile, match=r"__2_0\.distcp is missing"):
        prove_coverage(export)


def test_unfinished_saves(tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_of(DENSE), tmp_path / "run"))
    directory = run / "iter_0000010"
    named = directory / "metadata.json"
    said = named.read_bytes()
    named.unlink()
    assert any("was not finished" in each.message for each in inspect(formats.read(run)).problems)
    (directory / ".metadata").unlink()
    with pytest.raises(BadFile, match=r"'iter_0000010', which is no finished checkpoint"):
        formats.read(run)
    named.write_bytes(said)
    with pytest.raises(BadFile, match=r"has no \.metadata: the save was not finished"):
        formats.read(run)


def test_half_of_a_gated_layer_is_refused(tmp_path: Path) -> None:
    from zerotools.formats.megatron.unstack_tensors import join_halves

    tensors = dict(read_case(DENSE).tensors)
    key = Key("decoder.layers.0.mlp.linear_fc1.weight", "param")
    alone = {Key(key.name + "_w", "param"): tensors[key]}
    with pytest.raises(BadFile, match=r"has .*weight_w, but not .*weight_v"):
        join_halves(tmp_path, alone)
