//go:build tools

// Package prometheus imports the Prometheus and promtool of the tests, so that go.mod pins them and
// their dependencies.
package prometheus

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
