"""The meaning of a DCP's flat keys: the model or optimizer that each belongs to, and its role.

Imports only `io.distcp` and the modules of this package.

flat_keys           the name and role of a flat key
key_paths           the path of a value in the saved state dict
section_names       the names that programs give to the sections of a checkpoint
sections            the models that a DCP holds
optimizer_sections  the optimizers that it holds
choice              the choice of one of its models
"""
