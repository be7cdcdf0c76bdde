package roce

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// pipe is a path between two queue pairs of one device, with a queue in between
// as shared memory would have.
type pipe struct {
	onlySockets
	device  *Device
	to      *queuePair
	packets []wire.Packet
}

func (p *pipe) attach(t *transport.QP) {
	t.SetWindow(1 << 20)
	t.SetLargestPacket(1 << 16)
}

func (p *pipe) detach() {}

func (p *pipe) Send(packet *wire.Packet, pieces [][]byte, _ int) bool {
	kept := *packet
	kept.Payload = bytes.Join(pieces, nil)
	p.packets = append(p.packets, kept)
	return true
}

func (p *pipe) send(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	more := t.Transmit(p, now, sendBudget)
	for i := range p.packets {
		p.to.transport.ReceivePieces(&p.packets[i], t.PathMTU(), [][]byte{p.packets[i].Payload}, nil, now)
		p.device.main.activate(p.to)
		a.bytes -= len(p.packets[i].Payload)
	}
	p.packets = p.packets[:0]
	return a, more
}

func (p *pipe) leadsTo(*endpoint, netip.AddrPort) bool { return false }

// A queue pair and its transport work with a path of any kind.
func TestPathOfAnotherKind(t *testing.T) {
	const half = 1 << 20
	x := openSide(t, Config{}, 2*half)
	y := *x
	y.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8, MaxRecvWR: 8}))
	x.connect(&y)
	y.connect(x)
	d, a, b := x.dev, x.qp.(*queuePair), y.qp.(*queuePair)
	d.mu.Lock()
	a.setPath(&pipe{device: d, to: b}, admission.Source{})
	b.setPath(&pipe{device: d, to: a}, admission.Source{})
	d.mu.Unlock()
	assert.Zero(t, d.endpoints[0].receivers)

	fill(x.mem[:half], 1)
	y.recv(100, x.sge(half, half))
	x.post(
		verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, half)}})
	for _, wc := range x.wait(2) {
		require.Equal(t, verbs.StatusSuccess, wc.Status)
	}
	assert.True(t, bytes.Equal(x.mem[:half], x.mem[half:]))
	clear(x.mem[:half])
	y.post(verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, half)}, RemoteAddr: x.mr.Addr() + half, RKey: x.mr.RKey()})
	require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
	assert.True(t, bytes.Equal(x.mem[:half], x.mem[half:]))
	assert.Zero(t, counter(t, d, "sent_pkts"))
	require.NoError(t, y.qp.Close())
}

func (*pipe) kind() verbs.Path { return verbs.PathUnknown }
