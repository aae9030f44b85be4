from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.imports.jobs import JOB, TRAINERS, a_job, autos, ds, ds_text, outcomes, said
from zerotools.core.errors import BadRequest
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS
from zerotools.jobs.launcher_keys.key_kinds import ValueKind

FOUR = a_job(JOB.replace("gpus = 2", "gpus = 4"))
A_JOB = a_job(JOB + "batch_size = 16\nmicro_batch_size = 4\nlearning_rate = 1e-4\n")
EXAMPLES = {
    ValueKind.BOOL: False,
    ValueKind.COUNT: 1,
    ValueKind.NUMBER: 1,
    ValueKind.TEXT: "mean",
    ValueKind.NUMBERS: [0.9, 0.99],
    ValueKind.ANY: False,
}


def nested(name: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` for the dotted name a.b."""
    for part in reversed(name.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("name", KEYS)
def test_no_key_is_passed_over_in_silence(name: str) -> None:
    imported = ds_text(json.dumps(nested(name, EXAMPLES[KEYS[name].kind])), A_JOB)
    listed = [row.key for row in imported.findings.rows]
    assert name in listed or name in said(imported)
    assert listed.count(name) <= 1


class TestMapping:
    def test_numbers_that_job_files_have_too(self) -> None:
        imported = ds("plain.json", FOUR)
        assert imported.problem is None
        assert imported.tree["train"] == {
            "steps": 1000,
            "batch_size": 32,
            "micro_batch_size": 4,
            "precision": "fp32",
            "optimizer": "adamw",
            "learning_rate": 0.0001,
            "schedule": "constant",
            "warmup_steps": 100,
            "weight_decay": 3e-7,
            "betas": [0.8, 0.999],
            "eps": 1e-8,
            "max_grad_norm": 1.0,
        }
        assert imported.tree["zero"] == {"stage": 0}
        assert imported.origins["train.weight_decay"] == "ds.json:13 optimizer.params.weight_decay"

    def test_three_batch_numbers_say_how_many_ranks(self) -> None:
        job = a_job(JOB.replace("gpus = 2", ""))
        assert ds("plain.json", job).tree["gpus"] == 4

    @pytest.mark.parametrize(
        ("config", "batch", "micro"),
        [
            ({"train_batch_size": 16}, 16, None),
            ({"train_micro_batch_size_per_gpu": 4}, 8, 4),
            ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}, 24, 4),
            ({"train_batch_size": 16, "gradient_accumulation_steps": 4}, 16, 2),
            ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2}, 16, 2),
        ],
    )
    def test_batch_numbers_give_one_another(
        self, config: dict[str, int], batch: int, micro: int | None
    ) -> None:
        train = ds_text(json.dumps(config), a_job()).tree["train"]
        assert (train["batch_size"], train.get("micro_batch_size")) == (batch, micro)

    def test_silence_means_what_deepspeed_does_then(self) -> None:
        imported = ds_text('{"train_batch_size": 8}', a_job())
        assert imported.tree["train"]["precision"] == "fp32"
        assert imported.tree["train"]["max_grad_norm"] == 1.0
        assert imported.tree["zero"]["stage"] == 0

    def test_what_the_job_says_beats_silence(self) -> None:
        job = a_job(JOB + 'batch_size = 8\nprecision = "bf16"\n[zero]\nstage = 3\n')
        imported = ds_text("{}", job)
        assert imported.problem is None
        assert imported.tree["train"]["precision"] == "bf16"
        assert imported.tree["zero"]["stage"] == 3
        assert set(imported.origins) == {"train.max_grad_norm", *(f"train.{n}" for n in TRAINERS)}

    def test_numbers_in_quotes_and_floats_that_are_whole(self) -> None:
        config = {"zero_optimization": {"stage": "3", "reduce_bucket_size": 5e8}}
        imported = ds_text(json.dumps(config), A_JOB)
        assert imported.tree["zero"]["stage"] == 3
        assert imported.deepspeed == {
            "zero_optimization": {"stage": 3, "reduce_bucket_size": 500_000_000}
        }
        whys = {row.key: row.why for row in imported.findings.rows}
        assert whys["zero_optimization.stage"] == "was in quotes"

    def test_a_logarithmic_warm_up_is_told_from_a_line(self) -> None:
        rows = ds("plain.json", FOUR).findings.rows
        why = {row.key: row.why for row in rows}["scheduler.params.warmup_num_steps"]
        assert why == "a straight line here; DeepSpeed's curve is a logarithm"

    def test_deepspeed_is_left_what_nobody_here_knows(self) -> None:
        imported = ds_text('{"train_batch_size": "8", "new": {"in": [0.20]}, "x": null}', a_job())
        assert imported.deepspeed == {"train_batch_size": 8, "new": {"in": [0.2]}}

    def test_a_config_of_something_else_is_told_so(self) -> None:
        text = '{"model_type": "llama", "hidden_size": 64}'
        assert said(ds_text(text, A_JOB)) == (
            "ds.json: has none of DeepSpeed's keys; is it a DeepSpeed config?"
        )

    def test_names_without_the_prefix_of_stage_3_are_deepspeeds_too(self) -> None:
        config = {"zero_optimization": {"stage": 2, "max_live_parameters": 1e9}}
        assert "is for stage 3" in said(ds_text(json.dumps(config), A_JOB))

    def test_what_is_unknown_is_listed(self) -> None:
        imported = ds_text('{"train_batch_size": 8, "my_own": 1, "_comment": "x"}', a_job())
        assert outcomes(imported)["my_own"] == "unknown"
        assert outcomes(imported)["_comment"] == "unknown"


class TestAuto:
    def test_every_auto_is_the_jobs_value(self) -> None:
        imported = ds("zero3_auto.json", A_JOB)
        assert imported.problem is None
        assert autos(imported) == {
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0,
            "fp16.enabled": False,
            "bf16.enabled": True,
            "optimizer.params.lr": 1e-4,
            "optimizer.params.betas": (0.9, 0.999),
            "optimizer.params.eps": 1e-8,
            "optimizer.params.weight_decay": 0.0,
            "scheduler.params.warmup_min_lr": 0,
            "scheduler.params.warmup_max_lr": 1e-4,
            "scheduler.params.warmup_num_steps": 1,
            "zero_optimization.reduce_bucket_size": 64 * 64,
            "zero_optimization.stage3_prefetch_bucket_size": 3686,
            "zero_optimization.stage3_param_persistence_threshold": 640,
        }

    def test_each_says_where_its_value_is_from(self) -> None:
        origins = {a.key: a.origin for a in ds("zero3_auto.json", A_JOB).findings.autos}
        assert origins["optimizer.params.lr"] == "job.toml train.learning_rate"
        assert origins["gradient_clipping"] == "Hugging Face's Trainer, its default"
        assert origins["zero_optimization.reduce_bucket_size"] == "hidden_size 64 of the model"

    def test_without_a_job_what_is_missing_is_named(self) -> None:
        imported = ds("zero3_auto.json")
        assert imported.problem is None
        assert imported.missing == ("model.path", "data.text", "train.steps", "train.batch_size")
        assert autos(imported)["train_batch_size"] is None

    def test_what_nobody_resolves_is_refused(self) -> None:
        text = '{"zero_optimization": {"stage": 3, "leaf_module": "auto"}}'
        assert 'leaf_module = "auto": nothing resolves this one' in said(ds_text(text, A_JOB))
        text = '{"fp16": {"enabled": true, "loss_scale": "auto"}}'
        assert said(ds_text(text, a_job(JOB + "batch_size = 16\n"))) == (
            'ds.json:1 fp16.loss_scale = "auto": nothing resolves this one; write 0, DeepSpeed\'s '
            "default, or remove it"
        )


class TestContradictions:
    @pytest.mark.parametrize(
        ("config", "told"),
        [
            (
                {"train_batch_size": 12},
                "train.batch_size: job.toml train.batch_size says 16, "
                "ds.json:1 train_batch_size says 12; make them agree",
            ),
            (
                {"train_batch_size": 16, "gradient_accumulation_steps": 3},
                "batch size 16 (job.toml train.batch_size) is not 24 = micro batch 4 "
                "(job.toml train.micro_batch_size) x accumulation 3 "
                "(ds.json:1 gradient_accumulation_steps) x ranks 2 (job.toml gpus); "
                "make them agree",
            ),
            (
                {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
                "ds.json:1 fp16.enabled and ds.json:1 bf16.enabled are both on; "
                "switch one of them off",
            ),
            (
                {"zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 5e7}},
                "ds.json:1 zero_optimization.stage3_prefetch_bucket_size = 50000000: is for "
                "stage 3, and ds.json:1 zero_optimization.stage is 2",
            ),
            (
                {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
                'ds.json:1 zero_optimization.offload_param.device = "cpu": parameter offload '
                "needs stage 3, and ds.json:1 zero_optimization.stage is 2",
            ),
            (
                {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}},
                'offload to "nvme" needs stage 3',
            ),
            (
                {
                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}},
                },
                "train.learning_rate: job.toml train.learning_rate says 0.0001, "
                "ds.json:1 scheduler.params.warmup_max_lr says 0.001; make them agree",
            ),
            (
                {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10}}},
                "WarmupDecayLR without warmup_max_lr climbs to 0.001 in DeepSpeed",
            ),
            (
                {
                    "zero_optimization": {
                        "cpu_offload": True,
                        "offload_optimizer": {"device": "none"},
                    }
                },
                "needs stage 1",
            ),
            (
                {
                    "zero_optimization": {
                        "stage": 2,
                        "cpu_offload": False,
                        "offload_optimizer": {"device": "cpu"},
                    }
                },
                "zero_optimization.offload_optimizer has replaced it",
            ),
            (
                {"bf16": {"enabled": False}, "bfloat16": {"enabled": "auto"}},
                "bfloat16.enabled: bfloat16 is an older name of bf16",
            ),
            (
                {"fp16": {"enabled": True, "min_loss_scale": 0.5}},
                "fp16.min_loss_scale = 0.5: must be a whole number",
            ),
        ],
    )
    def test_both_places_are_named(self, config: dict[str, Any], told: str) -> None:
        imported = ds_text(json.dumps(config), A_JOB)
        assert told in said(imported)
        assert isinstance(imported.problem, BadRequest)

    def test_two_learning_rates_in_one_config(self) -> None:
        config = {
            "train_batch_size": 8,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}},
        }
        assert (
            "ds.json:6 optimizer.params.lr says 0.0001, "
            "ds.json:12 scheduler.params.warmup_max_lr says 0.001"
        ) in said(ds_text(json.dumps(config, indent=1), a_job()))

    def test_an_optimizer_that_is_not_the_jobs(self) -> None:
        job = a_job(JOB + 'batch_size = 8\noptimizer = "sgd"\n')
        config = '{"optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}'
        assert (
            'train.optimizer: job.toml train.optimizer says "sgd", '
            'ds.json:1 optimizer.type says "Adam"; make them agree'
        ) in said(ds_text(config, job))

    def test_precision_off_where_the_job_wants_it(self) -> None:
        job = a_job(JOB + 'batch_size = 8\nprecision = "bf16"\n')
        assert (
            "train.precision: ds.json:1 bf16.enabled says false, "
            'job.toml train.precision says "bf16"'
        ) in said(ds_text('{"bf16": {"enabled": false}}', job))

    def test_all_are_told_at_once(self) -> None:
        config = '{"fp16": 1, "zero_optimization": {"stage": 7}, "gradient_clipping": "x"}'
        assert said(ds_text(config, A_JOB)).startswith("3 problems:\n")


class TestWrongKeys:
    @pytest.mark.parametrize(
        ("config", "hint"),
        [
            ({"gradient_cliping": 1}, "gradient_clipping"),
            ({"zero_optimisation": {"stage": 3}}, "zero_optimization"),
            ({"overlap_comm": True}, "zero_optimization.overlap_comm"),
            (
                {"zero_optimization": {"offload_optimiser": {}}},
                "zero_optimization.offload_optimizer",
            ),
            ({"fp16": {"initial_scale_pow": 16}}, "fp16.initial_scale_power"),
        ],
    )
    def test_a_likely_typo_is_refused(self, config: dict[str, Any], hint: str) -> None:
        message = said(ds_text(json.dumps(config), A_JOB))
        assert f"DeepSpeed has no such key; did you mean {hint}?" in message

    @pytest.mark.parametrize(
        ("config", "told"),
        [
            ({"gradient_clipping": "high"}, 'gradient_clipping = "high": must be a number'),
            ({"gradient_clipping": True}, "gradient_clipping = true: must be a number"),
            ({"train_batch_size": 1.5}, "train_batch_size = 1.5: must be a whole number"),
            ({"train_batch_size": 0}, "train_batch_size = 0: must be at least 1"),
            ({"train_batch_size": 10**300}, "must be a whole number"),
            ({"train_batch_size": "nan"}, "must be a whole number"),
            ({"fp16": True}, "fp16 = true: must be an object"),
            ({"fp16": {"enabled": 1}}, "fp16.enabled = 1: must be true or false"),
            ({"zero_optimization": {"stage": 4}}, "the stages are 0, 1, 2 and 3"),
            ({"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}}, '"nvme"'),
            ({"optimizer": {"type": "AdamW", "params": {"betas": [1, "x"]}}}, "list of numbers"),
        ],
    )
    def test_values_that_cannot_be(self, config: dict[str, Any], told: str) -> None:
        assert told in said(ds_text(json.dumps(config), A_JOB))
