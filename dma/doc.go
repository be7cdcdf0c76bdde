// Package dma has the context that copies memory with a device, between memory maps of this
// program. An adapter copies without the processor. Every device behind package verbs that has
// reliable connections can copy.
//
// # Use
//
// Make a [Context] with [New] on an engine (package pe), make pools with [Context.CopyPool],
// and start the context. It is Running when Start returns, because there is no peer to wait
// for.
//
//	c, err := dma.New(dev, dma.Config{Engine: engine})
//	copies, err := c.CopyPool(16, copied, failed)
//	err = c.Start()
//	task, err := copies.Alloc(bufs.Source(from, 0, 4096), bufs.Target(to, 0, 4096))
//	err = task.Submit()
//	err = engine.Run(ctx)
//
// # Copies
//
// A copy takes the data of its source to its destination, which must have room for all of it.
// The destination is emptied first unless SetAppend has been called (package bufinv has the
// rule). Both may be lists, of any lengths and of different shapes; elements without data or
// room are skipped. One copy may move any number of bytes: the context divides it into segments
// that the device can move.
//
// Both lie in memory of this program, in maps that are registered in the context's protection
// domain: a map of several devices (mmap.Map.AddDevice) can be copied by contexts on any of
// them. The map of the destination needs mmap.LocalReadWrite, that of the source no
// permission. For memory of a peer there is package rdma.
//
// Source and destination must not overlap, nor elements of the destination each other: that
// fails with ErrOverlap. The check compares addresses, or offsets within a map of a dma-buf,
// so it misses an overlap where the same memory is mapped twice.
//
// # Order
//
// Copies of one context are written, and complete, in the order of submission. But an adapter
// may read the source of a copy while it still writes earlier ones: if a copy reads what
// another writes, wait for the other's callback. Between contexts there is no order.
//
// # Buffers
//
// Alloc hands buffers over to the task, with their references, even when it fails; Free drops
// them. bufinv.Buf.Ref keeps a buffer beyond that. From Submit to the callback, the memory and
// the buffers must not be touched; in the callback they are the program's again. After a
// failure the contents of the destination's room are not defined.
//
// # Failures
//
// Submit checks the buffers. A failure at the device ends the context: the copy fails with a
// [TaskError], all others come back flushed, and the context goes to Stopping with the reason
// in Err. When all tasks have been freed, the context is Idle, and can be started again. Stop
// flushes copies in flight, too.
//
// # Devices
//
// Copies go through a queue pair that is connected to itself: each segment is a send and a
// receive. The software device carries them out as copies in memory, without packets.
//
// # Goroutines
//
// A context, its pools and tasks belong to the goroutine that drives the engine, where all
// callbacks run, one at a time. Other goroutines use pe.Engine.Do. The path from Submit to the
// callback allocates nothing and takes no lock of this package.
package dma
