//go:build tools

// Package network imports the program that enforces NetworkPolicies in tests, so that go.mod pins it
// and its dependencies.
package network

import _ "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
