"""The papers' tables and figures, made anew and held against the printed ones."""

from optsched.reproduction.driver import Reproduction, get_target, reproduce, reproduce_into
from optsched.reproduction.papers import TARGETS

__all__ = ["TARGETS", "Reproduction", "get_target", "reproduce", "reproduce_into"]
