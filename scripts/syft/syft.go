//go:build tools

// Package syft imports the Syft of `make images`, so that go.mod pins it and its dependencies.
package syft

import (
	_ "github.com/anchore/syft/cmd/syft"
)
