"""What the data determines: the layer as a whole, and the prediction at single inputs.

The certificate and its verdict, the proof that lambda_min is positive, the range of Lambda for
questions about single inputs, bounds on leverages and errors, and the same for data in blocks and
for estimates without a Gram. This room uses solved problems, moments and exact arithmetic, and all
rooms below them; it knows nothing of heads or of the fit that asks for a certificate.
"""
