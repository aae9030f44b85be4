"""What a DeepSpeed config says of where state is kept: MiCS, offload, and SGD's momentum."""

from __future__ import annotations

import json

import pytest

from tests.jobs.imports.jobs import JOB, a_job, ds_text, said

A_JOB = a_job(JOB + "batch_size = 16\nmicro_batch_size = 4\nlearning_rate = 1e-4\n")


class TestMics:
    @pytest.mark.parametrize(("size", "wanted"), [(1, 1), (2.0, 2), (-1, None)])
    def test_groups_that_share_a_copy_are_of_hsdp(self, size: float, wanted: int | None) -> None:
        config = {"zero_optimization": {"stage": 3, "mics_shard_size": size}}
        imported = ds_text(json.dumps(config), A_JOB)
        assert imported.problem is None
        assert imported.tree["zero"].get("shard_size") == wanted

    @pytest.mark.parametrize(
        ("stage", "size", "told"),
        [
            (2, 2, "MiCS needs stage 3, but ds.json:1 zero_optimization.stage is 2"),
            (3, 0, "mics_shard_size = 0: must be a number of ranks"),
            (3, 5, "must divide the 2 ranks"),
        ],
    )
    def test_what_cannot_be_is_refused(self, stage: int, size: int, told: str) -> None:
        config = {"zero_optimization": {"stage": stage, "mics_shard_size": size}}
        assert told in said(ds_text(json.dumps(config), A_JOB))


class TestOffloadAndSgd:
    def test_nvme_becomes_files_in_the_same_place(self) -> None:
        offload = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": False}
        config = {"zero_optimization": {"stage": 3, "offload_optimizer": offload}}
        imported = ds_text(json.dumps(config), A_JOB)
        assert imported.problem is None
        wanted = {"optimizer": "disk", "path": "/local_nvme", "pin_memory": False}
        assert imported.tree["offload"] == wanted

    def test_nvme_without_a_path_is_refused(self) -> None:
        config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}
        assert "set offload.path" in said(ds_text(json.dumps(config), A_JOB))

    def test_what_is_not_offloaded_is_neither_pinned_nor_anywhere(self) -> None:
        offload = {"device": "none", "nvme_path": "/local_nvme", "pin_memory": True}
        config = {"zero_optimization": {"stage": 3, "offload_optimizer": offload}}
        imported = ds_text(json.dumps(config), A_JOB)
        assert imported.problem is None
        assert "offload" not in imported.tree

    def test_sgd_is_torchs_with_its_defaults(self) -> None:
        config = {"optimizer": {"type": "SGD", "params": {"lr": 1e-4, "momentum": 0.5}}}
        imported = ds_text(json.dumps(config), A_JOB)
        assert imported.problem is None
        train = imported.tree["train"]
        kept = (train["optimizer"], train["learning_rate"], train["momentum"])
        assert (*kept, train["weight_decay"]) == ("sgd", 1e-4, 0.5, 0.0)

    def test_nesterov_is_refused(self) -> None:
        config = {"optimizer": {"type": "SGD", "params": {"lr": 1e-4, "nesterov": True}}}
        assert "nesterov" in said(ds_text(json.dumps(config), A_JOB))
