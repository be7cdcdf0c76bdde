// Package etcd is a way for oob by which any number of programs, on any number of
// hosts, find each other by name through an etcd cluster. It is a module of its own, so
// that its dependencies stay here.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"etcd-host:2379"}})
//	peer, err := oob.New(etcd.New(client, etcd.Config{}), oob.Config{Name: "client", Peer: "server"})
//
// A responder registers under its name, with its bundle and a lease that is kept alive:
// the entry of a program that was killed goes away by itself. A requester takes a
// responder of the peer's name that nobody has taken, and the two confirm each other,
// so that neither is left with one that died meanwhile. The programs may start in any
// order, and be restarted.
//
// # Several peers
//
// A way is for one pair. A program that serves several peers of one name opens one
// Peer for each, and another whenever one has been found; requesters, however many,
// share them out among themselves, the oldest entry first. Where every program connects
// to every other, each opens a Peer for each other name; of two, the names can say which
// is the requester, such as the one that is less.
//
// A program that goes on when a peer has died closes its Peer when the connection is
// reported Closed, on a goroutine of its own, and opens another, which waits until the
// peer has been started again.
//
// # Trust
//
// Whoever can read the directory can read the keys of memory in it, and whoever can
// write to it can pretend to be a peer: use TLS and etcd's users. What is read is
// bounded and decoded strictly.
package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/oob/internal/frame"
)

// Config says where in the directory the programs meet. The zero value is usable.
type Config struct {
	// Prefix is what all keys begin with; both programs need the same. Empty:
	// "/verbena/oob".
	Prefix string
	// TTL is how long the entry of a program that was killed stays, at least, in whole
	// seconds. Zero: 5 s.
	TTL time.Duration
}

const (
	defaultPrefix = "/verbena/oob"
	defaultTTL    = 5 * time.Second
	// closeTimeout is how long Close may take to report and to remove what was made.
	closeTimeout = 5 * time.Second
	// retryInterval is how long to wait after an error of the cluster.
	retryInterval = 500 * time.Millisecond
	// lookAfter is how long to wait before looking for programs of a wrong pair, and
	// maxLook how many entries are looked at.
	lookAfter = 2 * time.Second
	maxLook   = 1000
)

// errLost has a program register again.
var errLost = errors.New("the lease has expired")

// way is a meeting of two programs. The keys of a responder whose run is R:
//
//	PREFIX/NAME/R           its frame, with its bundle
//	PREFIX/NAME/R/claim     the frame of the requester that has taken it, with its bundle
//	PREFIX/NAME/R/accept    the requester's run, when the responder has seen it
//	PREFIX/NAME/R/confirm   the requester's run, when it has seen that
//	PREFIX/NAME/R/outcome   how the requester ended
//
// A requester has PREFIX/NAME/R only, without a bundle, to be seen. Claims and
// confirmations go with the requester's lease, everything else with the responder's.
type way struct {
	client *clientv3.Client
	prefix string
	ttl    int64
	ends   oob.Ends

	run      string
	lease    clientv3.LeaseID
	stop     context.CancelFunc // ends the keepalive
	alive    sync.WaitGroup
	met      string           // PREFIX/NAME/R of the responder, once the two have met
	owner    clientv3.LeaseID // the responder's lease
	revision int64            // at which they met
}

// New makes a way through the cluster of a client, which stays the caller's: it is
// closed after the Peer.
func New(client *clientv3.Client, cfg Config) oob.Way {
	w := &way{client: client, prefix: strings.TrimRight(cfg.Prefix, "/"), ttl: int64((cfg.TTL + time.Second - 1) / time.Second)}
	if w.prefix == "" {
		w.prefix = defaultPrefix
	}
	if w.ttl <= 0 {
		w.ttl = int64(defaultTTL / time.Second)
	}
	return w
}

func (w *way) String() string { return "the etcd directory " + w.prefix }

func (w *way) key(name, run string) string { return w.prefix + "/" + name + "/" + run }

