//go:build tools

// Package kubeflow names the programs that RLJobs are measured beside, so that go.mod pins them with everything they are built from.
package kubeflow

import (
	_ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
	_ "sigs.k8s.io/jobset"
)
