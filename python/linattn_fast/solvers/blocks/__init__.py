"""Least squares in blocks: samples whose queries never occur together are problems of their own.

How data is cut into blocks, whether that is worth it, how one block is solved, and the solver that
goes through all of them.
"""
