package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/verbs"
)

// Part is the part of a server on one device.
type Part interface {
	// Listen listens at an address, and returns the port; port 0 is any that is free there. The error
	// matches verbs.ErrInvalid if the device does not have the address, and verbs.ErrInUse if the
	// port is taken, as those of rdma.Connections.Listen do.
	Listen(addr netip.AddrPort) (port uint16, err error)
	// Close ends the part. Listen is not called any more.
	Close() error
}

// Everywhere is a server at all addresses of this host: those of the interfaces that are up,
// loopback included, and those that come later. It has a part on each device. Its methods may be called
// from any goroutine.
type Everywhere struct {
	open    func(device string) (Part, error)
	later   func(addrs []netip.AddrPort, err error)
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // guards what follows
	port   uint16     // 0: not chosen yet
	parts  map[string]*devicePart
	failed map[place]string // what later was told
}

// devicePart is a part, with where it listens.
type devicePart struct {
	Part
	places []place
}

// place is an address of an interface. One that comes again is another.
type place struct {
	addr   netip.Addr // link-local ones with their zones
	name   string
	index  int
	device string // the adapter that has the address, or the software device of the interface
}

const (
	portAttempts = 16                    // ports that Serve tries
	settle       = 50 * time.Millisecond // changes come in groups
	retry        = 2 * time.Second       // after a failure that may pass, such as a port in use
)

// Serve listens on a port at all addresses of this host. open opens a part on a device; Serve then calls
// its Listen. Port 0 is one that is free on all devices.
//
// Serve fails if an address cannot be served, and names it and its interface. The others it serves later:
// addresses that come later, and those that the system still checks (RFC 4862 5.4). An address that is
// gone is no longer served. It calls later with addresses that it serves since, or with the reason why one
// cannot be served, once for each reason. open and later are called on a goroutine of Serve, one call at a
// time.
func Serve(port uint16, open func(device string) (Part, error), later func(addrs []netip.AddrPort, err error)) (*Everywhere, error) {
	ctx, stop := context.WithCancel(context.Background())
	e := &Everywhere{open: open, later: later, stop: stop, parts: map[string]*devicePart{}, failed: map[place]string{}}
	subscribed, changes := make(chan struct{}), make(chan struct{}, 1)
	e.running.Go(func() {
		routes.Changes(ctx, func() { close(subscribed) }, func() {
			select {
			case changes <- struct{}{}:
			default: // one waits
			}
		})
	})
	<-subscribed
	if err := e.begin(port); err != nil {
		return nil, joined(err, e.Close())
	}
	e.running.Go(func() { e.follow(ctx, changes) })
	return e, nil
}

// begin serves what there is.
func (e *Everywhere) begin(port uint16) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for attempt := 1; ; attempt++ {
		e.port = port
		addrs, failures, err := e.update()
		for _, f := range failures {
			if err == nil && !f.mayCome() {
				err = f
			}
		}
		switch {
		case err == nil && len(addrs) == 0:
			return errors.Join(append([]error{fmt.Errorf("%w: no interface of this host is up and has an address", verbs.ErrNoDevice)}, asErrors(failures)...)...)
		case err == nil:
			return nil
		case port != 0 || attempt == portAttempts || !errors.Is(err, verbs.ErrInUse):
			return err
		}
		_ = e.closeParts()
	}
}

// follow serves what comes later, until ctx ends.
func (e *Everywhere) follow(ctx context.Context, changes <-chan struct{}) {
	for {
		var again <-chan time.Time
		e.mu.Lock()
		if len(e.failed) > 0 {
			again = time.After(retry)
		}
		e.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-changes:
			select {
			case <-ctx.Done():
				return
			case <-time.After(settle):
			}
		}
		e.mu.Lock()
		told := e.failed
		addrs, failures, err := e.update()
		e.mu.Unlock()
		if err != nil {
			continue // the system did not list its interfaces, and will
		}
		if len(addrs) > 0 {
			e.later(addrs, nil)
		}
		for _, f := range failures {
			if told[f.place] != f.Error() && !f.mayCome() {
				e.later(nil, f)
			}
		}
	}
}

