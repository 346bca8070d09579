"""Dense linear algebra: factorisations, least norm, orthogonal transformations, refinement.

Matrices are on the host or on a device, and results are where they were. A factorisation that is
not safe for rounding is a value, :class:`~linattn_fast.linalg.factors.NotSafe`, and not an error.
The room stands on arrays and, to reduce the features themselves, on tokens and features; it knows
nothing of moments, solvers or fits.
"""
