"""Sidecar files of an output: which are copied, and which are not.

Imports no other room of `ops`.
"""
