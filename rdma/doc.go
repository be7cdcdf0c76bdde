// Package rdma provides the RDMA contexts, for connections by descriptors or by address and
// for datagrams, with their tasks, receives and memory windows. [Connections] connects
// programs over RC or UC, and runs tasks that send, receive, read, write and do atomics on
// these connections. [Datagrams] has one UD or SRD endpoint, which exchanges messages with any
// number of peers. Both work with every device behind package verbs, in software or hardware.
// [Context] is their common interface, for code that serves both.
//
// # Life
//
// Make a context with [New] on an engine (package pe), make the pools it needs,
// start it. Connections are made in Starting and in Running:
//
//   - By descriptors: [Connections.Export] returns a connection and its descriptor. The
//     program sends the descriptor to the peer by any means, receives the peer's, and passes
//     that to [Connection.Connect].
//   - By address: [Connections.Listen] accepts connections of peers, and [Connections.Dial]
//     connects to the program that listens on an address and port, as in rdma_cm(7). The peer
//     may be any program that uses the kernel's connection manager.
//   - By a protocol of the program's own: see [Connections.Bridge].
//
// The context becomes Running when every connection that was made in Starting is Ready, or has
// ended. If there is none, it becomes Running when the OnStateChange callback for Starting has
// returned. A context that listens waits for peers only with ListenConfig.Await. Further
// connections can come and go in Running. Tasks can be allocated and submitted in Starting too.
// Receives are posted at once, so that the first message of a peer finds one; other tasks wait
// until their connection is Ready.
//
//	r, err := rdma.New(dev, rdma.Config{Engine: engine})
//	writes, err := r.Pool(16, written, failed)
//	var conn *rdma.Connection
//	r.OnStateChange(func(prev, next pe.State) {
//		switch next {
//		case pe.Starting:
//			var desc []byte
//			conn, desc, err = r.Export()
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
// A context outlives its connections: when they end, it stays Running, pe.Engine.Run goes on,
// and the program can connect to the same peer again. A client of one server sets
// Config.EndWithLastConnection: the context then stops when no connection is Exported,
// Connecting or Ready any more. Err has the reason if the last connection failed, or if the
// peer closed it while requests of this end were under way.
//
// Stop closes all connections. Every task in flight comes back through its error
// callback, flushed; when all tasks have been freed, the context is Idle and can be
// started again.
//
// # Datagrams
//
// A context made by [NewDatagrams] has one endpoint and no connections. The endpoint exists
// from Starting on, so the context is Running at once. [Datagrams.ExportEndpoint] makes the
// endpoint's descriptor, and [Datagrams.NewPeer] makes a [Peer] from the descriptor of another
// endpoint. [Datagrams.PeerAt] and [Datagrams.ResolvePeer] make a Peer from an address. Tasks
// are allocated for a Peer instead of a Connection, and each message names the Peer that sent
// it. A UD message fits into one packet; UD messages may be lost, duplicated or reordered, SRD
// messages only reordered.
//
// # Connections
//
// A connection is Connecting, then Ready. It is Exported before that until Connect has the peer's
// descriptor, or from ConnectRequest.Prepare to Accept. A failure makes it Failed; Close by either
// end makes it Closed. [Connections.OnConnection] reports each change. Tasks that are submitted
// before a connection is Ready wait until it is, in order; if it fails or is closed instead, they
// come back flushed, with the reason. Receives belong to no connection: each takes the next message
// of any connection, unless [Connections.ReceivePerConnection] gives each its own.
//
// A task that fails ends its connection (IBTA 9.9.2): all other tasks on it come back flushed,
// with the reason ([TaskError]). A request of the peer that this end had to refuse ends the
// connection too. Other connections go on. A Failed connection keeps its place among
// Config.MaxConnections until Close; a closed one gives it back when OnConnection reports
// Closed.
//
// How an end learns what became of its peer:
//
//   - The peer is not there. Connect waits for Config.ConnectTimeout (a minute), then the
//     connection fails with ErrTimeout.
//   - The peer closes the connection, or stops its context. When its posted tasks are done, it
//     writes a disconnect notice into 8 bytes of this end's memory that are reserved for that.
//     The connection is then Closed here too, with ErrPeerClosed. If both devices report writes
//     to these bytes (optional.WatchableMR), as software devices do, this end completes the tasks
//     that it has posted, and answers with its own notice. The peer serves the tasks meanwhile,
//     so that a lost acknowledgement fails no task. Adapters do not report such writes: then the
//     tasks are flushed, even one that has arrived and whose acknowledgement was lost. The
//     closing end waits for its tasks and the notice for at most Config.CloseTimeout (one
//     second), and for the answer at most 500 ms of it. On connections made by address, messages
//     of the connection manager take the place of the notices.
//   - The peer rejects a Dial, does not listen, or does not answer: the connection fails with
//     ErrRejected, ErrNotListening or ErrUnreachable.
//   - The peer or the network dies. Tasks in flight fail with ErrRetryExceeded, and so does
//     the connection. When this end has no task in flight and has heard nothing of the peer
//     for Config.Keepalive (two seconds), it posts a keepalive, an empty write. A software
//     device that shares memory with a peer on this machine notices at once that the peer's
//     process has died.
//
// # Loss
//
// Devices repeat what was lost. Unless Config.AckTimeout is set, the software device measures the
// round trip, repeats soon after it, and gives up when the peer has been silent for 4 s. Adapters,
// and the software device if it is set, repeat six times. A message that finds no receive is
// repeated for ever, unless Config.RNRRetry limits that.
//
// # Unreliable connections
//
// Over UC (Config.Transport) nothing is acknowledged: a task succeeds when its packets have
// left, and a message that is lost, or finds no receive, is gone. There are sends and writes,
// but no reads and atomics. A connection is Ready when a signal or a message of the peer has
// arrived. There is no keepalive and no disconnect notice, so programs must tell each other
// when they end. UC connections are made from descriptors only.
//
// # Permissions
//
// A peer may read memory, or do atomics on it, only if three things allow it: the peer knows
// the key (the memory map's descriptor), the memory map permits it, and so does
// Config.Permissions. Writes need the first two only: queue pairs always accept writes,
// because ready signals, keepalives and disconnect notices are writes. A violation fails the
// peer's task with ErrRemoteAccess or ErrRemoteInvalid, leaves memory untouched, and ends the
// connection at both ends.
//
// # Lending memory
//
// A [Window] lends part of a memory map to the peer of one connection, with its own
// permissions, and can be taken back at once. The map itself needs mmap.BindWindows, and need
// not grant anything to peers. Binds and invalidations run in order with the tasks of the
// connection.
//
// # Order
//
// Tasks of one connection begin, and complete, in the order of submission (IBTA 10.8.3);
// callbacks of one connection come in that order. At the peer, a send, or a write with
// immediate, shows up after the data of all earlier writes of the same connection is in place
// (IBTA 9.5). A read may still be under way when later sends and writes take effect (IBTA
// 10.8.3.3): wait for its callback where that matters. There is no order between connections.
//
// A completed write or send means that the peer's device has it, not that the
// peer's program has seen it, nor that the program lives. To notify the peer of a
// write, use a write with immediate, or a send after it. Do not watch memory for
// the last byte: in which order bytes of one message appear is not defined.
//
// Atomics are atomic to other atomics through the same device of the peer (IBTA 9.4.5.1), and
// on the software device also to sync/atomic of the peer's program.
//
// # Sync events
//
// Three kinds of task work on a sync event of the peer (package syncevent), which
// the peer has exported and this program has imported: a get is a read of 8
// bytes, a set a write of 8 bytes, an addition a fetch-and-add. A program of the peer
// that waits for a value is woken by sets and additions.
//
// What the peer may rely on when its wait has returned:
//
//   - After an addition: the data of all earlier writes and sends of the same connection is in
//     place. By IBTA 9.5, the data of a write is in place after any of three: the write's own
//     immediate has arrived, a later send has completed at the peer, or a later atomic has
//     changed memory.
//   - After a set: the same on the software device, which places packets in the order of their
//     sequence numbers, and the value last, with an atomic store. No standard promises it for
//     adapters: a set is a plain write, and IBTA 9.5 does not say when a write becomes visible
//     if nothing follows it. In practice it holds where the writes of an adapter reach memory
//     in order, which is the rule of PCI Express for writes without relaxed ordering (Base
//     Specification, 2.4.1). If the program depends on it, use an addition.
//   - Relaxed ordering removes these guarantees (ibv_reg_mr(3), ordering semantics): neither
//     the map that the data goes to nor one that holds an event may have mmap.RelaxedOrdering.
//     The library's own memory of an event never does.
//   - Reads and gets are the exception: those submitted before may still be under
//     way, and may see what later writes, sets and additions do (IBTA 10.8.3.3,
//     table of ordering rules). Those submitted after see it all.
//   - Across connections: nothing, even between the same two contexts.
//
// A completed set or addition tells the sender that the peer's device has it. It does not mean
// that a waiter was woken.
//
// On the software device nobody sees half of a set: a write of 8 aligned bytes is one atomic
// store. On 64-bit machines a get never returns half of one. For adapters the standards do not
// promise this: PCI Express recommends that writes become visible in units of no less than 4
// bytes (Base Specification, 2.4.3), and machines today write 8 aligned bytes at once. Atomics
// are never torn, on any device.
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
// # A function for each task, and for all messages
//
// [Connections.Receive] takes all messages, in buffers of the context's own, and hands them to a
// function. Tasks of a pool that is made with pe.TaskDone and pe.TaskFailed have functions of their own:
//
//	err := r.Receive(64, 4096, func(m *rdma.Message) { ... })
//	tasks, err := r.Pool(16, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
//	...
//	task, err := tasks.Send(conn, bufinv.Source(local, 0, 13))
//	err = pe.SubmitOrFree(task, err, func(t *rdma.Task, err error) { ... })
//
// # Queues
//
// The send queue of each connection takes Config.SendQueueSize tasks. Default: as many as the pools
// hold, up to 256. All connections together have as many tasks at the device as the pools hold that
// were made before Start, or 256 if that is more. The receive queue, which all connections share,
// takes the receives of all pools and of Receive, or as many as the device can. The program never
// meets a full queue: tasks that find no room at the device wait in the context, in the order of
// submission.
//
// With pe.Aggregate, tasks are posted together. With pe.OptimizeReports, a task asks for no
// completion (the last of a batch always does). Its callback runs with that of the next task
// that has a completion.
//
// # Goroutines
//
// A context, its connections, pools and tasks belong to the goroutine that drives the engine, where
// all callbacks run, one at a time. A callback may do everything but drive the engine or wait.
// Other goroutines use pe.Engine.Do or package await. Called directly from another goroutine while
// the engine is driven, Export, Connect, Close, Start, Stop and the making of pools fail with
// pe.ErrBusy. Tasks and pools check this only in builds with the race detector, since the check
// takes time. The path from Submit to the callback allocates nothing and takes no lock of this
// package.
package rdma
