"""The cases, a module for each group of the checklist; importing this registers them all."""

from importlib import import_module
from pkgutil import iter_modules

# Whatever module stands here belongs to the suite: none can be left out by forgetting a line.
for _module in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
