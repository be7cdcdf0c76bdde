// Package etcd implements an oob.Way through an etcd cluster: any number of programs, on any
// number of hosts, find each other by name. It is a separate module, so that other programs
// do not get its dependencies.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"etcd-host:2379"}})
//	peer, err := oob.New(etcd.New(client, etcd.Config{}), oob.Config{Name: "client", Peer: "server"})
//
// A responder registers under its name, with its bundle and a lease that it keeps alive:
// the entry of a killed program expires. A requester claims a responder of the peer's
// name that is not claimed yet, and each confirms the other, so that neither is paired
// with a program that has died. The programs may start in any order, and be restarted.
//
// # Several peers
//
// A Way is for one pair. A program that serves several peers of one name opens one oob.Peer
// for each, and another whenever one has found its peer. Requesters claim the entries of
// responders, the oldest first. If every program connects to every other, each opens an
// oob.Peer for each other name; of two programs, the one with the lesser name can be the
// requester.
//
// A program that keeps running after a peer has died closes its oob.Peer, on a goroutine of
// its own, when the connection is reported Closed. It then opens another, which waits until
// the peer has been restarted.
//
// # Trust
//
// A program that can read the directory can read the memory keys in it, and one that can
// write to it can pretend to be a peer: use TLS and etcd's users. Input is limited in size
// and decoded strictly.
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

// Config configures a Way. The zero value is usable.
type Config struct {
	// Prefix is the prefix of all keys; both programs need the same. Empty:
	// "/verbena/oob".
	Prefix string
	// TTL is the minimum time until the entry of a killed program expires, rounded up to
	// whole seconds. Zero: 5 s.
	TTL time.Duration
}

const (
	defaultPrefix = "/verbena/oob"
	defaultTTL    = 5 * time.Second
	// closeTimeout bounds each request of Close, and the request for a lease.
	closeTimeout = 5 * time.Second
	// retryInterval is how long to wait after an error of the cluster.
	retryInterval = 500 * time.Millisecond
	// noteDelay is how long to wait before looking for programs of a wrong pair, and
	// maxEntries is how many entries are read.
	noteDelay  = 2 * time.Second
	maxEntries = 1000
)

// errLeaseLost makes Exchange register the program again.
var errLeaseLost = errors.New("the lease has expired")

// carrier is the exchange of two programs. The keys of a responder whose run is R:
//
//	PREFIX/NAME/R           the responder's frame, with its bundle
//	PREFIX/NAME/R/claim     the frame of the requester that claims it, with its bundle
//	PREFIX/NAME/R/accept    the requester's run, once the responder has seen the claim
//	PREFIX/NAME/R/confirm   the requester's run, once the requester has seen accept
//	PREFIX/NAME/R/outcome   the requester's report
//
// A requester has only PREFIX/NAME/R, without a bundle, so that others can see it. Claims and
// confirmations expire with the requester's lease, all other keys with the responder's.
type carrier struct {
	client *clientv3.Client
	prefix string
	ttl    int64
	ends   oob.Ends

	run            string
	lease          clientv3.LeaseID
	stop           context.CancelFunc // ends the keepalive
	keepAlive      sync.WaitGroup
	responderKey   string           // PREFIX/NAME/R of the responder, once confirmed
	responderLease clientv3.LeaseID // the responder's lease
}

// New returns a Way through the cluster of a client. The caller closes the client, after the
// oob.Peer.
func New(client *clientv3.Client, cfg Config) oob.Way { return oob.Carried(newCarrier(client, cfg)) }

func newCarrier(client *clientv3.Client, cfg Config) *carrier {
	w := &carrier{client: client, prefix: strings.TrimRight(cfg.Prefix, "/"), ttl: int64((cfg.TTL + time.Second - 1) / time.Second)}
	if w.prefix == "" {
		w.prefix = defaultPrefix
	}
	if w.ttl <= 0 {
		w.ttl = int64(defaultTTL / time.Second)
	}
	return w
}

func (w *carrier) String() string { return "the etcd directory " + w.prefix }

func (w *carrier) key(name, run string) string { return w.prefix + "/" + name + "/" + run }

