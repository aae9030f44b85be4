"""Reads the data of a job.

The examples of each step are the same for any number of ranks.

training_data        reads `[data]` and `[eval]`; every rank gets the same `TrainingData`
tokenize_sources     tokenises the files of a job, once per node
token_cache          keeps tokenised data for restarts and other jobs
token_stream         reads text files and token files as one stream of tokens
tokenize_text        converts text to ids, also in other processes (tokenizing_process)
encode_examples      converts prompts, responses and chats to ids (package `encoding`)
example_store        stores encoded examples in a file
example_pools        pools of numbered examples: windows of text, held-out parts, mixtures
packing              puts several examples into one sequence
shuffle, batches     the order of the examples, and the batch of a step
collate              converts a batch to tensors
preview_examples     shows the first examples before a job is queued
"""
