"""DeepSpeed checkpoints: ZeRO stages 0 to 3 and BF16_Optimizer, as every version wrote them.

schema        the contents of DeepSpeed's files: names, trees and keys, as checked values
partitioning  the position of each element of a parameter on the ranks
reading       from a save directory to a Checkpoint, and to the TrainingState of its run
logical       a checkpoint of one model-parallel rank before it is partitioned, for any world size
writing       from a logical state to files, for another world size or stage, or from another format
universal     universal checkpoints, a directory for each parameter: read and written
format        ZeRO checkpoints as a line of the table of formats

Reading uses schema, partitioning and reading. A new layout uses logical and writing after that.
"""
