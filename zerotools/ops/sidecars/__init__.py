"""Sidecar files of an output: those that are copied, and those that are not.

Imports no other package of `ops`.
"""
