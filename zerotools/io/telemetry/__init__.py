"""The reports of a run while it trains: progress datagrams, metrics.jsonl, TensorBoard event files.

Standard library only, and nothing else of zerotools: `zerotools.worker` imports it.
"""
