package faultydevice

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/verbs"
)

// The objects of a Device. Each has the optional interfaces of the software device's object.
type (
	pd struct {
		verbs.PD
		dev *Device
	}
	cq struct {
		verbs.CQ
		dev *Device
	}
	qp struct {
		verbs.QP
		dev *Device
	}
	srq struct {
		verbs.SRQ
		dev *Device
	}
	cm struct {
		verbs.CM
		dev *Device
		mu  sync.Mutex
		ids map[verbs.CMID]*cmID // by the software device's ID
	}
	cmID struct {
		verbs.CMID
		cm *cm
	}
)

func (p *pd) Device() verbs.Device { return p.dev }

func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	h := p.dev.hooks.Load()
	if h.RegMR != nil {
		if err := h.RegMR(mem); err != nil {
			return nil, err
		}
	}
	mr, err := p.PD.RegMR(mem, access)
	if h.Registered != nil && err == nil {
		h.Registered(mr)
	}
	return mr, err
}

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	if f := p.dev.hooks.Load().CreateQP; f != nil {
		if err := f(&init); err != nil {
			return nil, err
		}
	}
	if q, ok := init.SendCQ.(*cq); ok {
		init.SendCQ = q.CQ
	}
	if q, ok := init.RecvCQ.(*cq); ok {
		init.RecvCQ = q.CQ
	}
	if q, ok := init.SRQ.(*srq); ok {
		init.SRQ = q.SRQ
	}
	inner, err := p.PD.CreateQP(init)
	if err != nil {
		return nil, err
	}
	return &qp{QP: inner, dev: p.dev}, nil
}

func (p *pd) CreateSRQ(init verbs.SRQInit) (verbs.SRQ, error) {
	if f := p.dev.hooks.Load().CreateSRQ; f != nil {
		if err := f(&init); err != nil {
			return nil, err
		}
	}
	inner, err := p.PD.CreateSRQ(init)
	if err != nil {
		return nil, err
	}
	q := &srq{SRQ: inner, dev: p.dev}
	p.dev.add(inner, q)
	return q, nil
}

func (p *pd) CreateAH(attr verbs.AddressAttr) (verbs.AH, error) {
	if f := p.dev.hooks.Load().CreateAH; f != nil {
		if err := f(&attr); err != nil {
			return nil, err
		}
	}
	return p.PD.CreateAH(attr)
}

func (p *pd) AllocMW(t verbs.MWType) (verbs.MW, error) { return p.PD.(verbs.WindowPD).AllocMW(t) }

func (q *qp) Num() uint32 {
	if f := q.dev.hooks.Load().QPN; f != nil {
		return f(q.QP)
	}
	return q.QP.Num()
}

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if f := q.dev.hooks.Load().Modify; f != nil {
		return f(q.QP, attr, mask)
	}
	return q.QP.Modify(attr, mask)
}

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	if f := q.dev.hooks.Load().PostSend; f != nil {
		return f(q.QP, wrs)
	}
	return q.QP.PostSend(wrs)
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if f := q.dev.hooks.Load().PostRecv; f != nil {
		return f(q.QP, wrs)
	}
	return q.QP.PostRecv(wrs)
}

func (q *qp) Close() error {
	destroy := q.dev.hooks.Load().DestroyQP
	if destroy == nil {
		return q.QP.Close()
	}
	return q.dev.destroyed(destroy(q.QP), q.QP.Close)
}

func (q *qp) Counters() (c verbs.QPCounters) {
	if qp, ok := q.QP.(optional.CountersQP); ok {
		c = qp.Counters()
	}
	return c
}

func (q *qp) ExpectKey(rkey uint32) error { return q.QP.(optional.ExpectKeyQP).ExpectKey(rkey) }

func (q *qp) AttachMulticast(group verbs.GID, lid uint16) error {
	return q.QP.(verbs.MulticastQP).AttachMulticast(group, lid)
}

func (q *qp) DetachMulticast(group verbs.GID, lid uint16) error {
	return q.QP.(verbs.MulticastQP).DetachMulticast(group, lid)
}

func (q *cq) Poll(wcs []verbs.WC) (int, error) {
	if f := q.dev.hooks.Load().Poll; f != nil {
		return f(q.CQ, wcs)
	}
	return q.CQ.Poll(wcs)
}

func (q *cq) Arm(solicitedOnly bool) (bool, error) {
	if f := q.dev.hooks.Load().Arm; f != nil {
		return f(q.CQ, solicitedOnly)
	}
	return q.CQ.Arm(solicitedOnly)
}

// PollExtended implements verbs.ExtendedCQ. The hook of Poll gets a queue whose Poll fills in
// the extras.
func (q *cq) PollExtended(wcs []verbs.WC, extras []verbs.WCExtra) (int, error) {
	inner := q.CQ.(verbs.ExtendedCQ)
	if f := q.dev.hooks.Load().Poll; f != nil {
		return f(extended{q.CQ, inner, extras}, wcs)
	}
	return inner.PollExtended(wcs, extras)
}

// extended is the queue for the hook of Poll.
type extended struct {
	verbs.CQ
	inner  verbs.ExtendedCQ
	extras []verbs.WCExtra
}

func (q extended) Poll(wcs []verbs.WC) (int, error) {
	return q.inner.PollExtended(wcs, q.extras[:len(wcs)])
}

func (q *cq) Close() error {
	return q.dev.destroyed(q.CQ.Close(), q.CQ.Close)
}

func (q *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if f := q.dev.hooks.Load().PostRecv; f != nil {
		return f(q.SRQ, wrs)
	}
	return q.SRQ.PostRecv(wrs)
}

func (q *srq) Close() error {
	destroy, err := q.dev.hooks.Load().DestroySRQ, error(nil)
	if destroy != nil {
		err = destroy(q.SRQ)
	} else {
		err = q.SRQ.Close()
	}
	return q.dev.destroyed(err, q.SRQ.Close)
}

func (m *cm) Dial(p verbs.CMDial) (verbs.CMID, error) {
	if f := m.dev.hooks.Load().Dial; f != nil {
		f(&p)
	}
	id, err := m.CM.Dial(p)
	if err != nil {
		return nil, err
	}
	return m.own(id), nil
}

// own returns the device's own object for an ID of the software device.
func (m *cm) own(id verbs.CMID) *cmID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids[id] == nil {
		m.ids[id] = &cmID{id, m}
	}
	return m.ids[id]
}

func (i *cmID) Attr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	if f := i.cm.dev.hooks.Load().CMAttr; f != nil {
		return f(i.CMID, to)
	}
	return i.CMID.Attr(to)
}

func (i *cmID) Close() error {
	i.cm.mu.Lock()
	delete(i.cm.ids, i.CMID)
	i.cm.mu.Unlock()
	return i.CMID.Close()
}

func (m *cm) Listen(p verbs.CMListen) (verbs.CMListener, error) {
	if f := m.dev.hooks.Load().Listen; f != nil {
		f(&p)
	}
	return m.CM.Listen(p)
}

func (m *cm) Close() error {
	if f := m.dev.hooks.Load().CloseCM; f != nil {
		return f(m.CM)
	}
	return m.CM.Close()
}

func (m *cm) JoinMulticast(join verbs.CMJoin) (verbs.CMMulticast, error) {
	return m.CM.(verbs.MulticastCM).JoinMulticast(join)
}