// Exchange implements oob.Way.
func (w *way) Exchange(ctx context.Context, ends oob.Ends, ours []byte) ([]byte, error) {
	w.ends = ends
	away := false
	for {
		theirs, err := w.meet(ctx, ours)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case unavailable(err):
			if !away {
				away = true
				ends.Note(fmt.Sprintf("%v cannot be reached, trying again: %v", w, err))
			}
		case !errors.Is(err, errLost) && !errors.Is(err, rpctypes.ErrLeaseNotFound):
			return theirs, err
		}
		_ = w.leave() // what stays expires
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// unavailable reports whether the cluster could not be reached, or has no leader now.
func unavailable(err error) bool {
	var e rpctypes.EtcdError
	return errors.As(err, &e) && e.Code() == codes.Unavailable || status.Code(err) == codes.Unavailable ||
		errors.Is(err, context.DeadlineExceeded)
}

// meet registers, and meets a peer.
func (w *way) meet(ctx context.Context, ours []byte) ([]byte, error) {
	lost, err := w.register(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(lost, func() { cancel(errLost) })()
	var looking sync.WaitGroup
	looking.Go(func() {
		select {
		case <-time.After(lookAfter):
			w.look(ctx)
		case <-ctx.Done():
		}
	})
	defer looking.Wait()
	defer cancel(nil) // before it
	f := frame.Frame{From: w.ends.Name, To: w.ends.Peer, Run: w.run, Responder: w.ends.Role == oob.Responder, Body: ours}
	var theirs []byte
	if f.Responder {
		theirs, err = w.respond(ctx, f)
	} else {
		theirs, err = w.request(ctx, f)
	}
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	return theirs, err
}

// register takes a lease and keeps it alive until leave. The context that it returns
// ends when the lease is lost.
func (w *way) register(ctx context.Context) (lost context.Context, err error) {
	try, cancel := context.WithTimeout(ctx, closeTimeout) // the client itself would wait for ever
	defer cancel()
	grant, err := w.client.Grant(try, w.ttl)
	if err != nil {
		return nil, fmt.Errorf("take a lease of %d s: %w", w.ttl, err)
	}
	w.run, w.lease = rand.Text(), grant.ID
	keep, stop := context.WithCancel(context.Background())
	answers, err := w.client.KeepAlive(keep, w.lease)
	if err != nil {
		stop()
		return nil, fmt.Errorf("keep the lease: %w", err)
	}
	lost, gone := context.WithCancel(context.Background())
	w.stop = stop
	w.alive.Go(func() {
		defer gone()
		for range answers { // closed when the lease has expired, or by stop
		}
	})
	return lost, nil
}

// leave gives the lease back, with everything that goes with it.
func (w *way) leave() error {
	if w.stop == nil {
		return nil
	}
	w.stop()
	w.alive.Wait()
	w.stop = nil
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	// A lease that has expired is given back already.
	if _, err := w.client.Revoke(ctx, w.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("give back the lease, which expires after %d s: %w", w.ttl, err)
	}
	return nil
}

// put writes a key with our lease, if all conditions hold.
func (w *way) put(ctx context.Context, key, value string, conditions ...clientv3.Cmp) (done bool, revision int64, err error) {
	r, err := w.client.Txn(ctx).If(conditions...).Then(clientv3.OpPut(key, value, clientv3.WithLease(w.lease))).Commit()
	if err != nil {
		return false, 0, fmt.Errorf("write %s: %w", key, err)
	}
	return r.Succeeded, r.Header.Revision, nil
}

func exists(key string) clientv3.Cmp  { return clientv3.Compare(clientv3.CreateRevision(key), "!=", 0) }
func missing(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) }

// watch calls see for each change of the keys with a prefix, from a revision on, until
// it is done or fails. Where history has been compacted it fails with errLost, and all
// begins anew.
func (w *way) watch(ctx context.Context, prefix string, from int64, see func(e *clientv3.Event) (done bool, err error)) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for r := range w.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if r.Err() != nil {
			break
		}
		for _, e := range r.Events {
			if done, err := see(e); done || err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errLost
}

// respond registers and waits until a requester has taken this program.
func (w *way) respond(ctx context.Context, ours frame.Frame) ([]byte, error) {
	entry, err := ours.Encode()
	if err != nil {
		return nil, err
	}
	base := w.key(w.ends.Name, w.run)
	_, revision, err := w.put(ctx, base, string(entry))
	if err != nil {
		return nil, err
	}
	var claim frame.Frame // of the requester that is to confirm; Run is empty: none
	err = w.watch(ctx, base+"/", revision+1, func(e *clientv3.Event) (bool, error) {
		value := string(e.Kv.Value)
		switch what := strings.TrimPrefix(string(e.Kv.Key), base+"/"); {
		case what == "claim" && e.Type == mvccpb.DELETE: // it has died
			claim = frame.Frame{}
			_, err := w.client.Delete(ctx, base+"/accept")
			return false, err
		case what == "claim":
			f, err := frame.Decode(e.Kv.Value)
			if err == nil && (f.From != w.ends.Peer || f.To != w.ends.Name || f.Responder || f.Run == "") {
				err = fmt.Errorf("%w: it is from %.100q for %.100q", oob.ErrWrongPeer, f.From, f.To)
			}
			if err != nil {
				w.ends.Note(fmt.Sprintf("a claim in %v was rejected: %v", w, err))
				_, err := w.client.Delete(ctx, base+"/claim")
				return false, err
			}
			claim = f
			_, _, err = w.put(ctx, base+"/accept", f.Run, exists(base+"/claim"))
			return false, err
		case what == "confirm" && e.Type == mvccpb.PUT && claim.Run != "" && value == claim.Run:
			w.met, w.owner, w.revision = base, w.lease, e.Kv.ModRevision
			return true, nil
		}
		return false, nil
	})
	return claim.Body, err
}

// request looks for a responder that nobody has taken, and takes it.
func (w *way) request(ctx context.Context, ours frame.Frame) ([]byte, error) {
	claim, err := ours.Encode()
	if err != nil {
		return nil, err
	}
	seen := ours
	seen.Body = nil
	entry, err := seen.Encode()
	if err != nil {
		return nil, err
	}
	if _, _, err := w.put(ctx, w.key(w.ends.Name, w.run), string(entry)); err != nil {
		return nil, err
	}
	prefix := w.key(w.ends.Peer, "")
	for {
		all, err := w.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", prefix, err)
		}
		taken := map[string]bool{}
		for _, kv := range all.Kvs {
			// The claim goes with its requester's lease. A responder that has accepted one
			// stays taken.
			for _, what := range []string{"/claim", "/accept"} {
				if base, ok := strings.CutSuffix(string(kv.Key), what); ok {
					taken[base] = true
				}
			}
		}
		for _, kv := range all.Kvs {
			base := string(kv.Key)
			if taken[base] || !w.fits(prefix, kv) {
				continue
			}
			theirs, err := w.take(ctx, base, string(claim))
			if theirs != nil || err != nil {
				return theirs, err
			}
		}
		// Until a responder comes, or one is free again.
		err = w.watch(ctx, prefix, all.Header.Revision+1, func(e *clientv3.Event) (bool, error) {
			key := string(e.Kv.Key)
			freed := e.Type == mvccpb.DELETE && (strings.HasSuffix(key, "/claim") || strings.HasSuffix(key, "/accept"))
			return freed || e.Type == mvccpb.PUT && w.fits(prefix, e.Kv), nil
		})
		if err != nil {
			return nil, err
		}
	}
}

