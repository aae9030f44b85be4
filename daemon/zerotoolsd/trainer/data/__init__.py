"""Makes the examples of a step from files, for any number of ranks.

sources, reading              the data that rank 0 reads while the model loads; opened by all
cache                         tokenised data, reused by restarts and other jobs
tokenizer_pool                processes that tokenise for a rank (tokenizing_process); progress
corpus, tokenizing            text as one stream of tokens (also tokenstream, of token files)
preparing, encoding           examples as tokens (also examplestore)
preview, text_sample          the preview of a submit (also sample_view, epoch_estimate)
sequences, packing, mixture   the training examples, by number (also step_count)
shuffle, batches, prefetch    the examples of a step, read one step ahead
collating                     tensors of them
"""
