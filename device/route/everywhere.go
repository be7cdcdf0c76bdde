package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/verbs"
)

// Part is the part of a server on one device. Serve calls its methods one at a time, except Done.
type Part interface {
	// Listen listens at an address, and returns the port and a function that ends that; connections
	// that exist stay. Port 0 is any that is free there. It returns when Done is closed. The error matches
	// verbs.ErrInvalid if the device does not have the address, and verbs.ErrInUse if the port is taken, as
	// those of rdma.Connections.Listen do.
	Listen(addr netip.AddrPort) (port uint16, stop func(), err error)
	// Done is closed when the part serves nobody any more, since its device has failed.
	Done() <-chan struct{}
	// Close ends the part. It is the last call. The error says why the device has failed, if it has.
	Close() error
}

// ServeConfig says what Serve serves with. Open, Added, Failed and the methods of a Part may call the
// methods of the Everywhere except Close, which waits for them: so its caller must hold no lock that they
// take.
type ServeConfig struct {
	// Open opens a part on a device, whose name is for device.Open.
	Open func(device string) (Part, error)
	// Added is called with addresses that have come, and are served now. Nil: Log has them.
	Added func(addrs []netip.AddrPort)
	// Failed is called with the reason why an address that has come is not served, or why a device is
	// served no longer, once for each reason. Both are tried again. Nil: Log has it, as a warning.
	Failed func(err error)
	// Log has what Added and Failed are not there for. The zero value is silent.
	Log zerolog.Logger
}

// Everywhere is a server at all addresses of this host: those of the interfaces that are up,
// loopback included, and those that come later. It has a part on each device. Its methods may be called
// from any goroutine.
type Everywhere struct {
	cfg     ServeConfig
	places  func() ([]place, error)
	stop    context.CancelFunc
	running sync.WaitGroup
	changes chan struct{} // holds one after a change of addresses
	ended   chan struct{} // holds one after the end of a part, or of its device

	// These belong to the goroutine that serves: first that of Serve, then that of follow.
	parts    map[string]*part // by device
	failures map[place]*failure
	result   error // of Close

	mu   sync.Mutex // guards what follows; nobody waits while holding it
	port uint16     // 0: not chosen yet
	list []netip.AddrPort
}

// place is an address of an interface. One that comes again with a new interface is another.
type place struct {
	addr  netip.Addr // link-local ones with their zones
	name  string
	index int
}

// part is a Part, with its places and the functions that end listening there.
type part struct {
	Part
	opened time.Time
	pause  time.Duration // before that, since its device had failed
	idle   time.Time     // since when it has had no stops; zero: it has some, or is new
	stops  map[place]func()
	had    map[netip.Addr]place // those at which it has listened: its device has their UDP ports
	ending bool                 // end is closed
	failed bool                 // since its device has
	end    chan struct{}        // tells it to close
	closed chan struct{}        // closed when it is, with the result err
	err    error
}

// failure is what has failed, and is tried again.
type failure struct {
	err         error
	tries       int
	first, next time.Time // attempts
	told        string
	coming      bool          // the address is not there yet, or no longer
	pause       time.Duration // after the failure of its device, until that is opened again; zero: it has not failed
}

const (
	portAttempts = 16                    // ports that are tried
	idleTime     = 10 * time.Second      // of a part without addresses, whose connections go on if they return
	settle       = 50 * time.Millisecond // changes come in groups
	// What fails is tried again after a second, then after twice the time before.
	firstRetry, lastRetry = time.Second, time.Minute
	checked               = 10 * time.Second // after that, the system has checked an address (RFC 4862 5.4)
)

// Serve listens on a port at all addresses of this host. cfg.Open opens a part on each device, and Serve
// calls its Listen. Port 0 is one that is free on all devices.
//
// Serve fails if an address cannot be served, and names it and its interface. Addresses that come later,
// and those that the system still checks, it serves later. Listening ends at an address that is gone, and a
// part that has had none for ten seconds is closed. One with an address that moves to another interface is
// closed at once, and opened again for its other addresses. A part whose device fails is closed too, and
// opened again; the others go on.
func Serve(port uint16, cfg ServeConfig) (*Everywhere, error) {
	return serve(port, cfg, places, routes.Changes)
}

