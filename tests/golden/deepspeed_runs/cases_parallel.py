"""Cases with a second kind of parallelism: several columns of `mp_rank`, layer and expert files."""

from .case import Case

TENSOR_PARALLEL = {"tensor_parallel": {"autotp_size": 2}}
AUTOEP = {
    "expert_parallel": {
        "enabled": True,
        "autoep_size": 2,
        "preset_model": "qwen3_moe",
        "use_grouped_mm": False,
    }
}
MICRO_BATCHES = {"gradient_accumulation_steps": 2}

PARALLEL = (
    Case(
        "pipeline-z1-fp32-w4",
        1,
        4,
        "two pipeline stages x two data ranks: layer files, a tied layer on both stages",
        config=MICRO_BATCHES,
        harness="pipeline",
    ),
    Case(
        "pipeline-z0-bf16-w2",
        0,
        2,
        "two pipeline stages without ZeRO: BF16_Optimizer, state stored twice",
        "bf16",
        config=MICRO_BATCHES,
        harness="pipeline",
    ),
    Case(
        "experts-z2-bf16-w2",
        2,
        2,
        "four experts over two ranks: expert files, an expert group per rank",
        "bf16",
        harness="experts",
    ),
    Case(
        "experts-z1-fp32-w4-round-robin",
        1,
        4,
        "two and four experts, two expert x two data ranks, in round robin order",
        model="pyramid",
        zero={"round_robin_gradients": True},
        harness="experts",
    ),
    Case(
        "experts-z2-bf16-w4-data-first",
        2,
        4,
        "neighbouring ranks share their experts: use_data_before_expert_parallelism",
        "bf16",
        config={"use_data_before_expert_parallelism": True},
        harness="experts",
    ),
    Case(
        "autoep-z2-bf16-w4",
        2,
        4,
        "AutoEP: four experts over two ranks, two data ranks of each",
        "bf16",
        config=AUTOEP,
        harness="autoep",
    ),
    Case(
        "autoep-z3-bf16-w4",
        3,
        4,
        "AutoEP at stage 3: sub-groups of experts over two ranks each",
        "bf16",
        config=AUTOEP,
        harness="autoep",
    ),
    Case(
        "autoep-z1-fp32-w2-muon",
        1,
        2,
        "AutoEP with Muon: momenta of whole blocks of experts",
        optimizer="muon",
        config=AUTOEP,
        harness="autoep",
    ),
    Case(
        "autoep-universal-z2-bf16-w2",
        2,
        2,
        "AutoEP, universal: experts in one file, and the model file has the shapes of a rank",
        "bf16",
        config=AUTOEP,
        universal=True,
        harness="autoep",
    ),
    Case(
        "tensor-parallel-z1-bf16-w4",
        1,
        4,
        "a Llama under AutoTP, two tensor x two data ranks: universal_checkpoint_info",
        "bf16",
        "llama",
        config=TENSOR_PARALLEL,
        harness="tensor",
    ),
    Case(
        "tensor-parallel-z2-fp32-w2",
        2,
        2,
        "a Llama under AutoTP, two tensor ranks, no data parallelism",
        model="llama",
        config=TENSOR_PARALLEL,
        harness="tensor",
    ),
    Case(
        "tensor-parallel-z1-fp32-w4-one-head",
        1,
        4,
        "more tensor ranks than key-value heads: the second holds empty attention weights",
        model="llama_one_head",
        config=TENSOR_PARALLEL,
        harness="tensor",
    ),
)

SEQUENCE = tuple(
    Case(
        name,
        stage,
        world_size,
        "Ulysses over two ranks: from 0.18 to 0.19.5 their files are called mp_rank_01, too",
        precision,
        "zoo",
        harness="sequence",
    )
    for name, stage, world_size, precision in (
        ("sequence-z1-fp32-w2", 1, 2, "fp32"),
        ("sequence-z2-bf16-w4", 2, 4, "bf16"),
        ("sequence-z3-bf16-w4", 3, 4, "bf16"),
    )
)
MICS = Case(
    "mics-z3-bf16-w4",
    3,
    4,
    "MiCS: two groups of two ranks, of which the first saves",
    "bf16",
    zero={"mics_shard_size": 2},
    harness="mics",
)
OLDER = (*SEQUENCE, MICS)
"""Of older versions alone: the newest calls the files of sequence-parallel ranks as those of other
runs, and has no MiCS."""
