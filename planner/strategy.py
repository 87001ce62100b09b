"""One parallel strategy in MixServe's notation: parse, print, enumerate."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Degrees of one instance. All degrees count devices.

    Attention: ``attention_dp`` groups of ``attention_tp`` devices; with ``staged`` the group runs
    SP-TP-SP (CloudMatrix384 section 4.3.1), written ``SP=n``. Experts: ``moe_ep`` groups of
    ``moe_tp`` devices over the same devices. ``pp`` stages, each of ``devices_per_stage``.
    ``domains`` > 0 is attention-expert disaggregation: that many attention domains beside the
    ``moe_tp * moe_ep`` expert devices.
    """

    attention_tp: int = 1
    attention_dp: int = 1
    staged: bool = False
    moe_tp: int = 1
    moe_ep: int = 1
    pp: int = 1
    domains: int = 0
