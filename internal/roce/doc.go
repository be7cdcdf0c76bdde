// Package roce is the software device: it ties the transport's state machines
// to UDP sockets, clocks and goroutines, behind the seam of package verbs.
//
// One lock guards a device. Progress is made under it by whoever is there: a
// program that polls a completion queue drives the device inline, on its own
// goroutine; when nobody polls, a goroutine of the device that waits at the
// socket does, since a passive responder must answer while its program sleeps.
package roce
