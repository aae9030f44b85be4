"""The terminal: textual, keys, colours.

top_app      the application: reads beside the screen, draws, asks the daemon
canvas       the widget that shows lines, and writes those alone that have changed
keys         what a key does to what is shown, and what it asks for: pure
palette      the style of each meaning, on dark and on light
background   which of the two the terminal is
late_answers what the terminal says after that was waited for, which is no keys
beside       a thread that reads, and that nobody waits for at the end
"""
