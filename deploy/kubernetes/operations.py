"""What keeps a deployment in order: disruption budgets, network policies, metrics, a dashboard, an autoscaler."""

import json
from collections.abc import Iterator

from deploy.commands.launch import Launch, Target
from deploy.header import Provenance
from deploy.kubernetes.dynamo import FRONTEND_PORT
from deploy.kubernetes.pods import Object, metadata
from deploy.roles import RolePlan
from planner.engines.spec import Metrics

COOL_DOWN_SECONDS = 900  # weights of hundreds of gigabytes are not loaded twice an hour
FILL_SHARE = 0.85  # of an instance's planned requests, past which another is started


def chosen(target: Target, pool: str | None = None) -> dict[str, str]:
    """Return the labels that choose all pods of the deployment, or those of a pool."""
    return {"app.kubernetes.io/part-of": target.name} | ({"podplan/pool": pool} if pool else {})


def policies(target: Target, origin: Provenance) -> Iterator[Object]:
    """Yield a budget per role and who reaches what: pods one another, all the router, Prometheus the engines."""
    for role in target.roles:
        pods = role.nodes * len(role.instances)
        # A budget of what may go needs a controller that scales: Volcano's jobs and Dynamo's graphs say what stays.
        scales = target.kind not in ("volcano", "dynamo")
        most: Object = {"maxUnavailable": 1} if scales else {"minAvailable": max(pods - 1, 1)}
        yield {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(target, f"{target.name}-{role.name}", origin),
            "spec": {**most, "selector": {"matchLabels": chosen(target, role.name)}},
        }
    monitors = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": target.site.monitoring_namespace}}}
    yield _policy(target, origin, target.name, {}, [{"podSelector": {"matchLabels": chosen(target)}}, monitors])
    if target.kind == "llm-d":  # the gateway's proxies reach pods themselves, from a namespace of theirs
        yield _policy(target, origin, f"{target.name}-gateway", {}, None, (8000, 9002))
    else:
        port = FRONTEND_PORT if target.kind == "dynamo" else target.site.router_port
        yield _policy(target, origin, f"{target.name}-router", {"podplan/pool": "router"}, None, (port,))


def _policy(
    target: Target,
    origin: Provenance,
    name: str,
    pool: dict[str, str],
    peers: list[Object] | None,
    ports: tuple[int, ...] = (),
) -> Object:
    rule: Object = {"from": peers} if peers else {}
    if ports:
        rule["ports"] = [{"port": port, "protocol": "TCP"} for port in ports]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(target, name, origin),
        "spec": {
            "podSelector": {"matchLabels": chosen(target) | pool},
            "policyTypes": ["Ingress"],
            "ingress": [rule],
        },
    }


def monitoring(target: Target, origin: Provenance) -> Iterator[Object]:
    """Yield the pod monitor and the dashboard of an engine that serves metrics."""
    deployment = target.profile.deployment
    if deployment is None or deployment.metrics is None:
        return
    names = deployment.metrics.value
    for role in target.roles:
        yield {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": metadata(target, f"{target.name}-{role.name}", origin),
            "spec": {
                "selector": {"matchLabels": chosen(target, role.name)},
                "podMetricsEndpoints": [{"port": "http", "path": names.path, "interval": "15s"}],
            },
        }
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(target, f"{target.name}-dashboard", origin, {"grafana_dashboard": "1"}),
        "data": {f"{target.name}.json": json.dumps(dashboard(target, names), indent=1) + "\n"},
    }


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


def autoscaler(target: Target, launches: dict[str, Launch], origin: Provenance) -> Iterator[Object]:
    """Yield KEDA's object of each role whose instances one set counts: from one to the plan's instances.

    An instance is added where those there are hold most of the requests that the plan gives one of them.
    """
    deployment = target.profile.deployment
    if not target.site.prometheus or target.kind not in ("lws", "llm-d") or deployment is None:
        return
    for launch in launches.values():
        if deployment.metrics is not None and len(launch.role.instances) > 1:
            yield _scaled(target, launch.role, deployment.metrics.value, origin)


def _scaled(target: Target, role: RolePlan, names: Metrics, origin: Provenance) -> Object:
    name = f"{target.name}-{role.name}"
    label = f'namespace="{target.site.namespace}",pod=~"{name}-.*"'
    trigger = {
        "type": "prometheus",
        "metadata": {
            "serverAddress": target.site.prometheus,
            "query": f"sum({names.running}{{{label}}}) + sum({names.waiting}{{{label}}})",
            "threshold": str(max(round(role.sequences * role.strategy.attention_dp * FILL_SHARE), 1)),
        },
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(target, name, origin),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "leaderworkerset.x-k8s.io/v1",
                "kind": "LeaderWorkerSet",
                "name": name,
            },
            "minReplicaCount": 1,
            "maxReplicaCount": len(role.instances),
            "cooldownPeriod": COOL_DOWN_SECONDS,
            "triggers": [trigger],
        },
    }
