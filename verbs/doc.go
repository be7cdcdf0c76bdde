// Package verbs is the seam between Verbena and its drivers, in the vocabulary
// of the InfiniBand verbs: devices, protection domains, memory regions,
// completion queues, queue pairs, shared receive queues and address handles.
//
// It holds interfaces and plain structs and has no behaviour of its own beyond
// naming its constants. Two drivers stand behind it: the software device
// (package soft) and, with the build tag "verbs", libibverbs (cgo/ibverbs).
// Programs in the verbs' own style can be written against it directly; most
// programs use package rdma, which is built on it.
//
// Terms and rules follow the InfiniBand Architecture Specification, volume 1
// ("IBTA" below; chapter 9 is the transport layer, chapter 10 the software
// interface, chapter 11 the verbs), its annexes A16 (RoCE) and A17 (RoCEv2),
// and the libibverbs manual pages.
//
// # Concurrency
//
// All methods are safe for concurrent use. Posting and polling do not block;
// they may take a lock of their device or queue that nothing holds for long.
// Functions that a driver calls (completion notification, asynchronous events)
// run on a goroutine of the driver, or inside any call into it, on whichever
// goroutine makes that: they must return promptly, must not call back into the
// driver, and must not wait for a lock that is held around such a call.
//
// Closing anything again does nothing, and returns nil.
//
// # Memory
//
// Memory named by a work request belongs to the device from the moment the
// request is posted until its completion has been polled. Memory of a
// registered region may be read or written by a peer that holds its rkey at any
// time until MR.Close has returned.
//
// # How the seam grows
//
// The interfaces are open: a program may implement them, for a test or for a device
// of its own, and may wrap a driver's objects by embedding them. Objects that are
// handed back to a driver (the queues in a QPInit, the AH in a SendWR) must be the
// driver's own. So that neither programs nor drivers break:
//
//   - The core interfaces (Driver, Device, PD, MR, CQ, SRQ, QP, AH) are frozen. No
//     method is added, removed or changed. They hold what every driver can write. A
//     device that lacks something of it has a limit of zero in its DeviceAttr, and
//     the call fails with ErrNotSupported; a driver without counters returns none.
//   - What some drivers cannot offer at all is an optional interface: one or two
//     methods and nothing embedded, named for its feature and the object that has it
//     (DMABufPD, WatchableMR, CMDevice). Callers find it by type assertion, once, when the
//     object is made, and not on the hot path. Whoever wraps an object forwards the
//     optional interfaces that it wants to keep.
//   - Whatever is made or configured takes a struct (CQInit, QPInit, SRQInit,
//     AddressAttr, DMABuf). Structs grow by fields whose zero value means what was
//     done before. Write literals with field names.
//   - Constants are appended. A value that a driver does not know is an error that
//     matches ErrInvalid or ErrNotSupported, and is never ignored; one that a device
//     reports is passed on, and prints as a number.
//
// What came later, and where it went: memory that a device makes itself is MemoryDevice, and
// by which path packets go PathQP; that a peer's process is dead EventPeerGone; memory
// windows are WindowPD, and operations of SendWR; multicast groups MulticastQP and MulticastCM; extended completions
// CQInit.Fields and ExtendedCQ, which polls into two slices, so that a WC stays as small
// and Poll as fast as they were; EFA's SRD is a QPType, whose requests use the fields of
// datagrams and those of writes, and whose limits are DeviceAttr.SRD.
package verbs
