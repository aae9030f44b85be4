"""A check whether a config.json ties a model's output layer to its embedding, also by default.

transformers omits the key `tie_word_embeddings` if it has the default value of the config class of
the `model_type`, which for most types is false or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
"""The types with config classes that tie by default in transformers 5.23, without those that do not
in 4.57: a superfluous copy is harmless, a head that a loader initialises randomly is not."""


def ties_embeddings(config: Mapping[str, Any]) -> bool:
    """Return whether a loader of a model with this config uses its embedding as its output layer.

    A model with a language model inside has two configs, and releases of transformers differ in
    which of them decides: if the outer one has no value, both must say so.
    """
    said = config.get(_KEY)
    if said is not None:
        return said is True
    inner = config.get("text_config")
    is_tied = str(config.get("model_type")) in TIED_TYPES
    return is_tied and (not isinstance(inner, Mapping) or ties_embeddings(inner))
