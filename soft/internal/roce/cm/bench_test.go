package cm

import (
	"net/netip"
	"testing"
	"time"
)

// BenchmarkHandshake is one connection from REQ to the end of time-wait, both ends.
func BenchmarkHandshake(b *testing.B) {
	paths := [2]Path{
		{Local: netip.MustParseAddrPort("10.0.0.1:4791"), Remote: netip.MustParseAddrPort("10.0.0.2:4791")},
		{Local: netip.MustParseAddrPort("10.0.0.2:4791"), Remote: netip.MustParseAddrPort("10.0.0.1:4791")},
	}
	ends := [2]*Manager{New(Config{}), New(Config{})}
	if _, err := ends[1].Listen(ListenParams{Service: testService}); err != nil {
		b.Fatal(err)
	}
	now := time.Second
	carry := func(from int) {
		var d Datagram
		for ends[from].NextMAD(&d) {
			ends[1-from].Receive(d.MAD[:], paths[1-from], now)
		}
	}
	next := func(end int, want EventType) *Conn {
		var e Event
		if !ends[end].NextEvent(&e) || e.Type != want {
			b.Fatalf("got %v, want %v", e.Type, want)
		}
		return e.Conn
	}
	p := ConnectParams{Service: testService, Path: paths[0], QPN: 0x11, PathMTU: 1024}
	b.ReportAllocs()
	for b.Loop() {
		c, err := ends[0].Connect(p, now)
		if err != nil {
			b.Fatal(err)
		}
		carry(0)
		if err := next(1, EventConnectRequest).Accept(AcceptParams{QPN: 0x22}, now); err != nil {
			b.Fatal(err)
		}
		carry(1)
		if err := next(0, EventConnectResponse).Establish(nil, now); err != nil {
			b.Fatal(err)
		}
		carry(0)
		next(1, EventEstablished)
		if err := c.Disconnect(DisconnectParams{}, now); err != nil {
			b.Fatal(err)
		}
		carry(0)
		carry(1)
		next(0, EventDisconnected)
		next(1, EventDisconnected)
		now += time.Minute
		for end, m := range ends {
			m.Expire(now)
			next(end, EventTimeWaitExit)
		}
	}
}

// BenchmarkREQFlood is a REQ that finds the backlog full.
func BenchmarkREQFlood(b *testing.B) {
	_, _, h := pair(b, faults{})
	h.stopped = true
	h.listen(ListenParams{Service: testService, Backlog: 1})
	var d Datagram
	path := Path{Local: h.address, Remote: netip.MustParseAddrPort(foreigner)}
	r := request(h, 1)
	if err := r.Encode(&d.MAD); err != nil {
		b.Fatal(err)
	}
	h.Receive(d.MAD[:], path, time.Second)
	b.ReportAllocs()
	for i := uint32(2); b.Loop(); i++ {
		d.MAD[24], d.MAD[25], d.MAD[26], d.MAD[27] = byte(i>>24), byte(i>>16), byte(i>>8), byte(i)
		h.Receive(d.MAD[:], path, time.Second)
	}
}

// BenchmarkIdle receives for one connection while many others are idle.
func BenchmarkIdle(b *testing.B) {
	w, _, h := pair(b, faults{})
	h.listen(ListenParams{Service: testService, Backlog: 1 << 20})
	h.config.MaxHalfOpen = 1 << 20
	for i := range uint32(20_000) {
		w.forge(h, foreigner, request(h, i+1))
		c := h.nextEvent(EventConnectRequest).Conn
		if err := c.Accept(AcceptParams{QPN: i + 2}, w.Now); err != nil {
			b.Fatal(err)
		}
		c.CommunicationEstablished(w.Now)
		h.nextEvent(EventEstablished)
		h.sent()
	}
	b.ReportAllocs()
	var d Datagram
	for b.Loop() {
		// A DREQ for an unknown connection, its answer, and a check of the timers.
		d.MAD[0], d.MAD[1], d.MAD[2], d.MAD[3], d.MAD[17] = 1, 7, 2, 3, 0x15
		h.Receive(d.MAD[:], Path{Local: h.address, Remote: netip.MustParseAddrPort(foreigner)}, w.Now)
		h.Expire(w.Now)
		h.NextMAD(&d)
	}
}
