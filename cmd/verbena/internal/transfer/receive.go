package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/listening"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/progress"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/session"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/device/route"
	help "github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/rdma"
)

// receiveFlags holds the flags of verbena receive.
type receiveFlags struct {
	common
	listen    string
	insecure  bool
	newSecret bool
	existing  string
	once      bool
	retry     time.Duration
	sync      bool
	key       string
	maxSize   bytesFlag
	transfers int
	slots     int
}

// ReceivePage describes verbena receive.
func ReceivePage() *help.Page { return (&receiveFlags{}).page() }

func (o *receiveFlags) page() *help.Page {
	f := o.flags("verbena receive")
	f.StringVar(&o.listen, "l", "", fmt.Sprintf("`host:port` to listen on; :PORT means all addresses of this host, or with -d of the device (default 127.0.0.1:%d, or with -d all of the device)", defaultPort))
	f.BoolVar(&o.newSecret, "new-secret", false, "generate a secret, and print it once")
	f.BoolVar(&o.insecure, "insecure", false, "without a secret, accept senders on other machines too: anyone who reaches the address can write files here")
	f.StringVar(&o.existing, "existing", "refuse", "what to do with files that exist with another size or time: refuse, skip or overwrite; only overwrite changes permissions of what exists")
	f.BoolVar(&o.once, "once", false, "end after one transfer, with its exit code")
	f.DurationVar(&o.retry, "retry", time.Minute, "with -once: how long to wait for the sender to reconnect after the connection was lost")
	f.BoolVar(&o.sync, "sync", false, "flush each file to the disk before reporting it")
	f.StringVar(&o.key, "key", "", "`text` to send in return for the sender's ID (default: a random one for each transfer)")
	f.Var(&o.maxSize, "max-size", "refuse files larger than this number of `bytes`")
	f.IntVar(&o.transfers, "transfers", 8, "`number` of transfers to receive at the same time")
	f.IntVar(&o.slots, "window", session.DefaultSlots, "`number` of 1 MiB blocks that each transfer may have in flight: 1 to "+strconv.Itoa(proto.MaxSlots))
	help.SetType(f, "existing", "refuse|skip|overwrite")
	return &help.Page{Name: "verbena receive", About: "receive files, directories and messages into a folder",
		Forms: []string{"[flags] DIR"},
		Text:  "Receives files, directories and messages from verbena send into the folder DIR.", Flags: f}
}

func receive(ctx context.Context, c *invocation) error {
	var o receiveFlags
	args, err := c.parse(o.page())
	p := c.printer(&o.common)
	if err == nil {
		err = o.run(ctx, p, args)
	}
	report(p, err)
	return err
}

