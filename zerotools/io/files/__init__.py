"""Files as bytes: opened safely, stamped when first read, read and written at offsets.

Imports `core` only.
"""
