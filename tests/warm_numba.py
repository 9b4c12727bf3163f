"""What a fork server imports: a numba that has compiled something, and nothing of ours."""

import numba
import numba.cpython.hashing

numba.njit(lambda x: x + 1)(1)
