"""Removes ended jobs: the files of one (`removal`), one after another (`cleaner`).

It may import `attempts`, `queue`, `config` and `service`.
"""
