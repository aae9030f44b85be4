"""From files to what a step trains on, at any number of ranks.

corpus, tokenizing, reading   text and token files as one stream of tokens (also tokenstream)
preparing, encoding           examples of prompts and responses as tokens (also examplestore)
sequences, packing            what can be trained on, by number (also epochs)
shuffle, batches              which of them a step trains on
collating                     tensors of them
"""
