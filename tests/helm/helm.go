//go:build tools

// Package helm imports the Helm of the tests, so that go.mod pins it and its dependencies.
package helm

import (
	_ "helm.sh/helm/v4/cmd/helm"
)
