// Package gsi implements queue pair 1 of a device, the general services interface (IBTA
// 13.5.1), and the connection managers that programs open on it. Package cm implements the
// protocol. This package finds listeners of this machine, holds the IDs of programs, and
// delivers events to them.
package gsi

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/network"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config configures the services of a device.
type Config struct {
	Device string // its name
	Log    zerolog.Logger
	GUID   uint64
	Slot   int       // cm.Config.Slot
	MTU    verbs.MTU // the largest path MTU
	// Lock takes the locks of all shards. It guards everything here.
	Lock      sync.Locker
	Now       func() time.Duration
	Endpoints []Endpoint // by GID index
	// Deadline requests a call of [Services.Expire] at that time.
	Deadline func(at time.Duration)
	// CheckPeer returns an error if an address does not belong to one host.
	CheckPeer func(netip.Addr) error
	// Requests is cm.Config.Requests.
	Requests func(qpn uint32) (complete func() bool)
	MADs     *admission.MADs
	Groups   Groups
	Network  network.Network
}

// Endpoint is an entry of the GID table.
type Endpoint interface {
	Addr() netip.AddrPort
	Source() netip.AddrPort // that packets leave from
	// NotShared returns why messages to UDP port 4791 do not come to the device; nil: they do.
	NotShared() error
	// Listen has the requests for a service come to the device. The error says why those of other
	// implementations do not.
	Listen(cm.Service) error
	// Unlisten ends Listen.
	Unlisten(cm.Service)
	// SendMessage sends a packet by itself, and returns the system's error.
	SendMessage(to netip.AddrPort, p *wire.Packet, payload []byte) error
}

// Groups are the multicast groups that the device can join.
type Groups interface {
	// GroupEndpoint returns the index of the endpoint for a group if the caller names none.
	GroupEndpoint(group netip.Addr) (index int, err error)
	// JoinGroup joins a group at an endpoint. A sender needs only a route: with sendOnly,
	// JoinGroup only checks that there is one, and leave is nil.
	JoinGroup(group netip.Addr, index int, sendOnly bool) (leave func() error, err error)
}

// Services is the state that the connection managers of a device share. It exists from the
// first manager until the device is closed, so that connections complete their time-wait.
//
// Its methods are called with the lock of the first shard held.
type Services struct {
	cfg      Config
	manager  *cm.Manager
	managers int // open connection managers
	psn      uint32
	packet   wire.Packet
	out      cm.Datagram
	event    cm.Event
}

// New returns the services of a device.
func New(cfg Config) *Services {
	random := func() uint64 { return host.Uint64(cfg.Network) }
	return &Services{cfg: cfg, psn: host.Uint32(cfg.Network), manager: cm.New(cm.Config{
		CAGUID: cfg.GUID, Slot: cfg.Slot, MTU: cfg.MTU, Random: random, Requests: cfg.Requests,
	})}
}

// Managers returns the number of open connection managers.
func (g *Services) Managers() int { return g.managers }

// Counters returns the protocol's counters.
func (g *Services) Counters() cm.Counters { return g.manager.Counters() }

// NamesConnection reports whether a message to the endpoint with that index names a connection
// of the device with the message's sender.
func (g *Services) NamesConnection(message []byte, index int, from netip.AddrPort) bool {
	path := g.pathTo(index, from)
	return g.manager.NamesConnection(message, &path)
}

// Receive handles a message, and reports whether it was expected.
func (g *Services) Receive(message []byte, index int, from netip.AddrPort, now time.Duration) bool {
	useful := g.manager.Receive(message, g.pathTo(index, from), now)
	g.processOutput()
	return useful
}

// pathTo returns the path of messages between an endpoint and a peer.
func (g *Services) pathTo(index int, peer netip.AddrPort) cm.Path {
	e := g.cfg.Endpoints[index]
	return cm.Path{Local: e.Addr(), Remote: peer, GIDIndex: index, SourcePort: e.Source().Port()}
}

// Expire handles expired timers.
func (g *Services) Expire(now time.Duration) {
	g.manager.Expire(now)
	g.processOutput()
}

// TransactionID returns the transaction ID in the beginning of a packet to queue pair 1. It is zero
// if the packet is another, or if too little of it is there.
func TransactionID(packet []byte) uint64 {
	const mad = wire.BTHLen + wire.DETHLen
	if len(packet) < mad+16 || binary.BigEndian.Uint32(packet[4:])&0xffffff != wire.ManagementQPN {
		return 0
	}
	return binary.BigEndian.Uint64(packet[mad+8:])
}

// PeerUnreachable ends what waits for a response to a message that an endpoint sent to a closed
// port, or to a host that cannot be reached: errno is that of link.Refusal.
func (g *Services) PeerUnreachable(index int, peer netip.AddrPort, transactionID uint64, errno syscall.Errno, now time.Duration) {
	for cause, e := range unreachable {
		if e == errno {
			g.manager.PeerUnreachable(g.pathTo(index, peer), transactionID, cause, now)
		}
	}
	g.processOutput()
}

// processOutput sends the manager's messages, and reports its events. It is called after each
// call of the manager.
func (g *Services) processOutput() {
	for g.manager.NextMAD(&g.out) {
		g.send(&g.out)
	}
	for g.manager.NextEvent(&g.event) {
		g.report(&g.event)
	}
	if at := g.manager.Deadline(); at != 0 {
		g.cfg.Deadline(at)
	}
}

func (g *Services) send(dg *cm.Datagram) {
	g.packet = wire.Packet{
		Opcode: wire.UDSendOnly, MigReq: true, PKey: 0xffff, DestQP: wire.ManagementQPN, PSN: g.psn & 0xffffff,
		DETH: wire.DETH{QKey: cm.QKey, SrcQP: wire.ManagementQPN},
	}
	g.psn++
	err := g.cfg.Endpoints[dg.Path.GIDIndex].SendMessage(dg.Path.Remote, &g.packet, dg.MAD[:])
	if errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH) {
		g.manager.NoRoute(dg, g.cfg.Now())
	}
}
