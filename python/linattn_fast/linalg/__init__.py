"""Dense linear algebra: factorisations, least norm, orthogonal transformations, refinement.

Matrices are on the host or on a device, and results are where they were. An attempt that rounding
would spoil returns a value, :class:`~linattn_fast.linalg.factors.NotSafe`, and raises no error. The
room stands on arrays alone; it knows nothing of tokens, moments, solvers or fits.
"""
