"""What this machine can do for olivelike, and what is broken; printing is the command line's work."""

from olivelike.measure.doctor.diagnosis import Diagnosis, Folder, TargetCheck, diagnose
from olivelike.measure.doctor.installed import Finding
from olivelike.measure.doctor.probing import ProviderCheck

__all__ = ["Diagnosis", "Finding", "Folder", "ProviderCheck", "TargetCheck", "diagnose"]
