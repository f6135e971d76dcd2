#!/usr/bin/env bash
# Prints manifests/install.yaml: the chart with its default values, in the namespace that it has as
# an object. `make manifests` writes the file; an integration test compares it.
#
# usage: install_manifest.sh
set -euo pipefail
cd "$(dirname "$0")/.."
helm=$(tests/helm/build.sh)/helm
cat <<'END'
# Installs the rljob operator. Rendered from charts/rljob by `make manifests`.
---
apiVersion: v1
kind: Namespace
metadata:
  name: rljob-system
  labels:
    app.kubernetes.io/name: rljob-operator
    pod-security.kubernetes.io/enforce: restricted
END
# The CRD is kept only by Helm.
"$helm" template rljob charts/rljob --namespace rljob-system --set crd.keep=false
