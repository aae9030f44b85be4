"""What DeepSpeed's files hold: their names, their trees and keys, as checked values.

One module per kind of file or value. Nothing here knows a target world size. Imports
`core`, `io` and its own modules only; every other room may import it.
"""
