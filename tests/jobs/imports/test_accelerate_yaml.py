from __future__ import annotations

import pytest

from tests.jobs.imports.jobs import (
    JOB,
    TRAINERS,
    a_job,
    accelerate,
    accelerate_text,
    autos,
    outcomes,
    said,
)
from zerotools.core.errors import Unsupported
from zerotools.jobs.imports.combine_configs import import_configs
from zerotools.jobs.jobfile.parse import parse_job
from zerotools.jobs.launcher_keys.accelerate_keys import KNOWN, SECTIONS
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.toml_writer import to_toml
from zerotools.jobs.text.yaml_parser import parse_yaml

FREE = JOB.replace("gpus = 2", "") + "batch_size = 16\n"
DEEPSPEED = "distributed_type: DEEPSPEED\n"
NO = "distributed_type: NO\n"


PARALLEL = "num_processes: 4\nparallelism_config:\n"


@pytest.mark.parametrize("name", sorted(name for name in KNOWN if name not in SECTIONS))
def test_no_key_is_passed_over_in_silence(name: str) -> None:
    section, _, key = name.rpartition(".")
    kind = section.removesuffix("_config").upper() or "NO"
    head = "" if name == "distributed_type" else f"distributed_type: {kind}\n"
    text = f"{head}{section}:\n  {key}: 1\n" if section else f"{head}{key}: 1\n"
    imported = accelerate_text(text, a_job(FREE))
    listed = [row.key for row in imported.findings.rows]
    assert name in listed or name in said(imported)
    assert listed.count(name) <= 1


def test_affinity_is_asked_for_by_name_and_its_default_says_nothing() -> None:
    asked = accelerate_text(NO + "enable_cpu_affinity: true\n", a_job(FREE))
    assert asked.spec is not None
    assert (asked.spec.numa, outcomes(asked)["enable_cpu_affinity"]) == ("auto", "mapped")
    default = accelerate_text(NO + "enable_cpu_affinity: false\n", a_job(FREE))
    assert default.spec is not None
    assert (default.spec.numa, outcomes(default)["enable_cpu_affinity"]) == ("auto", "ignored")
    cores = accelerate_text(NO + "enable_cpu_affinity: true\n", a_job('numa = "cores"\n' + FREE))
    assert cores.spec is not None
    assert cores.spec.numa == "cores"
    off = accelerate_text(NO + "enable_cpu_affinity: true\n", a_job('numa = "off"\n' + FREE))
    assert 'job.toml numa says "off", acc.yaml:2 enable_cpu_affinity says true' in said(off)


def test_zero_3_of_the_questionnaire() -> None:
    imported = accelerate("accelerate_zero3.yaml", a_job(FREE))
    assert imported.problem is None
    assert imported.tree["gpus"] == 4
    assert imported.tree["zero"] == {"stage": 3}
    assert imported.tree["train"] == {
        "steps": 1000,
        "batch_size": 16,
        "micro_batch_size": 2,
        "precision": "bf16",
        "max_grad_norm": 1.0,
        **TRAINERS,
    }
    text = to_toml(imported.tree, imported.origins)
    assert parse_job(text, source="job.toml", base_dir=a_job().base_dir) == imported.spec
    assert imported.origins["zero.stage"] == "acc.yaml:10 deepspeed_config.zero_stage"


def test_parameter_offload_at_stage_2_is_ignored_as_accelerate_does() -> None:
    imported = accelerate("accelerate_param_offload_stage2.yaml", a_job(FREE))
    assert imported.problem is None
    assert imported.tree["offload"] == {"optimizer": "cpu"}
    assert outcomes(imported)["deepspeed_config.offload_param_device"] == "ignored"


def test_the_file_that_it_names_is_read_instead() -> None:
    imported = accelerate("accelerate_file.yaml", a_job(FREE))
    assert imported.problem is None
    assert imported.tree["gpus"] == 2
    assert imported.tree["zero"] == {"stage": 3}
    assert autos(imported)["bf16.enabled"] is True
    origins = {auto.key: auto.origin for auto in imported.findings.autos}
    assert origins["bf16.enabled"] == "acc.yaml:7 mixed_precision"


