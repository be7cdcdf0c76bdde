// Package friend restricts methods to the packages of this module, as friends of a class do in C++.
// With them a package can hold the memory of a task, lay out its scatter-gather list, or keep the
// memory while a device may use it. A type offers them through a method Friends.
package friend

// Package is the argument of a method Friends. Only packages of this module can make one.
type Package struct{}

// MapUser is the kind of an object other than a buffer that holds a memory map.
type MapUser uint8

// The kinds of users of memory maps.
const (
	BufferPool   MapUser = iota // a bufinv.Pool
	MemoryWindow                // a bound rdma.Window
)
