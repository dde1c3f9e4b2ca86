"""DGL's own unit tests, run from a checkout of its repository, on resident graphs.

    python -m tests.dgl_suite --checkout DIR [--shard 1/8] [--standin | --stock] [--json OUT] [PATH]

``--checkout`` is a checkout of DGL's repository at the tag of the installed version; nothing of it
is part of this project. Without a flag graphs are on CUDA; with ``--standin`` the CPU stands in for
it, with ``--stock`` acceleration is off, which tells what fails for other reasons. Failures that
are known, each with its reason, are in ``expected.yaml``.
"""
