"""Output to a terminal, a pipe or a file, independent of jobs and checkpoints.

render              formats tables, sizes, durations, JSON
messages            prints `error:`, `hint:`, `warning:` and `note:` on standard error
report_failure      converts errors to a message, JSON fields and an exit status
language            selects English or Chinese, and wraps Chinese text
colours             decides about colours of a terminal
text_charts         draws curves as text
progress_bar        shows the progress of a conversion
convert_and_report  prints the result of a conversion

Imports no other package of `cli`.
"""
