// Package rdma has the two RDMA contexts. [Connections] has connections between programs, of
// RC or UC, and tasks that send, receive, read, write and do atomics over them. [Datagrams] has
// an endpoint, of UD or SRD, that exchanges messages with any number of peers. Both work with
// every device behind package verbs, in software or hardware. [Context] is what they have in
// common, for code that serves both.
//
// # Life
//
// Make a context with [New] on an engine (package pe), make the pools it needs,
// start it. There are two ways to make a connection, in Starting and in Running:
//
//   - By descriptors: [Connections.Export] gives this end and its descriptor; the program gets
//     the descriptor to the peer, by whatever means, and takes the peer's;
//     [Connection.Connect] takes that.
//   - By address: [Connections.Listen] takes connections of peers, and [Connections.Dial] makes one
//     with whoever listens on an address and port, as in rdma_cm(7). The other end may be any
//     program that uses the kernel's connection manager.
//
// The context becomes Running when every connection that was exported, dialled or accepted
// in Starting is ready at both ends, or has ended. Without any it becomes Running as soon as the
// program has been notified of Starting. Further connections can come and go in Running.
// Tasks can be allocated and submitted in Starting too: receives, so that the first message of
// a peer meets one, and others, which wait until their connection is Ready.
//
//	r, err := rdma.New(dev, rdma.Config{Engine: engine})
//	writes, err := r.Pool(16, written, failed)
//	r.OnStateChange(func(prev, next pe.State) {
//		switch next {
//		case pe.Starting:
//			conn, desc, err := r.Export()
//			... exchange descriptors ...
//			err = conn.Connect(peerDescriptor)
//		case pe.Running:
//			task, err := writes.Write(conn, bufinv.Source(local, 0, 13), bufinv.Target(remote, 0, 13))
//			err = task.Submit()
//		}
//	})
//	err = r.Start()
//	err = engine.Run(ctx)
//
// A context outlives its connections: it stays Running, and pe.Engine.Run goes on,
// whatever becomes of them, and a connection that has ended can be followed by another to the same peer. A client
// that connects to one server rather ends with its connection; for that there is
// Config.EndWithLastConnection: the context stops when no connection is left that is
// Exported, Connecting or Ready, with the reason in Err if the last one failed, or was
// closed by the peer with requests of this end under way.
//
// Stop closes all connections. Every task in flight comes back through its error
// callback, flushed; when all tasks have been freed, the context is Idle and can be
// started again.
//
// # Datagrams
//
// A context that [NewDatagrams] has made has no connections but one endpoint, which is there
// from Starting on, so that the context is Running at once. [Datagrams.ExportEndpoint] makes its
// descriptor, and [Datagrams.NewPeer] makes a [Peer] from that of another; so do
// [Datagrams.PeerAt] and [Datagrams.ResolvePeer]. Tasks are allocated with a Peer where others
// have a Connection, and a message says which Peer has sent it. UD messages fit into one
// packet and may get lost, come twice, and in any order; those of SRD may come in any order.
//
// # Connections
//
// A connection is Exported (by descriptors only), then Connecting, then Ready; a failure makes it Failed,
// Close by either end makes it Closed. [Connections.OnConnection] reports each change.
// Tasks that are submitted before a connection is Ready wait until it is, in order; if it
// fails or is closed instead, they come back flushed, with the reason. Receives belong to no
// connection: each takes the next message from any of them.
//
// A task that fails ends its connection (IBTA 9.9.2): all other tasks on it come
// back flushed, with the reason ([TaskError]). So does a request of the peer that this end had to refuse. Other
// connections go on. A Failed connection keeps its place among
// Config.MaxConnections until Close; a closed one gives it back when OnConnection
// reports Closed.
//
// How an end learns of its peer:
//
//   - It is not there. Connect waits for Config.ConnectTimeout (a minute), then the
//     connection fails with ErrTimeout.
//   - It closes the connection, or stops its context. It writes a goodbye to a word of
//     this end's memory, behind the tasks that its device has: the connection is Closed
//     here too, with ErrPeerClosed. The end that closes waits for that at most
//     Config.CloseTimeout (one second). Between ends that were connected by address, the
//     connection manager's message takes the place of the goodbye.
//   - It rejects a Dial, nobody listens there, or nobody answers: the connection fails
//     with ErrRejected, ErrNotListening or ErrUnreachable.
//   - It dies, or the network does. Tasks in flight fail with ErrRetryExceeded, and so
//     does the connection. Where there are none, this end writes a keepalive, an empty
//     write, every Config.Keepalive (two seconds). Software devices that share memory
//     with a process of this machine know at once that it has died.
//
// # Loss
//
// Devices repeat what was lost. Unless Config.AckTimeout or RetryCount is set, the
// software device measures the round trip, repeats soon after it, and gives up when
// the peer has been silent for 4 s. Adapters, and the software device where one of the
// two is set, repeat a fixed number of times at fixed intervals. A message that meets
// no receive is repeated for ever, unless Config.RNRRetry says otherwise.
//
// # Unreliable connections
//
// Over UC (Config.Transport) nothing is acknowledged: a task has succeeded when its packets have
// left, and a message that is lost, or meets no receive, is gone. There are sends and writes, and
// no reads and atomics. A connection is Ready when this end has heard of the peer's queue pair;
// there is no keepalive and no goodbye, so programs tell each other when they end. Connections of
// UC are made from descriptors only.
//
// # Permissions
//
// What a peer may read, or do atomics on, has to be allowed three times: by its
// knowledge of the key (the memory map's descriptor), by the memory map, and by
// Config.Permissions. Writes need the first two only: queue pairs always accept
// writes, because ready signals, keepalives and goodbyes are writes. A violation fails
// the peer's task with ErrRemoteAccess or ErrRemoteInvalid, leaves memory untouched,
// and ends the connection at both ends.
//
// # Lending memory
//
// A [Window] lends part of a memory map to the peer of one connection, with permissions of
// its own, and is taken back at once. The map itself need not grant anything: it has
// mmap.BindWindows. Binds and invalidations take their turn among tasks.
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
// peer's program has seen it, nor that the program lives. To notify the peer of a
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
// bytes, a set a write of 8 bytes, an addition a fetch-and-add. A program of the peer
// that waits for a value is woken by sets and additions.
//
// What may the peer rely on when its wait has returned?
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
//     way, and may see what later writes, sets and additions do (IBTA 10.8.3.3,
//     table of ordering rules). Those submitted after see it all.
//   - Different connections: nothing, not even between the same two contexts.
//   - In the other direction: nothing. That a set or an addition has completed says
//     that the peer's device has it, not that anybody was woken.
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
// Alloc hands buffers over to the task, with their references, even when it fails;
// Free drops them. bufinv.Buf.Ref keeps a buffer beyond that. From Submit to the
// callback, the memory and the buffers must not be touched; in the callback they are
// the program's again. Receives, reads and the results of atomics begin with empty buffers
// each time that they are submitted, unless SetAppend has been called; package bufinv has
// the rule. A receive that is too small for its message fails, at both ends.
//
// A source without data is an error, because nothing would be moved. No buffer at all
// makes a message of no bytes.
//
// # Without pools and buffers
//
// [Connections.Receive] takes all messages, in buffers of the context's own, and hands them
// to a function. [Connections.SharedPool] has tasks for any operation. With them a program
// makes neither pools nor buffers:
//
//	err := r.Receive(64, 4096, func(m *rdma.Message) { ... })
//	...
//	shared, err := r.SharedPool()
//	task, err := shared.Send(conn, bufinv.Source(local, 0, 13))
//	err = pe.Submit(task, func(t *rdma.Task, err error) { ... })
//
// # Queues
//
// The send queue of each connection takes Config.SendQueueSize tasks, 128 at most
// unless set; the receive queue, which all connections share, takes the receives of
// all pools unless set. No queue can be full for the program: tasks that find no room at the
// device wait in the context, in the order of submission.
//
// With pe.Aggregate, tasks are posted together. With pe.OptimizeReports, a task has no
// completion of its own, unless it is the last of those posted together: it is reported
// with the next one that has.
//
// # Goroutines
//
// A context, its connections, pools and tasks belong to the goroutine that drives
// the engine, where all callbacks run, one at a time. A callback may do everything but
// drive the engine or wait. Other goroutines use pe.Engine.Do or package await; without,
// Export, Connect, Close, Start, Stop and the making of pools fail with pe.ErrBusy while
// the engine is being driven. Tasks and pools check that too in builds with the race
// detector, and in no others, since it takes time. The path from Submit to the callback allocates
// nothing and takes no lock of this package.
package rdma
