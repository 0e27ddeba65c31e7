"""An alarm when a stream of images as a whole has changed, whose rate of false alarms is guaranteed for all times."""

from discopatch.monitor.change import ChangePoint
from discopatch.monitor.monitor import Monitor
from discopatch.monitor.state import Telling
from discopatch.monitor.status import MonitorStatus

__all__ = ["ChangePoint", "Monitor", "MonitorStatus", "Telling"]
