"""The kit's own `VirtualRun`, under the name our tests know it by."""

from greenroom.testing.virtual_time import VirtualRun as Pump

__all__ = ["Pump"]
