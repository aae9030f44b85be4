"""Evaluation by generation: what the model says to the prompts, and how close it comes.

decoding       which token is next, and when it ends
generating     prompts through Hugging Face's `generate`, on all ranks together
words, scores  ROUGE and BLEU, of text in any script
predictions    the whole: prompts over the ranks, scores
writing        and the file that rank 0 leaves
"""
