"""The data of a caller: checked, warned about, read ahead, and taken apart into samples.

Tokens, targets and weights in every form that is accepted, stored arrays and iterables of batches,
and samples as prefixes of sequences. This room uses arrays and the system alone; it knows nothing
of features beyond the pairs of coordinates that they are made of.
"""
