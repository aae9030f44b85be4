"""safetensors, one file or a Hugging Face directory of several with their index.

header          the JSON header of a file, checked as the reference implementation checks it
choose          which files of a directory hold the model
rank_files      one file per rank, merged
lost_shards     files of ranks that are lost, as those beside them prove
read            file or directory -> Checkpoint
training_state  what the files say of the run: the type of the weights
lay_out         Checkpoint -> Target, which `from_pretrained` loads
format          these as a line of the table of formats
"""
