// Package main is the Go half of the library that gives software devices to programs in C and
// other languages. `go build -buildmode=c-shared` makes libverbena-device.so of it, for
// libverbena.so, the C half in ../api. device.h is the interface between the two.
//
// Most of it converts: the structs of libibverbs to those of package verbs, handles to objects,
// and errors to errnos. Each device is opened once in a process, so that all its contexts have
// the same addresses, and stays open until the process ends.
//
// # Environment
//
//   - VERBENA_DEVICES names the devices, separated by spaces, in the form that device.Open
//     takes. Without it there is one device for every network interface that is up.
//   - VERBENA_LOG is a level of package zerolog, such as "info". Devices then log to standard
//     error, and so does each call that is refused, with the reason, which an errno lacks.
package main

// Buildmode c-shared wants a main function, and does not call it.
func main() {}
