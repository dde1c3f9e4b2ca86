"""DGL's own unit tests, run from a checkout of its repository, on resident graphs.

    python -m tests.dgl_suite --checkout DIR [--shard 1/8] [--standin | --stock] [--json OUT] [PATH]
    python -m tests.dgl_suite --merge OUT IN [IN ...]

``--checkout`` is a checkout of DGL's repository at the tag of the installed version; nothing of it
is part of this project. Without a flag graphs are on CUDA; with ``--standin`` the CPU stands in for
it, with ``--stock`` acceleration is off, which tells what fails for other reasons. Failures that
are known, each with its reason, are in ``expected.yaml``, and so are groups of tests that cannot
run beside each other: one shard has all of a group, so that shards may run at the same time. A
shard runs in a process of its own (``guard.py``): a test that hangs or ends it is a failure, and
another process takes the tests that are left. With ``--merge`` the results of shards become one,
with the share of passed tests in each area of DGL.
"""
