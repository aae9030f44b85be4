"""Evaluates the model during training.

evaluate    loss and perplexity on held-out data, and generated text
scores      ROUGE and BLEU of generated text, in any writing system

These modules may import `engine`, `data`, `model` and `rank`.
"""
