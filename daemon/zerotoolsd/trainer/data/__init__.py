"""From files to what a step trains on, at any number of ranks.

sources, reading              what rank 0 reads while the model is loaded, and what all ranks open
cache                         tokenised data that restarts and other jobs take again
tokenizers_beside             processes that tokenise for a rank (tokenizing_process); progress
corpus, tokenizing            text as one stream of tokens (also tokenstream, of token files)
preparing, encoding           examples as tokens (also examplestore)
sampling, text_sample         what a submit shows (also sample_view, expected_epoch)
sequences, packing, mixture   what can be trained on, by number (also epochs)
shuffle, batches, prefetch    which of them a step trains on, read one step ahead
collating                     tensors of them
"""
