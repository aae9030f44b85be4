"""Estimate the memory that a job needs, or that a model needs with the config of another
launcher.
"""
