//go:build tools

// Package s3 names the S3 server that the tests run against, so that go.mod pins it with everything it is built from.
package s3

import _ "github.com/versity/versitygw/cmd/versitygw"
