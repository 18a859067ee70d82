"""Hypothesis makes scripts of faults for a server that is none."""

from hypothesis import find, settings

from greenroom.testing import FaultScript, strategies

assert isinstance(find(strategies.fault_scripts(), bool, settings=settings(database=None)), FaultScript)
