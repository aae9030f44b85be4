"""Output to a terminal, a pipe or a file, independent of jobs and checkpoints.

render             tables, sizes, durations, JSON
messages           `error:`, `hint:`, `warning:` and `note:` on standard error
failure            errors as a message, JSON fields and an exit status
json_answer        the one JSON object of a command
language           English or Chinese, and wrapping of Chinese text
colours            colours of a terminal
text_charts        curves as text
progress_bar       progress of a conversion
conversion_report  the result of a conversion

Imports no other package of `cli`.
"""