func (o *receiveFlags) run(ctx context.Context, p *progress.Printer, args []string) (err error) {
	switch {
	case len(args) != 1:
		return usage(errors.New("give one folder to receive into"))
	case o.slots < 1 || o.slots > proto.MaxSlots:
		return usage(fmt.Errorf("-window is %d; it must be 1 to %d", o.slots, proto.MaxSlots))
	case o.transfers < 1 || o.transfers > 1000:
		return usage(fmt.Errorf("-transfers is %d; it must be 1 to 1000", o.transfers))
	case len(o.key) > proto.MaxID:
		return usage(fmt.Errorf("the key has %d bytes; the limit is %d", len(o.key), proto.MaxID))
	}
	policy, err := tree.ParsePolicy(o.existing)
	if err != nil {
		return usage(fmt.Errorf("-existing: %w", err))
	}
	secret, err := o.readSecret()
	if err != nil {
		return err
	}
	if o.newSecret {
		if secret != nil {
			return usage(errors.New("a secret and -new-secret exclude each other"))
		}
		secret = []byte(rand.Text())
	}
	host, port, err := o.listenAddress(ctx)
	if err != nil {
		return err
	}
	everywhere := o.device == ""
	if everywhere && secret == nil && !o.insecure {
		return usage(fmt.Errorf("without a secret only programs on this machine may send, and -l %s means all addresses; add -new-secret, -secret or -insecure", o.listen))
	}
	closeEndpoints := func() error { return nil }
	defer func() { closeWith(&err, closeEndpoints) }()
	var s *endpoint // the only one
	if !everywhere {
		if s, err = openEndpoint(ctx, o.device, o.transfers, false); err != nil {
			return err
		}
		closeEndpoints = s.close
		if secret == nil && !o.insecure {
			if own, err := loopback(s.dev); err != nil {
				return err
			} else if !own {
				return usage(fmt.Errorf("without a secret only programs on this machine may send, and they do not use %s; add -new-secret, -secret or -insecure", o.device))
			}
		}
	}
	dest, err := tree.OpenDest(args[0], policy)
	if err != nil {
		return err
	}
	defer closeWith(&err, dest.Close)
	r := session.NewReceiver(dest, session.ReceiverConfig{Secret: secret, Insecure: o.insecure, Key: o.key,
		MaxSize: uint64(o.maxSize), Slots: o.slots, Sync: o.sync})

	serving, stop := context.WithCancelCause(ctx)
	places := &places{free: o.transfers}
	once := onceResult{patience: o.retry, receiver: r, ended: make(chan error, 1), broken: map[[16]byte]int{}}
	var sessions sync.WaitGroup
	end := func(cause error) {
		stop(cause)
		places.close()
		sessions.Wait()
	}
	defer end(nil)
	l := listener{
		ctx: serving, places: places,
		serve: func(ctx context.Context, l *link.Link, served func()) {
			sessions.Go(func() {
				sum, err := o.serve(ctx, r, l, p)
				served() // before end waits for the sender, which needs the place
				if o.once {
					once.end(serving, sum, err)
				}
			})
		},
		told: func(addrs []netip.AddrPort, dev string) {
			fields := map[string]any{"folder": args[0]}
			if dev != "" {
				fields["device"] = dev
				dev = fmt.Sprintf(" (device %s)", dev)
			}
			for _, a := range addrs {
				fields["address"] = a.String()
				p.Note("listening", fields, "listening on %v%s, into %s; Ctrl-C ends", a, dev, args[0])
			}
		},
	}
	if everywhere {
		closeEndpoints, err = l.everywhere(ctx, o, port, p)
	} else {
		err = l.on(ctx, s, hostPort(host, port))
		defer context.AfterFunc(s.ctx, func() { stop(context.Cause(s.ctx)) })()
	}
	if errors.Is(err, rdma.ErrInvalid) {
		return usage(err)
	}
	if err != nil {
		return err
	}
	if o.newSecret {
		p.Warn("secret", map[string]any{"secret": string(secret)}, "the secret is %s", secret)
	}
	var result error
	select {
	case <-serving.Done():
		result = context.Cause(serving)
	case result = <-once.ended:
	}
	end(errDone)
	return result
}

// listener listens for senders.
type listener struct {
	ctx    context.Context // ends with the program
	places *places
	// serve has a goroutine serve a link until ctx ends. That calls served when it no longer uses the link.
	serve func(ctx context.Context, l *link.Link, served func())
	told  func(addrs []netip.AddrPort, dev string) // dev may be empty
}

// on listens at an address of one device.
func (l *listener) on(ctx context.Context, s *endpoint, addr string) error {
	at, _, err := s.listen(ctx, addr, l.places, func(k *link.Link) { l.serve(l.ctx, k, l.places.giveBack) })
	if err == nil {
		if given, err := netip.ParseAddrPort(addr); err == nil {
			at = netip.AddrPortFrom(at.Addr().WithZone(given.Addr().Zone()), at.Port())
		}
		l.told(listening.At(s.dev, at), s.dev.Name())
	}
	return err
}

// everywhere listens at all addresses of this host.
func (l *listener) everywhere(ctx context.Context, o *receiveFlags, port uint16, p *progress.Printer) (stop func() error, err error) {
	e, err := route.Serve(port, route.ServeConfig{
		Open: func(name string) (route.Part, error) {
			s, err := openEndpoint(ctx, name, o.transfers, false)
			if err != nil {
				return nil, err
			}
			return l.part(s, o.transfers), nil
		},
		Added: func(addrs []netip.AddrPort) { l.told(addrs, "") },
		Failed: func(err error) {
			p.Warn("address", map[string]any{"reason": oneLine(err)}, "cannot listen at all addresses: %s", oneLine(err))
		},
	})
	if err != nil {
		return func() error { return nil }, err
	}
	l.told(e.Addrs(), "")
	return e.Close, nil
}

// part is an endpoint among those of all addresses.
type part struct {
	*endpoint
	listener *listener
	places   *places         // of its own sessions, which also have one of listener.places
	serving  context.Context // ends with the part
	cancel   context.CancelCauseFunc
}

func (l *listener) part(s *endpoint, transfers int) *part {
	p := &part{endpoint: s, listener: l, places: &places{free: transfers, shared: l.places}}
	p.serving, p.cancel = context.WithCancelCause(l.ctx)
	return p
}

