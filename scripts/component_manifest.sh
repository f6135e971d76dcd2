#!/usr/bin/env bash
# Prints the objects of a component of manifests/components: those that the chart adds for a value.
# `make manifests` writes the files; an integration test compares them.
#
# usage: component_manifest.sh dashboards|kueue|pod-monitor|prometheus-rule
set -euo pipefail
cd "$(dirname "$0")/.."
case "$1" in
dashboards) value=dashboards template=dashboards ;;
kueue) value=kueue template=rbac-kueue ;;
pod-monitor) value=podMonitor template=podmonitor ;;
prometheus-rule) value=prometheusRule template=prometheusrule ;;
*)
	echo "component_manifest.sh: no component $1" >&2
	exit 2
	;;
esac
helm=$(tests/helm/build.sh)/helm
echo "# Rendered from charts/rljob by \`make manifests\`."
"$helm" template rljob charts/rljob --namespace rljob-system --set "$value.enabled=true" \
	--show-only "templates/$template.yaml"
