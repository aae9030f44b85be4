"""Convert the tensor names of models that process images or audio. The tensors of such a model have
other names in transformers' memory than on the Hub.

Since transformers 4.52, such a model holds its language model and its towers below `model.`, but
`save_pretrained` writes the older names. A checkpoint of a training program has the names in
memory. vLLM and older versions of transformers need the names on the Hub. Only the names differ,
not the tensors.

Source: transformers/conversion_mapping.py and, before version 5, `_checkpoint_conversion_mapping`
of each model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.maps.map_file import HUB

MEMORY = "memory"
ABOUT = "the model that transformers holds in memory"


@dataclass(frozen=True, slots=True)
class PrefixMap:
    """A map that only changes the names of tensors, between the layouts in memory and on the Hub.

    Attributes:
        prefixes: pairs (beginning of a name in memory, beginning on the Hub). The first pair that
            matches is used.
        parts: pairs (text in a name in memory, text on the Hub). In each name, the first occurrence
            of each text is replaced.
    """

    name: str
    about: str
    model_types: tuple[str, ...]
    prefixes: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...] = ()

    def renamed(self, name: str, layout: str) -> str:
        """Return the name in `layout` of the tensor that is called `name` in the other layout."""
        old, new = (0, 1) if layout == HUB else (1, 0)
        for pair in self.prefixes:
            if name.startswith(pair[old]):
                name = pair[new] + name.removeprefix(pair[old])
                break
        for pair in self.parts:
            name = name.replace(pair[old], pair[new], 1)
        return name

    def layout_of(self, names: Collection[str]) -> str:
        """Return the layout (memory or Hub) that these tensor names belong to.

        Raises:
            BadRequest: the names fit neither layout; the message has the first name that does not
                fit.
        """
        faults: list[str] = []
        for layout, other in ((MEMORY, HUB), (HUB, MEMORY)):
            strange = list(self._strange(names, layout, other))
            if not strange:
                return layout
            faults.append(f"{strange[0]} is not a name in the layout {layout}")
        raise BadRequest(
            f"the tensors have neither layout of the map {self.name} ({' and '.join(faults)}); "
            "rename the tensors first with consolidate --rename or --strip-prefix"
        )

    def _strange(self, names: Collection[str], layout: str, other: str) -> Iterator[str]:
        """Yield the names outside `layout`, such as names that a round trip to `other` changes."""
        in_memory = tuple(memory for memory, hub in self.prefixes if memory != hub)
        known = tuple(pair[0 if layout == MEMORY else 1] for pair in self.prefixes)
        for name in names:
            there = self.renamed(name, other)
            is_other = layout == HUB and name.startswith(in_memory)
            if is_other or not name.startswith(known) or self.renamed(there, layout) != name:
                yield name


PREFIX_MAPS = (
    PrefixMap(
        "qwen2_vl",
        "Qwen2-VL, Qwen2.5-VL and Qwen2.5-Omni's thinker: names in memory and on the Hub",
        ("qwen2_vl", "qwen2_5_omni_thinker", "qwen2_5_vl"),
        (
            ("model.language_model.", "model."),
            ("model.visual.", "visual."),
            ("model.audio_tower.", "audio_tower."),
            ("lm_head.", "lm_head."),
        ),
    ),
    PrefixMap(
        "llava",
        "LLaVA, PaliGemma, Gemma 3 and others with a tower: names in memory and on the Hub",
        (
            "audioflamingo3", "aya_vision", "fuyu", "gemma3", "glmasr", "got_ocr2",
            "granite_speech", "internvl", "llava", "llava_next", "llava_next_video",
            "llava_onevision", "mistral3", "mllama", "paligemma", "qwen2_audio",
            "video_llava", "vipllava", "voxtral",
        ),
        (
            ("lm_head.", "language_model.lm_head."),
            ("model.language_model.", "language_model.model."),
            ("model.", ""),
        ),
    ),
    PrefixMap(
        "qwen3_vl",
        "Qwen3-VL, Idefics 3 and SmolVLM: the same names in memory and on the Hub",
        ("qwen3_vl", "idefics3", "smolvlm"),
        (("", ""),),
    ),
    PrefixMap(
        "vit",
        "ViT: names in the memory of transformers 5 and on the Hub",
        ("vit",),
        (("", ""),),
        (
            ("layers.", "encoder.layer."),
            (".attention.q_proj.", ".attention.attention.query."),
            (".attention.k_proj.", ".attention.attention.key."),
            (".attention.v_proj.", ".attention.attention.value."),
            (".attention.o_proj.", ".attention.output.dense."),
            (".mlp.fc1.", ".intermediate.dense."),
            (".mlp.fc2.", ".output.dense."),
        ),
    ),
)  # fmt: skip


def prefix_map_of(config: Mapping[str, Any]) -> PrefixMap | None:
    """Return the name map for the model that config.json describes, or None if the model needs no
    map."""
    kind = config.get("model_type")
    return next((each for each in PREFIX_MAPS if kind in each.model_types), None)
