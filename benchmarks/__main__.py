"""`python -m benchmarks`: all of them."""

import importlib
import pkgutil

import benchmarks

for module in pkgutil.iter_modules(benchmarks.__path__):
    if not module.name.startswith("_"):
        importlib.import_module(f"benchmarks.{module.name}").main()
