"""How ZeRO partitions parameters over ranks: which element lies where in whose flat buffer.

Used to read what is there and to lay out a target. Imports `schema` only.
"""
