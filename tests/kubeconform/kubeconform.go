//go:build tools

// Package kubeconform imports the kubeconform of the tests, so that go.mod pins it and its
// dependencies.
package kubeconform

import (
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
)
