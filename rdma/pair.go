package rdma

import (
	"errors"
	"fmt"
)

// ConnectPair connects two contexts of one program, and returns the connection's two ends. It
// replaces Export and Connect where no descriptor has to travel. It is for tests, and for
// programs that are their own peer. Each connection becomes Ready when its engine has been
// driven. If a and b are the same context, it has two connections, which are each other's
// peers, and needs room for both (Config.MaxConnections).
//
// It is legal where Export is: both contexts must be Starting or Running, as they are from
// Start on. Call it on the goroutine that drives their engines, or before the engines are
// driven. Engines that are driven by different goroutines need Export and Connect. If it
// fails, the connections that it has made are closed. Its errors are those of Export and
// Connect, and ErrInvalid without a context.
func ConnectPair(a, b *Connections) (atA, atB *Connection, err error) {
	if a == nil || b == nil {
		return nil, nil, fmt.Errorf("rdma: connect two contexts with each other: %w: a context is nil", ErrInvalid)
	}
	atA, toA, err := a.Export()
	if err != nil {
		return nil, nil, err
	}
	atB, toB, err := b.Export()
	if err != nil {
		return nil, nil, errors.Join(err, atA.Close())
	}
	if err = atA.Connect(toB); err == nil {
		err = atB.Connect(toA)
	}
	if err != nil {
		return nil, nil, errors.Join(err, atA.Close(), atB.Close())
	}
	return atA, atB, nil
}
