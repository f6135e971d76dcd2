//go:build tools

// Package helm imports the Helm of the tests and the module with the Prometheus Operator's CRDs, so
// that go.mod pins them and their dependencies.
package helm

import (
	_ "github.com/prometheus-operator/prometheus-operator/pkg/versionutil"
	_ "helm.sh/helm/v4/cmd/helm"
)
