"""Predicted memory against what is counted."""
