// Package ibverbs is the driver for RDMA adapters, and for the kernel's
// software device rxe, through libibverbs. iWARP devices, such as siw, can be listed and
// opened, but have no transport service.
//
// It is built with the tag "verbs", on Linux, with cgo and the headers of
// libibverbs and librdmacm (Debian: libibverbs-dev, librdmacm-dev). The library
// itself is loaded when the driver is first used: a program built with the tag also starts
// on a machine without libibverbs, and its errors say what is missing. Built without
// the tag, the driver lists no devices, and its Open returns an error that matches
// [verbs.ErrNotSupported].
//
// A device is a [verbs.CMDevice]: cgo/internal/rdmacm implements its connection manager.
//
// On Amazon's EFA, queue pairs of the transport service SRD come from libefa, which is
// loaded when the first EFA is opened. If libefa is missing or too old, the device has only its
// other transport services, and the error of CreateQP says what is needed.
//
// # Goroutines
//
// Every open device has one goroutine that waits for asynchronous events, and one
// that waits for the kernel to announce the device's removal. Every completion
// queue that was ever armed has one that waits for completion events. All
// wait in Go's network poller, and block no thread. The functions given to
// OnCompletion and SubscribeEvents run on them.
//
// # Memory
//
// The adapter reads and writes registered memory directly. The memory must not be
// of the Go heap, unless the caller pins it for as long as it is registered.
//
// # Processes
//
// ibv_fork_init(3) is not needed: the child of package os/exec shares this process's memory
// until it executes its program, and no page is copied.
package ibverbs
