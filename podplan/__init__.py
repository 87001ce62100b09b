"""The Python API of podplan: what the `plan` command does, as functions.

    import podplan
    plan = podplan.plan("deepseek-r1", hw="cm384", rate="100/s", ttft="2s", tpot="50ms")
    plan.best.requests_per_second; plan.to_dict(); plan.to_frame(); plan.save("out/"); plan.simulate()

Keywords are the long flags of the command; numbers are SI. Results are data classes; ``to_dict()`` gives what the
command prints with ``--json``. A keyword that is no flag, or a value that it cannot have, raises ``BadInput``; an
infeasible question gives a result with ``feasible`` false. Names are loaded when they are first used, so that ``import
podplan`` takes no time. NumPy's BLAS runs in one thread where podplan is imported before NumPy and the environment
names no number.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ground.workers import spare_threads

if TYPE_CHECKING:
    from ground.errors import BadInput as BadInput, Infeasible as Infeasible
    from podplan.catalogue import (
        HardwareResult as HardwareResult,
        ModelsResult as ModelsResult,
        SupernodeResult as SupernodeResult,
        hardware as hardware,
        models as models,
        supernode as supernode,
    )
    from podplan.checking import CheckResult as CheckResult, check as check
    from podplan.comparison import CompareResult as CompareResult, compare as compare, sweep as sweep
    from podplan.explaining import ExplainResult as ExplainResult, explain as explain
    from podplan.fleets import FleetResult as FleetResult, fleet as fleet
    from podplan.importing import ImportResult as ImportResult, import_deployment as import_deployment
    from podplan.migrating import MigrateResult as MigrateResult, migrate as migrate
    from podplan.placement import PlaceResult as PlaceResult, place as place
    from podplan.planning import PlanResult as PlanResult, plan as plan
    from podplan.prediction import PredictResult as PredictResult, predict as predict
    from podplan.scenarios import ScenariosResult as ScenariosResult, robust as robust
    from podplan.simulation import (
        PoliciesResult as PoliciesResult,
        SimulateResult as SimulateResult,
        simulate as simulate,
        simulate_policies as simulate_policies,
    )
    from podplan.verification import VerifyResult as VerifyResult, verify as verify
    from podplan.watching import WatchResult as WatchResult, watch as watch

_HOMES = {
    "ground.errors": ("BadInput", "Infeasible"),
    "podplan.catalogue": ("HardwareResult", "ModelsResult", "SupernodeResult", "hardware", "models", "supernode"),
    "podplan.checking": ("CheckResult", "check"),
    "podplan.comparison": ("CompareResult", "compare", "sweep"),
    "podplan.explaining": ("ExplainResult", "explain"),
    "podplan.fleets": ("FleetResult", "fleet"),
    "podplan.importing": ("ImportResult", "import_deployment"),
    "podplan.migrating": ("MigrateResult", "migrate"),
    "podplan.placement": ("PlaceResult", "place"),
    "podplan.planning": ("PlanResult", "plan"),
    "podplan.prediction": ("PredictResult", "predict"),
    "podplan.scenarios": ("ScenariosResult", "robust"),
    "podplan.simulation": ("PoliciesResult", "SimulateResult", "simulate", "simulate_policies"),
    "podplan.verification": ("VerifyResult", "verify"),
    "podplan.watching": ("WatchResult", "watch"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)
spare_threads()


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
