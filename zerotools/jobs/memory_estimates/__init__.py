"""Estimates of the memory that a job needs, or a model with the config of another launcher."""
