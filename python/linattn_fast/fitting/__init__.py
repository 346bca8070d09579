"""The public calls ``la.fit`` and ``la.certify``, the plan of a fit, and its result.

``call.py`` goes the way of every fit: data, plan, solve, certify, heads, result. ``plan.py`` checks
what was asked for and decides which solver runs; ``result.py`` has what comes back, and its file.
This room puts solvers, certificates and heads together and computes nothing itself; it may use
everything below it.
"""
