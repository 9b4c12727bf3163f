"""The papers' tables and figures, made anew and held against the printed ones."""

from optsched.papers.driver import Reproduction, get_target, reproduce, reproduce_into
from optsched.papers.targets import TARGETS

__all__ = ["TARGETS", "Reproduction", "get_target", "reproduce", "reproduce_into"]
