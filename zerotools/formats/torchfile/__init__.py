"""Files of `torch.save`: a state dict in one file, in Hugging Face `.bin` shards, or one per rank.

schema   the contents of a file: its name, its state dict, the pieces of one rank
reading  files -> Checkpoint, and the TrainingState of its run
writing  Checkpoint of any format -> Target
format   these as a line of the table of formats
"""
