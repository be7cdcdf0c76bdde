package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/progress"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/session"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
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

func receive(ctx context.Context, c *invocation) error {
	var o receiveFlags
	f := c.flags(&o.common)
	f.StringVar(&o.listen, "l", "", fmt.Sprintf("`address` to listen on, HOST:PORT; :PORT stands for all of the device's (default 127.0.0.1:%d, or all of the device's with -d)", defaultPort))
	f.BoolVar(&o.newSecret, "new-secret", false, "make up a secret, and print it once")
	f.BoolVar(&o.insecure, "insecure", false, "without a secret, take from other machines too: whoever reaches the address may write files here")
	f.StringVar(&o.existing, "existing", "refuse", "what becomes of files that exist with another content: `refuse`, skip or overwrite")
	f.BoolVar(&o.once, "once", false, "end after one transfer, with its exit code")
	f.DurationVar(&o.retry, "retry", time.Minute, "with -once: when the connection breaks, wait for this long for the sender to make another")
	f.BoolVar(&o.sync, "sync", false, "have every file on the disk before it is reported")
	f.StringVar(&o.key, "key", "", "`text` for senders in return for their ID (default a random one for each transfer)")
	f.Var(&o.maxSize, "max-size", "refuse files of more `bytes`")
	f.IntVar(&o.transfers, "transfers", 8, "how many transfers to take at a time")
	f.IntVar(&o.slots, "window", session.DefaultSlots, "how many blocks of 1 MiB each transfer has under way: 1 to "+strconv.Itoa(proto.MaxSlots))
	args, err := parse(f, c.args)
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
		return usage(errors.New("give one folder to receive into; -h lists the flags"))
	case o.slots < 1 || o.slots > proto.MaxSlots:
		return usage(fmt.Errorf("-window is %d; 1 to %d are possible", o.slots, proto.MaxSlots))
	case o.transfers < 1 || o.transfers > 1000:
		return usage(fmt.Errorf("-transfers is %d; 1 to 1000 are possible", o.transfers))
	case len(o.key) > proto.MaxID:
		return usage(fmt.Errorf("the key has %d bytes; %d are possible", len(o.key), proto.MaxID))
	}
	policy, err := tree.ParsePolicy(o.existing)
	if err != nil {
		return usage(fmt.Errorf("-existing: %w", err))
	}
	secret, err := o.theSecret()
	if err != nil {
		return err
	}
	if o.newSecret {
		if secret != nil {
			return usage(errors.New("both a secret and -new-secret are given; leave one out"))
		}
		secret = []byte(rand.Text())
	}
	host, port, err := o.where(ctx)
	if err != nil {
		return err
	}
	s, err := openStation(ctx, o.device, o.transfers, false)
	if err != nil {
		return err
	}
	defer closeWith(&err, s.close)
	if secret == nil && !o.insecure {
		if own, err := loopback(s.dev); err != nil {
			return err
		} else if !own {
			return usage(fmt.Errorf("without a secret only programs of this machine may send, which do not come by %s; give -new-secret, -secret, or -insecure", o.device))
		}
	}
	dest, err := tree.OpenDest(args[0], policy)
	if err != nil {
		return err
	}
	defer closeWith(&err, dest.Close)
	r := session.NewReceiver(dest, session.ReceiverConfig{Secret: secret, Insecure: o.insecure, Key: o.key,
		MaxSize: uint64(o.maxSize), Slots: o.slots, Sync: o.sync})

	serving, stop := context.WithCancelCause(s.ctx)
	defer stop(nil)
	var sessions sync.WaitGroup
	defer sessions.Wait()
	single := single{patience: o.retry, receiver: r, ended: make(chan error, 1), broken: map[[16]byte]int{}}
	addr, err := s.listen(ctx, host, port, func(l *link.Link) {
		sessions.Go(func() {
			sum, err := o.serve(serving, r, l, p)
			if o.once {
				single.end(serving, sum, err)
			}
		})
	})
	if errors.Is(err, rdma.ErrInvalid) {
		return usage(err)
	}
	if err != nil {
		return err
	}
	p.Note("listening", map[string]any{"address": addr, "device": s.dev.Name(), "folder": args[0]},
		"listening on %s (device %s), into %s; Ctrl-C ends", addr, s.dev.Name(), args[0])
	if o.newSecret {
		p.Warn("secret", map[string]any{"secret": string(secret)}, "the secret is %s", secret)
	}
	var result error
	select {
	case <-serving.Done():
	case result = <-single.ended:
	}
	stop(errDone)
	sessions.Wait()
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	return result
}

var errDone = errors.New("the receiver takes one transfer only")

// single ends the program after one transfer (-once).
type single struct {
	patience time.Duration // how long a sender may take to connect again
	receiver *session.Receiver
	ended    chan error // receives the error of the transfer, which ends the program

	mu     sync.Mutex
	broken map[[16]byte]int // by transfer: how many connections were lost
}

// end handles the end of a session. A connection whose peer did not complete the handshake is
// not a transfer.
func (o *single) end(ctx context.Context, sum session.Summary, err error) {
	if sum.Transfer == [16]byte{} || ctx.Err() != nil {
		return
	}
	if !sum.Complete && errors.Is(err, link.ErrBroken) {
		if !o.lost(ctx, sum.Transfer) {
			return
		}
		err = fmt.Errorf("the connection was lost, and the sender made no other within %v (-retry): %w", o.patience, err)
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
func (o *single) lost(ctx context.Context, transfer [16]byte) bool {
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

// where returns the address to listen on. It chooses the device, unless a flag has.
func (o *receiveFlags) where(ctx context.Context) (host string, port uint16, err error) {
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
	if host == "" {
		return "", 0, usage(fmt.Errorf("-l %s names no interface; give an address of this machine, or a device (-d)", o.listen))
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
