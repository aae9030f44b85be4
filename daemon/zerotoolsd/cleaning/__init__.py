"""Removing jobs that are over: what belongs to one (`removal`), one after another (`cleaner`).

It may import `attempts`, `queue`, `config` and `service`.
"""
