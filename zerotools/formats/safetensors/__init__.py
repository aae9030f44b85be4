"""safetensors, one file or a Hugging Face directory of several with their index.

header          the JSON header of a file, checked as the reference implementation checks it
choose          the files of a directory that hold the model
rank_files      one file per rank, merged
lost_shards     lost files of ranks, as the other files prove
read            file or directory -> Checkpoint
training_state  the state of the run: only the type of the weights
lay_out         Checkpoint -> Target, which `from_pretrained` loads
format          these as a line of the table of formats
"""
