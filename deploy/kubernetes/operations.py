"""Operations of a deployment: disruption budgets, network policies, metrics, a dashboard, an autoscaler."""

import json
from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.kubernetes.orchestrators import FRONTEND_PORT, scaled
from deploy.kubernetes.templates import objects
from deploy.templates import Object
from planner.engines.spec import Metrics

SET = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
SCALERS = {"lws": SET, "llm-d": SET, "dynamo": ("nvidia.com/v1beta1", "DynamoGraphDeploymentScalingAdapter")}
FILL_SHARE = 0.85  # of an instance's planned requests, past which another is started


def policies(target: Target) -> Iterator[Object]:
    """Yield a budget per role and who reaches what: pods one another, all the router, Prometheus the engines."""
    for role in target.roles:
        pods = role.nodes * len(role.instances)
        # A budget of what may go needs a controller that scales: Volcano's jobs and Dynamo's graphs say what stays.
        scales = target.kind not in ("volcano", "dynamo")
        most = {"maxUnavailable": 1} if scales else {"minAvailable": max(pods - 1, 1)}
        yield from objects("budget", target, pool=role.name, most=most)
    # The gateway's proxies reach llm-d's pods themselves, from a namespace of theirs.
    way, pool, ports = "router", {"podplan/pool": "router"}, [target.site.router_port]
    if target.kind == "llm-d":
        way, pool, ports = "gateway", {}, [8000, 9002]
    elif target.kind == "dynamo":
        ports = [FRONTEND_PORT]
    yield from objects(
        "policies",
        target,
        monitoring_namespace=target.site.monitoring_namespace,
        way=way,
        way_in=pool,
        ports=[{"port": port, "protocol": "TCP"} for port in ports],
    )


def monitoring(target: Target) -> Iterator[Object]:
    """Yield the pod monitor and the dashboard of an engine that serves metrics."""
    names = target.metrics
    if names is None:
        return
    dynamo = target.kind == "dynamo"  # whose operator serves the engine's series at a port of its own
    place = {"port": "system", "path": "/metrics"} if dynamo else {"port": "http", "path": names.path}
    for role in (role for role in target.roles if role.role != "encode"):  # whose server tells no metrics
        yield from objects("monitor", target, pool=role.name, **place)
    text = json.dumps(dashboard(target, names), indent=1) + "\n"
    yield from objects("dashboard", target, dashboard=text)


def dashboard(target: Target, names: Metrics) -> Object:
    """Return a Grafana dashboard: what the plan limits and predicts, with its lines drawn where it has them."""
    label = f'namespace="{target.site.namespace}",pod=~"{target.name}-.*"'
    levels = target.levels
    share = f"{levels.percentile / 100:g}"

    def quantile(name: str) -> str:
        return f"histogram_quantile({share}, sum by (le) (rate({name}_bucket{{{label}}}[5m])))"

    full = {role.name: role.sequences * role.strategy.attention_dp * len(role.instances) for role in target.roles}
    panels = [
        (f"TTFT, p{levels.percentile:g}", quantile(names.ttft), "s", levels.ttft_seconds),
        (f"time per output token, p{levels.percentile:g}", quantile(names.tpot), "s", levels.tpot_seconds),
        ("running requests", f"sum(last_over_time({names.running}{{{label}}}[1m]))", "short", max(full.values())),
        ("waiting requests", f"sum(last_over_time({names.waiting}{{{label}}}[1m]))", "short", None),
        ("share of the KV cache in use", f"max by (pod) ({names.cache}{{{label}}})", "percentunit", None),
        ("prompt tokens per second", f"sum(rate({names.prompt_tokens}{{{label}}}[1m]))", "short", None),
        ("output tokens per second", f"sum(rate({names.output_tokens}{{{label}}}[1m]))", "short", None),
    ]
    drawn = [_panel(number, *panel) for number, panel in enumerate(panels)]
    return {
        "title": f"{target.name_of_model} ({target.name})",
        "uid": target.name,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": drawn,
    }


def _panel(number: int, title: str, query: str, unit: str, line: float | None) -> Object:
    steps = [{"color": "green", "value": None}, *([{"color": "red", "value": line}] if line else [])]
    style = {"thresholdsStyle": {"mode": "line" if line else "off"}}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "gridPos": {"x": number % 2 * 12, "y": number // 2 * 8, "w": 12, "h": 8},
        "targets": [{"refId": "A", "expr": query}],
        "fieldConfig": {
            "defaults": {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}, "custom": style},
            "overrides": [],
        },
    }


def autoscaler(target: Target, launches: dict[str, Launch]) -> Iterator[Object]:
    """Yield KEDA's object of each role whose instances one set counts: from one to the plan's instances.

    An instance is added where those there are hold most of the requests that the plan gives one of them.
    """
    names, scaler = target.metrics, SCALERS.get(target.kind)
    scaling = [launch.role for launch in launches.values() if scaler and scaled(target, launch.role)]
    for role in (role for role in scaling if role.role != "encode"):
        assert names is not None and scaler is not None
        label = f'namespace="{target.site.namespace}",pod=~"{target.name}-(0-)?{role.name}-.*"'  # 0: of Dynamo's Grove
        yield from objects(
            "scaled",
            target,
            pool=role.name,
            api=scaler[0],
            kind=scaler[1],
            most=len(role.instances),
            prometheus=target.site.prometheus,
            query=f"sum({names.running}{{{label}}}) + sum({names.waiting}{{{label}}})",
            threshold=str(max(round(role.sequences * role.strategy.attention_dp * FILL_SHARE), 1)),
        )
