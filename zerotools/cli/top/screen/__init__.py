"""The screen in the terminal: textual, keys, colours.

top_app                  runs the application: reads in the background, draws, sends requests
key_actions              computes the effect of a key on the view
colour_theme             finds the background of the terminal, and the style of each meaning
"""
