"""Sidecar files of an output: the copied ones, and the others.

Imports no other package of `ops`.
"""
