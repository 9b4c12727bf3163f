"""What solves a model: back ends for linear models, and methods for batches and balance."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
