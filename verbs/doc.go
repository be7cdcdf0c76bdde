// Package verbs is the interface between Verbena and its drivers, in the vocabulary of the
// InfiniBand verbs: devices, protection domains, memory regions, completion queues, queue
// pairs, shared receive queues and address handles.
//
// It holds interfaces and plain structs. Its only behaviour is to name its constants. Two
// drivers implement it: the software device (package soft) and, with the build tag "verbs",
// libibverbs (cgo/ibverbs). A program in the style of the verbs can use it directly; most
// programs use package rdma, which is built on it.
//
// Terms and rules follow the InfiniBand Architecture Specification, volume 1 ("IBTA" below;
// chapter 9 is the transport layer, chapter 10 the software interface, chapter 11 the verbs),
// its annexes A16 (RoCE) and A17 (RoCEv2), and the libibverbs manual pages.
//
// # Concurrency
//
// All methods are safe for concurrent use. Posting and polling do not block; they may take a
// lock of their device or queue, which is never held for long. Functions that a driver calls
// (completion notification, asynchronous events) run on a goroutine of the driver, or on the
// goroutine of any call into the driver, inside that call. They must return promptly, must not
// call back into the driver, and must not wait for a lock that is held around a call into it.
//
// Closing an object again does nothing, and returns nil.
//
// # Memory
//
// Memory named by a work request belongs to the device from the moment the request is posted
// until its completion has been polled. Memory of a registered region may be read or written
// by a peer that holds its rkey at any time until MR.Close has returned.
//
// # How the interfaces grow
//
// A program may implement the interfaces, for a test or for a device of its own, and may wrap
// a driver's objects by embedding them. Objects passed back to a driver (the queues in a
// QPInit, the AH in a SendWR) must be the driver's own. These rules keep programs and drivers
// working:
//
//   - The core interfaces (Driver, Device, PD, MR, CQ, SRQ, QP, AH) are frozen: no
//     method is added, removed or changed. Every driver can implement them. If a device
//     lacks a part, its limit in DeviceAttr is zero and the call fails with
//     ErrNotSupported; a driver without counters returns none.
//   - A feature that some drivers lack is an optional interface: one or two methods and
//     nothing embedded, named for its feature and its object (DMABufPD, MulticastQP,
//     CMDevice). Callers find it by type assertion, once, when the object is made, and not
//     on the hot path. A wrapper forwards the optional interfaces that it wants to keep.
//   - A call that makes or configures an object takes a struct (CQInit, QPInit, SRQInit,
//     AddressAttr, DMABuf). Structs grow by fields whose zero value keeps the earlier
//     behaviour. Write literals with field names.
//   - Constants are appended. A value that a driver does not know is an error that
//     matches ErrInvalid or ErrNotSupported, and is never ignored; a value that a device
//     reports is passed on, and prints as a number.
//
// Later features are in these places. The death of a peer's process is EventPeerGone. Memory windows are
// WindowPD, and operations of SendWR. Multicast groups are MulticastQP and MulticastCM.
// Extended completions are CQInit.Fields and ExtendedCQ, which polls into two slices to keep
// WC as small and Poll as fast as before. EFA's SRD is a QPType: its requests use the fields
// of datagrams and of writes, and its limits are DeviceAttr.SRD. XRC is XRCDevice, and fields of
// SRQInit, QPInit and SendWR.
package verbs