def test_fsdp2() -> None:
    imported = accelerate("accelerate_fsdp2.yaml", a_job(FREE))
    assert imported.problem is None
    assert imported.tree["zero"] == {"stage": 3}
    assert imported.tree["train"]["precision"] == "bf16"


def test_two_named_cards() -> None:
    imported = accelerate("accelerate_multi_gpu.yaml", a_job(FREE))
    assert imported.problem is None
    assert imported.tree["gpus"] == [0, 1]
    assert imported.tree["zero"] == {"stage": 0}
    assert imported.tree["train"]["precision"] == "fp32"


def test_booleans_that_should_have_been_quoted() -> None:
    imported = accelerate_text("distributed_type: NO\nmixed_precision: no\n", a_job(FREE))
    assert imported.problem is None
    assert imported.tree["train"]["precision"] == "fp32"


def test_ranks_on_the_cpu() -> None:
    text = "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 4\n"
    imported = accelerate_text(text, a_job(FREE))
    assert imported.problem is None
    assert (imported.tree["device"], imported.tree["ranks"]) == ("cpu", 4)


def test_how_ranks_are_started_on_the_cpu_is_the_daemons_affair() -> None:
    text = "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\nmixed_precision: bf16\n"
    text += "ipex_config:\n  ipex: false\nmpirun_config:\n  mpirun_ccl: '1'\n"
    imported = accelerate_text(text, a_job(FREE))
    assert imported.problem is None
    assert outcomes(imported)["mpirun_config"] == outcomes(imported)["ipex_config"] == "ignored"


def test_one_process_is_one_whatever_the_number_beside_it() -> None:
    imported = accelerate_text(NO + "num_processes: 8\n", a_job(FREE))
    assert imported.problem is None
    assert "gpus" not in imported.tree
    assert outcomes(imported)["num_processes"] == "ignored"


def test_a_config_of_something_else_is_told_so() -> None:
    imported = accelerate_text("base_model: llama\nlearning_rate: 1e-4\n", a_job(FREE))
    assert said(imported) == (
        "acc.yaml: has no distributed_type, which every accelerate config has; is it an "
        "accelerate config?"
    )
    other = accelerate_text("zero_optimization: {stage: 2}\n", a_job(FREE))
    assert said(other).endswith("; if it is DeepSpeed's JSON, use --deepspeed")


def test_one_rank_where_accelerate_would_take_every_gpu_is_told() -> None:
    imported = accelerate_text("distributed_type: MULTI_GPU\n", a_job(FREE))
    row = next(row for row in imported.findings.rows if row.key == "num_processes")
    assert (row.job, row.why) == (
        "gpus",
        "without it accelerate uses every GPU, but the job has one rank",
    )
    assert imported.spec is not None
    assert imported.spec.world_size == 1


