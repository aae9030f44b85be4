"""Tokenised and packed chats by `datasets.map`, to compare: prints seconds and processor seconds.

    python benchmarks/data/datasets_map.py TOKENIZER CHATS.jsonl PROCESSES [LENGTH]

in an environment with datasets and transformers. Chats go through in batches of 1,000 with
`apply_chat_template(return_assistant_tokens_mask=True)`, and are put one after the other and cut at
every LENGTH tokens, as the examples of transformers do.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import tempfile
import time
from typing import Any


def main(tokenizer_directory: str, chats: str, processes: int, length: int = 4096) -> None:
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_directory)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ turn.content }}<|end|>",
        "{% if turn.role == 'assistant' %}{% generation %}{{ turn.content }}<|end|>"
        "{% endgeneration %}{% else %}{{ turn.content }}<|end|>{% endif %}",
    )

    def tokenised(rows: dict[str, Any]) -> dict[str, Any]:
        found = tokenizer.apply_chat_template(
            rows["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        return {name: found[name] for name in ("input_ids", "assistant_masks")}

    def packed(rows: dict[str, Any]) -> dict[str, Any]:
        joined = {name: list(itertools.chain(*rows[name])) for name in rows}
        ends = range(0, len(joined["input_ids"]) // length * length, length)
        return {name: [ids[at : at + length] for at in ends] for name, ids in joined.items()}

    with tempfile.TemporaryDirectory() as cache:
        began, used = time.monotonic(), cpu()
        found = datasets.load_dataset("json", data_files=chats, split="train", cache_dir=cache)
        several = processes if processes > 1 else None
        found = found.map(
            tokenised, batched=True, num_proc=several, remove_columns=found.column_names
        )
        found = found.map(packed, batched=True, num_proc=several)
        print(json.dumps([time.monotonic() - began, cpu() - used]))


def cpu() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
