// Package rdma has the RDMA context: reliable connections between programs, and
// tasks that send, receive, read, write and do atomics over them. It works with
// every device behind package verbs, in software or hardware.
//
// # Life
//
// Make a [Context] with [New] on an engine (package pe), make the pools it needs,
// start it. In Starting, and in Running later, each connection is
// made in three steps: [Context.Export] gives this end and its descriptor; the
// program gets the descriptor to the peer, by whatever means, and takes the
// peer's; [Connection.Connect] takes that. The context enters Running when every
// connection exported so far is ready, at both ends: from then on the peer is
// there, whoever was first.
//
//	r, err := rdma.New(dev, rdma.Config{Engine: engine})
//	writes, err := r.WritePool(16, written, failed)
//	r.OnStateChange(func(prev, next pe.State) {
//		switch next {
//		case pe.Starting:
//			conn, desc, err := r.Export()
//			... exchange descriptors ...
//			err = conn.Connect(peerDescriptor)
//		case pe.Running:
//			task, err := writes.Alloc(conn, bufs.Source(local, 0, 13), bufs.Target(remote, 0, 13))
//			err = task.Submit()
//		}
//	})
//	err = r.Start()
//	err = engine.Run(ctx)
//
// Stop brings every task in flight back through its error callback, flushed; when
// all tasks have been freed, the context is Idle, its connections are Closed, and
// it can be started again.
//
// # Connections
//
// A connection is Exported, then Connecting, then Ready; a failure makes it
// Failed, Close makes it Closed. [Context.OnConnection] tells of it. Tasks are
// submitted to Ready connections only. Receives belong to no connection: each
// takes the next message from any of them.
//
// A task that fails ends its connection (IBTA 9.9.2): all other tasks on it come
// back flushed. So does a request of the peer that this end had to refuse. Other
// connections go on. When the last usable one has failed, the context goes to
// Stopping by itself, with the reason in Err; one that is Exported counts as
// usable, and closing is no failure. A peer that dies is noticed by the end that
// has tasks in flight to it, and by nobody else.
//
// # Permissions
//
// What a peer may read or write has to be allowed three times: by its knowledge
// of the key (the memory map's descriptor), by the memory map, and by
// Config.Permissions. A violation fails the peer's task with ErrRemoteAccess or
// ErrRemoteInvalid, leaves memory untouched, and ends the connection at both ends.
//
// While a connection is Connecting, one of its ends lets the peer write, whatever
// Config.Permissions say: the hello that makes a connection Ready is a write to
// memory of the context. What the peer holds no key for is safe all the same.
//
// # Order
//
// Tasks of one connection begin, and complete, in the order of submission (IBTA
// 10.8.3); callbacks of one connection come in that order. At the peer, a send, or
// a write with immediate, shows up after the data of all earlier writes of the
// same connection is in place (IBTA 9.5). A read may still be under way when later
// sends and writes take effect (IBTA 10.8.3.3): wait for its callback where
// that matters. Between connections there is no order.
//
// A completed write or send means that the peer's device has it, not that the
// peer's program has seen it, nor that the program lives. To tell the peer of a
// write, use a write with immediate, or a send after it. Do not watch memory for
// the last byte: in which order bytes of one message appear is not defined.
//
// Atomics are atomic to other atomics through the same device of the peer, and to
// nothing else (IBTA 9.4.5.1).
//
// # Sync events
//
// Three kinds of task work on a sync event of the peer (package syncevent), which
// the peer has exported and this program has imported: a get is a read of 8
// bytes, a set a write of 8 bytes, an addition a fetch-and-add. The peer's
// program waits for the value, and is woken.
//
// What may the peer rely on when a wait has returned the value of a notification?
//
//   - An addition: the data of all earlier writes and sends of the same connection
//     is in place. IBTA 9.5 names three things after which the memory that a write
//     went to can be relied on: its own immediate, the completion of a later send,
//     and the change of memory by a later atomic.
//   - A set: the same on the software device, which places packets in the order of
//     their sequence numbers, and the value last, with an atomic store. No standard
//     promises it for adapters: a set is one more write, and IBTA 9.5 says nothing
//     of when a write can be seen that nothing follows. In practice it holds where
//     the writes of an adapter stay in order on their way to memory, which is the
//     rule of PCI Express for writes without relaxed ordering (Base Specification,
//     2.4.1). Where it has to hold, add.
//   - Relaxed ordering takes the rule away (ibv_reg_mr(3), ordering semantics):
//     neither the map that the data goes to nor one that holds an event may have
//     mmap.RelaxedOrdering. The library's own memory of an event never does.
//   - Reads and gets are the exception: those submitted before may still be under
//     way, and may see what later writes and notifications do (IBTA 10.8.3.3,
//     table of ordering rules). Those submitted after see it all.
//   - Different connections: nothing, not even between the same two contexts.
//   - In the other direction: nothing. That a notification has completed says that
//     the peer's device has it, not that anybody was woken.
//
// A set is never seen in half on the software device, where a write of 8 aligned
// bytes is one atomic store, and a get never brings half of one on 64-bit
// machines. Of adapters the standards do not say so: PCI Express recommends
// that writes become visible in units of no less than 4 bytes (Base
// Specification, 2.4.3), and machines today write 8 aligned bytes at once.
// Atomics are whole everywhere.
//
// # Buffers
//
// Allocation hands buffers over to the task, with their references, even when it
// fails; freeing the task drops them. bufinv.Buf.Ref keeps one beyond. From Submit
// to the callback, the memory and the buffers must not be touched; in the callback
// they are the program's again. Receives and reads append to the data that is in
// their buffers, so that a task to be submitted again needs ResetData or another
// buffer. A receive that is too small for its message fails, at both ends.
//
// A source without data is an error: nothing would be moved. No buffer at all
// makes a message of no bytes.
//
// # Queues
//
// Queues at the device are as large as the pools, so that they cannot be full;
// where Config or the device makes them smaller, tasks wait in the context. With
// pe.Aggregate tasks are posted together. With pe.OptimizeReports a task does
// without a completion of its own, unless it is the last of those posted together:
// it is reported with the next one that has one.
//
// # Goroutines
//
// A context, its connections, pools and tasks belong to the goroutine that drives
// the engine, where all callbacks run. Other goroutines use pe.Engine.Do; what they
// export, connect, close, start or stop without it fails with pe.ErrBusy, but tasks
// do not look. The path from Submit to the callback allocates nothing and takes no
// lock of this package.
package rdma
