"""The way down from one Theta: the reduced objective, its derivatives, and two methods of descent.

``objective`` evaluates the squared error with the best W (``best_values``, ``half_inverse``),
``normal_matrix`` has its curvature, and ``levenberg_marquardt`` and ``quasi_newton`` go down on it.
``descent`` says what the two have in common. Of the softmax rooms it may import ``examples`` and
``layer``.
"""
