"""From torch files to a Checkpoint: one whole file, Hugging Face shards, or one file per rank.

Imports `schema`.

read            the kind of a path, and its reader
whole_file      one file that holds every tensor whole
bin_shards      Hugging Face `.bin` shards
rank_files      the files of all ranks
merge           the same tensor in the files of all ranks
training_state  the state of the run, in words that all formats share
"""
