#!/usr/bin/env bash
# Prints the objects of a component of manifests/components: those that the chart adds for a value.
# `make manifests` writes the files; an integration test compares them.
#
# usage: component_manifest.sh dashboards|kueue|pod-monitor|pod-monitor-jobs|prometheus-rule
set -euo pipefail
cd "$(dirname "$0")/.."
case "$1" in
dashboards) value=dashboards.enabled template=dashboards ;;
kueue) value=kueue.enabled template=rbac-kueue ;;
pod-monitor) value=podMonitor.enabled template=podmonitor ;;
pod-monitor-jobs) value=podMonitor.jobs template=podmonitor-jobs ;;
prometheus-rule) value=prometheusRule.enabled template=prometheusrule ;;
*)
	echo "component_manifest.sh: no component $1" >&2
	exit 2
	;;
esac
helm=$(tests/helm/build.sh)/helm
echo "# Rendered from charts/rljob by \`make manifests\`."
# podMonitor.jobs requires a namespace of scrapers, which no object of a component contains.
"$helm" template rljob charts/rljob --namespace rljob-system --set "$value=true" \
	--set jobs.scrapers.namespaceSelector.any=one \
	--show-only "templates/$template.yaml"
