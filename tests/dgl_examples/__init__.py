"""DGL's published example models, run unmodified from a checkout, stock and on resident graphs.

    python -m tests.dgl_examples --checkout DIR [--only NAME ...] [--device cpu|cuda|standin]
                                 [--steps N] [--jobs N] [--json OUT]

``--checkout`` is a checkout of DGL's repository at the tag of the installed version, or a folder
with its ``examples/pytorch`` alone; nothing of it is part of this project. Each script of
``examples.yaml`` runs as a file, as ``gnn_backend run`` runs it, in two processes with the same
seeds: stock DGL on the CPU, and with acceleration on the chosen device. Compared are the losses of
the first steps and the accuracy that the script prints.

Replaced around a script, in both processes alike:

- where the data comes from: datasets are made of the graphs in ``GNN_BACKEND_TEST_DATA``
  (``datasets``);
- packages that only feed or score it, where they are not installed (``packages``);
- where random numbers come from: dropout masks, shuffles, negative samples and initial weights are
  drawn by the CPU's generator and moved to the device, for those of the CPU and of CUDA differ
  (``recorder``). Sampled neighbours still differ by design: such examples are marked ``sampled``
  in the list, and compared by how the loss falls and by the accuracy.
"""
