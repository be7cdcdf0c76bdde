// Command rdma_sync_event_requester synchronizes with its peer,
// rdma_sync_event_responder, through a sync event: a 64-bit value in the memory of
// the peer, which waits there. It
//
//  1. sets the event to 0xd0ca, which the peer waits for;
//  2. gets its value, again and again, until the peer has added 1;
//  3. sets it to the largest 64-bit value: it is done.
//
// One task sets, twice, and one gets: their callbacks submit them again.
package main

import (
	"context"
	"math"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// Values of the event. The peer knows them too.
const (
	signal   = 0xd0ca
	answer   = signal + 1
	finished = math.MaxUint64
)

func main() {
	p := &requester{}
	sample.Main(sample.Program{
		Name:   "rdma_sync_event_requester",
		About:  "Sets and gets the sync event of rdma_sync_event_responder.",
		Role:   sample.Requester,
		Peer:   "rdma_sync_event_responder",
		Memory: sample.ImportsEvent,
	}, p.run)
}

type requester struct {
	*sample.Session
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Context
	sets   *rdma.SyncEventSetPool
	gets   *rdma.SyncEventGetPool
	remote *syncevent.Event
	conn   *rdma.Connection
	asked  int  // how often the value was got
	asking bool // the get is not back yet, with the set as its user data
}

func (p *requester) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)

	// The engine, and the RDMA context on it. The values are in the tasks: no
	// memory of ours is needed.
	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{
		EndWithLastConnection: true, // the program ends when its peer does
		Engine:                p.engine,
		GIDIndex:              s.GIDIndex,
		MTU:                   s.MTU,
		ConnectTimeout:        s.ConnectTimeout,
		AckTimeout:            s.AckTimeout,
		Log:                   s.Log,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)

	// What its callbacks need is in p: they are its methods.
	if p.sets, err = p.rdma.SyncEventSetPool(1, p.wasSet, p.setFailed); err != nil {
		return err
	}
	if p.gets, err = p.rdma.SyncEventGetPool(1, p.got, p.getFailed); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)

	// From here on everything happens in callbacks, until the context is Idle.
	if err := p.rdma.Start(); err != nil {
		return err
	}
	return p.engine.Run(ctx)
}

func (p *requester) stateChanged(prev, next pe.State) {
	p.Entered(next)
	switch next {
	case pe.Starting:
		p.connect()
	case pe.Running:
		p.rdma.Fail(p.begin())
	}
}

// connect makes the connection with the peer, and takes the descriptor of its event. The
// context is Running once both ends have connected.
func (p *requester) connect() {
	p.Peer.Exchange(context.Background(), p.rdma, oob.Offer{}, func(a *oob.Answer, err error) {
		if err != nil {
			p.rdma.Fail(err)
			return
		}
		p.conn, p.remote = a.Connections[0], a.Events[0]
	})
}

// begin signals the peer, and asks for its answer. The get is behind the set on the
// same connection, so that it finds what was set or what came later.
func (p *requester) begin() (err error) {
	set, err := p.sets.Alloc(p.conn, p.remote, signal)
	if err != nil {
		return err
	}
	get, err := p.gets.Alloc(p.conn, p.remote)
	if err != nil {
		p.rdma.Fail(set.Free())
		return err
	}
	get.SetUserData(set)
	if _, err := rdma.SubmitAll([]rdma.Task{set, get}, 0); err != nil {
		p.give(set)
		p.give(get)
		return err
	}
	p.asking = true
	return nil
}

func (p *requester) wasSet(t *rdma.SyncEventSetTask) {
	p.Print("set to %#x: %s", t.Value(), sample.Word(t.Value()))
	if !p.asking { // this was the last
		p.rdma.Fail(t.Free())
		p.rdma.Stop()
	}
}

func (p *requester) got(t *rdma.SyncEventGetTask) {
	p.asked++
	if t.Value() < answer {
		if err := t.Submit(); err != nil {
			p.getFailed(t, err)
		}
		return
	}
	p.Print("got %#x: %s", t.Value(), sample.Word(t.Value()))
	p.Log.Info().Int("gets", p.asked).Msg("the peer has answered")
	set := t.UserData().(*rdma.SyncEventSetTask)
	p.rdma.Fail(t.Free())
	p.asking = false
	err := set.SetValue(finished)
	if err == nil {
		err = set.Submit()
	}
	if err != nil {
		p.setFailed(set, err)
	}
}

// getFailed ends the program, with the set that was to follow.
func (p *requester) getFailed(t *rdma.SyncEventGetTask, err error) {
	p.rdma.Fail(err)
	p.give(t.UserData().(*rdma.SyncEventSetTask))
	p.rdma.Fail(t.Free())
}

// setFailed leaves the task to the get that comes back after it, if there is one.
func (p *requester) setFailed(t *rdma.SyncEventSetTask, err error) {
	p.rdma.Fail(err)
	if !p.asking {
		p.rdma.Fail(t.Free())
	}
}

// give frees a task, unless it is in flight: then its callback does.
func (p *requester) give(t rdma.Task) {
	if !t.InFlight() {
		p.rdma.Fail(t.Free())
	}
}
