"""A live GPT of Megatron-Core, its optimizer, and steps with gradients that are no model's."""

import re
import zlib
from argparse import Namespace

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from .cases import Case
from .hub_cases import CONTINUED
from .plain_attention import PlainAttention

VOCABULARY, DIVISOR, STEPS = 29, 8, 2
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def padded(case: Case) -> int:
    """Rows of the vocabulary: 32, for 1 or 2 tensor-parallel ranks."""
    unit = DIVISOR * case.tp
    return -(-VOCABULARY // unit) * unit


def model_of(case: Case):
    """The configuration and the model of this rank."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        expert_model_parallel_size=case.ep,
        expert_tensor_parallel_size=case.etp,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = _config(case)
    first = parallel_state.is_pipeline_first_stage()
    last = parallel_state.is_pipeline_last_stage()
    spec, more = _spec(case, config), {}
    if config.mtp_num_layers:
        more["mtp_block_spec"] = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    model = GPTModel(
        config,
        spec,
        vocab_size=padded(case),
        max_sequence_length=16,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=case.tied,
        position_embedding_type="rope",
        rotary_percent=case.model.get("rotary_percent", 1.0),
        **more,
    )
    model = model.to(DTYPES[case.precision])
    fill(case, model)
    return config, model


def build(case: Case):
    """The model of this rank, wrapped as in training, and its optimizer or None."""
    config, model = model_of(case)
    wrapped = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            use_distributed_optimizer=case.optimizer not in (None, "plain"),
            overlap_grad_reduce=case.bucket_size is not None,
            bucket_size=case.bucket_size,
        ),
        model,
    )
    return wrapped, None if case.optimizer is None else get_optimizer(case, wrapped)


_ACTIVATIONS = {"silu": torch.nn.functional.silu, "quick_gelu": quick_gelu}


def _config(case: Case):
    kind = MLATransformerConfig if case.is_mla else TransformerConfig
    own = {"add_bias_linear": False, "activation_func": "silu", **case.model}
    own.pop("rotary_percent", None)
    own["activation_func"] = _ACTIVATIONS[own["activation_func"]]
    if case.is_mla:
        own |= {"multi_latent_attention": True, "rope_type": "rope"}
    if "num_moe_experts" in own:
        own.setdefault("moe_token_dispatcher_type", "alltoall")
    return kind(
        **own,
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        expert_model_parallel_size=case.ep,
        expert_tensor_parallel_size=case.etp,
        pipeline_dtype=DTYPES[case.precision],
        params_dtype=DTYPES[case.precision],
        bf16=case.precision == "bf16",
        fp16=case.precision == "fp16",
        use_cpu_initialization=True,
        gated_linear_unit=True,
        normalization="RMSNorm",
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )


def _spec(case: Case, config):
    if isinstance(case.model.get("moe_layer_freq"), list):
        spec = get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization="RMSNorm"
        )
        for layer in spec.layer_specs if case.is_mla else ():
            layer.submodules.self_attention.submodules.core_attention = PlainAttention
        return spec
    return get_gpt_layer_local_spec(
        num_experts=case.model.get("num_moe_experts"),
        moe_grouped_gemm=False,
        qk_layernorm=case.model.get("qk_layernorm", False),
        multi_latent_attention=case.is_mla,
        normalization="RMSNorm",
    )


def global_name(case: Case, model, name: str) -> str:
    """The name of a parameter in a model on one rank: layers and experts counted over all ranks."""
    if name.startswith("decoder.layers."):
        at = int(name.split(".")[2])
        name = name.replace(
            f"layers.{at}.", f"layers.{model.decoder.layers[at].layer_number - 1}.", 1
        )
    name = re.sub(r"\.experts\.(\w+)\.weight(\d+)$", r".experts.local_experts.\2.\1.weight", name)
    if ".local_experts." in name:
        before, after = name.split(".local_experts.")
        number, _, rest = after.partition(".")
        local = case.model["num_moe_experts"] // case.ep
        number = int(number) + local * parallel_state.get_expert_model_parallel_rank()
        name = f"{before}.local_experts.{number}.{rest}"
    return name


def cut_rank(name: str, parameter) -> int | None:
    """Which piece of a tensor-parallel parameter this rank has; None: it has the whole."""
    is_cut = getattr(parameter, "tensor_model_parallel", False)
    if not is_cut and not name.endswith("softmax_offset"):  # which has no mark, and is of heads
        return None
    if ".mlp.experts." in name:
        return parallel_state.get_expert_tensor_parallel_rank()
    return parallel_state.get_tensor_model_parallel_rank()


def fill(case: Case, model) -> None:
    """Values by name and piece, so that ranks agree where they hold the same."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.dtype.is_floating_point or name not in model.state_dict():
            continue
        shared = "embedding.word_embeddings.weight" if case.tied else "output_layer.weight"
        known = shared if name == "output_layer.weight" else global_name(case, model, name)
        seed = zlib.crc32(f"{known} {cut_rank(name, tensor)}".encode())
        random = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            tensor.copy_(random * 0.1 + (1 if "norm" in name else 0))


def get_optimizer(case: Case, wrapped):
    config = OptimizerConfig(
        optimizer="adam",
        lr=0.01,
        min_lr=0.001,
        weight_decay=0.1,
        bf16=case.precision == "bf16",
        fp16=case.precision == "fp16",
        params_dtype=DTYPES[case.precision],
        use_distributed_optimizer=case.optimizer != "plain",
        clip_grad=1.0 if case.name == CONTINUED else 0.0,
        adam_beta1=0.9,
        adam_beta2=0.95 if case.name == CONTINUED else 0.999,
    )
    return get_megatron_optimizer(config, [wrapped])


def train(wrapped, optimizer) -> None:
    """Gradients are made of each element's own value: what ranks share stays equal."""
    for step in range(1, STEPS + 1):
        for parameter in wrapped.parameters():
            values = parameter.detach().float() * 3 + 0.01 * step
            grad = getattr(parameter, "main_grad", None)
            if grad is None:
                parameter.grad = values.to(parameter.dtype)
            else:
                grad.copy_(values)
        optimizer.step()


def args_of(case: Case, **more) -> Namespace:
    """The arguments of Megatron-LM's training script, as far as a checkpoint's readers ask them."""
    from megatron.core.transformer.enums import AttnBackend

    model = dict(case.model)
    experts = model.pop("num_moe_experts", None)
    groups = model.pop("num_query_groups")
    is_grouped = groups != model["num_attention_heads"]
    model = {
        "rotary_percent": 1.0,
        "norm_epsilon": model.pop("layernorm_epsilon", 1e-5),
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        **model,
    }
    return Namespace(
        **model,
        num_experts=experts,
        group_query_attention=is_grouped,
        num_query_groups=groups if is_grouped else 1,
        padded_vocab_size=padded(case),
        vocab_size=None,
        make_vocab_size_divisible_by=DIVISOR,
        max_position_embeddings=16,
        position_embedding_type="rope",
        rotary_base=10000,
        swiglu=True,
        normalization="RMSNorm",
        multi_latent_attention=case.is_mla,
        untie_embeddings_and_output_weights=not case.tied,
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        expert_model_parallel_size=case.ep,
        expert_tensor_parallel_size=case.etp or case.tp,
        data_parallel_size=case.dp,
        world_size=case.world_size,
        params_dtype=DTYPES[case.precision],
        bf16=case.precision == "bf16",
        fp16=case.precision == "fp16",
        ckpt_format=case.format,
        use_distributed_optimizer=case.optimizer not in (None, "plain"),
        attention_backend=AttnBackend.unfused,
        consumed_train_samples=80,
        global_batch_size=8,
        seed=1,
        **more,
    )
