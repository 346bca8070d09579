"""Heads, and the ways to them from coefficients.

``heads.py`` has the class itself. ``recovery.py`` finds the fewest heads with given coefficients,
by ``ranks.py`` and the ``span.py`` that they give or by a ``search.py``, or takes those of an
``svd.py``; ``pending.py`` waits with that until heads are asked for. ``given_number.py`` finds the
best layer with a number of heads. The other modules compare heads, convert them to and
from the parameters of other layers, and apply a layer or generate with it. This room may use
everything up to ``certificate``; it knows coefficients and moments, but not how a fit was called.
"""
