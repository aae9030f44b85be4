"""Tiny models with a tower, by transformers: how each is made, by a name of its own."""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
QWEN2 = {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 1}
GEMMA = {**LLAMA, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 8}
GEMMA3 = {**GEMMA, "model_type": "gemma3_text"}
MISTRAL = {**LLAMA, "model_type": "mistral", "num_key_value_heads": 1}
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
}  # fmt: skip
SIGLIP = {**CLIP, "model_type": "siglip_vision_model"}
PIXTRAL = {**CLIP, "model_type": "pixtral"}
INTERN = {**CLIP, "model_type": "internvl_vision", "image_size": [8, 8], "patch_size": [4, 4]}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
TEXT = {**{k: v for k, v in QWEN2.items() if k != "model_type"}, "rope_parameters": ROPE}
AUDIO = {
    "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_mel_bins": 8, "max_source_positions": 8,
}  # fmt: skip
TOWER = {"depth": 1, "num_heads": 2, "hidden_size": 8, "out_hidden_size": 16}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration", "Qwen2VLConfig",
        {"text_config": TEXT, "vision_config": {
            "depth": 1, "embed_dim": 8, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2}},
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig",
        {"text_config": TEXT, "vision_config": {
            **TOWER, "intermediate_size": 16, "fullatt_block_indexes": [0]}},
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration", "Qwen3VLConfig",
        {"text_config": {**TEXT, "head_dim": 8}, "vision_config": {
            **TOWER, "intermediate_size": 16, "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16}},
    ),
    "llava": (
        "LlavaForConditionalGeneration", "LlavaConfig",
        {"text_config": LLAMA, "vision_config": CLIP},
    ),
    "llava_next": (
        "LlavaNextForConditionalGeneration", "LlavaNextConfig",
        {"text_config": LLAMA, "vision_config": CLIP},
    ),
    "llava_next_video": (
        "LlavaNextVideoForConditionalGeneration", "LlavaNextVideoConfig",
        {"text_config": LLAMA, "vision_config": CLIP},
    ),
    "llava_onevision": (
        "LlavaOnevisionForConditionalGeneration", "LlavaOnevisionConfig",
        {"text_config": QWEN2, "vision_config": SIGLIP},
    ),
    "vipllava": (
        "VipLlavaForConditionalGeneration", "VipLlavaConfig",
        {"text_config": LLAMA, "vision_config": CLIP, "vision_feature_layers": [-1]},
    ),
    "video_llava": (
        "VideoLlavaForConditionalGeneration", "VideoLlavaConfig",
        {"text_config": LLAMA, "vision_config": CLIP},
    ),
    "paligemma": (
        "PaliGemmaForConditionalGeneration", "PaliGemmaConfig",
        {"text_config": GEMMA, "vision_config": SIGLIP, "projection_dim": 16},
    ),
    "gemma3": (
        "Gemma3ForConditionalGeneration", "Gemma3Config",
        {"text_config": GEMMA3, "vision_config": SIGLIP, "mm_tokens_per_image": 4},
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration", "Mistral3Config",
        {"text_config": MISTRAL, "vision_config": PIXTRAL},
    ),
    "internvl": (
        "InternVLForConditionalGeneration", "InternVLConfig",
        {"text_config": QWEN2, "vision_config": INTERN},
    ),
    "aya_vision": (
        "AyaVisionForConditionalGeneration", "AyaVisionConfig",
        {"text_config": {
            **MISTRAL, "model_type": "cohere2", "head_dim": 8, "sliding_window": 8,
            "layer_types": ["full_attention"]}, "vision_config": SIGLIP},
    ),
    "got_ocr2": (
        "GotOcr2ForConditionalGeneration", "GotOcr2Config",
        {"text_config": QWEN2, "vision_config": {
            "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
            "patch_size": 4, "mlp_dim": 16, "output_channels": 8, "window_size": 2,
            "global_attn_indexes": [0]}},
    ),
    "mllama": (
        "MllamaForConditionalGeneration", "MllamaConfig",
        {"text_config": {
            **LLAMA, "model_type": "mllama_text_model", "pad_token_id": 0,
            "num_key_value_heads": 1, "cross_attention_layers": [],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
         "vision_config": {
            "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_global_layers": 1, "attention_heads": 2, "image_size": 8, "patch_size": 4,
            "vision_output_dim": 16, "intermediate_layers_indices": [0], "max_num_tiles": 1,
            "supported_aspect_ratios": [[1, 1]]}},
    ),
    "qwen2_audio": (
        "Qwen2AudioForConditionalGeneration", "Qwen2AudioConfig",
        {"text_config": QWEN2, "audio_config": {
            "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2,
            "encoder_ffn_dim": 16, "num_mel_bins": 8, "max_source_positions": 8}},
    ),
    "audioflamingo3": (
        "AudioFlamingo3ForConditionalGeneration", "AudioFlamingo3Config",
        {"text_config": QWEN2, "audio_config": AUDIO},
    ),
    "voxtral": (
        "VoxtralForConditionalGeneration", "VoxtralConfig",
        {"text_config": LLAMA, "audio_config": AUDIO},
    ),
    "glmasr": (
        "GlmAsrForConditionalGeneration", "GlmAsrConfig",
        {"text_config": LLAMA, "audio_config": {**AUDIO, "num_key_value_heads": 2}},
    ),
    "granite_speech": (
        "GraniteSpeechForConditionalGeneration", "GraniteSpeechConfig",
        {"text_config": {**LLAMA, "model_type": "granite"},
         "encoder_config": {
             "input_dim": 8, "num_layers": 1, "hidden_dim": 8, "num_heads": 2, "dim_head": 4,
             "output_dim": 8, "context_size": 4, "max_pos_emb": 4},
         "projector_config": {
             "model_type": "blip_2_qformer", "hidden_size": 8, "intermediate_size": 16,
             "num_hidden_layers": 1, "num_attention_heads": 2, "encoder_hidden_size": 8,
             "vocab_size": 8}},
    ),
    "fuyu": (
        "FuyuForCausalLM", "FuyuConfig",
        {"text_config": {**LLAMA, "model_type": "persimmon"}, "patch_size": 2, "num_channels": 1,
         "hidden_size": 16, "vocab_size": 64},
    ),
    "qwen2_5_omni_thinker": (
        "Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2_5OmniThinkerConfig",
        {"text_config": TEXT,
         "vision_config": {**TOWER, "intermediate_size": 16, "fullatt_block_indexes": [0]},
         "audio_config": {
             "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2,
             "encoder_ffn_dim": 16, "num_mel_bins": 8, "max_source_positions": 8,
             "output_dim": 16}},
    ),
    "idefics3": (
        "Idefics3ForConditionalGeneration", "Idefics3Config",
        {"text_config": LLAMA, "vision_config": {
            key: value for key, value in CLIP.items() if key != "model_type"}},
    ),
    "smolvlm": (
        "SmolVLMForConditionalGeneration", "SmolVLMConfig",
        {"text_config": LLAMA, "vision_config": {
            key: value for key, value in CLIP.items() if key != "model_type"}},
    ),
    "vit": (
        "ViTForImageClassification", "ViTConfig",
        {key: value for key, value in CLIP.items() if key != "model_type"},
    ),
}  # fmt: skip


def made(name: str) -> Any:
    """The model, with random weights."""
    import transformers

    model, config, options = MODELS[name]
    own = getattr(transformers, config)(**options, tie_word_embeddings=False)
    return getattr(transformers, model)(own)
