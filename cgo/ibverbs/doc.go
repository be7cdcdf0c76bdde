// Package ibverbs is the driver for RDMA adapters, and for the kernel's own
// software device rxe, through libibverbs. Devices of iWARP, such as siw, can be listed and
// opened, and have no transport service.
//
// It is built with the tag "verbs", on Linux, with cgo and the headers of
// libibverbs and librdmacm (Debian: libibverbs-dev, librdmacm-dev). The library
// itself is loaded when the driver is first used: a program built with the tag runs
// on a machine without libibverbs too, and says there what is missing. Built without
// the tag, the driver lists no devices, and its Open returns an error that matches
// [verbs.ErrNotSupported].
//
// A Device is a [verbs.CMDevice]: package rdmacm, which it calls, has its connection
// manager.
//
// On Amazon's EFA, queue pairs of the transport service SRD come from libefa, which is
// loaded when one is opened. Without it, or with one that is too old, the device has its
// other transport services, and the error of CreateQP says what is needed.
//
// # Goroutines
//
// Every open device has one goroutine that waits for asynchronous events, and one
// that waits for the kernel to announce the device's removal; every completion
// queue that has ever been armed has one that waits for completion events. All
// wait in Go's network poller, not in a thread. The functions given to
// OnCompletion and SubscribeEvents run on them.
//
// # Memory
//
// The adapter reads and writes registered memory by itself. It must not be
// memory of the Go heap, unless the caller pins it for as long as it is
// registered.
//
// # Processes
//
// Package os/exec shares this process's memory with the child until it has become
// another program, and copies no page of it: ibv_fork_init(3) is not needed.
package ibverbs
