"""Cases whose training is continued: `Case.model` is a learner, and the batch a fixed one.

A configuration without a micro batch takes all samples of a rank at once; one with a micro batch
accumulates.
"""

from collections.abc import Mapping

from .case import Case, Precision
from .cases_layout import WARMUP
from .cases_state import ACCUMULATE_FP32, BF16_ALL, CPU

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
ONE_BY_ONE = {"train_micro_batch_size_per_gpu": 1}
CLIPPED = {"gradient_clipping": 0.5}
# High enough for some steps to be skipped, before the save and after it.
SCALED = {
    "fp16": {"enabled": True, "initial_scale_power": 16, "loss_scale_window": 2, "hysteresis": 1}
}


def _basic(stage: int, precision: Precision, model: str) -> Case:
    config = SCALED if precision == "fp16" else {}
    name = f"{f'z{stage}'}-{precision}-{model}"
    return Case(name, stage, 0, "stage, precision and model", precision, model, config=config)


def _zoo(name: str, stage: int, precision: Precision, about: str, **rest: object) -> Case:
    return Case(name, stage, 0, about, precision, "zoo", **rest)  # type: ignore[arg-type]


BASIC = tuple(
    _basic(stage, precision, model)
    for stage in (1, 2, 3)
    for precision in PRECISIONS
    for model in ("learner", "zoo")
)

LAYOUTS = (
    _zoo("bf16-optimizer-zoo", 1, "bf16", "BF16_Optimizer", config=ACCUMULATE_FP32),
    _zoo(
        "bf16-optimizer-accumulate",
        1,
        "bf16",
        "BF16_Optimizer, sample by sample, clipped",
        config=ACCUMULATE_FP32 | ONE_BY_ONE | CLIPPED,
    ),
    *(
        _zoo(
            f"z3-{precision}-sub-groups",
            3,
            precision,
            "sub_group_size 60: several sub-groups, whose ends move with the number of ranks",
            zero={"sub_group_size": 60},
        )
        for precision in PRECISIONS[:2]
    ),
    *(
        _zoo(
            f"z{stage}-{precision}-round-robin",
            stage,
            precision,
            "an order of weights that depends on the number of ranks",
            zero={"round_robin_gradients": True},
        )
        for stage, precision in ((1, PRECISIONS[0]), (2, PRECISIONS[1]))
    ),
    _zoo(
        "z2-bf16-aligned-round-robin",
        2,
        "bf16",
        "padding between weights, in round-robin order",
        zero={"parameter_alignment": True, "round_robin_gradients": True},
    ),
)

STEPPING = (
    *(
        _zoo(
            f"z{stage}-fp32-accumulate",
            stage,
            "fp32",
            "sample by sample, clipped, with a schedule",
            config=ONE_BY_ONE | CLIPPED | WARMUP,
        )
        for stage in (1, 2, 3)
    ),
    _zoo("z2-fp32-momentum", 2, "fp32", "SGD with momentum", optimizer="sgd_momentum"),
    _zoo("z3-bf16-lion", 3, "bf16", "a client's Lion: one moment, no step", optimizer="lion"),
    *(
        _zoo(f"z{stage}-bf16-all", stage, "bf16", "masters and moments are bf16", config=BF16_ALL)
        for stage in (1, 3)
    ),
    *(
        _zoo(
            f"z{stage}-{precision}-offload",
            stage,
            precision,
            "optimizer on the CPU, torch's AdamW",
            zero={"offload_optimizer": CPU},
        )
        for stage, precision in ((2, PRECISIONS[0]), (3, PRECISIONS[1]))
    ),
    *(
        _zoo(
            f"z{stage}-{precision}-cpu-adam",
            stage,
            precision,
            "DeepSpeedCPUAdam",
            optimizer="cpu_adam",
            zero={"offload_optimizer": CPU},
            builds=True,
        )
        for stage, precision in ((1, PRECISIONS[1]), (2, PRECISIONS[1]), (3, PRECISIONS[0]))
    ),
)

CONTINUED: Mapping[str, Case] = {case.name: case for case in (*BASIC, *LAYOUTS, *STEPPING)}
