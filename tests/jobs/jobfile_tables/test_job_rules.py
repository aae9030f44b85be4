"""What goes with frozen weights in 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import job
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.elastic_world_sizes import at_size
from zerotools.jobs.jobfile_tables.spec import JobSpec

TEXT = Path("/text")


def spec(tmp_path: Path, **changes: Any) -> JobSpec:
    lora = {"rank": 2, "frozen_precision": "nf4", **changes.pop("lora", {})}
    tree = {"model": {"path": str(tmp_path)}, "lora": lora, **changes}
    tree["data"] = {"tokenizer": "bytes"}
    return job_from_dict(job(tmp_path / "text", **tree), source="job")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"config": {"model_type": "llama"}}}, "base model must be in a directory; se"),
        ({"offload": {"params": "cpu"}}, 'leave offload.params = "cpu" out'),
        ({"lora": {"rank": None}}, "lora.rank: is missing"),
        ({"lora": {"frozen_precision": "int4"}}, 'must be one of "train", "fp32", "nf4"'),
        (
            {"lora": {"frozen_precision": "train", "double_quant": False}},
            'lora.double_quant = false: has an effect only with lora.frozen_precision = "nf4"; '
            "set that",
        ),
        ({"engine": "deepspeed"}, "lora.frozen_precision"),
        ({"zero": {"tensor_ranks": 2}, "ranks": 2}, "cannot be shared by zero.tensor_ranks = 2;"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ZerotoolsError) as caught:
        spec(tmp_path, **changes)
    assert said in str(caught.value)


def test_the_layout_knows_what_is_packed(tmp_path: Path) -> None:
    layout = memory_layout_of(spec(tmp_path, train={"precision": "bf16"}))
    assert (layout.packs_frozen, layout.double_quant) == (True, True)
    assert (layout.frozen_dtype, layout.has_master(is_trained=False)) == ("bf16", False)
    single = memory_layout_of(spec(tmp_path, lora={"double_quant": False}))
    assert not single.double_quant


def spec_tensor_rules(ranks: Any = 4, **changes: Any) -> JobSpec:
    zero = {"tensor_ranks": 2, **changes.pop("zero", {})}
    return job_from_dict(job(TEXT, ranks=ranks, zero=zero, **changes), source="job")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"zero": {"tensor_ranks": 3}}, "zero.tensor_ranks = 3: must divide the 4 ranks"),
        ({"zero": {"tensor_ranks": 0}}, "zero.tensor_ranks = 0: must be at least 1"),
        ({"zero": {"stage": 1}}, "= 2: needs zero.stage 2 or 3, which shard the weights, but zero"),
        ({"zero": {"shard_size": 2}}, "= 2: cannot be used with zero.shard_size = 2"),
        ({"train": {"optimizer": "muon"}}, 'with train.optimizer = "muon", which needs whole'),
        ({"train": {"optimizer": "adafactor"}}, 'with train.optimizer = "adafactor"'),
        ({"train": {"compile": True}}, "with train.compile = true yet"),
        ({"ranks": {"min": 2, "max": 5}}, "ranks.max = 5: is not a multiple of the 2 ranks that"),
        ({"train": {"batch_size": 7}}, "batch_size = 7: must be divisible by the 2 groups of rank"),
        (
            {"train": {"micro_batch_size": 4}},
            "must divide the 6 sequences of a group of 2 ranks (train.batch_size 12 over 2 groups",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_tensor_rules(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ZerotoolsError) as caught:
        spec_tensor_rules(**changes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"preferences": ["/p.jsonl"], "tokenizer": "/t"}}, "DPO needs the log-prob"),
        ({"engine": "deepspeed", "deepspeed": {"config": {}}}, "at stage 3 all ranks gather the"),
    ],
)
def test_a_loss_that_cannot_be_computed_in_parts_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    data = {"sequence_length": 32, **changes.get("data", {"text": ["/t.txt"]})}
    tree = {**job(TEXT, train={"chunked_loss": "on"}, **changes), "data": data}
    with pytest.raises(ZerotoolsError) as caught:
        job_from_dict(tree, source="job")
    assert f'train.chunked_loss = "on": {said}' in str(caught.value)
    tree["train"]["chunked_loss"] = "auto"
    assert job_from_dict(tree, source="job").train.chunked_loss == "auto"


def test_ranks_of_a_node_are_divided() -> None:
    meeting = {"nodes": 2, "address": "one:29500"}
    with pytest.raises(ZerotoolsError) as caught:
        spec_tensor_rules(3, rendezvous=meeting, output_dir="/out")
    assert "zero.tensor_ranks = 2: must divide the 3 ranks of a node" in str(caught.value)


def test_a_share_of_the_batch_is_that_of_ranks_which_compute_together() -> None:
    found = spec_tensor_rules(train={"batch_size": 2})
    assert (found.data_ranks, found.zero.same_data_ranks) == (2, 2)


def test_an_elastic_job_keeps_its_groups() -> None:
    elastic = spec_tensor_rules({"min": 2, "max": 8}, train={"batch_size": 12})
    assert elastic.sizes == (2, 4, 6, 8)
    both = spec_tensor_rules(
        {"min": 4, "max": 12}, zero={"sequence_ranks": 2}, train={"batch_size": 12}
    )
    assert both.sizes == (4, 8, 12)
    assert [at_size(both, size).train.micro_batch_size for size in both.sizes] == [4, 3, 4]
    layouts = [memory_layout_of(at_size(both, size)) for size in both.sizes]
    assert [(each.world_size, each.tensor_ranks) for each in layouts] == [(4, 2), (8, 2), (12, 2)]


def test_on_several_nodes_no_copy_is_made_for_each() -> None:
    meeting = {"nodes": 2, "address": "one:29500"}
    layout = memory_layout_of(spec_tensor_rules(2, rendezvous=meeting, output_dir="/out"))
    assert (layout.tensor_ranks, layout.ranks_per_copy) == (2, 4)
