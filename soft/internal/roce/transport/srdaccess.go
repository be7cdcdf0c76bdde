package transport

import (
	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// This file gives package srd access to the device's memory, under the rules of every transport
// service.

// WritePart places a part of a peer's write, whose first byte is at an offset, and reports
// whether the peer may write. It checks the range of the whole write. The caller has checked
// that the part lies inside it. f is a fault if the peer may write there, but the memory
// cannot be accessed.
func (m *Memory) WritePart(domain uint32, h wire.RETH, off uint32, data []byte) (allowed bool, f dma.Fault) {
	w := incomingWrite{left: h.Length - off, size: h.Length}
	if h.Length > 0 {
		if w.grant, allowed = m.grantIn(domain, nil, h.RKey, h.VA, h.Length, verbs.AccessRemoteWrite); !allowed {
			return false, dma.NoFault
		}
		w.addr += uint64(off)
	}
	n := uint32(len(data))
	if allowed, f = w.copy(n, [][]byte{data}); allowed && f == dma.NoFault {
		w.placed(n)
	}
	return allowed, f
}

// Readable reports whether a peer may read the range in h.
func (m *Memory) Readable(domain uint32, h wire.RETH) bool {
	_, ok := m.grantRead(domain, h)
	return ok
}

// ReadPart returns n bytes, at an offset, of the range that a peer reads: for an Output, or as
// a copy in bounce. It reports false if the peer may not read the whole range, or it is on demand and
// cannot be read.
func (m *Memory) ReadPart(domain uint32, h wire.RETH, off, n uint32, bounce *[]byte) ([]byte, bool) {
	g, ok := m.grantRead(domain, h)
	if !ok || h.Length == 0 {
		return nil, ok
	}
	g.addr += uint64(off)
	b, ok, f := g.read(n, bounce)
	return b, ok && f == dma.NoFault
}

func (m *Memory) grantRead(domain uint32, h wire.RETH) (grant, bool) {
	if h.Length == 0 {
		return grant{}, true
	}
	return m.grantIn(domain, nil, h.RKey, h.VA, h.Length, verbs.AccessRemoteRead)
}
