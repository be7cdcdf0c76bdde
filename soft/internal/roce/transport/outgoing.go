package transport

import "github.com/verbena-rdma/verbena/soft/internal/roce/wire"

// outgoing is the packet that is being sent.
type outgoing struct {
	packet  wire.Packet
	pieces  [][]byte
	scratch [8]byte
	bounce  []byte // see sendReadResponse
}
