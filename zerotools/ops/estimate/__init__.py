"""Predicted memory: the state exactly, activations by architecture, and which setting fits."""
