"""How ZeRO cuts parameters over ranks: which element lies where in whose flat buffer.

Used to read what is there and to lay out what is wanted. Imports `schema` only.
"""