// Listen implements route.Part.
func (p *part) Listen(addr netip.AddrPort) (port uint16, stop func(), err error) {
	at, stop, err := p.listen(p.ctx, addr.String(), p.places, func(l *link.Link) { p.listener.serve(p.serving, l, p.places.giveBack) })
	return at.Port(), stop, err
}

// Done implements route.Part.
func (p *part) Done() <-chan struct{} { return p.ended }

// Close implements route.Part. It ends the sessions first: they use memory of the device.
func (p *part) Close() error {
	p.cancel(errPartClosed)
	p.places.close()
	return p.close()
}

// errPartClosed is an ErrBroken, so that the sender connects again, to another address or later.
var errPartClosed = fmt.Errorf("%w: the receiver's address is gone, or its device has failed", link.ErrBroken)

var errDone = errors.New("the receiver accepts only one transfer")

// onceResult ends the program after one transfer (-once).
type onceResult struct {
	patience time.Duration // how long a sender may take to connect again
	receiver *session.Receiver
	ended    chan error // receives the error of the transfer, which ends the program

	mu     sync.Mutex
	broken map[[16]byte]int // by transfer: how many connections were lost
}

// end handles the end of a session. A connection whose peer did not complete the handshake is
// not a transfer.
func (o *onceResult) end(ctx context.Context, sum session.Summary, err error) {
	if sum.Transfer == [16]byte{} || ctx.Err() != nil {
		return
	}
	if !sum.Complete && errors.Is(err, link.ErrBroken) {
		if !o.lost(ctx, sum.Transfer) {
			return
		}
		err = fmt.Errorf("the connection was lost, and the sender did not reconnect within %v (-retry): %w", o.patience, err)
	}
	if err == nil {
		err = partial(sum)
	}
	select {
	case o.ended <- err:
	default: // another transfer has ended before
	}
}

// lost waits for the sender of a lost connection to connect again. It returns false if the
// sender did so, or if a later connection of it was lost, too: the call for that one waits on.
func (o *onceResult) lost(ctx context.Context, transfer [16]byte) bool {
	o.mu.Lock()
	o.broken[transfer]++
	n := o.broken[transfer]
	o.mu.Unlock()
	select {
	case <-time.After(o.patience):
	case <-ctx.Done():
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.broken[transfer] == n && !o.receiver.Receives(transfer)
}

// listenAddress returns the address to listen on. It chooses the device, unless a flag has, or all
// addresses are meant.
func (o *receiveFlags) listenAddress(ctx context.Context) (host string, port uint16, err error) {
	if o.listen == "" {
		if o.device == "" {
			o.device = loopbackDevice
		}
		return "", defaultPort, nil
	}
	if host, port, err = splitAddress(o.listen); err != nil {
		return "", 0, usage(err)
	}
	if o.device != "" {
		return host, port, nil
	}
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		return "", port, nil // all addresses
	}
	device, addr, err := deviceTo(ctx, host)
	if err != nil {
		return "", 0, usage(err)
	}
	o.device = device
	if addr.IsLoopback() {
		return "", port, nil // every program has its own loopback address
	}
	return host, port, nil
}

// serve receives over one connection.
func (o *receiveFlags) serve(ctx context.Context, r *session.Receiver, l *link.Link, p *progress.Printer) (session.Summary, error) {
	defer closeLink(l)
	began := time.Now()
	sum, err := r.Serve(ctx, l, p)
	peer := l.Connection().PeerAddr().Addr().Unmap()
	fields := map[string]any{"peer": peer.String(), "entries": sum.Entries, "had": sum.Had, "failed": sum.Failed, "bytes": sum.Bytes,
		"seconds": time.Since(began).Seconds(), "id": sum.ID, "key": sum.Key, "complete": sum.Complete}
	switch {
	case err != nil:
		fields["reason"] = oneLine(err)
		p.Warn("transfer", fields, "from %v: %s", peer, oneLine(err))
	case sum.Text:
		p.Note("transfer", fields, "a message of %s (%v); key %s", tree.Show(sum.ID), peer, tree.Show(sum.Key))
	default:
		p.Note("transfer", fields, "%s of %s (%v); key %s", describe(sum, time.Since(began)), tree.Show(sum.ID), peer, tree.Show(sum.Key))
	}
	return sum, err
}

func isSet(f *flag.FlagSet, name string) (set bool) {
	f.Visit(func(g *flag.Flag) { set = set || g.Name == name })
	return set
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
