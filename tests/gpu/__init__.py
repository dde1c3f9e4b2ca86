"""The operators on a CUDA device: with pytest (``-m gpu``), or ``python -m tests.gpu`` without."""
