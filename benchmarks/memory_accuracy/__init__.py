"""Predicted activations of every architecture, against what is counted."""
