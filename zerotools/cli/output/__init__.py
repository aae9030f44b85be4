"""Output to a terminal, a pipe or a file: tables, colour, bars, charts, messages, JSON.

Independent of jobs and checkpoints. Imports no other package of `cli`.
"""
