"""The manifests: Kubernetes' own schemas allow them, and what they run is what compose runs. No cluster
has run them.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from harnessgym.registry import load
from harnessgym.run_config.run import RunConfig
from harnessgym.sandboxes.images.recipes import recipe_name

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "docker" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
RESOURCES = [
    item for name in KUSTOMIZATION["resources"] for item in yaml.safe_load_all((FOLDER / name).read_text())
]
VERSIONS = ("1.30", kubernetes_validate.latest_version())


def pods():
    """Part to its pod's specification."""
    templates = [item["spec"]["template"] for item in RESOURCES if "template" in item["spec"]]
    return {template["metadata"]["labels"]["part"]: template["spec"] for template in templates}


def services():
    return {item["metadata"]["name"]: item["spec"] for item in RESOURCES if item["kind"] == "Service"}


def script(part):
    return pods()[part]["containers"][0]["command"][-1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", RESOURCES, ids=lambda item: f"{item['kind']}-{item['metadata']['name']}")
def test_kubernetes_allows_it(resource, version):
    kubernetes_validate.validate(resource, version, strict=True)


def test_a_wrong_field_is_noticed():
    wrong = {**RESOURCES[0], "spec": {**RESOURCES[0]["spec"], "selectr": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


@pytest.fixture(scope="module")
def rendered():
    """What `kubectl apply -k` would send."""
    done = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.kubectl
def test_kubernetes_allows_what_is_rendered(rendered):
    kinds = sorted((item["kind"], item["metadata"]["name"]) for item in RESOURCES)
    assert (
        sorted((item["kind"], item["metadata"]["name"]) for item in rendered if item["kind"] != "ConfigMap")
        == kinds
    )
    for item in rendered:
        assert item["metadata"]["namespace"] == "harnessgym"
        for version in VERSIONS:
            kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.kubectl
def test_what_is_rendered_mounts_the_run_and_has_images_of_one_release(rendered):
    made = {item["metadata"]["name"]: item["data"] for item in rendered if item["kind"] == "ConfigMap"}
    templates = [item["spec"]["template"]["spec"] for item in rendered if "template" in item.get("spec", {})]
    mounted = {
        volume["configMap"]["name"]
        for pod in templates
        for volume in pod.get("volumes", ())
        if "configMap" in volume
    }
    assert mounted == set(made)
    assert [data["run.toml"] for data in made.values()] == [(FOLDER / "run.toml").read_text()]
    release = KUSTOMIZATION["images"][0]["newTag"]
    images = {container["image"] for pod in templates for container in pod["containers"]}
    assert {image for image in images if image.startswith("harnessgym/")} == {
        f"{image['name']}:{release}" for image in KUSTOMIZATION["images"]
    }
    assert all(":" in image for image in images)


def test_all_manifests_are_applied_and_nothing_else():
    assert set(KUSTOMIZATION["resources"]) == {path.name for path in FOLDER.glob("*.yaml")} - {
        "kustomization.yaml"
    }
    assert KUSTOMIZATION["configMapGenerator"][0]["files"] == ["run.toml"]


def test_pods_run_recipes_images_without_rights():
    for part, pod in pods().items():
        if part == "database":
            continue
        (container,) = pod["containers"]
        assert recipe_name(container["image"]) in ("proxy", "trainer"), part
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False


def test_selectors_find_their_pods_and_mounts_their_volumes():
    for item in RESOURCES:
        if item["kind"] in ("Deployment", "StatefulSet"):
            assert item["spec"]["selector"]["matchLabels"] == item["spec"]["template"]["metadata"]["labels"]
        if item["kind"] in ("Service", "NetworkPolicy"):
            selector = item["spec"].get("selector") or item["spec"]["podSelector"]["matchLabels"]
            assert selector["part"] in pods()
    claims = {item["metadata"]["name"] for item in RESOURCES if item["kind"] == "PersistentVolumeClaim"}
    for pod in pods().values():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        wanted = {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in volumes.values()
            if "persistentVolumeClaim" in volume
        }
        assert wanted <= claims
        mounts = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounts == set(volumes) or mounts == {"data"}


def test_what_is_prepared_is_what_pods_read_where_services_are(tmp_path):
    made = tmp_path / "kubernetes"
    words = pods()["prepare"]["containers"][0]["command"]
    assert words[:3] == ["python", "docker/run.py", "prepare"]
    store = ["--store.url", f"sqlite:///{tmp_path}/traces.db"]
    command = [sys.executable, "docker/run.py", "prepare", str(FOLDER / "run.toml"), str(made), *store]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    settings = {path.stem: yaml.safe_load(path.read_text()) for path in (made / "services").glob("*.json")}
    ports = {name: {port["port"] for port in spec["ports"]} for name, spec in services().items()}
    assert ports["proxy"] == {settings["proxy"]["port"], settings["proxy"]["control_port"]}
    assert ports["engine"] == {settings["engine"]["port"]}
    assert settings["node"]["proxy_url"] == f"http://proxy:{settings['proxy']['port']}"
    for part in ("proxy", "engine", "node", "trainer"):
        (name,) = set(re.findall(r"/runs/kubernetes/services/([\w-]+)\.json", script(part)))
        assert f"harnessgym {name} --config" in script(part)
        model = load("settings", name)
        for setting in re.findall(r"--([\w.]+) \"?\$|--([\w.]+) \"?http|--([\w.]+) /tmp", script(part)):
            first, *rest = next(filter(None, setting)).split(".")
            assert first in model.model_fields
            assert (
                not rest
                or rest[0]
                in load("settings", "engine").model_fields["agent"].annotation.__args__[0].model_fields
            )


def test_the_run_is_a_run_whose_password_is_a_secret():
    config = RunConfig.model_validate(tomllib.loads((FOLDER / "run.toml").read_text()))
    assert config.store.url == "postgresql+psycopg://harnessgym@database/traces"
    for part, pod in pods().items():
        names = {
            item["name"]
            for item in pod["containers"][0]["env"]
            if "secretKeyRef" in item.get("valueFrom", {})
        }
        assert names == ({"POSTGRES_PASSWORD"} if part == "database" else {"PGPASSWORD"})
    assert not any(item["kind"] == "Secret" for item in RESOURCES)


def test_a_node_that_is_told_to_go_drains():
    (container,) = pods()["node"]["containers"]
    assert "kill -USR1 1" in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert script("node").count("exec harnessgym node") == 1  # so it is process 1
    assert pods()["node"]["terminationGracePeriodSeconds"] >= 600


def test_images_are_of_one_release():
    """What `latest` is changes under a running cluster; and a restarted database must find the files of
    its own release.
    """
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {image["newTag"] for image in KUSTOMIZATION["images"]} == {release}
    assert re.fullmatch(r"postgres:\d+\.\d+", pods()["database"]["containers"][0]["image"])


def test_no_password_stands_on_a_command_line():
    for path in (ROOT / "docs" / "cluster.md", FOLDER / "kustomization.yaml"):
        assert "--from-literal" not in path.read_text()
