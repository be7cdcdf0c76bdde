// Package rdmacm is the connection manager of adapters, and of the kernel's own
// software devices, through librdmacm. Programs get it from an open device of package
// ibverbs, whose OpenCM calls [Open].
//
// It is built with the tag "verbs", on Linux, with cgo and the headers of librdmacm
// (Debian: librdmacm-dev). The library is loaded when a connection manager is first
// opened. Where it, or the kernel's module rdma_ucm, is missing, Open says so in an error
// that matches [verbs.ErrNotSupported].
//
// # Devices
//
// librdmacm opens devices of its own, and takes no queue pairs of another open device.
// Queue pairs stay those of the caller's: this package hands out their attributes
// (rdma_init_qp_attr(3)), and names them to the peer by their number. librdmacm keeps
// each device that it has met open until the process ends. With a kernel driver that
// cannot take a device from a program, such as rxe's of Linux 6.1, the removal of such a
// device waits for the end of the process.
//
// The kernel finds the device by its routes, for all devices alike. A Dial that leads
// over another device than the one the manager was opened for fails, and says so; give
// a local address then. A listener at the unspecified address has its port on all
// devices of the machine, and rejects what comes to others than its own.
//
// # What differs from the software device
//
//   - There is no UC (the kernel's port space of TCP is for RC), and the Q_Key of a UD
//     queue pair is that of RDMA_PS_UDP.
//   - The kernel reports nothing of a request that has not been accepted: where the peer
//     has given up meanwhile, Attr or Accept fails, and CMFailed is reported then.
//   - Requests beyond the backlog wait in the kernel, as many again; those that are left
//     there when a listener is closed are rejected as by its application.
//   - A request that nobody answers is given up after about 98 s.
//
// # Goroutines
//
// A manager has one goroutine, and one for each listener. They wait in Go's network
// poller, not in a thread.
package rdmacm
