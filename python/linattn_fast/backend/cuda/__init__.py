"""The CUDA backend: our kernels and cuBLAS on CuPy arrays.

``backend.py`` has the backend itself and ``normal.py`` its normal equations. ``batches.py`` brings
data to the device, ``paths.py`` decides whether our kernels or cuBLAS (``blas.py``) form the Gram,
and ``extension.py`` finds the compiled module. CuPy is not imported before a device is used. This
room may use what ``backend`` may use.
"""
