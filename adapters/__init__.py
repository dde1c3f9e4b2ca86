"""Host adapters, one package a host library; importing one does not import its host."""
