"""Who does the sums: one interface, and an implementation for numpy, C++ and CUDA.

``interface.py`` says what a backend computes, ``choice.py`` which one does the work, and
``reference.py`` (numpy) is the specification of the others. Beside them are the values that they
return: totals over samples, and the normal equations as an operator. This room turns checked tokens
into sums and applies layers; it may use everything up to ``linalg`` and knows nothing of streams,
solvers or fits.
"""
