"""Cases of where weights lie: stages, precisions, world sizes, groups, frozen weights."""

from .case import Case, Precision, Save

WARMUP = {
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 8},
    }
}

STAGES = (
    Case("z0-fp32-w2", 0, 2, "no ZeRO: torch optimizer state in the model file", model="zoo"),
    Case("z0-bf16-w2", 0, 2, "bf16 without ZeRO: fp32_groups of natural shape", "bf16", "zoo"),
    Case(
        "z0-fp16-w1",
        0,
        1,
        "fp16 without ZeRO, dynamic loss scale, the second step skipped",
        "fp16",
        "tiny_group",
        saves=(Save(4),),
        overflow_steps=(2,),
    ),
    Case("z1-fp32-w1", 1, 1, "one rank only", model="zoo"),
    Case("z1-fp32-w3", 1, 3, "frozen weights at stage 1: only in `module`", model="zoo"),
    Case("z1-bf16-w4", 1, 4, "bf16 at stage 1 (no BF16_Optimizer)", "bf16", "zoo"),
    Case("z2-fp32-w2", 2, 2, "weights only: nothing special", model="plain"),
    Case("z2-fp32-w4-straddle", 2, 4, "a matrix over all four ranks", model="straddle"),
    Case("z2-bf16-w2", 2, 2, "frozen fragments are full tensors", "bf16", "zoo"),
    Case(
        "z2-bf16-w3", 2, 3, "as z2-bf16-w2 on three ranks, a schedule", "bf16", "zoo", config=WARMUP
    ),
    Case(
        "z2-fp16-w2",
        2,
        2,
        "fp16, dynamic loss scale, two of five steps skipped",
        "fp16",
        "zoo",
        saves=(Save(5),),
        overflow_steps=(1, 3),
    ),
    Case(
        "z2-fp16-w2-static",
        2,
        2,
        "fp16 with a static loss scale",
        "fp16",
        config={"fp16": {"enabled": True, "loss_scale": 128.0}},
    ),
    Case("z3-fp32-w1", 3, 1, "stage 3 on one rank", model="zoo"),
    Case("z3-fp32-w2", 3, 2, "stage 3, plain", model="plain"),
    Case("z3-fp32-w3-straddle", 3, 3, "parameters smaller than the world", model="straddle"),
    Case("z3-bf16-w2", 3, 2, "frozen fragments are padded slices", "bf16", "zoo"),
    Case(
        "z3-bf16-w4", 3, 4, "as z3-bf16-w2 on four ranks, a schedule", "bf16", "zoo", config=WARMUP
    ),
    Case(
        "z3-fp16-w2",
        3,
        2,
        "fp16, dynamic loss scale, one of four steps skipped",
        "fp16",
        "zoo",
        saves=(Save(4),),
        overflow_steps=(2,),
    ),
)

ROUND_ROBIN: tuple[tuple[int, Precision, int], ...] = (
    (1, "fp32", 3),
    (2, "bf16", 2),
    (2, "fp32", 4),
)

GROUPS = (
    Case(
        "z1-bf16-w4-tiny-group", 1, 4, "ranks 2 and 3 of group 1 are padding", "bf16", "tiny_group"
    ),
    Case("z2-fp32-w3-tiny-group", 2, 3, "rank 2 of group 1 is padding", model="tiny_group"),
    Case("z3-bf16-w4-tiny-group", 3, 4, "slices of one element, or of none", "bf16", "tiny_group"),
    Case(
        "z3-fp32-w2-frozen-group", 3, 2, "group 1 is all frozen: no sub-group", model="frozen_group"
    ),
    Case(
        "z3-fp32-w2-sub-groups",
        3,
        2,
        "sub_group_size 40: several sub-groups in each of two groups",
        model="zoo",
        zero={"sub_group_size": 40},
    ),
    Case(
        "z3-bf16-w3-sub-groups",
        3,
        3,
        "sub_group_size 1: every parameter its own sub-group",
        "bf16",
        zero={"sub_group_size": 1},
    ),
    Case(
        "z3-bf16-w2-persistent",
        3,
        2,
        "parameters below stage3_param_persistence_threshold beside others above",
        "bf16",
        "zoo",
        zero={"stage3_param_persistence_threshold": 50},
    ),
    *(
        Case(
            f"z{stage}-{precision}-w{world}-round-robin",
            stage,
            world,
            "seven parameters in round robin order",
            precision,
            "odd_count",
            zero={"round_robin_gradients": True},
        )
        for stage, precision, world in ROUND_ROBIN
    ),
    Case(
        "z2-bf16-w3-aligned",
        2,
        3,
        "parameter_alignment: padding between parameters",
        "bf16",
        "zoo",
        zero={"parameter_alignment": True},
    ),
    Case(
        "z2-bf16-w3-aligned-round-robin",
        2,
        3,
        "parameter_alignment and round_robin_gradients together",
        "bf16",
        "odd_count",
        zero={"parameter_alignment": True, "round_robin_gradients": True},
    ),
)

FROZEN = (
    *(
        Case(
            f"z{stage}-bf16-w2-exclude-frozen",
            stage,
            2,
            "an adapter, saved with exclude_frozen_parameters",
            "bf16",
            "adapter",
            saves=(Save(2, exclude_frozen=True),),
        )
        for stage in (1, 2, 3)
    ),
    Case("z1-fp32-w2-adapter", 1, 2, "a frozen tied pair at stage 1", model="adapter"),
    Case("z2-fp32-w2-adapter", 2, 2, "a frozen tied pair at stage 2", model="adapter"),
    Case("z3-bf16-w3-adapter", 3, 3, "a frozen tied pair at stage 3", "bf16", "adapter"),
)
