"""The screen in the terminal: textual, keys, colours.

top_app                  runs the application: reads in the background, draws, sends requests
key_actions              computes the effect of a key on the view
late_terminal_responses  recognises responses of the terminal that look like keys
colour_theme             finds the background of the terminal, and the style of each meaning
"""
