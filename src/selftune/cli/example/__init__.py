"""The files that `selftune new` writes. The folder `examples` of the repository links to them."""
