"""Arrays: their types and devices, and those of PyTorch, JAX, CuPy and DLPack.

Here arrays are told apart by where they are, host or CUDA device, and by their library, and are
read in place as floating-point numbers; the compiled core is loaded here, too. The room knows what
an array holds but not what it means, and stands on ``system`` alone.
"""
