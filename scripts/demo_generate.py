"""Load an export with transformers and let it write a few bytes."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

PROMPT = "def "


def main(directory: str) -> None:
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    print(
        f"from_pretrained: {sum(p.numel() for p in model.parameters()):,} parameters, {model.dtype}"
    )
    tokens = torch.tensor([list(PROMPT.encode())])
    torch.manual_seed(0)
    written = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=80,
        do_sample=True,
        temperature=0.5,
        pad_token_id=0,
    )
    print(bytes(written[0].tolist()).decode(errors="replace"))


if __name__ == "__main__":
    main(sys.argv[1])
