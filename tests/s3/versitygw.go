//go:build tools

// Package s3 imports the S3 server of the tests, so that go.mod pins it and its dependencies.
package s3

import _ "github.com/versity/versitygw/cmd/versitygw"