// Exchange implements oob.Carrier.
func (w *carrier) Exchange(ctx context.Context, ends oob.Ends, ours []byte) ([]byte, error) {
	w.ends = ends
	unreachable := false
	for {
		theirs, err := w.attempt(ctx, ours)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case unavailable(err):
			if !unreachable {
				unreachable = true
				ends.Note(fmt.Sprintf("%v cannot be reached, trying again: %v", w, err))
			}
		case !errors.Is(err, errLeaseLost) && !errors.Is(err, rpctypes.ErrLeaseNotFound):
			return theirs, err
		}
		_ = w.revokeLease() // after an error the keys expire
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// unavailable reports whether the cluster could not be reached, or has no leader.
func unavailable(err error) bool {
	var e rpctypes.EtcdError
	return errors.As(err, &e) && e.Code() == codes.Unavailable || status.Code(err) == codes.Unavailable ||
		errors.Is(err, context.DeadlineExceeded)
}

// attempt registers this program, and exchanges with a peer.
func (w *carrier) attempt(ctx context.Context, ours []byte) ([]byte, error) {
	lost, err := w.register(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(lost, func() { cancel(errLeaseLost) })()
	var looking sync.WaitGroup
	looking.Go(func() {
		select {
		case <-time.After(noteDelay):
			w.noteWrongPairs(ctx)
		case <-ctx.Done():
		}
	})
	defer looking.Wait()
	defer cancel(nil) // runs before looking.Wait
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

// register takes a lease and keeps it alive until revokeLease. The returned context ends when the
// lease is lost.
func (w *carrier) register(ctx context.Context) (lost context.Context, err error) {
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
	w.keepAlive.Go(func() {
		defer gone()
		for range answers { // closed when the lease has expired, or by stop
		}
	})
	return lost, nil
}

// revokeLease revokes the lease, which removes all keys under it.
func (w *carrier) revokeLease() error {
	if w.stop == nil {
		return nil
	}
	w.stop()
	w.keepAlive.Wait()
	w.stop = nil
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	// An expired lease needs no revocation.
	if _, err := w.client.Revoke(ctx, w.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke the lease, which expires after %d s: %w", w.ttl, err)
	}
	return nil
}

// put writes a key under our lease, if all conditions hold.
func (w *carrier) put(ctx context.Context, key, value string, conditions ...clientv3.Cmp) (done bool, revision int64, err error) {
	r, err := w.client.Txn(ctx).If(conditions...).Then(clientv3.OpPut(key, value, clientv3.WithLease(w.lease))).Commit()
	if err != nil {
		return false, 0, fmt.Errorf("write %s: %w", key, err)
	}
	return r.Succeeded, r.Header.Revision, nil
}

func exists(key string) clientv3.Cmp  { return clientv3.Compare(clientv3.CreateRevision(key), "!=", 0) }
func missing(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) }

// watch calls see for each change of the keys with a prefix, from a revision on, until see is
// done or fails. If the history was compacted, or the watch was lost, it fails with errLeaseLost, and
// the caller starts again.
func (w *carrier) watch(ctx context.Context, prefix string, from int64, see func(e *clientv3.Event) (done bool, err error)) error {
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
	return errLeaseLost
}

// respond registers this program, and waits until a requester has claimed and confirmed it.
func (w *carrier) respond(ctx context.Context, ours frame.Frame) ([]byte, error) {
	entry, err := ours.Encode()
	if err != nil {
		return nil, err
	}
	base := w.key(w.ends.Name, w.run)
	_, revision, err := w.put(ctx, base, string(entry))
	if err != nil {
		return nil, err
	}
	var claim frame.Frame // of the requester that has to confirm; empty Run: none
	err = w.watch(ctx, base+"/", revision+1, func(e *clientv3.Event) (bool, error) {
		value := string(e.Kv.Value)
		switch what := strings.TrimPrefix(string(e.Kv.Key), base+"/"); {
		case what == "claim" && e.Type == mvccpb.DELETE: // the requester has died
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
			w.responderKey, w.responderLease = base, w.lease
			return true, nil
		}
		return false, nil
	})
	return claim.Body, err
}

// request looks for a responder that is not claimed, and claims it.
func (w *carrier) request(ctx context.Context, ours frame.Frame) ([]byte, error) {
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
			// A claim expires with its requester's lease. A responder that has accepted a claim
			// stays taken.
			for _, what := range []string{"/claim", "/accept"} {
				if base, ok := strings.CutSuffix(string(kv.Key), what); ok {
					taken[base] = true
				}
			}
		}
		for _, kv := range all.Kvs {
			base := string(kv.Key)
			if taken[base] || !w.isWaitingResponder(prefix, kv) {
				continue
			}
			theirs, err := w.claim(ctx, base, string(claim))
			if theirs != nil || err != nil {
				return theirs, err
			}
		}
		// Wait until a responder registers, or becomes free again.
		err = w.watch(ctx, prefix, all.Header.Revision+1, func(e *clientv3.Event) (bool, error) {
			key := string(e.Kv.Key)
			freed := e.Type == mvccpb.DELETE && (strings.HasSuffix(key, "/claim") || strings.HasSuffix(key, "/accept"))
			return freed || e.Type == mvccpb.PUT && w.isWaitingResponder(prefix, e.Kv), nil
		})
		if err != nil {
			return nil, err
		}
	}
}

