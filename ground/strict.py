"""The base of what is read from files and is no catalogue entry: manifests, engine profiles, inventories."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Immutable, and an unknown key is an error."""

    # Built when something is read as it: most are parts of others, which check them too.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
