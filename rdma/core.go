package rdma

import (
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
	"github.com/verbena-rdma/verbena/rdma/internal/deviceport"
	"github.com/verbena-rdma/verbena/verbs"
)

// core is what every part of a context knows: the engine's side of the context, the device and
// the settings.
type core struct {
	*pe.Core
	control backend.Control
	dev     verbs.Device
	host    host.Host // of dev: clock, random numbers and goroutines
	set     *settings
	port    *deviceport.Port

	// woken: there may be something other than requests to post and completions. Whoever sets it
	// first makes that visible.
	woken  atomic.Bool
	inside bool // Progress is running

	// The fields below belong to one run, from Start to Idle.
	phase   phase
	awaited int   // connections and listeners that keep the context in Starting
	kept    error // why the device may still use its memory; nil: it does not

	startingReported bool // the program has been notified that the context is Starting
}

// phase is the phase of a context on its way to Idle.
type phase int

const (
	phaseUp       phase = iota
	phaseDraining       // connections are closed; their tasks come back
	phaseEmptying       // queue pairs are destroyed; their last completions are handled
	phaseFlushing       // the shared receive queue is destroyed; receives come back
	phaseClosing        // the connection manager is closed; calls of helpers return
	phaseDown
)

// Device is the device the context was made on.
func (c *core) Device() verbs.Device { return c.dev }

// PD is the protection domain of everything in the context.
func (c *core) PD() verbs.PD { return c.set.PD }

// wake makes the engine call Progress, which then asks every part for work. It may be called
// from any goroutine.
func (c *core) wake() {
	c.woken.Store(true)
	c.control.Wake()
}

// report calls the program for what has happened.
func (c *core) report(f func()) {
	if profiling.Tracing() {
		c.Friends(friend.Package{}).Traced("verbena connection callback", f)
		return
	}
	f()
}

// postLater makes the engine call Progress for requests that wait to be posted, unless Progress
// is running.
func (c *core) postLater() {
	if !c.inside {
		c.control.Wake()
	}
}

// startable reports whether nothing keeps the context in Starting any more.
func (c *core) startable() bool {
	return c.awaited == 0 && c.startingReported && c.State() == pe.Starting
}

// startIfReady ends Starting if nothing keeps the context in it any more. It is called before
// the program learns that connections are ready, or sees a message, so that it can submit tasks.
func (c *core) startIfReady() {
	if c.startable() {
		c.control.Started()
	}
}

// takesReceives reports whether receives can be posted.
func (c *core) takesReceives() bool {
	s := c.State()
	return c.phase == phaseUp && (s == pe.Starting || s == pe.Running)
}

// part is one part of a context. Its methods run on the engine's goroutine.
type part interface {
	// open takes from the device what the part needs in one run, from Start to Idle.
	open() error
	// work does what is due, and returns how much it did.
	work() int
	// busy reports whether there is work that neither a completion nor an event announces.
	busy() bool
	// close gives back what open took, even if open failed midway.
	close() error
}

// passive has the methods of a part that has nothing to do in them.
type passive struct{}

func (passive) open() error  { return nil }
func (passive) work() int    { return 0 }
func (passive) busy() bool   { return false }
func (passive) close() error { return nil }

// maxSend is the most bytes of one message.
func (c *core) maxSend() uint32 {
	if c.set.Transport == verbs.UD {
		return uint32(c.port.State().MTU)
	}
	return c.set.caps.MaxSend
}

// MaxInline is up to how many bytes the data of a send or write travel in the work request: see
// Config.MaxSGE.
func (c *core) MaxInline() int { return c.set.inline }

// refreshPort updates the state of the port, for connections and peers that are made from now on. It
// fails while no packets pass the port.
func (c *core) refreshPort() error {
	changed, err := c.port.Refresh()
	if now := c.port.State(); changed {
		c.control.Log().Info().Stringer("gid", now.GID.GID.Addr()).Int("index", now.GID.Index).Int("mtu", int(now.MTU)).
			Uint16("lid", now.LID).Msg("the port has changed; new connections use these attributes")
	}
	return err
}
