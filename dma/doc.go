// Package dma has the context that copies memory by the device: between memory
// maps of this program, without the processor's part on an adapter. It works with
// every device behind package verbs that has reliable connections.
//
// # Use
//
// Make a [Context] with [New] on an engine (package pe), make pools with
// [Context.CopyPool], start it. It is Running when Start returns: there is no
// peer to wait for.
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
// A copy takes the data of its source and appends it to the data of its
// destination, where room for all of it has to be. Both may be lists, of any
// lengths and of different shapes; elements without data or room are skipped. How
// much one copy moves has no limit: what is more than the device moves at a time
// goes in pieces.
//
// Both lie in memory of this program, in maps that are registered in the context's
// protection domain: a map of several devices (mmap.Map.AddDevice) can be copied
// by contexts on any of them. The destination's needs mmap.LocalReadWrite, the
// source's nothing. Memory of a peer is for package rdma.
//
// Source and destination must not overlap, nor the destination with itself:
// ErrOverlap. Addresses are compared, and offsets within a map of a dma-buf, so that
// memory that is mapped twice is not found out.
//
// # Order
//
// Copies of one context are written, and complete, in the order of submission. But
// an adapter may read the source of one while it still writes those before it:
// where a copy continues from what another has written, wait for the callback of
// that one. Between contexts there is no order.
//
// # Buffers
//
// Allocation hands buffers over to the task, with their references, even when it
// fails; freeing the task drops them. bufinv.Buf.Ref keeps one beyond. From Submit
// to the callback the memory and the buffers must not be touched; in the callback
// they are the program's again. To submit a task again, ResetData of the
// destination or SetDestination. After a failure the contents of the destination's
// room are not defined.
//
// # Failures
//
// Submit finds what is wrong with the buffers. What fails later, at the device,
// ends the context: the copy fails with a [TaskError], all others come back
// flushed, and the context goes to Stopping with the reason in Err. It can be
// started again. Stop flushes what is in flight likewise.
//
// # Devices
//
// On an adapter, copies go through a queue pair that is connected to itself. On the
// software device they are copies in memory, which take no socket.
//
// # Goroutines
//
// A context, its pools and tasks belong to the goroutine that drives the engine,
// where all callbacks run. Other goroutines use pe.Engine.Do. The path from Submit
// to the callback allocates nothing and takes no lock of this package.
package dma
