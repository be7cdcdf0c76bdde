// Package oob lets two programs find each other before RDMA can begin, and exchange out of
// band what they need for it: descriptors of connections, memory maps and sync events, and
// bytes of their own.
//
// One call does it, in the callback that reports Starting:
//
//	peer, err := oob.Open("dir", oob.Config{Name: "writer", Peer: "reader"})
//	...
//	peer.Connect(r, func(c *rdma.Connection, m *mmap.Map, err error) { conn, remote = c, m; r.Fail(err) })
//
// Exchange does the same with any number of connections, maps and events. It does not block
// the engine. Callbacks run on the engine's goroutine, inside Progress, once each, even if the
// exchange fails. Imported objects are closed when the connections are Closed, or the context
// is Idle.
//
// # Ways
//
// A Way is how the programs meet: through a folder (Dir, UserDir), over TCP (TCP), by copy and
// paste (Stdio), in files that a person copies (Files), or by connection manager (CM), which
// connects them itself. Parse makes a Way from the value of a flag. A program can add its own:
// Carried makes a Way of a Carrier, an interface of four methods. Package oob/etcd, a separate
// module, exchanges through etcd.
//
// # Ends
//
// A pair has a requester and a responder. The responder waits, and the requester contacts it.
// When the requester ends, it reports whether it succeeded. A responder whose memory is only
// written or read does not notice by itself that the requester has ended: see Done, EndWith
// and Close.
//
// # Servers
//
// A Peer is for one exchange of a pair. A server with any number of clients uses a
// Listener: Serve exchanges with each client.
//
// # Trust
//
// Input is limited in size and decoded strictly, and is refused if it names another
// program. But nothing authenticates the sender: names are not passwords. A program that can
// write to the folder, or reach the port, can pretend to be the peer, and get the keys that are
// offered to it. Only their owner can read the files (mode 0600).
package oob
