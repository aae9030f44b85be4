from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.imports.jobs import JOB, TRAINERS, a_job, autos, ds, ds_text, outcomes, said
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.combine_configs import import_configs
from zerotools.jobs.launcher_keys.config_key import ValueKind
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS
from zerotools.jobs.launcher_keys.deepspeed_releases import (
    REMOVED,
    installed_release,
    parse_release,
    removal_of,
)
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.toml_writer import to_toml

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


ENGINE = a_job('engine = "deepspeed"\n' + JOB + "batch_size = 8\n")
ON: dict[str, Any] = {
    "nebula": {"enabled": True},
    "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}},
    "quantize_training": {"enabled": True},
    "sparse_attention": {"mode": "fixed"},
    "zero_optimization.mics_shard_size": 2,
    "zero_optimization.mics_hierarchical_params_gather": True,
    "amp": {"enabled": True, "opt_level": "O1"},
    "sparse_gradients": True,
    "eigenvalue": {"enabled": True},
    "elasticity": {"enabled": True, "max_train_batch_size": 8},
    "graph_harvesting": True,
    "curriculum_learning": {"enabled": True},
    "progressive_layer_drop": {"enabled": True, "theta": 0.5},
    "zero_optimization.zeropp_loco_param": {"err_beta": 0.8},
    "compile.enabled": True,
    "compile.disable": True,
    "compile.backend": "inductor",
    "compile.kwargs": {"mode": "max-autotune"},
}
OFF: dict[str, Any] = {
    "nebula": {"enabled": False},
    "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": False}}},
    "zero_optimization.mics_shard_size": -1,
    "amp": {"enabled": "auto", "opt_level": "auto"},
    "sparse_gradients": False,
    "elasticity": {"enabled": False, "max_train_batch_size": 8},
    "curriculum_learning": None,
    "sparse_attention": {},
    "compile.disable": False,
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
        assert why == "the job's warm-up is a straight line; DeepSpeed's is a logarithm"

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
        assert "has an effect only at stage 3" in said(ds_text(json.dumps(config), A_JOB))

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
        assert origins["gradient_clipping"] == "the Trainer's default"
        assert origins["zero_optimization.reduce_bucket_size"] == "hidden_size 64 of the model"

    def test_without_a_job_what_is_missing_is_named(self) -> None:
        imported = ds("zero3_auto.json")
        assert imported.problem is None
        assert imported.missing == ("model.path", "data.text", "train.steps", "train.batch_size")
        assert autos(imported)["train_batch_size"] is None

    def test_what_nobody_resolves_is_refused(self) -> None:
        text = '{"zero_optimization": {"stage": 3, "leaf_module": "auto"}}'
        assert 'leaf_module = "auto": zerotools has no value for this key' in said(
            ds_text(text, A_JOB)
        )
        text = '{"fp16": {"enabled": true, "loss_scale": "auto"}}'
        assert said(ds_text(text, a_job(JOB + "batch_size = 16\n"))) == (
            'ds.json:1 fp16.loss_scale = "auto": zerotools has no value for this key; write 0, '
            "DeepSpeed's default, or remove it"
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
                "ds.json:1 zero_optimization.stage3_prefetch_bucket_size = 50000000: has an "
                "effect only at stage 3, but ds.json:1 zero_optimization.stage is 2",
            ),
            (
                {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
                'ds.json:1 zero_optimization.offload_param.device = "cpu": parameter offload '
                "needs stage 3, but ds.json:1 zero_optimization.stage is 2",
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
                "WarmupDecayLR without warmup_max_lr rises to 0.001",
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


def test_ranks_that_share_sequences_have_one_micro_batch() -> None:
    tree = {"sequence_parallel_size": 2, "train_micro_batch_size_per_gpu": 3}
    free = a_job(JOB.replace("gpus = 2", "gpus = 4"))
    imported = ds_text(json.dumps({**tree, "gradient_accumulation_steps": 5}), free)
    assert imported.problem is None
    assert imported.tree["zero"]["sequence_ranks"] == 2
    assert imported.tree["train"]["batch_size"] == 3 * 5 * 2
    of_ranks = {"train_batch_size": 30, "gradient_accumulation_steps": 5, **tree}
    inferred = ds_text(json.dumps(of_ranks), a_job(JOB.replace("gpus = 2\n", "")))
    assert inferred.tree["gpus"] == 4
    assert "= 0: must be a whole number, 1 or more" in said(
        ds_text('{"sequence_parallel_size": 0}', A_JOB)
    )


def test_tensor_ranks_share_a_micro_batch() -> None:
    tree = {"tensor_parallel": {"autotp_size": 2}, "train_micro_batch_size_per_gpu": 3}
    free = a_job(JOB.replace("gpus = 2", "gpus = 4"))
    config = {**tree, "gradient_accumulation_steps": 5, "zero_optimization": {"stage": 2}}
    imported = ds_text(json.dumps(config), free)
    assert imported.problem is None
    assert imported.tree["zero"] == {"stage": 2, "tensor_ranks": 2}
    assert imported.tree["train"]["batch_size"] == 3 * 5 * 2


def test_how_layers_are_cut_is_the_models_plan() -> None:
    section = {"autotp_size": 2, "tp": {"tp_size": 2}, "preset_model": "llama"}
    imported = ds_text(json.dumps({"tensor_parallel": section}), A_JOB)
    found = outcomes(imported)
    assert found["tensor_parallel.tp.tp_size"] == "mapped"
    assert found["tensor_parallel.preset_model"] == "ignored"
    assert imported.tree["zero"]["tensor_ranks"] == 2


@pytest.mark.parametrize("size", [0, 1, None])
def test_it_is_off_without_a_size(size: int | None) -> None:
    section = {"tp_overlap_comm": True, "kernel_inject": True, "tp": {"tp_size": 4}}
    if size is not None:
        section["autotp_size"] = size
    imported = ds_text(json.dumps({"tensor_parallel": section}), A_JOB)
    assert imported.problem is None
    assert "tensor_ranks" not in imported.tree["zero"]
    assert set(outcomes(imported).values()) <= {"ignored", "default"}


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"autotp_size": -1}, "autotp_size = -1: must be a whole number"),
        ({"autotp_size": "auto"}, 'autotp_size = "auto": must be a whole number'),
        ({"autotp_size": 2, "tp": {"tp_size": 4}}, "says 2; make them agree"),
        ({"autotp_size": 2, "kernel_inject": True}, "replaces layers with kernels"),
        ({"autotp_size": 3}, "tensor_parallel.autotp_size) = 3: must divide the 2 ranks"),
        (2, "tensor_parallel = 2: must be an object"),
    ],
)
def test_sizes_that_cannot_be(section: Any, told: str) -> None:
    assert told in said(ds_text(json.dumps({"tensor_parallel": section}), A_JOB))


