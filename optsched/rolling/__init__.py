"""The rolling horizon: windows of waiting requests, what plans them, and what carries plans out."""

from optsched._internal.rooms import extend

extend("runner", rolling="optsched.rolling.driver:RUNNER")
