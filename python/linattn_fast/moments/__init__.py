"""Moments: the sums over samples that a fit needs, accumulated, merged, stored and factorised.

``sums.py`` reads sums and ``moments.py`` adds to them, a batch at a time or a whole stream
(``streaming.py``, ``checkpoint.py``); ``file.py`` has their files. ``factors.py`` factorises them
block by block, and ``rounding.py`` and ``loss_error.py`` bound what rounding did to them. This room
stands on backends and linear algebra and knows nothing of solvers; ``Moments.fit`` alone hands
itself on to ``fitting``.
"""
