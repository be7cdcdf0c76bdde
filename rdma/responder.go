package rdma

// Responder is whom a task addresses its request to: a *Connection, or a *Peer of a
// context of datagrams.
type Responder interface {
	// Context is its context; nil for one that no context has made.
	Context() *Context
	responder()
}

func (*Connection) responder() {}
func (*Peer) responder()       {}
