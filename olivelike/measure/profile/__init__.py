"""Where ONNX Runtime runs the nodes of a network, and what each operator type takes, from its own profile."""

from olivelike.measure.profile.measure import profile_folder
from olivelike.measure.profile.profile_result import FolderProfile, NetworkProfile, OperatorTime

__all__ = ["FolderProfile", "NetworkProfile", "OperatorTime", "profile_folder"]
