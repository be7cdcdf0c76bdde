// Package oob is how two programs find each other before RDMA can begin, and exchange
// what they need for it, out of band: descriptors of connections, memory maps and sync
// events, and a few bytes of their own.
//
// One call does it, in the callback that reports Starting:
//
//	peer, err := oob.Open("dir", oob.Config{Name: "writer", Peer: "reader"})
//	...
//	peer.Connect(r, func(c *rdma.Connection, m *mmap.Map, err error) { conn, remote = c, m; r.Fail(err) })
//
// Exchange is the same with more: any number of connections, maps and events. Waiting
// is done beside the engine; callbacks run on its goroutine, inside Progress, once
// each, whatever comes between. What is imported belongs to the connections, and is closed
// when these are Closed, or the context is Idle.
//
// # Ways
//
// A Way carries the bytes. There is one through a folder (Dir, UserDir), over TCP, by
// connection manager (CM), by copy and paste (Stdio), and by files that somebody copies (Files). Parse makes one of
// a flag. Others can be added: a Way is an interface of four methods. Package
// oob/etcd, a module of its own, has one by name through an etcd directory.
//
// # Ends
//
// A pair has a requester and a responder. The responder is there to be found; the
// requester reports at its end how it ended, which a responder that is only written to
// or read from has no other way to know: see Done, EndWith and Close.
//
// # Servers
//
// A Peer is for one exchange of a pair. A server with any number of clients has a
// Listener: Serve exchanges with each client that comes.
//
// # Trust
//
// What arrives is bounded and decoded strictly, and is refused if it is not from the
// program that is meant. But nothing proves who sent it: names are no passwords.
// Whoever can write to the folder, or reach the TCP port, can pretend to be the peer,
// and get the keys that are offered to it. Files are for their owner alone (mode 0600).
package oob
