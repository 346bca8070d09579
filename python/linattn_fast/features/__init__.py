"""The cubic features: which of them take part, their order, and the layout of their sums.

A choice of features, samples as one value, the compact Gram, how sums were rounded, features that
the data never has, and files. This room uses the data and the rooms below it; it sums nothing over
large data, which is the work of the backends above.
"""