// isWaitingResponder reports whether an entry is of a responder that waits for this program.
func (w *carrier) isWaitingResponder(prefix string, kv *mvccpb.KeyValue) bool {
	if strings.Contains(strings.TrimPrefix(string(kv.Key), prefix), "/") {
		return false // a claim or the like, not an entry
	}
	f, err := frame.Decode(kv.Value)
	return err == nil && f.Responder && f.From == w.ends.Peer && f.To == w.ends.Name && len(f.Body) > 0
}

// claim claims a responder, and waits until the responder has accepted. It returns nil if another
// requester was faster, or the responder has ended.
func (w *carrier) claim(ctx context.Context, base, claim string) ([]byte, error) {
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
		accepted, _, err = w.put(ctx, base+"/confirm", w.run, exists(base), exists(base+"/claim"))
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
	w.responderKey, w.responderLease = base, clientv3.LeaseID(r.Kvs[0].Lease)
	return f.Body, nil
}

// noteWrongPairs notes live programs that wait for programs other than this one, to help a person who
// has started the wrong two. A program with several peers has an entry for each, so an entry
// whose counterpart is also registered is no mistake.
func (w *carrier) noteWrongPairs(ctx context.Context) {
	all, err := w.client.Get(ctx, w.prefix+"/", clientv3.WithPrefix(), clientv3.WithLimit(maxEntries))
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
		text := fmt.Sprintf("%s also uses %v: it is a %v and waits for %s, but this %v waits for %s: start the two programs of a pair",
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

// Done implements oob.Carrier.
func (w *carrier) Done(ctx context.Context) error {
	unreachable := false
	for {
		all, err := w.client.Get(ctx, w.responderKey+"/", clientv3.WithPrefix())
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if unavailable(err) {
			if !unreachable {
				unreachable = true
				w.ends.Note(fmt.Sprintf("%v cannot be reached, trying again: %v", w, err))
			}
			select {
			case <-time.After(retryInterval):
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		unreachable = false
		if err != nil {
			return fmt.Errorf("read %s: %w", w.responderKey, err)
		}
		keys := map[string]string{}
		for _, kv := range all.Kvs {
			keys[strings.TrimPrefix(string(kv.Key), w.responderKey)] = string(kv.Value)
		}
		outcome, reported := keys["/outcome"]
		_, confirmed := keys["/confirm"]
		switch {
		case outcome == "succeeded":
			return nil
		case reported:
			return fmt.Errorf("%s: %w", w.ends.Peer, oob.ErrPeerFailed)
		case !confirmed:
			return fmt.Errorf("%s ended without reporting whether it succeeded", w.ends.Peer)
		}
		changed := func(*clientv3.Event) (bool, error) { return true, nil }
		switch err := w.watch(ctx, w.responderKey+"/", all.Header.Revision+1, changed); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !errors.Is(err, errLeaseLost):
			return err
		}
	}
}

// Close implements oob.Carrier.
func (w *carrier) Close(ok bool) error {
	var errs []error
	if w.responderKey != "" && w.ends.Role == oob.Requester {
		value := "failed"
		if ok {
			value = "succeeded"
		}
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		// A responder that has ended does not need the report.
		_, err := w.client.Txn(ctx).If(exists(w.responderKey)).Then(clientv3.OpPut(w.responderKey+"/outcome", value, clientv3.WithLease(w.responderLease))).Commit()
		if err != nil {
			errs = append(errs, fmt.Errorf("report the end to %s: %w", w.ends.Peer, err))
		}
	}
	return errors.Join(append(errs, w.revokeLease())...)
}
