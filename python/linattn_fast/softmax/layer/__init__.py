"""The softmax layer as a function of tokens: its formulas and derivatives, and layers with names.

``attention`` has the formulas, ``layer`` the public class, ``torch_module`` the same function in
PyTorch, and ``planted`` layers and targets with a known answer. Of the softmax rooms it may import
``examples`` alone.
"""
