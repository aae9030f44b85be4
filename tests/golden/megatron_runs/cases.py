"""One `Case` per committed directory `tests/golden/megatron-core-<version>/<name>`."""

from dataclasses import dataclass, field
from typing import Any

BASE = {
    "num_layers": 2,
    "hidden_size": 16,
    "ffn_hidden_size": 24,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 4,
}
WIDE = {  # every parameter is a multiple of 64 elements, without which several buckets fail to save
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 16,
    "num_attention_heads": 2,
    "num_query_groups": 2,
    "kv_channels": 8,
}
MOE = {
    **BASE,
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 12,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "none",
}
MLA = {
    **MOE,
    "num_layers": 3,
    "num_query_groups": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_head_dim": 4,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 4,
    "moe_shared_expert_intermediate_size": 12,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_layer_freq": [0, 1, 1],
}


@dataclass(frozen=True)
class Case:
    """`optimizer` is the form of its state: None, `plain`, or a `distrib_optim_sharding_type`.
    `grouped`: experts have the names of Transformer Engine's grouped layers."""

    name: str
    about: str
    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int | None = None
    dp: int = 1
    model: dict[str, Any] = field(default_factory=lambda: dict(BASE))
    precision: str = "bf16"
    optimizer: str | None = None
    tied: bool = False
    format: str = "torch_dist"
    metadata: dict[str, Any] = field(default_factory=dict)
    parallel_save: bool = False
    bucket_size: int | None = None
    grouped: bool = False
    versions: tuple[str, ...] = ("0.16.1",)

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def is_mla(self) -> bool:
        return "kv_lora_rank" in self.model


OLD = ("0.12.3", "0.13.1", "0.14.0", "0.15.2")
CASES = {
    case.name: case
    for case in (
        Case("dense-tp2-pp2", "layers stacked over two stages, no optimizer", tp=2, pp=2),
        Case(
            "tied-pp2-plain",
            "tied embedding over two stages, Adam without the distributed optimizer",
            pp=2,
            tied=True,
            optimizer="plain",
        ),
        Case(
            "per-layer-tp2-reshardable",
            "a key per layer, masters and moments in their own shapes",
            tp=2,
            dp=2,
            optimizer="fully_reshardable",
            metadata={"non_homogeneous_layers": True},
            parallel_save=True,
        ),
        Case(
            "dense-tp2-pp2-reshardable",
            "stacked masters and moments",
            tp=2,
            pp=2,
            optimizer="fully_reshardable",
        ),
        Case(
            "singleton-tp2",
            "gate and up in tensors of their own",
            tp=2,
            metadata={"singleton_local_shards": True},
        ),
        Case(
            "dense-tp2-dp2-buckets",
            "masters and moments as flat buckets",
            tp=2,
            dp=2,
            optimizer="dp_reshardable",
        ),
        Case(
            "buckets-tied-tp2-pp2",
            "several buckets of each rank, tied over two stages",
            tp=2,
            pp=2,
            tied=True,
            optimizer="dp_reshardable",
            bucket_size=1500,
            model=dict(WIDE),
        ),
        Case(
            "fsdp-dtensor-dp2",
            "Megatron-FSDP over two ranks: masters alone",
            dp=2,
            format="fsdp_dtensor",
            optimizer="fsdp_dtensor",
        ),
        Case(
            "fsdp-dtensor-tp2-dp2",
            "Megatron-FSDP under tensor parallelism, tied",
            tp=2,
            dp=2,
            tied=True,
            format="fsdp_dtensor",
            optimizer="fsdp_dtensor",
        ),
        Case(
            "fsdp-dtensor-moe-ep2-etp2",
            "Megatron-FSDP under tensor, expert and expert-tensor parallelism",
            tp=2,
            ep=2,
            dp=2,
            etp=2,
            model={**MOE, "num_layers": 1, "num_moe_experts": 2},
            format="fsdp_dtensor",
            optimizer="fsdp_dtensor",
        ),
        Case(
            "fsdp-dtensor-grouped-ep2-edp2",
            "Megatron-FSDP, experts named as Transformer Engine's",
            tp=1,
            ep=2,
            dp=4,
            etp=1,
            model={**MOE, "num_layers": 1},
            format="fsdp_dtensor",
            optimizer="fsdp_dtensor",
            grouped=True,
        ),
        Case("fp32-plain", "one rank in float32", precision="fp32", optimizer="plain"),
        Case(
            "moe-ep2-tp2",
            "experts over two ranks, stacked",
            tp=2,
            ep=2,
            dp=2,
            etp=1,
            model=dict(MOE),
            optimizer="fully_reshardable",
            metadata={"chained_optim_avoid_prefix": True},
        ),
        Case(
            "moe-etp2-pp2",
            "experts cut as other weights are, a prefix per optimizer",
            tp=2,
            pp=2,
            etp=2,
            model=dict(MOE),
            optimizer="plain",
        ),
        Case(
            "moe-singleton-ep2",
            "each expert alone",
            ep=2,
            dp=2,
            model=dict(MOE),
            metadata={"singleton_local_shards": True},
        ),
        Case(
            "mla-tp2-ep2",
            "latent attention, shared experts, a dense layer first",
            tp=2,
            ep=2,
            dp=2,
            etp=1,
            model=dict(MLA),
        ),
        Case(
            "dense-tp2-model-space",
            "masters and moments flattened, one row per rank",
            tp=2,
            dp=2,
            optimizer="fully_sharded_model_space",
            versions=OLD,
        ),
        Case(
            "legacy-tp2-pp2",
            "rank files, tied",
            tp=2,
            pp=2,
            tied=True,
            format="torch",
            optimizer="plain",
        ),
        Case(
            "legacy-tp2-dp2-distributed",
            "rank files and the distributed optimizer's",
            tp=2,
            dp=2,
            format="torch",
            optimizer="dp_zero_gather_scatter",
        ),
        Case(
            "legacy-moe-ep2-tp2",
            "rank files of experts, a distributed optimizer each",
            tp=2,
            ep=2,
            dp=2,
            etp=1,
            model=dict(MOE),
            format="torch",
            optimizer="dp_zero_gather_scatter",
        ),
        Case(
            "legacy-mla-tp2", "rank files, latent attention", tp=2, model=dict(MLA), format="torch"
        ),
    )
}
