"""Container images: the site's, or those that the engine's project publishes for the pinned version."""

from typing import Literal

from deploy.commands.launch import Target
from deploy.roles import RolePlan
from planner.engines.spec import EngineProfile

ImagePart = Literal["nvidia", "a2", "a3", "router"]


def image(target: Target, role: RolePlan) -> str:
    """Return the engine's image for a role's machine: the site's, or the project's own of the pinned version."""
    if target.site.image:
        return target.site.image
    return published(target.profile, machine_of(role))


def machine_of(role: RolePlan) -> ImagePart:
    """Return which image a role's machine takes."""
    return "nvidia" if role.accelerator == "nvidia" else "a3" if paired(role) else "a2"


def published(profile: EngineProfile, part: ImagePart) -> str:
    """Return an image of the engine's project."""
    assert profile.deployment is not None, "an engine with files has images"
    return profile.deployment.images[part].value


def paired(role: RolePlan) -> bool:
    """Whether a chip is two devices, as on Ascend A3 servers."""
    return role.accelerator == "ascend" and role.hardware.devices_per_chip.value == 2
