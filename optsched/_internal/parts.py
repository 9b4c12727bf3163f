"""Compilation of what only kernels call: it becomes machine code as part of them alone.

Numba optimises each function that a kernel calls by itself, wraps it for C and Python and makes
machine code of it, and then once more within each caller: two thirds of the time for nothing.
"""

from __future__ import annotations

from typing import Any

from numba.core import codegen, compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

_HASH = hash(compiler.Flags())  # of any flags


class _Flags(compiler.Flags):  # type: ignore[misc]
    """Flags as numba compares them at every operation, in a tenth of the time."""

    def __hash__(self) -> int:
        return _HASH

    def __eq__(self, other: object) -> bool:
        same = self._values == getattr(other, "_values", None)
        return same or bool(super().__eq__(other))


class _Part(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code that kernels link as it was written, and what it calls beside it."""

    def finalize(self) -> None:
        self._finalized = True

    def _optimize_functions(self, ll_module: Any) -> None:
        pass


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):  # type: ignore[misc]
    """Writes code of a part, which nobody but kernels can call."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        name, context = state.func_id.func_qualname, state.targetctx
        part = state.library = _Part(context.codegen(), name)
        flags, state.flags = state.flags, state.flags.copy()
        state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        state.flags.no_compile = True
        super().run_pass(state)
        state.flags, lowered = flags, state["cr"]
        stand_in = [part].copy  # of the sort that numba expects, and like no other
        libraries = dict.fromkeys([part, *part._linking_libraries])  # noqa: SLF001
        context.insert_user_function(stand_in, lowered.fndesc, libraries)
        state["cr"] = lowered._replace(cfunc=stand_in)
        return True


class PartCompiler(compiler.Compiler):  # type: ignore[misc]
    """Compiles all but machine code."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        # As of kernels: numba compiles once more what is called under other flags.
        flags = self.state.flags = _Flags(self.state.flags)
        flags.no_cpython_wrapper, flags.no_cfunc_wrapper = False, True

    def define_pipelines(self) -> list[Any]:
        """Return numba's own passes but the last."""
        (manager,) = super().define_pipelines()
        manager.passes = [
            (_Lowering if each is NativeLowering else each, does) for each, does in manager.passes
        ]
        manager.finalize()
        return [manager]
