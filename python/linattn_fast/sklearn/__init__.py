"""The layer for scikit-learn's tools, such as grid search; needs the extra ``sklearn``.

``sequence_regressor.py`` has what regressors on sequences share, and ``regressor.py`` the one that
:func:`linattn_fast.fit` learns. They may use every room up to ``fitting``. They are imported when
somebody asks for ``linattn_fast.LinearAttentionRegressor``, and not before.
"""