// serve is Serve with functions that list the addresses, and report their changes.
func serve(port uint16, cfg ServeConfig, places func() ([]place, error), follow func(ctx context.Context, subscribed, changed func())) (*Everywhere, error) {
	ctx, stop := context.WithCancel(context.Background())
	e := &Everywhere{cfg: cfg, places: places, stop: stop, changes: make(chan struct{}, 1), ended: make(chan struct{}, 1), parts: map[string]*part{}, failures: map[place]*failure{}}
	subscribed := make(chan struct{})
	e.running.Go(func() { follow(ctx, func() { close(subscribed) }, func() { raise(e.changes) }) })
	<-subscribed
	if err := e.begin(port); err != nil {
		closing := e.closeParts()
		return nil, joined(err, errors.Join(closing, e.Close()))
	}
	e.running.Go(func() {
		e.follow(ctx)
		e.result = e.closeParts()
	})
	return e, nil
}

// raise has follow look again, because of a change or the end of a part.
func raise(events chan<- struct{}) {
	select {
	case events <- struct{}{}:
	default: // one waits
	}
}

// begin serves what there is.
func (e *Everywhere) begin(port uint16) error {
	for attempt := 1; ; attempt++ {
		e.setPort(port)
		failed, err := e.update(time.Now())
		if err == nil && len(failed) > 0 {
			err = failed[0]
		}
		if err == nil && len(e.Addrs()) == 0 {
			err = fmt.Errorf("%w: no interface of this host is up and has an address", verbs.ErrNoDevice)
			for _, f := range e.failures {
				err = errors.Join(err, f.err)
			}
		}
		if err == nil || port != 0 || attempt == portAttempts || !errors.Is(err, verbs.ErrInUse) {
			return err
		}
		_ = e.closeParts()
		clear(e.failures)
	}
}

// follow serves what comes later, until ctx ends.
func (e *Everywhere) follow(ctx context.Context) {
	var listing failure
	for e.wait(ctx, listing.next) {
		before := e.Addrs()
		failed, err := e.update(time.Now())
		if err != nil { // what is served stays
			if listing.note(err, time.Now()) {
				e.fail(err)
			}
			continue
		}
		listing = failure{}
		if added := slices.DeleteFunc(e.Addrs(), func(a netip.AddrPort) bool { return slices.Contains(before, a) }); len(added) > 0 {
			e.add(added)
		}
		for _, err := range failed {
			e.fail(err)
		}
	}
}

// wait waits until there may be something to do: after a change or the end of a part, at the time of the next
// attempt, or when a part has been idle for long. If listing the addresses has failed, the attempt is that. It
// reports false when ctx ends.
func (e *Everywhere) wait(ctx context.Context, listing time.Time) bool {
	var next time.Time
	until := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, f := range e.failures {
		until(f.next)
	}
	for _, p := range e.parts {
		if !p.idle.IsZero() && !p.ending {
			until(p.idle.Add(idleTime))
		}
	}
	if !listing.IsZero() {
		next = listing
	}
	var again <-chan time.Time
	if !next.IsZero() {
		again = time.After(time.Until(next))
	}
	select {
	case <-ctx.Done():
	case <-again:
	case <-e.ended: // a device that ends brings no address
	case <-e.changes:
		select {
		case <-ctx.Done():
		case <-time.After(settle):
		}
		for _, f := range e.failures {
			if f.coming {
				f.next = time.Now() // it may have come
			}
		}
	}
	return ctx.Err() == nil
}

// add tells of addresses that have come.
func (e *Everywhere) add(addrs []netip.AddrPort) {
	if e.cfg.Added != nil {
		e.cfg.Added(addrs)
		return
	}
	e.cfg.Log.Info().Any("addresses", addrs).Msg("serving addresses that have come")
}

// fail tells of a failure.
func (e *Everywhere) fail(err error) {
	if e.cfg.Failed != nil {
		e.cfg.Failed(err)
		return
	}
	e.cfg.Log.Warn().Err(err).Msg("cannot serve all addresses")
}

// Addrs are the addresses that are served now, in order. Link-local ones have their zones. There may be
// none, as after Close.
func (e *Everywhere) Addrs() []netip.AddrPort {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

// Port is the port at all addresses.
func (e *Everywhere) Port() uint16 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.port
}

func (e *Everywhere) setPort(port uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.port = port
}

// Close closes all parts, and returns their errors. When it returns, no function of ServeConfig is called
// any more.
func (e *Everywhere) Close() error {
	e.stop()
	e.running.Wait()
	return e.result
}

