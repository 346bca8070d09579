"""What a solver sees of the data, wherever that is, behind one protocol.

The data of a fit is in memory, in a stream, on a cluster, or gone but for its moments. A plan asks
a problem which solvers it allows, and a solver asks it for moments, for passes over the samples, or
for all samples at once. This room uses moments and all rooms below them; solvers stand above it.
"""
