"""From files to what a step trains on, at any number of ranks.

sources, reading              what rank 0 reads while the model is loaded, and what all ranks open
cache                         tokenised data that restarts and other jobs take again
corpus, tokenizing            text as one stream of tokens (also tokenstream, of token files)
preparing, encoding           examples as tokens (also examplestore; sampling, at submit)
sequences, packing, mixture   what can be trained on, by number (also epochs)
shuffle, batches, prefetch    which of them a step trains on, read one step ahead
collating                     tensors of them
"""
