// Package goroutine identifies goroutines, so that an object which belongs to one goroutine at
// a time can refuse calls from others.
package goroutine

// ID identifies a goroutine while it exists: no two existing goroutines have the same ID. It is
// never zero. After a goroutine has ended, another may get its ID.
type ID uintptr
