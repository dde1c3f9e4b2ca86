"""The inter-operator level: relational layers as typed programs, and what is done to them."""
