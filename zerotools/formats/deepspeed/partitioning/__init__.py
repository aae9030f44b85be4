"""How ZeRO partitions parameters over ranks: which element lies where in whose flat buffer.

Used to read what is there and to lay out a target. Imports `schema` only.

flat_layout        where each parameter lies in a flat buffer; begins with a drawn example
parameter_order    the order of parameters in a flat buffer, and alignment
expert_blocks      blocks of AutoEP's experts, as parts of the tensors of all of them
flat_groups        the flat buffers of one model-parallel rank, as its files have them
mp_rank            the tensors of one model-parallel rank
pipeline_layers    which layers of a pipeline a stage can have beside those that it names
weight_pairs       masters and the weights that are their casts
whole_parameters   whole momenta in place of partitions, as Muon has them
swap_files         the files in which the optimizer lay on NVMe
native             what is kept of a checkpoint for its own writers: the model-parallel ranks
"""
