"""Shows the pages of the documentation at a terminal.

- `topics`       finds the pages in the wheel or in a checkout
- `plain_text`   formats a page of Markdown as plain text
"""
