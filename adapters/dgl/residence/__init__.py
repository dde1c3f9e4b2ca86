"""CUDA residence: graphs that live on a GPU, over the DGL wheel that was built for the CPU.

DGL's C++ always sees CPU arrays. What Python sees of a resident graph is a
:class:`index.ResidentIndex` in place of DGL's index, and :class:`arrays.DeviceArray` in place of
its arrays. Every packed function of DGL passes one point, :mod:`boundary`: those that
:mod:`native` lists are answered on the device; any other is a detour, for which arguments are
copied to the CPU and results back. Detours are counted (``gnn_backend.profile().detours``).

==============  ==============================================================================
``support``     which DGL this works over; the stand-in for machines without a GPU
``patch``       what is replaced in DGL, and by what
``boundary``    the crossing into C++
``arrays``      arrays on the device in the form that DGL's Python code hands around
``mirror``      the structure of one relation: edge list, Graph, CPU twin, each made when needed
``index``       the graph index made of such relations; copies, pickles
``native``      the table of functions answered on the device, filled by the modules below
``create``      making and combining indices      ``queries``     looking things up
``subgraphs``   induced subgraphs                 ``transforms``  simple, compact, block
``sampling``    neighbours, filters, seeds        ``pinning``     page-locked graphs and features
``streams``     uploads, and CUDA's streams       ``sparse_optim``  embeddings on the CPU
``geometry``    nearest neighbours                ``partition``   which part owns a row
``gpu_cache``   rows kept on the device           ``paths``       metapaths, line graphs
``check``       the self-check               ``cpu_only``    what DGL has for the CPU alone
==============  ==============================================================================
"""
