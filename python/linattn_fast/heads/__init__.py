"""Heads, and the ways to them from the coefficients of a layer.

``heads.py`` has the class itself. ``recovery.py`` finds the fewest heads with given coefficients,
from their ranks (``ranks.py``) and the span that these give (``span.py``), by a search
(``search.py``) or by an SVD (``svd.py``); ``pending.py`` waits with that until heads are asked for.
``number/`` finds the best layer with a given number of heads. The other modules compare
heads, convert them to and from the parameters of other layers, and apply a layer or generate with
it. This room may use everything up to ``certificate``; it knows coefficients and moments, but not
how a fit was called.
"""