@pytest.mark.parametrize(
    ("strategy", "stage"),
    [
        ("fsdp_sharding_strategy: FULL_SHARD", 3),
        ("fsdp_sharding_strategy: 1", 3),
        ("fsdp_sharding_strategy: HYBRID_SHARD", 3),
        ("fsdp_sharding_strategy: NO_SHARD", 0),
        ("fsdp_reshard_after_forward: true", 3),
        ("fsdp_reshard_after_forward: FULL_SHARD", 3),
        ("fsdp_version: 2", 3),
    ],
)
def test_strategies_are_stages(strategy: str, stage: int) -> None:
    text = f"distributed_type: FSDP\nfsdp_config:\n  {strategy}\n"
    assert accelerate_text(text, a_job(FREE)).tree["zero"]["stage"] == stage


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            DEEPSPEED + "deepspeed_config:\n  deepspeed_config_file: plain.json\n  zero_stage: 3\n",
            "acc.yaml:4 deepspeed_config.zero_stage = 3: cannot be combined with "
            "acc.yaml:3 deepspeed_config.deepspeed_config_file",
        ),
        (
            "distributed_type: MULTI_GPU\nnum_processes: 4\ngpu_ids: 0,1\n",
            "acc.yaml:2 num_processes = 4: gpu_ids lists 2 GPUs; make them agree",
        ),
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
            "  fsdp_reshard_after_forward: false\n",
            'zero.stage: acc.yaml:3 fsdp_config.fsdp_sharding_strategy says "FULL_SHARD", '
            "acc.yaml:4 fsdp_config.fsdp_reshard_after_forward says false; make them agree",
        ),
        (
            NO + "mixed_precison: bf16\n",
            "accelerate has no such key; did you mean mixed_precision?",
        ),
        (NO + "zero_stage: 3\n", "did you mean deepspeed_config.zero_stage?"),
        (NO + "deepspeed_config: ds.json\n", "must be a section"),
        (NO + "num_processes: many\n", "must be a whole number"),
        (NO + "gpu_ids: GPU-1\n", 'must be "all" or indices'),
        (
            "distributed_type: MULTI_GPU\ngpu_ids: allya\n",
            'acc.yaml:2 gpu_ids = "allya": must be "all" or indices such as "0,1"; '
            'did you mean "all"?',
        ),
        (NO + "mixed_precision: half\n", 'must be "no", "fp16", "bf16" or "fp8"'),
    ],
)
def test_what_contradicts_itself_or_cannot_be(text: str, told: str) -> None:
    assert told in said(accelerate_text(text, a_job(FREE)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("distributed_type: MEGATRON_LM\n", "supported: NO, MULTI_GPU"),
        (NO + "num_machines: 2\n", "add [rendezvous]"),
        (NO + "compute_environment: AMAZON_SAGEMAKER\n", "jobs run only on this machine"),
        (NO + "mixed_precision: fp8\n", "acc.yaml:2 mixed_precision"),
        (NO + "dynamo_config:\n  dynamo_backend: TVM\n", "acc.yaml:2 dynamo_config"),
    ],
)
def test_what_is_not_supported(text: str, told: str) -> None:
    imported = accelerate_text(text, a_job(FREE))
    assert isinstance(imported.problem, Unsupported)
    assert told in said(imported)


def test_a_compiled_model_is_compiled_here_too() -> None:
    config = NO + "dynamo_config:\n  dynamo_backend: INDUCTOR\n  dynamo_mode: default\n"
    imported = accelerate_text(config, a_job(FREE))
    assert imported.problem is None
    assert imported.tree["train"]["compile"] is True
    off = accelerate_text(NO + "dynamo_config:\n  dynamo_backend: 'NO'\n", a_job(FREE))
    assert "compile" not in off.tree["train"]


def test_the_job_and_the_config_must_agree() -> None:
    imported = accelerate("accelerate_zero3.yaml", a_job(JOB + "batch_size = 16\n"))
    assert "gpus: job.toml gpus says 2, acc.yaml:17 num_processes says 4" in said(imported)


def test_a_second_deepspeed_config_has_no_place() -> None:
    acc = parse_yaml("deepspeed_config:\n  zero_stage: 3\n" + DEEPSPEED, source="acc.yaml")
    other = parse_json('{"zero_optimization": {"stage": 3}}', source="ds.json")
    imported = import_configs(a_job(FREE), deepspeed=other, accelerate=acc)
    assert "deepspeed_config.zero_stage = 3: cannot be combined with ds.json" in said(imported)


def test_sections_of_another_type_are_listed() -> None:
    text = "distributed_type: MULTI_GPU\ndeepspeed_config:\n  zero_stage: 3\n"
    assert outcomes(accelerate_text(text, a_job(FREE)))["deepspeed_config.zero_stage"] == "ignored"


@pytest.mark.parametrize(
    ("copies", "shard", "size"), [(2, 2, 2), (4, 1, 1), (1, 4, None)], ids=["hsdp", "ddp", "fsdp"]
)
def test_sizes_of_data_parallelism(copies: int, shard: int, size: int | None) -> None:
    sizes = f"  parallelism_config_dp_replicate_size: {copies}\n"
    sizes += f"  parallelism_config_dp_shard_size: {shard}\n  parallelism_config_tp_size: 1\n"
    imported = accelerate_text(f"distributed_type: FSDP\n{PARALLEL}{sizes}", a_job(FREE))
    assert imported.problem is None
    assert imported.tree["zero"].get("shard_size") == size
    assert outcomes(imported)["parallelism_config"] == ("ignored" if size is None else "mapped")


