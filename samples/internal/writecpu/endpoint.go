package writecpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/samples/internal/example"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	messages  = 16 // receives that are posted
	sendDepth = 8  // requests in flight at most: few, so that a program meets a full queue
	firstWait = time.Microsecond
	longWait  = time.Millisecond
)

// Endpoint is an SRD queue pair with its resources, and the functions to call when its
// requests complete. It is for one goroutine.
type Endpoint struct {
	dev      verbs.Device
	pd       verbs.PD
	cq       verbs.CQ
	qp       verbs.QP
	gid      verbs.GIDEntry
	handles  map[[26]byte]verbs.AH  // by GID and UDP port; the rest of the key is zero
	done     [sendDepth]func(error) // of the requests in flight; nil: free
	receives *Region
	regions  []*Region

	Address    Address
	MaxMessage int // bytes

	OnMessage func(b []byte)   // called with each message; b is valid until it returns
	OnWrite   func(imm uint32) // called for each write with immediate
}

// Region is registered memory.
type Region struct {
	Mem  []byte
	MR   verbs.MR
	free func() error
}

// Open makes an endpoint on a device, with its receives posted.
func Open(dev verbs.Device, gidIndex *int) (e *Endpoint, err error) {
	if err := example.CheckSRD(dev); err != nil {
		return nil, err
	}
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	e = &Endpoint{dev: dev, pd: dev.DefaultPD(), handles: make(map[[26]byte]verbs.AH), MaxMessage: int(attr.SRD.MaxMessage)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if e.cq, err = dev.CreateCQ(verbs.CQInit{Capacity: sendDepth + messages}); err != nil {
		return nil, err
	}
	if e.qp, err = e.pd.CreateQP(verbs.QPInit{Type: verbs.SRD, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: sendDepth, MaxRecvWR: messages}); err != nil {
		return nil, err
	}
	var mine example.Metadata
	if mine, e.gid, err = example.BringUpSRD(dev, e.qp, gidIndex); err != nil {
		return nil, err
	}
	e.Address = NewAddress(e.gid, mine.QPN, mine.QKey)
	if e.receives, err = e.Register(messages*e.MaxMessage, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	for i := range messages {
		if err := e.receive(i); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Register allocates and registers memory, which Close releases.
func (e *Endpoint) Register(size int, access verbs.Access) (*Region, error) {
	mem, free, err := mmap.AllocBytes(size)
	if err != nil {
		return nil, err
	}
	mr, err := e.pd.RegMR(mem, access)
	if err != nil {
		return nil, errors.Join(err, free())
	}
	r := &Region{mem, mr, free}
	e.regions = append(e.regions, r)
	return r, nil
}

func (e *Endpoint) receive(i int) error {
	sge := verbs.SGE{Addr: e.receives.MR.Addr() + uint64(i*e.MaxMessage), Length: uint32(e.MaxMessage), LKey: e.receives.MR.LKey()}
	_, err := e.qp.PostRecv([]verbs.RecvWR{{ID: sendDepth + uint64(i), SGL: []verbs.SGE{sge}}})
	return err
}

// Post posts a request to another endpoint, for n bytes at the offset off of a region. It
// calls done when the posted request has completed or failed. While the queue is full, Post
// handles completions and waits, each time longer.
func (e *Endpoint) Post(ctx context.Context, to Address, wr verbs.SendWR, r *Region, off, n int, done func(error)) (err error) {
	key := [26]byte(to[:26])
	clear(key[16:24])
	if wr.AH = e.handles[key]; wr.AH == nil {
		if wr.AH, err = e.pd.CreateAH(verbs.AddressAttr{DGID: verbs.GID(to[:16]), UDPPort: to.udpPort(), SGIDIndex: e.gid.Index, Port: 1}); err != nil {
			return err
		}
		e.handles[key] = wr.AH
	}
	wr.RemoteQPN, wr.RemoteQKey, wr.Flags = to.qpn(), to.qkey(), verbs.FlagSignaled
	wr.SGL = []verbs.SGE{{Addr: r.MR.Addr() + uint64(off), Length: uint32(n), LKey: r.MR.LKey()}}
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		wr.ID = e.free()
		err := error(verbs.ErrQueueFull)
		if wr.ID < sendDepth {
			_, err = e.qp.PostSend([]verbs.SendWR{wr})
		}
		if !errors.Is(err, verbs.ErrQueueFull) {
			if err == nil {
				e.done[wr.ID] = done
			}
			return err
		}
		if err := e.poll(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// free returns an ID that no request has, or sendDepth if all are in use. The queue may have
// room already while the completion that frees an ID has yet to be polled.
func (e *Endpoint) free() uint64 {
	for i, f := range e.done {
		if f == nil {
			return uint64(i)
		}
	}
	return sendDepth
}

// Run handles completions until the condition holds.
func (e *Endpoint) Run(ctx context.Context, until func() bool) error {
	for !until() {
		if err := e.poll(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// poll handles the completions that are in the queue.
func (e *Endpoint) poll() error {
	var wcs [8]verbs.WC
	n, err := e.cq.Poll(wcs[:])
	if err != nil {
		return err
	}
	for i := range wcs[:n] {
		if err := e.complete(&wcs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (e *Endpoint) complete(wc *verbs.WC) error {
	var err error
	if wc.Status != verbs.StatusSuccess {
		err = fmt.Errorf("request %d failed: %v", wc.ID, wc.Status)
	}
	if wc.ID < sendDepth {
		done := e.done[wc.ID]
		e.done[wc.ID] = nil
		done(err)
		return nil
	}
	if err != nil {
		return err
	}
	i := int(wc.ID - sendDepth)
	switch {
	case wc.Opcode == verbs.WCRecvWriteImm && e.OnWrite != nil:
		e.OnWrite(wc.Imm)
	case wc.Opcode == verbs.WCRecv && e.OnMessage != nil:
		e.OnMessage(e.receives.Mem[i*e.MaxMessage:][:wc.Bytes])
	}
	return e.receive(i)
}

// Close releases everything. Requests in flight are dropped.
func (e *Endpoint) Close() (err error) {
	if e.qp != nil {
		err = errors.Join(err, e.qp.Close())
	}
	for _, ah := range e.handles {
		err = errors.Join(err, ah.Close())
	}
	if e.cq != nil {
		err = errors.Join(err, e.cq.Close())
	}
	for _, r := range e.regions {
		err = errors.Join(err, r.MR.Close(), r.free())
	}
	*e = Endpoint{}
	return err
}
