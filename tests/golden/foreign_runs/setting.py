"""What every program here trains: a tiny Llama on four windows of tokens, all of them in each step.

A step has the whole data, so the order in which a program reads it does not matter, and the loss of
a program's own continuation is what a job must reach that goes on from its checkpoint.
"""

import array
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WINDOWS, LENGTH, VOCABULARY = 4, 16, 37
BEFORE, AFTER = 3, 4
"""Steps before the checkpoint, and after it."""
LEARNING_RATE, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}

TIED = {"tie_word_embeddings": True}
EXPERTS = {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 2}
"""Changes of it: the second has tensors that the Hub has under other names, and one by one."""


def tokens() -> list[int]:
    """The stream; each window begins with the last token of the one before."""
    return [(7 * i + i * i // 5) % VOCABULARY for i in range(WINDOWS * LENGTH + 1)]


def write_tokens(path: Path) -> None:
    """The stream as a job reads it, with `token_type = "uint16"`."""
    with path.open("wb") as file:
        array.array("H", tokens()).tofile(file)


def windows() -> Tensor:
    """[WINDOWS, LENGTH + 1] token ids."""
    stream = torch.tensor(tokens())
    return torch.stack([stream[n * LENGTH : (n + 1) * LENGTH + 1] for n in range(WINDOWS)])


def share(rank: int, ranks: int) -> Tensor:
    """The windows of one of `ranks` ranks."""
    return windows().chunk(ranks)[rank]


def make_model(**changes: Any) -> nn.Module:
    """The model, with the same first values in every program; `changes` are of its config."""
    torch.manual_seed(5)
    tree = {**CONFIG, **changes}
    model: nn.Module = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[tree["model_type"]].from_dict(tree)
    )
    model.train()
    return model.float()


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """The mean over all tokens that are predicted."""
    logits = model(input_ids=batch[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices decay, the others do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """The optimizer of all programs but those that make their own."""
    return torch.optim.AdamW(groups(model), lr=LEARNING_RATE, betas=BETAS, eps=EPS)
