"""beartype as the tests use it: a whole number passes for a float, as Python's own typing rules have it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
