// Package rdma connects programs by RDMA: they send and receive messages, and read, write and do
// atomics on each other's memory.
//
// # Connect, send, receive
//
// Make a context with [New] on an engine (package pe), make the pools it needs, and start it. Here one
// end listens for the other; callbacks do the rest:
//
//	r, err := rdma.New(dev, rdma.Config{Engine: engine})
//	sends, err := r.Pool(16, pe.FreeTask, pe.FailContext)
//	err = r.Receive(64, 4096, func(m *rdma.Message) { use(m.Connection(), m.Bytes()) })
//	r.OnStateChange(func(prev, next pe.State) {
//		switch next {
//		case pe.Starting:
//			_, err := r.Listen(":7600", rdma.ListenConfig{Await: 1}) // the other end: r.Dial
//			r.Fail(err) // if it is not nil
//		case pe.Running:
//			for _, conn := range r.List() {
//				task, err := sends.Send(conn, bufinv.Source(local, 0, 13))
//				r.Fail(pe.SubmitOrFree(task, err))
//			}
//		}
//	})
//	err = r.Start()
//	err = engine.Run(ctx)
//
// # What there is
//
// [Connections] is a context with connections over RC or UC. They are made by address
// ([Connections.Listen], [Connections.Dial]), by descriptors that the programs exchange
// ([Connections.Export], [Connection.Connect]; package oob does it), or by the program's own queue
// pairs ([Connections.Bridge]). [Connection] says how connections end, and how each end learns of it.
// [Datagrams] has one UD or SRD endpoint, which exchanges messages with any number of peers.
// [Context] is their common interface.
//
// A [Pool] gives tasks for all operations; its comment has the rules of buffers and of order.
// [Connections.Receive] takes all messages with one function, and a [ReceivePool] receives into
// buffers of the program. A [Window] lends memory to one peer. [Config] has the settings: what peers
// may do, time-outs, queues.
//
// # States
//
// The context becomes Running when every connection that was made in Starting is Ready, or has
// ended; if there is none, when the OnStateChange callback for Starting has returned. A context that
// listens waits for peers only with ListenConfig.Await. Further connections can come and go in
// Running. Tasks can be submitted in Starting too: receives are posted at once, other tasks wait until
// their connection is Ready. A context outlives its connections, unless
// Config.EndWithLastConnection is set. Stop closes them, and flushes the tasks in flight.
//
// # Goroutines
//
// A context, its connections, pools and tasks belong to the goroutine that drives the engine, where
// all callbacks run, one at a time. A callback may do everything but drive the engine or wait.
// Other goroutines use pe.Engine.Do or package await; what they call directly fails with pe.ErrBusy
// while the engine is driven. (Tasks and pools check this only in builds with the race detector.)
package rdma
