"""Makes processes that a test starts as the test's own: DGL loads in them, and is accelerated.

Python imports this first in every process while the folder is in PYTHONPATH.
"""

import os
import sys

if "--multiprocessing-fork" in sys.orig_argv:
    import gnn_backend

    if os.environ["DGL_SUITE_MODE"] != "stock":
        gnn_backend.enable(hosts="dgl")
