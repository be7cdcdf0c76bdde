// Package sibling restricts methods to the packages of this module. With them a package can
// hold the memory of a task, lay out its scatter-gather list, or keep the memory while a device
// may use it. A type offers them through a method Siblings, which takes a Pass.
package sibling

// Pass is the argument of a method Siblings. Only packages of this module can create one.
type Pass struct{}
