"""One module per benchmark; its `rows(quick)` yields what it measured, one `timing.Row` each.

Each row has asserted that the alternative gives the same schedule, optimum or arrays.
"""
