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
	*peer
	row    *row
	ends   []endInfo // of the victims: left idle, left busy, right idle, right busy
	page   page
	own    []netip.Addr // its addresses
	moment bool         // it is make test
	// elsewhere: it sends to the sockets beside the ends that nobody reads.
	elsewhere bool
	senders   []*sender
	ended     atomic.Bool
	calls     chan message // answers of the test
	rng       *rand.Rand
	others    int64 // packets that no sender has sent
}

// nobody is the user that has no rights anywhere.
const nobody = 65534

// dropPrivileges makes the process that of an ordinary user, unless the vantage is another.
func dropPrivileges(v vantage) error {
	if os.Getuid() != 0 || v == bySpoofing || v == bySameUser {
		return nil
	}
	return errors.Join(syscall.Setgroups(nil), syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody))
}

func runAttacker(p *peer) error {
	m, err := p.hear()
	if err != nil {
		return err
	}
	a := &attacker{peer: p, row: rowOf(m.Row), ends: m.Ends, own: m.Own, moment: m.Moment, elsewhere: m.Elsewhere, calls: make(chan message, 1), rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
	if a.page, err = openPage(os.NewFile(3, "page")); err != nil {
		return err
	}
	if err := dropPrivileges(a.row.from); err != nil {
		return fmt.Errorf("become an ordinary user: %w", err)
	}
	go a.read()
	if err := p.say(message{Kind: "began"}); err != nil {
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
	return p.say(done)
}

// read hears that the attack is to end, and answers.
func (a *attacker) read() {
	for {
		m, err := a.hear()
		if err != nil || m.Kind == "stop" {
			a.ended.Store(true)
			close(a.calls)
			return
		}
		a.calls <- m
	}
}

// ask has the test, or the right victim, do something.
func (a *attacker) ask(m message) (message, error) {
	if err := a.say(m); err != nil {
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

// achieved reports a harm.
func (a *attacker) achieved(h harm, format string, args ...any) {
	_ = a.say(message{Kind: "harm", Harm: h, Text: fmt.Sprintf(format, args...)})
}

// at is where packets to an end go.
func (a *attacker) at(end int) netip.AddrPort {
	if a.elsewhere {
		return a.ends[end].Nobody
	}
	return a.ends[end].Addr
}

// as is a sender that sends to a victim's end as its peer, or as the vantage has it.
func (a *attacker) as(peer, to int) (*sender, error) {
	from := a.ends[peer].Addr
	if port := a.page.slot(peer).get(slotPort); port != 0 {
		from = netip.AddrPortFrom(from.Addr(), uint16(port))
	}
	for _, s := range a.senders { // a port can be had once
		if a.row.from == byPacketInfo && s.from.Port() == from.Port() {
			other := s.as(from)
			other.to = a.at(to)
			other.prepare()
			a.senders = append(a.senders, other)
			return other, nil
		}
	}
	s, err := newSenderAs(a.row.from, a.own[0], from, a.at(to))
	if err == nil {
		a.senders = append(a.senders, s)
	}
	return s, err
}

// socket is a sender of the attacker's own, at an address of its own.
func (a *attacker) socket(to netip.AddrPort) (*sender, error) {
	conn, err := bind(netip.AddrPortFrom(a.own[0], 0))
	if err != nil {
		return nil, err
	}
	s := newSender(conn, to)
	a.senders = append(a.senders, s)
	return s, nil
}
