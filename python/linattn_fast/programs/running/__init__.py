"""Running a layer on tokens that come again and again.

``layer.py`` makes heads, a fit or a program ready to be applied token by token; ``appending.py``
appends what it answers to one context or to many. It knows fits and heads, and nothing of the
other rooms of ``programs``.
"""
