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
package verbs
