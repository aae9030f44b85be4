"""Causal architectures of transformers, each trained from its own directory and exported again.

- `configs`: a tiny config of each.
- `trained`: one of them through save_pretrained, three steps on two ranks, export, from_pretrained.
- `peer`: what plain PyTorch and transformers' Trainer make of the same.
- `__main__`: the table.
"""
