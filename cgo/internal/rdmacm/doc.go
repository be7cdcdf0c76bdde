// Package rdmacm is the connection manager of adapters, and of the kernel's
// software devices, through librdmacm. Programs get it from an open device of package
// ibverbs, whose OpenCM calls [Open].
//
// It is built with the tag "verbs", on Linux, with cgo and the headers of librdmacm
// (Debian: librdmacm-dev). The library is loaded when a connection manager is first
// opened. If the library or the kernel module rdma_ucm is missing, Open returns an error that
// says so and matches [verbs.ErrNotSupported].
//
// # Devices
//
// librdmacm opens devices itself, and does not accept queue pairs of another open device.
// So the caller owns the queue pairs: this package returns the attributes for them
// (rdma_init_qp_attr(3)), and sends their numbers to the peer. librdmacm keeps each device
// that it has used open until the process ends. With a kernel driver that cannot take a
// device from a program, such as rxe's in Linux 6.1, the removal of such a device waits for
// the end of the process.
//
// The kernel selects the device by its routes, among all devices. A Dial whose route leads
// over a device other than the manager's fails with an error that says so; give a local
// address then. A listener at the unspecified address has its port on all devices of the
// machine, and rejects requests to devices other than its own.
//
// # What differs from the software device
//
//   - There is no UC (the kernel's port space of TCP is for RC), and the Q_Key of a UD
//     queue pair is that of RDMA_PS_UDP.
//   - The kernel reports nothing about a request that is not accepted yet. If the peer has
//     given up, Attr or Accept fails, and CMFailed is reported then.
//   - Requests beyond the backlog wait in the kernel, up to the same number again. When the
//     listener is closed, they are rejected as if by the application.
//   - A request that nobody answers fails after about 98 s.
//
// # Goroutines
//
// A manager has one goroutine, and another for each listener. They wait in Go's network
// poller, and block no thread.
package rdmacm
