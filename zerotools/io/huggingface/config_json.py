"""The file config.json of a model, with the default values of transformers.

If a key is missing, the default of the config class for the `model_type` applies. These defaults
are in class_defaults.json, for the model types that zerotools knows the shapes of.
scripts/class_defaults.py writes that file from the classes of transformers. For example,
transformers omits `tie_word_embeddings` if it has the default value of the class, which for most
model types is false or missing.

Loaders take the dtype of the weights from `dtype` (`torch_dtype` before transformers 4.56). If the
config of a 16-bit export still had float32, loaders would convert the weights back. Some tensors of
some models stay in fp32 even so (`kept_in_fp32`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Tensor
from zerotools.core.dtypes import FLOAT16, DType
from zerotools.core.errors import BadFile
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.model_sidecars import CONFIG

_KEYS = ("dtype", "torch_dtype")
LARGEST_CONFIG = 2**24
TRANSFORMERS_SECONDS = 600.0
"""How long a process of transformers may take to build a model without values.

It takes seconds; on an overloaded machine it may take minutes.
"""


def dtype_for_config(tensors: Iterable[Tensor]) -> DType | None:
    """Return the floating-point dtype (16 bits or more) in which the most bytes are stored. Return
    None if no tensor has such a dtype.
    """
    sizes: dict[DType, int] = {}
    for tensor in tensors:
        if tensor.dtype.is_float and tensor.dtype.bits >= 16:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def adapted_config(path: Path, dtype: DType | None) -> bytes | None:
    """Return the text of the config.json at `path` with `dtype` as the dtype of the weights. Return
    None if `dtype` is None, or if the file is not a JSON object.

    The dtypes of sub-models (`text_config`) are set too. The config of a diffusers model has no
    dtype, and gets none.

    Raises:
        BadFile: the file is not a regular file, or is larger than `LARGEST_CONFIG`.
    """
    try:
        config: Any = read_json(path, LARGEST_CONFIG)
    except (ValueError, RecursionError):
        return None
    if not isinstance(config, dict) or dtype is None:
        return None
    _set(config, dtype.name)
    if not any(key in config for key in _KEYS) and _CLASS_NAME not in config:
        config["torch_dtype"] = dtype.name
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _set(config: dict[str, Any], name: str) -> None:
    for key, value in config.items():
        if key in _KEYS and (value is None or isinstance(value, str)):
            config[key] = name
        elif key.endswith("_config") and isinstance(value, dict) and key != "quantization_config":
            _set(value, name)


DIFFUSERS_STEM = "diffusion_pytorch_model"
"""The beginning of the names of weight files in a model of diffusers."""
_CLASS_NAME = "_class_name"


def is_of_diffusers(path: Path) -> bool:
    """Return whether the config.json at `path` is of a diffusers model, such as a UNet."""
    try:
        config: Any = read_json(path, LARGEST_CONFIG)
    except (OSError, BadFile, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and _CLASS_NAME in config and "model_type" not in config


KEPT_TABLE = Path(__file__).with_name("kept_in_fp32.json")
ALWAYS = ("e_score_correction_bias", "expert_bias")


def kept_in_fp32(config: Mapping[str, Any], dtype: DType) -> re.Pattern[str]:
    """Return a pattern that is found in the names of the tensors that a model with 16-bit weights
    of `dtype` has in fp32.

    The table kept_in_fp32.json has the names that transformers keeps in fp32 when it loads a model
    of a type in 16 bits. scripts/kept_in_fp32.py writes it from the classes of transformers.
    """
    words = list(ALWAYS)
    for kind in _model_types(config):
        kept = _kept_table().get(kind, {})
        words += kept.get("16 bits", ())
        words += kept.get("fp16", ()) if dtype == FLOAT16 else ()
    return _of_words(words)


def _of_words(words: Iterable[str]) -> re.Pattern[str]:
    names = "|".join(re.escape(word) for word in dict.fromkeys(words))
    return re.compile(rf"(?:^|\.)(?:{names})(?:\.|$)")


ALWAYS_KEPT = _of_words(ALWAYS)
"""The pattern for a model without a config. The bias of a router's scores has small differences
between large values, so all models compute with it in fp32."""


def _model_types(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the type of a model and those of its sub-models (`text_config`)."""
    waiting = [config]
    while waiting:
        for key, value in waiting.pop().items():
            if key == "model_type" and isinstance(value, str):
                yield value
            elif key.endswith("_config") and isinstance(value, Mapping):
                waiting.append(value)


@cache
def _kept_table() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = json.loads(KEPT_TABLE.read_text("utf-8"))
    return found


TABLE = Path(__file__).with_name("class_defaults.json")


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the keys of its language model (`text_config`) moved to the top
    level.
    """
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else dict(config)


def full_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `flat_config`, completed with the default values of the config class.

    If the class knows two names for a value, the result has both. Keys that the class does not know
    stay unchanged.
    """
    given = flat_config(config)
    known = _class_of(given.get("model_type"))
    if known is None:
        return given
    values, names = known["values"], known["names"]
    found = {**values, **given}
    for name, other in names.items():
        # transformers sets fields first, so the name that is not a field wins.
        field, more = (name, other) if name in values else (other, name)
        found[name] = found[other] = given[more] if more in given else found[field]
    return found


