"""Reads the data of a job.

The examples of each step are the same for any number of ranks.

training_data        reads `[data]` and `[eval]`; every rank gets the same `TrainingData`
tokenize_sources     tokenises the files of a job, once per node
token_cache          keeps tokenised data for restarts and other jobs
corpus               text files and token files as one stream of tokens
tokenize_text        text to ids, also in other processes (tokenizing_process)
encode_examples      prompts, responses and chats to ids (package `encoding`)
example_store        encoded examples in a file
example_pools        numbered examples: windows of text, held-out parts, mixtures
packing              several examples in one sequence
shuffle, batches     the order of the examples, and the batch of a step
collate              a batch as tensors
preview              the first examples, shown before a job is queued
"""
