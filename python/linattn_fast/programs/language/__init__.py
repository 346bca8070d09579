"""What a program is written in: records of attributes, lookups, and the contexts it starts from.

``program.py`` puts them together: it compiles a program to heads, interprets it and runs it. It
uses ``running``, and knows no machine.
"""
