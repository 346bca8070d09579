"""What the user calls: fits, paths over the number of heads, and the results of both.

``fit`` learns a layer, which ``result`` holds, saves and loads; ``comparison`` sets it beside
linear attention; ``head_path`` helps to choose the number of heads; ``estimator`` is for
scikit-learn. This is the highest of the softmax rooms: it may import all others.
"""
