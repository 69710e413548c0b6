"""The engine's own scheduler on measured step times, in virtual time. Used here to plan what fits into a budget."""

from inferdoc.simulator.drafting import modelled_drafter
from inferdoc.simulator.steptime import ModelledRunner, StepTimes, VirtualClock

__all__ = ["ModelledRunner", "StepTimes", "VirtualClock", "modelled_drafter"]
