"""The stages of `optsched.solve`: each improves the best schedule or the bound of a `State`."""
