"""A program that saves with Orbax, which makes the golden cases of its format."""
