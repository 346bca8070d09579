"""Conjugate gradients on the normal equations: no p x p matrix exists, only passes over samples.

The preconditioner that whitens pairs and queries, the iteration, its restarts from residuals
recomputed on the data, the error that they leave, and the solver that puts them together.
"""
