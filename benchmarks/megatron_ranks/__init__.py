"""Exports of Megatron checkpoints of many ranks: what planning them costs."""
