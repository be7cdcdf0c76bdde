//go:build !linux

package routes

import "context"

// follow reports that the system reports no changes.
func follow(context.Context, func(), func()) bool { return false }
