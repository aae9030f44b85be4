"""Evaluation: loss and perplexity, and generation with ROUGE and BLEU.

evaluating     the measurements, the same at every world size
predictions    prompts over the ranks, and their scores
words, scores  ROUGE and BLEU, of text in any script
predictions_file  the file that rank 0 writes

It may import `engine`, `data`, `model` and `rank`.
"""
