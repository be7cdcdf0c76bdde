package transport

import (
	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

func (c *collector) SendTo(_ verbs.AH, p *wire.Packet, pieces [][]byte, n int) { c.Send(p, pieces, n) }

func (n *node) SendTo(_ verbs.AH, p *wire.Packet, pieces [][]byte, size int) { n.Send(p, pieces, size) }

func (w *wireTo) SendTo(_ verbs.AH, p *wire.Packet, pieces [][]byte, n int) { w.Send(p, pieces, n) }
