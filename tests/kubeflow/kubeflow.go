//go:build tools

// Package kubeflow imports the peers of the benchmarks, so that go.mod pins them and their
// dependencies.
package kubeflow

import (
	_ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
	_ "sigs.k8s.io/jobset"
)
