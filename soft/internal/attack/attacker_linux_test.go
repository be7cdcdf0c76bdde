package attack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// attacker is the process that attacks.
type attacker struct {
	*pipePeer
	row   *attackCase
	ends  []endInfo // of the victims: left idle, left busy, right idle, right busy
	page  page
	own   []netip.Addr // its addresses
	short bool         // the test runs in make test
	// decoys: send to the decoy sockets, not to the victims.
	decoys  bool
	senders []*sender
	ended   atomic.Bool
	calls   chan message // responses of the test
	rng     *rand.Rand
	others  int64 // packets sent without a sender
}

// unprivilegedUser is the ID of the user "nobody".
const unprivilegedUser = 65534

// dropPrivileges changes the process to an unprivileged user, unless the method needs another.
func dropPrivileges(v sendMethod) error {
	if os.Getuid() != 0 || v == bySpoofing || v == bySameUser {
		return nil
	}
	return errors.Join(syscall.Setgroups(nil), syscall.Setresgid(unprivilegedUser, unprivilegedUser, unprivilegedUser), syscall.Setresuid(unprivilegedUser, unprivilegedUser, unprivilegedUser))
}

func runAttacker(p *pipePeer) error {
	m, err := p.receive()
	if err != nil {
		return err
	}
	a := &attacker{pipePeer: p, row: attackCaseOf(m.Attack), ends: m.Ends, own: m.Own, short: m.Short, decoys: m.Decoys, calls: make(chan message, 1), rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
	if a.page, err = openPage(os.NewFile(3, "page")); err != nil {
		return err
	}
	if err := dropPrivileges(a.row.from); err != nil {
		return fmt.Errorf("become an ordinary user: %w", err)
	}
	go a.read()
	if err := p.send(message{Kind: "began"}); err != nil {
		return err
	}
	began := time.Now()
	err = a.row.run(a)
	done := message{Kind: "done", Seconds: time.Since(began).Seconds(), Sent: a.others}
	for _, s := range a.senders {
		done.Sent += s.sent
		s.close()
	}
	if err != nil {
		done.Text = err.Error()
	}
	return p.send(done)
}

// read receives responses, and the request to stop.
func (a *attacker) read() {
	for {
		m, err := a.receive()
		if err != nil || m.Kind == "stop" {
			a.ended.Store(true)
			close(a.calls)
			return
		}
		a.calls <- m
	}
}

// ask makes a request to the test or the right victim, and returns the response.
func (a *attacker) ask(m message) (message, error) {
	if err := a.send(m); err != nil {
		return m, err
	}
	answer, ok := <-a.calls
	if !ok {
		return answer, errStopped
	}
	return answer, nil
}

var errStopped = errors.New("the attack is over")

func (a *attacker) stopped() bool { return a.ended.Load() }

// achieved reports a harm to the test.
func (a *attacker) achieved(h harm, format string, args ...any) {
	_ = a.send(message{Kind: "harm", Harm: h, Text: fmt.Sprintf(format, args...)})
}

// addr returns the address for packets to an end.
func (a *attacker) addr(end int) netip.AddrPort {
	if a.decoys {
		return a.ends[end].Decoy
	}
	return a.ends[end].Addr
}

// senderAs returns a sender to a victim's end that pretends to be its peer, by the method of
// the case.
func (a *attacker) senderAs(peer, to int) (*sender, error) {
	from := a.ends[peer].Addr
	if port := a.page.slot(peer).get(slotPort); port != 0 {
		from = netip.AddrPortFrom(from.Addr(), uint16(port))
	}
	for _, s := range a.senders { // a port can be bound only once
		if a.row.from == byPacketInfo && s.from.Port() == from.Port() {
			other := s.withSource(from)
			other.to = a.addr(to)
			other.prepare()
			a.senders = append(a.senders, other)
			return other, nil
		}
	}
	s, err := newSenderAs(a.row.from, a.own[0], from, a.addr(to))
	if err == nil {
		a.senders = append(a.senders, s)
	}
	return s, err
}

// socket returns a sender with the attacker's own address.
func (a *attacker) socket(to netip.AddrPort) (*sender, error) {
	conn, err := bind(netip.AddrPortFrom(a.own[0], 0))
	if err != nil {
		return nil, err
	}
	s := newSender(conn, to)
	a.senders = append(a.senders, s)
	return s, nil
}