def test_the_engine_deepspeed_is_passed_it() -> None:
    job = a_job('engine = "deepspeed"\n' + JOB + "batch_size = 8\n")
    config = {"tensor_parallel": {"autotp_size": 2}, "wandb": {"enabled": True}}
    imported = ds_text(json.dumps(config), job)
    found = outcomes(imported)
    assert found["tensor_parallel.autotp_size"] == found["wandb.enabled"] == "passed through"
    assert "metrics" not in imported.tree
    assert imported.deepspeed is not None
    assert imported.deepspeed.items() >= config.items()


@pytest.mark.parametrize(
    ("section", "project"),
    [
        ({"enabled": True}, "deepspeed"),
        ({"enabled": True, "project": "sheep"}, "sheep"),
        ({"enabled": "true", "project": "sheep", "team": "herd", "group": "a"}, "herd/sheep"),
        ({"enabled": True, "team": "herd"}, "herd/deepspeed"),
        ({"enabled": True, "project": "", "team": None, "group": None}, "deepspeed"),
        ({"enabled": False, "project": "sheep"}, None),
        ({"project": "sheep"}, None),
    ],
)
def test_the_project_is_the_jobs(section: dict[str, Any], project: str | None) -> None:
    imported = ds_text(json.dumps({"wandb": section}), A_JOB)
    assert imported.problem is None
    assert imported.tree.get("metrics", {}).get("wandb") == project
    rows = {key: value for key, value in outcomes(imported).items() if "wandb" in key}
    assert rows.keys() == {f"wandb.{name}" for name in section}
    assert ("mapped" in rows.values()) == (project is not None)


def test_another_project_of_the_job_is_told() -> None:
    job = a_job(JOB + 'batch_size = 8\n[metrics]\nwandb = "goats"\n')
    section = {"enabled": True, "project": "sheep"}
    told = said(ds_text(json.dumps({"wandb": section}), job))
    assert 'job.toml metrics.wandb says "goats"' in told
    assert 'wandb.project says "sheep"; make them agree' in told


