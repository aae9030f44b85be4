"""Configs of public repositories through `zerotools import`.

- `__main__`: the table.
- `judge`: what DeepSpeed and Hugging Face make of the same, in a process of its own.
"""