// Addrs are the addresses that are served now. Link-local ones have their zones.
func (e *Everywhere) Addrs() (list []netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.parts {
		list = append(list, e.addrs(p.places)...)
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

func (e *Everywhere) addrs(places []place) (list []netip.AddrPort) {
	for _, p := range places {
		list = append(list, netip.AddrPortFrom(p.addr, e.port))
	}
	return list
}

// Close closes all parts, and returns their errors. later is not called any more when it returns.
func (e *Everywhere) Close() error {
	e.stop()
	e.running.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closeParts()
}

func (e *Everywhere) closeParts() (err error) {
	for name, p := range e.parts {
		err = errors.Join(err, p.Close())
		delete(e.parts, name)
	}
	return err
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

// mayCome reports whether the address is not there yet, or no longer.
func (f *placeError) mayCome() bool {
	return errors.Is(f.err, syscall.EADDRNOTAVAIL) || errors.Is(f.err, verbs.ErrNoDevice)
}

func asErrors(list []*placeError) (errs []error) {
	for _, f := range list {
		errs = append(errs, f)
	}
	return errs
}

// update serves the addresses that are there and not served, and ends the parts whose addresses are all
// gone.
func (e *Everywhere) update() (added []netip.AddrPort, failures []*placeError, err error) {
	all, err := places()
	if err != nil {
		return nil, nil, err
	}
	served := map[place]bool{}
	for name, p := range e.parts {
		if p.places = slices.DeleteFunc(p.places, func(own place) bool { return !slices.Contains(all, own) }); len(p.places) == 0 {
			_ = p.Close()
			delete(e.parts, name)
		}
		for _, own := range p.places {
			served[own] = true
		}
	}
	e.failed = map[place]string{}
	for _, p := range all {
		if served[p] {
			continue
		}
		if err := e.serve(p); err != nil {
			f := &placeError{p, err}
			failures = append(failures, f)
			e.failed[p] = f.Error()
			continue
		}
		added = append(added, e.addrs([]place{p})...)
	}
	return added, failures, nil
}

// serve serves an address on its device. A software device that was opened before its interface had the
// address does not have it; then the address gets a device of its own.
func (e *Everywhere) serve(p place) error {
	err := e.serveOn(p.device, p)
	if errors.Is(err, verbs.ErrInvalid) && p.device == softDevice(p.name) {
		return e.serveOn(softDevice(p.addr.String()), p)
	}
	return err
}

func (e *Everywhere) serveOn(device string, p place) error {
	part := e.parts[device]
	if part == nil {
		opened, err := e.open(device)
		if err != nil {
			return err
		}
		part = &devicePart{Part: opened}
	}
	port, err := part.Listen(netip.AddrPortFrom(p.addr, e.port))
	if err != nil {
		if len(part.places) == 0 {
			err = joined(err, part.Close())
		}
		return err
	}
	e.parts[device], e.port = part, port
	part.places = append(part.places, p)
	return nil
}

// joined is errors.Join that leaves one error as it is.
func joined(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}

func softDevice(name string) string { return "soft-" + name }

// places returns the addresses of this host, each once. Of 127.0.0.0/8 it is 127.0.0.1, by which
// programs find the listener of a software device.
func places() (list []place, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	adapters := adapterAddresses()
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if i.Flags&net.FlagUp == 0 || err != nil { // it is gone
			continue
		}
		for _, own := range addrs {
			prefix, err := netip.ParsePrefix(own.String())
			if err != nil || prefix.Addr().IsMulticast() {
				continue
			}
			p := place{addr: prefix.Addr().Unmap(), name: i.Name, index: i.Index, device: softDevice(i.Name)}
			switch {
			case p.addr.Is4() && p.addr.IsLoopback():
				p.addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
			case p.addr.IsLinkLocalUnicast() && p.addr.Is6():
				p.addr = p.addr.WithZone(i.Name)
			}
			if adapter := adapters[p.addr.WithZone("")]; adapter != "" {
				p.device = adapter
			}
			if !slices.ContainsFunc(list, func(other place) bool { return other.addr == p.addr }) {
				list = append(list, p)
			}
		}
	}
	return list, nil
}
