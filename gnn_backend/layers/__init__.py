"""Framework-free layer math over the operators: what a layer does after its projections."""
