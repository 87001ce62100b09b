"""Hosts of a site: rank tables from them, refusals that name the host, templates without them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.inventory import read_inventory
from deploy.site import read_site
from ground.errors import BadInput
from ground.files import to_yaml
from tests.deploy.cases import files_of, plan
from tests.deploy.plans import deployed


def hosts(count: int, devices: int = 16, super_pod: bool = True) -> list[dict[str, Any]]:
    """Return so many hosts with addresses and devices of their own."""
    found = []
    for host in range(count):
        own: list[dict[str, Any]] = [{"ip": f"10.{2 + host}.0.{device + 1}"} for device in range(devices)]
        entry: dict[str, Any] = {"name": f"host-{host}", "address": f"10.1.0.{host + 1}", "devices": own}
        if super_pod:
            entry["super_pod"] = "7"
            for device, held in enumerate(own):
                held["super_device_id"] = host * 64 + device
        found.append(entry)
    return found


def written(folder: Path, held: list[dict[str, Any]]) -> Path:
    """Write an inventory."""
    path = folder / "hosts.yaml"
    path.write_text(to_yaml({"hosts": held}), encoding="utf-8")
    return path


def test_a_super_pod_has_tables_of_version_1_2(tmp_path: Path) -> None:
    """A3: super device ids, a super pod list, all values text, ranks node by node."""
    files = files_of("r1-cm384", "xllm", inventory=str(written(tmp_path, hosts(8))))
    held = json.loads(files["ranktable-decode-0.json"])
    assert (held["version"], held["status"], held["server_count"]) == ("1.2", "completed", "4")
    devices = [device for server in held["server_list"] for device in server["device"]]
    assert [device["rank_id"] for device in devices] == [str(rank) for rank in range(64)]
    assert devices[17] == {"device_id": "1", "device_ip": "10.7.0.2", "rank_id": "17", "super_device_id": "321"}
    servers = [{"server_id": server["server_id"]} for server in held["server_list"]]
    assert held["super_pod_list"] == [{"super_pod_id": "7", "server_list": servers}]
    assert servers[0] == {"server_id": "10.1.0.5"}  # prefill stands on the first four nodes
    assert "FILL-IN" not in "".join(files.values())


def test_a2_servers_have_tables_of_version_1_0(tmp_path: Path) -> None:
    """No super pods on Atlas A2; a batch job names the hosts, whose devices need not be listed for it."""
    asked = {"strategy": "TP=8 + DP=2, EP=16", "weights": "int8"}
    manifest = deployed("deepseek-r1", "910b", prefill=asked, decode=asked)
    files = files_of(manifest, "xllm", inventory=str(written(tmp_path, hosts(4, 8, super_pod=False))))
    held = json.loads(files["ranktable-prefill-0.json"])
    assert held["version"] == "1.0" and "super_pod_list" not in held
    assert set(held["server_list"][0]["device"][0]) == {"device_id", "device_ip", "rank_id"}
    plain = [{name: host[name] for name in ("name", "address")} for host in hosts(4, 8, super_pod=False)]
    job = files_of(manifest, "sglang", "slurm", inventory=str(written(tmp_path, plain)))["job.sbatch"]
    assert "#SBATCH --nodelist=host-0,host-1,host-2,host-3\n" in job


def test_without_an_inventory_there_is_a_marked_template_and_a_collector() -> None:
    """Addresses are never invented."""
    files = files_of("r1-cm384", "xllm")
    held = json.loads(files["ranktable-decode-0.template.json"])
    assert held["status"] == "initializing"
    devices = [device["device_ip"] for server in held["server_list"] for device in server["device"]]
    assert all(address.startswith("FILL-IN") for address in devices)
    assert "hccn_tool" in files["collect-inventory.sh"] and "spod-info" in files["collect-inventory.sh"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h: h[:5], "needs 8 hosts of cm384, 5 are listed; the last is 'host-4'"),
        (lambda h: [*h[:3], h[3] | {"devices": h[3]["devices"][:8]}, *h[4:]], "host 'host-3' lists 8 devices"),
        (lambda h: [*h[:7], h[7] | {"address": "10.1.0.1"}], "host 'host-7': address 10.1.0.1 stands already"),
        (lambda h: [*h[:7], h[7] | {"name": "host-2"}], "name host-2 stands already"),
        (lambda h: [*h[:7], h[7] | {"devices": h[6]["devices"]}], "device ip 10.8.0.1 stands already"),
        (lambda h: [*h[:7], {k: v for k, v in h[7].items() if k != "super_pod"}], "host 'host-7' must have super_pod"),
        (lambda h: [*h[:7], h[7] | {"address": "node7"}], "hosts[7].address: 'node7' is not an IP address"),
        (lambda h: [*h[:7], h[7] | {"address": "fe80::1%`id`"}], "is not an IP address"),
        (lambda h: [*h[:7], h[7] | {"cluster": "h800"}], "host 'host-7' is of cluster 'h800'"),
    ],
)
def test_a_wrong_inventory_names_the_host(change: Any, said: str, tmp_path: Path) -> None:
    """Too small, inconsistent, twice the same: one sentence each."""
    path = written(tmp_path, change(hosts(8)))
    with pytest.raises(BadInput) as error:
        read_inventory(path, plan("r1-cm384"))
    assert said in str(error.value)


def test_site_values_are_strict_and_find_their_inventory(tmp_path: Path) -> None:
    """An unknown key is refused; the inventory is looked for beside the values. Comments alone state nothing."""
    path = tmp_path / "site.yaml"
    path.write_text("# nothing yet\n", encoding="utf-8")
    assert read_site(path) == read_site(None)
    path.write_text("namespace: serving\ninventory: hosts.yaml\n", encoding="utf-8")
    assert read_site(path).inventory == str(tmp_path / "hosts.yaml")
    for text, said in (
        ("namespce: serving", "namespce is not a known key; did you mean namespace"),
        ("[]", "must be a mapping"),
        ("namespace: 'a; rm -rf /'", "namespace"),
        ("{model_claim: a, model_host_path: /b}", "two places for the weights"),
        ("http_port: 9000", "http_port and router_port are both 9000"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadInput, match=said):
            read_site(path)


def test_a_name_that_no_command_can_carry_is_refused() -> None:
    """A stranger's manifest must not put its own words into scripts."""
    manifest = plan("r1-cm384")
    for name in ("r1; reboot", "$(reboot)", "模型"):
        spec = replace(manifest.model.spec, name=name)
        wrong = manifest.model_copy(update={"model": manifest.model.model_copy(update={"spec": spec})})
        with pytest.raises(BadInput, match=r"model\.spec\.name"):
            files_of(wrong, "sglang")
