// Package sibling has what packages of this module show to do what programs cannot: hold the
// memory of a task, lay out its scatter-gather list, or have it kept while a device may use it.
// Types offer that by a method Siblings, which takes a Pass.
package sibling

// Pass is the argument of a method Siblings. Only packages of this module can make one.
type Pass struct{}
