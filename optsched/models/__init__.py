"""Models: one file per decision problem. None of them imports a solver."""
