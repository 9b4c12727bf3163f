"""Models: decision problems and the arrays they become. None of them imports a solver."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
