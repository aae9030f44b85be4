"""The screen in the terminal: textual, keys, colours.

top_app           the application: reads in the background, draws, sends requests
key_actions       the effect of a key on the view
late_responses    responses of the terminal that look like keys
terminal_colours  the background of the terminal, and the style of each meaning
"""
