package load

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// RawEnd is one end of a connection to a program that does not use this SDK.
type RawEnd struct {
	QPN, PSN uint32
	RKey     uint32
	Addr     uint64 // of the memory that the peer works on
	GID      verbs.GID
	LID      uint16
	Reads    int // the most reads and atomics in flight
}

// perftestSlack is extra memory behind the layout: with small operations, the programs of
// perftest cycle through the addresses of a page.
const perftestSlack = 16 << 10

// maxRawReads is the most reads and atomics in flight with such a program.
const maxRawReads = 16

// OfferRaw makes this end of the one connection. psn is the sequence number of its first
// packet.
func (s *Endpoint) OfferRaw(psn uint32) (e RawEnd, mtu verbs.MTU, err error) {
	if s.plan.Connections != 1 {
		return e, 0, errors.New("a test with a perftest program has one connection")
	}
	w := s.workers[0]
	conn, err := w.rdma.Bridge()
	if err != nil {
		return e, 0, err
	}
	w.flows[0].conn = conn
	gid := w.rdma.GID()
	port, err := s.cfg.Device.QueryPort(w.rdma.Config().Path.Port)
	if err != nil {
		return e, 0, err
	}
	attr, err := s.cfg.Device.Query()
	if err != nil {
		return e, 0, err
	}
	e = RawEnd{QPN: conn.QPN(), PSN: psn & 0xffffff, GID: gid.GID, LID: port.LID, Reads: max(1, min(attr.MaxQPReadAtomic, maxRawReads))}
	if rights(s.plan.Test.Op) != 0 {
		if e.RKey, err = w.local.ExportKey(w.rdma.PD()); err != nil {
			return e, 0, err
		}
	}
	// The peer reads from the memory that this end sends from, and writes to the memory that
	// it receives into.
	off := w.layout.InOffset(0)
	if s.plan.Test.Op == plan.Read {
		off = w.layout.OutOffset(0)
	}
	e.Addr = w.local.Addr() + uint64(off)
	return e, w.rdma.Config().Path.MTU, nil
}

// ConnectRaw connects to the peer, and drives the engine from then on.
func (s *Endpoint) ConnectRaw(own, peer RawEnd, mtu verbs.MTU) (err error) {
	w := s.workers[0]
	if right := rights(s.plan.Test.Op); right != 0 {
		_, size := s.plan.Step(0)
		if w.remote, err = mmap.FromKey(s.cfg.Device, peer.Addr, size, peer.RKey, right); err != nil {
			return err
		}
		w.remoteOut, w.remoteIn = 0, w.layout.InOffset(0)
	}
	conn, cfg := w.flows[0].conn, w.rdma.Config()
	attr := verbs.QPAttr{
		State: verbs.QPReadyToReceive, PathMTU: mtu, DestQPN: peer.QPN, RQPSN: peer.PSN,
		MaxDestReadAtomic: own.Reads, MinRNRTimer: 12,
		Address: verbs.AddressAttr{DGID: peer.GID, DLID: peer.LID, SGIDIndex: *cfg.Path.GIDIndex, Port: cfg.Path.Port, SL: cfg.Path.SL, TrafficClass: cfg.Path.TrafficClass},
	}
	if err := conn.QP().Modify(attr, verbs.RCToRTR); err != nil {
		return fmt.Errorf("connect the queue pair: %w", err)
	}
	attr = verbs.QPAttr{State: verbs.QPReadyToSend, SQPSN: own.PSN, Timeout: 14, RetryCount: 6, RNRRetry: 7, MaxInitReadAtomic: min(own.Reads, max(1, peer.Reads))}
	if err := conn.QP().Modify(attr, verbs.RCToRTS); err != nil {
		return fmt.Errorf("connect the queue pair: %w", err)
	}
	if err := conn.Established(); err != nil {
		return err
	}
	s.drive()
	return s.WaitReady()
}
