"""The terminal: textual, keys, colours.

top_app      the application: reads in the background, draws, sends requests
canvas       the widget that shows lines, and writes only changed ones
keys         the effect of a key on the view, and its request: pure
palette      the style of each meaning, on dark and on light
background   the choice of the two for the terminal
late_answers late responses of the terminal, which are not keys
beside       a thread that reads, without a wait for it at the end
"""
