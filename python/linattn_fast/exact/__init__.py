"""Exact arithmetic on the data: what is proved about the rank and the range of the features.

Floats are whole numbers times powers of two, so ranks are found modulo primes, equations of the
features are proved, and samples are counted. This room uses the features, the data and the rooms
below them; it forms no sums that round, and knows nothing of moments or certificates.
"""
