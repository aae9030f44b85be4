"""Cases of what the optimizer holds, and of offloading."""

from .case import Case, Precision, Save

FP32: Precision = "fp32"
BF16: Precision = "bf16"
CPU = {"device": "cpu", "pin_memory": False}
BF16_MASTERS = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
BF16_ALL = {
    "bf16": {
        "enabled": True,
        "bf16_master_weights_and_grads": True,
        "bf16_optimizer_states": True,
    }
}
FP16_MASTERS = {
    "fp16": {"enabled": True, "loss_scale": 64.0, "fp16_master_weights_and_grads": True}
}
ACCUMULATE_FP32 = {"data_types": {"grad_accum_dtype": "fp32"}}

STATE = (
    Case(
        "z2-fp32-w2-elastic",
        2,
        2,
        "elastic_checkpoint: state is a list of lean dicts",
        model="tiny_group",
        zero={"elastic_checkpoint": True},
    ),
    Case(
        "z1-bf16-w3-elastic-sgd",
        1,
        3,
        "elastic_checkpoint with momentum only",
        "bf16",
        "tiny_group",
        "sgd_momentum",
        zero={"elastic_checkpoint": True},
    ),
    Case("z2-bf16-w2-sgd", 2, 2, "SGD without momentum: empty state", "bf16", optimizer="sgd"),
    Case("z1-fp32-w2-momentum", 1, 2, "SGD with momentum_buffer", optimizer="sgd_momentum"),
    Case("z3-fp32-w2-momentum", 3, 2, "SGD with momentum_buffer", optimizer="sgd_momentum"),
    Case(
        "z2-fp32-w2-lion", 2, 2, "a client's Lion: exp_avg, no step", optimizer="lion", model="zoo"
    ),
    Case("z3-bf16-w2-lion", 3, 2, "a client's Lion: exp_avg, no step", "bf16", optimizer="lion"),
    Case("z1-fp32-w2-amsgrad", 1, 2, "AdamW with max_exp_avg_sq", optimizer="amsgrad"),
    Case("z2-fp32-w2-adam-l2", 2, 2, "Adam with L2 decay", optimizer="adam_l2"),
    Case("z2-fp32-w2-rmsprop", 2, 2, "square_avg, momentum_buffer, grad_avg", optimizer="rmsprop"),
    Case("z3-fp32-w2-adagrad", 3, 2, "Adagrad: `sum`", optimizer="adagrad"),
    *(
        Case(
            f"z{stage}-{precision}-w2-before-first-step",
            stage,
            2,
            "saved before the first step: no optimizer state",
            precision,
            "zoo",
            saves=(Save(0),),
        )
        for stage, precision in ((0, FP32), (0, BF16), (1, BF16), (2, FP32), (3, BF16))
    ),
    *(
        Case(
            f"bf16-optimizer-w{world}{suffix}",
            1,
            world,
            "BF16_Optimizer (bf16, stage 1, grad_accum_dtype fp32): padded masters, no zero_stage",
            "bf16",
            model,
            config=ACCUMULATE_FP32 | extra,
        )
        for world, suffix, model, extra in (
            (2, "", "zoo", {}),
            (4, "-tiny-group", "tiny_group", {}),
            (3, "-immediate", "plain", {"bf16": {"enabled": True, "immediate_grad_update": True}}),
        )
    ),
    Case("z1-bf16-w2-bf16-all", 1, 2, "masters and moments are bf16", "bf16", config=BF16_ALL),
    Case("z3-bf16-w2-bf16-all", 3, 2, "masters and moments are bf16", "bf16", config=BF16_ALL),
)

MUON = (
    *(
        Case(
            f"z{stage}-{precision}-w2-muon",
            stage,
            2,
            "Muon: momentum_buffer for matrices, AdamW's moments and step for the rest",
            precision,
            "zoo",
            "muon",
            zero={"reduce_scatter": False},
        )
        for stage, precision in ((1, BF16), (2, FP32), (3, BF16))
    ),
    Case(
        "z3-fp32-w3-muon-sub-groups",
        3,
        3,
        "Muon: sub-groups with momentum_buffer beside others with AdamW's state",
        model="plain",
        optimizer="muon",
        zero={"reduce_scatter": False, "sub_group_size": 40},
    ),
    Case(
        "z1-fp32-w2-muon-before-first-step",
        1,
        2,
        "Muon, saved before the first step",
        model="plain",
        optimizer="muon",
        saves=(Save(0),),
        zero={"reduce_scatter": False},
    ),
)

OFFLOAD = (
    *(
        Case(
            f"z{stage}-{precision}-w2-offload",
            stage,
            2,
            "optimizer offloaded to the CPU, torch's AdamW",
            precision,
            "zoo",
            zero={"offload_optimizer": CPU},
        )
        for stage, precision in ((1, BF16), (2, FP32), (3, BF16))
    ),
    Case(
        "z3-fp32-w2-offload-param",
        3,
        2,
        "parameters and optimizer offloaded to the CPU",
        model="zoo",
        zero={"offload_optimizer": CPU, "offload_param": CPU},
    ),
    Case(
        "z3-bf16-w2-nvme",
        3,
        2,
        "optimizer on NVMe: some sub-groups in swap files, others too small",
        "bf16",
        "zoo",
        zero={"offload_optimizer": {"device": "nvme", "nvme_path": "nvme"}, "sub_group_size": 80},
        config={"aio": {"block_size": 80}},
    ),
    Case(
        "z2-bf16-w2-cpu-adam",
        2,
        2,
        "DeepSpeedCPUAdam: `step` is a python int",
        "bf16",
        "tiny_group",
        "cpu_adam",
        zero={"offload_optimizer": CPU},
        builds=True,
    ),
    *(
        Case(
            f"z{stage}-bf16-w2-bf16-masters",
            stage,
            2,
            "masters are bf16, moments fp32",
            "bf16",
            optimizer="cpu_adam",
            zero={"offload_optimizer": CPU},
            config=BF16_MASTERS,
            builds=True,
        )
        for stage in (2, 3)
    ),
    Case(
        "z2-fp16-w2-fp16-masters",
        2,
        2,
        "masters are fp16, moments fp32, a static loss scale",
        "fp16",
        optimizer="cpu_adam",
        zero={"offload_optimizer": CPU},
        config=FP16_MASTERS,
        builds=True,
    ),
    Case(
        "z3-fp32-w2-cpu-lion",
        3,
        2,
        "DeepSpeedCPULion",
        optimizer="cpu_lion",
        zero={"offload_optimizer": CPU},
        builds=True,
    ),
    Case(
        "z2-fp32-w2-fused-adam-elastic",
        2,
        2,
        "FusedAdam, elastic: `step` in param_groups, base_optimizer_state_step",
        model="tiny_group",
        optimizer="cpu_adam",
        zero={"elastic_checkpoint": True},
        builds=True,
    ),
    Case(
        "z1-bf16-w2-fused-adam",
        1,
        2,
        "FusedAdam: `step` in state and in param_groups",
        "bf16",
        "tiny_group",
        "cpu_adam",
        builds=True,
    ),
)