// fits reports whether an entry is that of a responder for this program.
func (w *way) fits(prefix string, kv *mvccpb.KeyValue) bool {
	if strings.Contains(strings.TrimPrefix(string(kv.Key), prefix), "/") {
		return false // not an entry, but what goes with one
	}
	f, err := frame.Decode(kv.Value)
	return err == nil && f.Responder && f.From == w.ends.Peer && f.To == w.ends.Name && len(f.Body) > 0
}

// take claims a responder, and waits until it has accepted. It returns nil if another
// requester was first, or the responder has gone.
func (w *way) take(ctx context.Context, base, claim string) ([]byte, error) {
	done, revision, err := w.put(ctx, base+"/claim", claim, exists(base), missing(base+"/claim"), missing(base+"/accept"))
	if err != nil || !done {
		return nil, err
	}
	accepted := false
	err = w.watch(ctx, base, revision+1, func(e *clientv3.Event) (bool, error) {
		switch key := string(e.Kv.Key); {
		case key == base+"/accept" && e.Type == mvccpb.PUT && string(e.Kv.Value) == w.run:
			accepted = true
			return true, nil
		case (key == base || key == base+"/claim") && e.Type == mvccpb.DELETE:
			return true, nil
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	if accepted {
		accepted, revision, err = w.put(ctx, base+"/confirm", w.run, exists(base), exists(base+"/claim"))
		if err != nil {
			return nil, err
		}
	}
	if !accepted {
		_, err := w.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(base+"/claim"), "=", claim)).Then(clientv3.OpDelete(base + "/claim")).Commit()
		return nil, err
	}
	r, err := w.client.Get(ctx, base)
	if err != nil || len(r.Kvs) == 0 {
		return nil, err
	}
	f, err := frame.Decode(r.Kvs[0].Value)
	if err != nil {
		return nil, err
	}
	w.met, w.owner, w.revision = base, clientv3.LeaseID(r.Kvs[0].Lease), revision
	return f.Body, nil
}

// look notes programs that are there, alive, and wait for others than this one: it is
// what somebody sees who has started the wrong two. A program with several peers has an
// entry for each, so one whose counterpart is there too is nobody's mistake.
func (w *way) look(ctx context.Context) {
	all, err := w.client.Get(ctx, w.prefix+"/", clientv3.WithPrefix(), clientv3.WithLimit(maxLook))
	if err != nil {
		return
	}
	type pair struct{ from, to string }
	there := map[pair]bool{}
	var entries []frame.Frame
	for _, kv := range all.Kvs {
		f, err := frame.Decode(kv.Value)
		if err == nil && strings.Count(strings.TrimPrefix(string(kv.Key), w.prefix+"/"), "/") == 1 {
			there[pair{f.From, f.To}] = true
			entries = append(entries, f)
		}
	}
	us, them := w.ends.Name, w.ends.Peer
	noted := map[string]bool{}
	for _, f := range entries {
		wrong := false
		switch {
		case f.Run == w.run:
		case f.From == them && f.To == us:
			wrong = f.Responder == (w.ends.Role == oob.Responder)
		case f.From == them:
			wrong = !there[pair{f.To, them}] && !there[pair{them, us}]
		case f.To == us:
			wrong = !there[pair{us, f.From}]
		}
		text := fmt.Sprintf("%s is in %v, a %v that waits for %s, while this %v waits for %s: start the two programs of a pair",
			f.From, w, roleOf(f), f.To, w.ends.Role, them)
		if wrong && !noted[text] {
			noted[text] = true
			w.ends.Note(text)
		}
	}
}

func roleOf(f frame.Frame) oob.Role {
	if f.Responder {
		return oob.Responder
	}
	return oob.Requester
}

// Done implements oob.Way.
func (w *way) Done(ctx context.Context) error {
	ended := fmt.Errorf("%s has ended without saying how", w.ends.Peer)
	outcome := func(value string) error {
		if value == "succeeded" {
			return nil
		}
		return fmt.Errorf("%s: %w", w.ends.Peer, oob.ErrPeerFailed)
	}
	away := false
	for {
		all, err := w.client.Get(ctx, w.met+"/", clientv3.WithPrefix())
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if unavailable(err) {
			if !away {
				away = true
				w.ends.Note(fmt.Sprintf("%v cannot be reached, trying again: %v", w, err))
			}
			select {
			case <-time.After(retryInterval):
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		away = false
		if err != nil {
			return fmt.Errorf("read %s: %w", w.met, err)
		}
		confirmed := false
		for _, kv := range all.Kvs {
			switch string(kv.Key) {
			case w.met + "/outcome":
				return outcome(string(kv.Value))
			case w.met + "/confirm":
				confirmed = true
			}
		}
		if !confirmed {
			return ended
		}
		var result error
		err = w.watch(ctx, w.met+"/", all.Header.Revision+1, func(e *clientv3.Event) (bool, error) {
			switch key := string(e.Kv.Key); {
			case key == w.met+"/outcome" && e.Type == mvccpb.PUT:
				result = outcome(string(e.Kv.Value))
				return true, nil
			case key == w.met+"/confirm" && e.Type == mvccpb.DELETE:
				result = ended
				return true, nil
			}
			return false, nil
		})
		switch {
		case err == nil:
			return result
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errLost):
			return err
		}
	}
}

// Close implements oob.Way.
func (w *way) Close(ok bool) error {
	var errs []error
	if w.met != "" && w.ends.Role == oob.Requester {
		value := "failed"
		if ok {
			value = "succeeded"
		}
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		// A responder that has gone does not need to know.
		_, err := w.client.Txn(ctx).If(exists(w.met)).Then(clientv3.OpPut(w.met+"/outcome", value, clientv3.WithLease(w.owner))).Commit()
		if err != nil {
			errs = append(errs, fmt.Errorf("report the end to %s: %w", w.ends.Peer, err))
		}
	}
	return errors.Join(append(errs, w.leave())...)
}