// closeParts closes all parts, at the same time.
func (e *Everywhere) closeParts() (err error) {
	for _, p := range e.parts {
		p.close()
	}
	for _, p := range e.parts {
		<-p.closed
		err = errors.Join(err, p.err)
	}
	clear(e.parts)
	e.publish()
	return err
}

// close has the part closed. It does not wait.
func (p *part) close() {
	if !p.ending {
		p.ending = true
		close(p.end)
	}
}

// isAbsent reports whether an error says that an address, or its interface, is not there.
func isAbsent(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO) || errors.Is(err, verbs.ErrNoDevice)
}

// note notes that an attempt has failed, and reports whether to tell that.
func (f *failure) note(err error, now time.Time) (tell bool) {
	if f.tries == 0 {
		f.first = now
	}
	f.next = now.Add(min(firstRetry<<min(f.tries, 10), lastRetry))
	f.tries++
	f.err, f.coming = err, isAbsent(err)
	if f.told == err.Error() || f.coming && now.Sub(f.first) < checked {
		return false
	}
	f.told = err.Error()
	return true
}

// placeError says why an address is not served.
type placeError struct {
	place
	err error
}

func (f *placeError) Error() string {
	return fmt.Sprintf("serve %v of interface %s: %v", f.addr, f.name, f.err)
}

// Unwrap returns the reason, in a list, so that nobody takes the text before it for a mere prefix.
func (f *placeError) Unwrap() []error { return []error{f.err} }

// update serves the addresses that are there and not served, unless they are to be tried later, and ends
// what is gone. It returns the failures to tell, or why it does not know the addresses.
func (e *Everywhere) update(now time.Time) (failed []error, err error) {
	all, err := e.places()
	if err != nil {
		return nil, err
	}
	failed = e.endGone(all, now)
	served := map[place]bool{}
	taken := map[string]bool{} // interfaces, with an address whose UDP port a closing device has
	for _, p := range e.parts {
		for at := range p.stops {
			served[at] = true // or will be when the part has closed
		}
		for _, at := range all {
			if _, had := p.had[at.addr]; had && p.ending {
				taken[at.name] = true
			}
		}
	}
	adapters := sync.OnceValue(adapterAddresses) // which opens them
	var unserved []*placeError
	for _, at := range all {
		if f := e.failures[at]; served[at] || f != nil && now.Before(f.next) {
			continue
		}
		device := adapters()[at.addr.WithZone("")]
		switch err := e.serve(at, device, taken[at.name]); {
		case err == nil:
			delete(e.failures, at)
		case err != errEnding:
			unserved = append(unserved, &placeError{at, err})
		case e.failures[at] != nil: // else wait would not wait until the part has closed
			e.failures[at].next = now.Add(firstRetry)
		}
	}
	failed = append(failed, e.note(unserved, now)...)
	for _, p := range e.parts {
		switch {
		case len(p.stops) > 0:
			p.idle = time.Time{}
		case len(p.had) == 0 || !p.idle.IsZero() && now.Sub(p.idle) >= idleTime:
			p.close()
		case p.idle.IsZero():
			p.idle = now
		}
	}
	e.publish()
	return failed, nil
}

// note notes which places are not served, without those that have gone meanwhile. It returns the failures
// to tell.
func (e *Everywhere) note(unserved []*placeError, now time.Time) (failed []error) {
	if len(unserved) == 0 {
		return nil
	}
	all, err := e.places()
	for _, u := range unserved {
		if err == nil && !slices.Contains(all, u.place) {
			delete(e.failures, u.place)
			continue
		}
		f := e.failures[u.place]
		if f == nil {
			f = new(failure)
			e.failures[u.place] = f
		}
		if f.note(u, now) {
			failed = append(failed, u)
		}
	}
	return failed
}