def nested_removed_keys(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def of_stage(name: str, value: Any) -> str:
    config = nested_removed_keys(name, value)
    if "mics" in name:
        config["zero_optimization"]["stage"] = 3
    return json.dumps(config)


def test_every_removed_key_is_tried() -> None:
    assert set(ON) == set(REMOVED)


@pytest.mark.parametrize("name", REMOVED)
def test_what_is_on_is_refused_with_its_line(name: str) -> None:
    message = said(ds_text(of_stage(name, ON[name]), ENGINE))
    assert f"ds.json:1 {name} = " in message
    assert "DeepSpeed 0.19.8 does not start with it (removed in 0.1" in message


@pytest.mark.parametrize("name", OFF)
def test_what_is_off_is_left_out_and_said(name: str) -> None:
    imported = ds_text(of_stage(name, OFF[name]), ENGINE)
    assert imported.problem is None
    assert name.split(".")[-1] not in json.dumps(imported.deepspeed)
    row = next(row for row in imported.findings.rows if row.key == name)
    assert (row.outcome, row.why[:6]) == ("ignored", "is off")


def test_an_older_release_is_passed_what_it_takes() -> None:
    config = {"sparse_gradients": True, "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}}
    document = parse_json(json.dumps(config), source="ds.json")
    imported = import_configs(ENGINE, deepspeed=document, release=(0, 19, 6))
    assert imported.problem is None
    assert imported.deepspeed is not None
    assert imported.deepspeed.items() >= config.items()
    assert "OneBitAdam" in said(import_configs(ENGINE, deepspeed=document, release=(0, 19, 7)))


def test_the_engine_torch_does_not_mind_what_is_off() -> None:
    job = a_job(JOB + "batch_size = 8\n")
    for name, value in OFF.items():
        assert ds_text(of_stage(name, value), job).problem is None


@pytest.mark.parametrize("kind", ["OneBitAdam", "OnebitLamb", "ZeroOneAdam"])
def test_one_bit_optimizers_are_gone(kind: str) -> None:
    config = {"optimizer": {"type": kind, "params": {"lr": 1e-3}}}
    assert f'optimizer.type = "{kind}": DeepSpeed 0.19.8 no longer has it' in said(
        ds_text(json.dumps(config), ENGINE)
    )


def test_nulls_are_left_out_at_every_depth() -> None:
    config = {
        "flops_profiler": {"enabled": False, "output_file": None},
        "activation_checkpointing": {"number_checkpoints": None, "profile": False},
        "zero_optimization": {"stage": 2, "overlap_comm": None},
        "mine": [{"a": None}],
    }
    imported = ds_text(json.dumps(config), ENGINE)
    assert imported.problem is None
    assert imported.deepspeed is not None
    assert imported.deepspeed["flops_profiler"] == {"enabled": False}
    assert imported.deepspeed["mine"] == [{}]
    assert "null" not in json.dumps(imported.deepspeed)
    assert "flops_profiler" in to_toml(imported.tree, imported.origins)


def test_a_key_that_a_strict_section_never_had_is_refused() -> None:
    config = {"fp16": {"enabled": True, "opt_level": "O2"}, "zero_optimization": {"stage": 1}}
    assert "ds.json:1 fp16.opt_level: DeepSpeed has no such key, and does not start" in said(
        ds_text(json.dumps(config), ENGINE)
    )
    assert ds_text(json.dumps(config), a_job(JOB + "batch_size = 8\n")).problem is None


def test_comments_as_keys_do_not_reach_a_strict_section() -> None:
    config = {"zero_optimization": {"stage": 2, "_comment": "x", "//": 1}, "_comment": "y"}
    imported = ds_text(json.dumps(config), ENGINE)
    assert imported.deepspeed is not None
    assert imported.deepspeed["zero_optimization"] == {"stage": 2}
    assert outcomes(imported)["zero_optimization._comment"] == "unknown"


def test_versions() -> None:
    assert parse_release("0.19.8+cu12.4") == parse_release("0.19.8") == (0, 19, 8)
    assert parse_release("0.19.0rc1") == (0, 19)
    assert parse_release("main") is None
    assert removal_of("amp", (0, 19, 7)) is None
    assert removal_of("amp", (0, 20)) is not None
    assert installed_release("/nowhere/python") is None
