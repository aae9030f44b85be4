"""What the flat keys of a DCP mean: which model or optimizer each belongs to, and in which role.

Imports `io.distcp` and its own modules only.

flat_keys           which name and role a flat key has
key_paths           where a value lies in the state dict that was saved
section_names       what programs call the sections of a checkpoint
sections            the models that a DCP holds
optimizer_sections  the optimizers that it holds
choice              which of its models is meant
"""