// endGone ends what is gone: listening at addresses, and parts whose device has failed or is outdated. It
// forgets the parts that have closed, and returns the failures to tell.
func (e *Everywhere) endGone(all []place, now time.Time) (failed []error) {
	for at := range e.failures {
		if !slices.Contains(all, at) {
			delete(e.failures, at)
		}
	}
	for device, p := range e.parts {
		for at, stop := range p.stops {
			if !slices.Contains(all, at) {
				stop()
				delete(p.stops, at)
			}
		}
		if !p.ending {
			p.failed = isClosed(p.Done())
		}
		if p.failed || p.outdated(all) {
			p.close()
		}
		if !isClosed(p.closed) {
			continue
		}
		delete(e.parts, device)
		if p.failed {
			pause := firstRetry
			if now.Sub(p.opened) < 2*lastRetry { // it fails again and again
				pause = min(max(pause, 2*p.pause), lastRetry)
			}
			for at := range p.stops {
				e.failures[at] = &failure{next: now.Add(pause), pause: pause}
			}
		}
		switch {
		case p.failed && p.err == nil:
			failed = append(failed, fmt.Errorf("device %s has failed", device))
		case p.err != nil:
			failed = append(failed, fmt.Errorf("device %s: %w", device, p.err))
		}
	}
	return failed
}

// outdated reports whether a part had an address that is at another interface now, whose device needs its
// UDP port, or whether its interface has been replaced.
func (p *part) outdated(all []place) bool {
	for _, had := range p.had {
		if slices.ContainsFunc(all, func(at place) bool {
			return at != had && (at.addr == had.addr || at.name == had.name && at.index != had.index)
		}) {
			return true
		}
	}
	return false
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// publish sets what Addrs returns.
func (e *Everywhere) publish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = nil
	for _, p := range e.parts {
		for at := range p.stops {
			if !p.ending {
				e.list = append(e.list, netip.AddrPortFrom(at.addr, e.port))
			}
		}
	}
	slices.SortFunc(e.list, netip.AddrPort.Compare)
}

// errEnding: the part on the device, or one that had an address of its interface, is being closed. The address waits for that.
var errEnding = errors.New("the device is being closed")

// serve serves an address on its adapter or, without one, on the software device of its interface. If that
// was opened before the interface had the address, it does not have it; then the address gets a device of
// its own. wait: none is to be opened now.
func (e *Everywhere) serve(at place, adapter string, wait bool) error {
	if adapter != "" {
		return e.serveOn(adapter, at, wait)
	}
	err := e.serveOn(softDevice(at.name), at, wait)
	if errors.Is(err, verbs.ErrInvalid) {
		return e.serveOn(ownDevice(at.addr), at, wait)
	}
	return err
}

// serveOn serves an address on a device, which it opens if it is not open, unless that is to wait.
func (e *Everywhere) serveOn(device string, at place, wait bool) error {
	p := e.parts[device]
	if p == nil && wait {
		return errEnding
	}
	if p == nil {
		opened, err := e.cfg.Open(device)
		if err != nil {
			return err
		}
		p = &part{Part: opened, opened: time.Now(), stops: map[place]func(){}, had: map[netip.Addr]place{}, end: make(chan struct{}), closed: make(chan struct{})}
		e.parts[device] = p
		e.running.Go(func() { e.attend(p) })
	}
	if p.ending {
		return errEnding
	}
	port, stop, err := p.Listen(netip.AddrPortFrom(at.addr, e.Port()))
	if err != nil {
		return err
	}
	e.setPort(port)
	if f := e.failures[at]; f != nil {
		p.pause = max(p.pause, f.pause)
	}
	p.stops[at], p.had[at.addr] = stop, at
	return nil
}

// attend notices that the device of a part fails, and closes the part when it is to end.
func (e *Everywhere) attend(p *part) {
	select {
	case <-p.Done():
		raise(e.ended)
		<-p.end
	case <-p.end:
	}
	p.err = p.Close()
	close(p.closed)
	raise(e.ended)
}

// joined is errors.Join that leaves one error as it is.
func joined(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}

func softDevice(name string) string { return "soft-" + name }

// ownDevice names the software device of one address. Port 0: the device takes another one than 4791 if
// another program has that, as devices of interfaces do.
func ownDevice(addr netip.Addr) string { return softDevice(netip.AddrPortFrom(addr, 0).String()) }

// places returns the addresses of this host, each once. Of 127.0.0.0/8 it is 127.0.0.1, by which
// programs find the listener of a software device.
func places() (list []place, err error) {
	own, err := hostaddr.List()
	for _, o := range own {
		if o.Addr.Is4() && o.Addr.IsLoopback() {
			o.Addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		if !slices.ContainsFunc(list, func(other place) bool { return other.addr == o.Addr }) {
			list = append(list, place{o.Addr, o.Interface, o.Index})
		}
	}
	return list, err
}
