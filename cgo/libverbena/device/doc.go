// Package main is the Go half of the library that gives software devices to programs in C and
// other languages. `go build -buildmode=c-shared` makes libverbena-device.so of it, for
// libverbena.so, the C half in ../api. device.h is the interface between the two.
//
// Most of it converts: the structs of libibverbs to those of package verbs, handles to objects,
// and errors to errnos. Each device is opened once in a process, so that all its contexts have
// the same addresses, and stays open until the process ends.
//
// # Connection managers
//
// An identifier of librdmacm is bound to a device by its addresses, as package route does it. The
// wildcard address is that of all devices. A loopback address chooses a device only if
// VERBENA_DEVICES names one that has it: adapters have none, and libfabric relies on that.
//
//   - Nothing is sent before rdma_connect, so the events of the resolution come at once, and
//     the time limits have no effect.
//   - A request to a port without a listener is repeated for a second before it is rejected.
//   - The port space RDMA_PS_IB has the ports of RDMA_PS_TCP and RDMA_PS_UDP. There is no
//     AF_IB, no RDMA_PS_IPOIB, no XRC, and no enhanced connection establishment.
//   - RDMA_OPTION_ID_TOS is for the packets of this end; the peer is not told.
//   - A process that exits ends its connections. If it is killed, peers that reach it
//     through shared memory learn of it at once, others when they send.
//
// # Environment
//
//   - VERBENA_DEVICES names the devices, separated by spaces, in the form that device.Open
//     takes. Without it there is one device for every network interface that is up.
//   - VERBENA_LOG is a level of package zerolog, such as "info". Devices then log to standard
//     error, and so does each call that is refused, with the reason, which an errno lacks.
//   - VERBENA_FILES is the folder that verbena run has made of the devices in /sys.
package main

// Buildmode c-shared wants a main function, and does not call it.
func main() {}
