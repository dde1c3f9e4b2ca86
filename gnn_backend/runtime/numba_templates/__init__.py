"""Numba kernels as text: traversal templates, and the functors composed with them.

``runtime.cpu_module`` puts ``common.py``, one functor and the ``softmax_*.py`` files after one
another into one module and drops the imports between them. They import the GATv2 functor here so
that they can be read, checked and edited as ordinary modules.

A functor is a file with

- ``KEY``, ``QUERY``, ``PARAM``, ``VALUE``: names of the operands read at the source and at the
  destination for the logit, of the parameter [H, D] (or None), and of what is summed;
  ``VALUE_IS_KEY`` where the last is the first, whose rows are then read once;
  ``KEY_IS_SCALAR`` where key and query are scores [N, H] that are added;
- ``EDGE_ROWS``, ``EDGE_TERM``: names of the optional edge operands [E, H, D], added to the key, and
  [E, H]; or None. Edge features and dropout are the templates' own;
- ``KEY_SCORE``, ``QUERY_SCORE``: names of scores [N, H] of the two ends whose sum is the term of a
  logit that has features as well; or None;
- ``term(key, query, param, scalars)``: what one feature adds to the sum, and
  ``logit(sum, term, scalars)``: the logit of a sum over features or of scores, and of a term;
- ``key_slope``, ``query_slope``, ``param_slope``, of the same arguments as ``term``: its
  derivatives towards each, and ``finish_key``, ``finish_query`` (sum, param, scalars): a factor
  that all edges of a row share may be left out of a slope and put back here, once a row;
- ``logit_slope``, of the same arguments as ``logit``: its derivative towards the sum, or None where
  that is 1 or put back once a row; ``term_slope``: towards the term, where ends bring one, else
  None.

All work lane by lane on vectors (``runtime.cpu_vector``); ``scalars[i]`` is the functor's i-th
number, of at most three (the fourth is dropout's).

Optional arguments of the kernels are constants of ``common.py`` that are None where something is
not given: a pointer of None reads as 0 and writes nothing, and what depends on it is not compiled.

``aggregate_*.py`` are composed in the same way with one of the messages, ``message_*.py``: functors
with ``message(x, edge)`` and ``x_slope``, ``edge_slope`` (gradient towards the message, x, edge),
its gradients towards both.

``launch.py`` and ``counting_sort.py`` stand alone: ``cpu_module.compiled`` compiles one function.
"""
