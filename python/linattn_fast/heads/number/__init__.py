"""The best layer that a given number of heads can compute.

``given_number.py`` finds it from the moments, whose Gram is the metric of a least-squares problem
in V and Q. ``without_gram.py`` finds it by passes over the samples (``passes.py``), where a Gram
would not fit or would take longer. This room uses the bilinear least squares of the heads around
it, and knows nothing of the choice between the two.
"""