def class_keys(model_type: str) -> frozenset[str]:
    """Return the keys that the config class of a model type has. The result is empty if
    class_defaults.json lacks the type.
    """
    known = _class_of(model_type)
    if known is None:
        return frozenset()
    return frozenset({*known["values"], *known["names"], *known["names"].values()})


def _class_of(model_type: object) -> dict[str, Any] | None:
    return _table().get(model_type) if isinstance(model_type, str) else None


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TABLE.read_text("utf-8"))
    return found


_KEY = "tie_word_embeddings"
_TYPES = """
    albert aya_vision bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot
    blenderbot-small blip blip_text_model bloom camembert canary cohere cohere2 cohere2_moe
    cohere2_vision cohere_compass_text convbert cpmant ctrl d_fine dab-detr data2vec-text
    deberta deberta-v2 deepseek_vl deepseek_vl_hybrid deformable_detr deimv2 diffusion_gemma
    diffusion_gemma_text distilbert electra ernie ernie4_5 ernie4_5_moe ernie4_5_vl_moe
    ernie4_5_vl_moe_text esm falcon falcon_mamba flaubert flava florence2 fnet fun_asr_nano
    funnel gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_assistant
    gemma4_text gemma4_unified gemma4_unified_assistant gemma4_unified_text glmasr got_ocr2
    gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox_japanese granite_docling granite_docling_text
    granite_speech granite_speech5_ctc granite_speech_plus granite_swa grounding-dino gte
    hunyuan_vl hunyuan_vl_text hyperclovax_vision_v2 ibert internvl janus jetmoe
    jina_embeddings_v3 kimi_k25 kosmos-2 kosmos-2.5 kosmos_2_5_text_model kosmos_2_text_model
    layoutlm led lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl lighton_ocr longformer longt5 luke lxmert
    m2m_100 mamba marian mbart megatron-bert mimi mimi_decoder mimi_encoder minicpm3
    minicpm_ocr mistral3 mm-grounding-dino mobilebert modernbert modernbert-decoder moonshine
    moss_transcribe_diarize mpnet mpt mra mvp neomme nllb-moe nomic_bert nystromformer
    openai-gpt opt ovis2 paddleocr_vl paddleocr_vl_text paligemma pe_audio_video pegasus
    pegasus_x plbart pop2piano pp_chart2table pp_doclayout_v3 pp_doclayout_v4 prophetnet
    qwen2_5_omni_text qwen3_asr recurrent_gemma roberta roberta-prelayernorm roc_bert roformer
    rt_detr_v2 sam sam_hq seamless_m4t seamless_m4t_v2 smollm3 speech_to_text speecht5
    squeezebert starcoder2 switch_transformers t5_gemma_module t5gemma t5gemma2
    t5gemma2_decoder t5gemma2_encoder t5gemma2_text tapas trocr udop vaultgemma visual_bert
    voxtral_realtime whisper xglm xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso youtu zamba
    zamba2 zaya
"""
TIED_TYPES = frozenset(_TYPES.split())
"""The model types that tie embeddings by default in transformers 5.23 and in 4.57.

Types that do so only in 5.23 are omitted: a superfluous copy of the output layer is harmless, but
an output layer that a loader initialises randomly is not.
"""

SCALED_BY_TIE = frozenset(
    {"longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5"}
)
"""The model types in which `tie_word_embeddings` also decides whether the input of the output layer
is scaled."""


def ties_embeddings(config: Mapping[str, Any]) -> bool:
    """Return whether a loader of a model with this config uses the embedding also as the output
    layer.

    The config of a model that contains a language model has two levels, and releases of
    transformers differ in which of them decides. If the outer level has no value, the embeddings
    count as tied only if the default of the class and the inner level both tie them.
    """
    said = config.get(_KEY)
    if said is not None:
        return said is True
    inner = config.get("text_config")
    is_tied = str(config.get("model_type")) in TIED_TYPES
    return is_tied and (not isinstance(inner, Mapping) or ties_embeddings(inner))


_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def config_of_model(name: str) -> Path | None:
    """Return the path of the config.json of the model `name`, which is a directory or a name on the
    Hub. Return None if the model is not on this machine."""
    if (Path(name) / CONFIG).is_file():
        return Path(name) / CONFIG
    if not _NAME.fullmatch(name):
        return None
    repository = _cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    path = repository / "snapshots" / revision / CONFIG
    return path if re.fullmatch(r"\w+", revision) and path.is_file() else None


def _cache() -> Path:
    for name, below in (("HF_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if os.environ.get(name):
            return Path(os.environ[name], below)
    return Path.home() / ".cache" / "huggingface" / "hub"