def test_ranks_that_share_layers() -> None:
    sizes = "  parallelism_config_dp_shard_size: 2\n  parallelism_config_tp_size: 2\n"
    imported = accelerate_text(f"distributed_type: FSDP\n{PARALLEL}{sizes}", a_job(FREE))
    assert imported.problem is None
    assert imported.tree["zero"]["tensor_ranks"] == 2
    assert "shard_size" not in imported.tree["zero"]
    assert outcomes(imported)["parallelism_config"] == "mapped"


@pytest.mark.parametrize(
    ("kind", "sizes", "told"),
    [
        ("FSDP", {"dp_shard": 2}, "1 copy of the model x 2 ranks per copy = 2 ranks"),
        ("FSDP", {"dp_shard": "two"}, 'dp_shard_size = "two": must be a whole number'),
        (
            "MULTI_GPU",
            {"dp_shard": 4},
            "shards the model, but distributed_type MULTI_GPU never shards it",
        ),
        (
            "FSDP",
            {"cp": 2, "sp": 2},
            "sp_size = 2 cannot be combined, because each divides sequences",
        ),
        ("FSDP", {"cp": 2}, "x 2 ranks that share sequences = 2 ranks, but"),
        (
            "FSDP",
            {"tp": 2},
            "1 copy of the model x 1 rank per copy x 2 tensor ranks = 2 ranks, but",
        ),
        ("MULTI_GPU", {"tp": 4}, "tp_size = 4: jobs support tensor parallelism only with FSDP"),
        (
            "FSDP",
            {"dp_replicate": 2, "tp": 2},
            "jobs do not support tensor parallelism together with 2 copies",
        ),
    ],
)
def test_sizes_that_cannot_be(kind: str, sizes: dict[str, object], told: str) -> None:
    lines = "".join(f"  parallelism_config_{n}_size: {size}\n" for n, size in sizes.items())
    imported = accelerate_text(f"distributed_type: {kind}\n{PARALLEL}{lines}", a_job(FREE))
    assert told in said(imported)


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ({"dp_shard": 2, "cp": 2}, {"sequence_ranks": 2}),
        ({"dp_replicate": 2, "sp": 2}, {"sequence_ranks": 2, "shard_size": 2}),
        ({"sp": 4}, {"sequence_ranks": 4}),
        ({"sp": 2, "tp": 2}, {"sequence_ranks": 2, "tensor_ranks": 2}),
    ],
    ids=str,
)
def test_ranks_that_share_sequences(sizes: dict[str, int], kept: dict[str, int]) -> None:
    lines = "".join(f"  parallelism_config_{n}_size: {size}\n" for n, size in sizes.items())
    imported = accelerate_text(f"distributed_type: FSDP\n{PARALLEL}{lines}", a_job(FREE))
    assert imported.problem is None
    zero = imported.tree["zero"]
    keys = ("sequence_ranks", "tensor_ranks", "shard_size")
    assert {name: zero[name] for name in keys if name in zero} == kept


def test_modules_of_experts_are_leaves_to_deepspeed() -> None:
    text = DEEPSPEED + "deepspeed_config:\n  zero_stage: 3\n"
    text += "  deepspeed_moe_layer_cls_names: MixtralSparseMoeBlock, OlmoeSparseMoeBlock\n"
    imported = accelerate_text(text, a_job('engine = "deepspeed"\n' + FREE))
    assert imported.deepspeed is not None
    assert imported.deepspeed["zero_optimization"]["leaf_module"] == {
        "classes": ["MixtralSparseMoeBlock", "OlmoeSparseMoeBlock"]
    }
    key = "deepspeed_config.deepspeed_moe_layer_cls_names"
    assert outcomes(imported)[key] == "passed through"
    assert outcomes(accelerate_text(text, a_job(FREE)))[key] == "ignored"
    document = parse_yaml(text, source="acc.yaml")
    older = import_configs(
        a_job('engine = "deepspeed"\n' + FREE), accelerate=document, release=(0, 17)
    )
    assert "needs DeepSpeed 0.18.0, but the job's Python has 0.17" in said(older)
