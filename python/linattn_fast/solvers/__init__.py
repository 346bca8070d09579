"""How coefficients are found: one file a solver, each a function from a task to a solved problem.

Cholesky and eigenvectors of the Gram, orthogonal transformations of the features, the dual, blocks
of queries that never meet, conjugate gradients, and a part of the data that fits all of it. Beside
them, what each costs in seconds and bytes, and how accurate its coefficients are. This room sees
the data as a problem and knows nothing of certificates, heads or the choice among solvers.
"""
