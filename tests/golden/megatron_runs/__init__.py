"""Runs of real Megatron-Core on CPUs, which make golden cases."""
