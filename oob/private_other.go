//go:build !unix

package oob

import "io/fs"

// private returns true: on these systems each user has a directory for temporary files.
func private(fs.FileInfo) bool { return true }
