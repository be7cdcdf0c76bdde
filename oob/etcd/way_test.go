package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/oob/internal/frame"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// endpoint is where the server of the tests listens.
var endpoint string

func TestMain(m *testing.M) {
	if runProgram() {
		return
	}
	stop, err := serve("127.0.0.1")
	if err != nil {
		panic(err)
	}
	// What the server has running ends with it, not at once.
	goleak.VerifyTestMain(stopping{m, stop}, goleak.IgnoreAnyFunction("go.etcd.io/etcd/server/v3/embed.(*Etcd).errHandler"))
}

// stopping stops the server when the tests have run.
type stopping struct {
	m    *testing.M
	stop func()
}

func (s stopping) Run() int {
	code := s.m.Run()
	s.stop()
	return code
}

// serve starts a server that listens at an address of this host.
func serve(host string) (stop func(), err error) {
	dir, err := mkdir()
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = true
	for _, urls := range []*[]url.URL{&cfg.ListenClientUrls, &cfg.ListenPeerUrls} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, err
		}
		*urls = []url.URL{{Scheme: "http", Host: l.Addr().String()}}
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = cfg.ListenClientUrls, cfg.ListenPeerUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	<-server.Server.ReadyNotify()
	endpoint = cfg.ListenClientUrls[0].Host
	return func() {
		server.Close()
		<-server.Server.StopNotify()
		_ = rmdir(dir)
	}, nil
}

func newClient(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// directory is one for a test of its own. Programs whose lease expires, since the machine
// stands still for longer, would begin anew, or be given up by their peers.
func directory(t *testing.T) Config {
	return Config{Prefix: "/test/" + t.Name(), TTL: 5 * time.Minute}
}

// expiring is one for programs that are killed.
func expiring(t *testing.T) Config {
	return Config{Prefix: "/test/" + t.Name(), TTL: 2 * time.Second}
}

func requester() oob.Ends {
	return oob.Ends{Name: "client", Peer: "server", Role: oob.Requester, Note: func(string) {}}
}

func responder() oob.Ends {
	return oob.Ends{Name: "server", Peer: "client", Role: oob.Responder, Note: func(string) {}}
}

func forever(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// exchange begins an exchange; the result comes later.
func exchange(t *testing.T, w *carrier, ends oob.Ends, ours string) func() (string, error) {
	t.Helper()
	type result struct {
		theirs []byte
		err    error
	}
	c := make(chan result, 1)
	ctx := forever(t)
	go func() {
		theirs, err := w.Exchange(ctx, ends, []byte(ours))
		c <- result{theirs, err}
	}()
	return func() (string, error) { r := <-c; return string(r.theirs), r.err }
}

func assertEmpty(t *testing.T, c *clientv3.Client, cfg Config) {
	t.Helper()
	all, err := c.Get(forever(t), cfg.Prefix+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	assert.Empty(t, all.Kvs)
}

// kill has a program end without a word: its lease expires.
func kill(e *carrier) {
	e.stop()
	e.keepAlive.Wait()
}

func TestMeet(t *testing.T) {
	c, cfg := newClient(t), directory(t)
	for _, first := range []oob.Role{oob.Requester, oob.Responder} {
		for _, ok := range []bool{true, false} {
			a, b := newCarrier(c, cfg), newCarrier(newClient(t), cfg)
			var gotA, gotB func() (string, error)
			if first == oob.Requester {
				gotA = exchange(t, a, requester(), "of client")
				time.Sleep(50 * time.Millisecond)
			}
			gotB = exchange(t, b, responder(), "of server")
			if first == oob.Responder {
				time.Sleep(50 * time.Millisecond)
				gotA = exchange(t, a, requester(), "of client")
			}
			theirs, err := gotA()
			require.NoError(t, err)
			assert.Equal(t, "of server", theirs)
			theirs, err = gotB()
			require.NoError(t, err)
			assert.Equal(t, "of client", theirs)

			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			require.ErrorIs(t, b.Done(short), context.DeadlineExceeded)
			cancel()
			require.NoError(t, a.Close(ok))
			if err := b.Done(forever(t)); ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, oob.ErrPeerFailed)
			}
			require.NoError(t, b.Close(ok))
			assertEmpty(t, c, cfg)
		}
	}
}

// Any number of one name share each other out, each pair with its own.
func TestSeveralPeers(t *testing.T) {
	const n = 12
	c, cfg := newClient(t), directory(t)
	var mu sync.Mutex
	pairs := map[string]int{}
	var all sync.WaitGroup
	for i := range 2 * n {
		all.Go(func() {
			w, ends := newCarrier(c, cfg), requester()
			if i%2 == 0 {
				ends = responder()
			}
			ours := fmt.Sprintf("%d", i)
			theirs, err := w.Exchange(forever(t), ends, []byte(ours))
			assert.NoError(t, err)
			if i%2 == 0 {
				ours, theirs = string(theirs), []byte(ours)
			}
			mu.Lock()
			pairs[ours+" with "+string(theirs)]++
			mu.Unlock()
			if ends.Role == oob.Responder {
				assert.NoError(t, w.Done(forever(t)))
			}
			assert.NoError(t, w.Close(true))
		})
	}
	all.Wait()
	assert.Len(t, pairs, n)
	for pair, times := range pairs {
		assert.Equal(t, 2, times, pair)
	}
	assertEmpty(t, c, cfg)
}

// A responder that was killed is not waited for for ever, and one that is started again
// is found.
func TestResponderKilledAndRestarted(t *testing.T) {
	c, cfg := newClient(t), expiring(t)
	dead := newCarrier(c, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := dead.Exchange(ctx, responder(), []byte("of the dead"))
		gone <- err
	}()
	require.Eventually(t, func() bool {
		all, err := c.Get(forever(t), cfg.Prefix+"/", clientv3.WithPrefix())
		return err == nil && len(all.Kvs) == 1
	}, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	kill(dead) // its entry is still there

	a, again := newCarrier(c, cfg), newCarrier(c, directory(t))
	got := exchange(t, a, requester(), "of client")
	time.Sleep(50 * time.Millisecond)
	gotB := exchange(t, again, responder(), "of server")
	theirs, err := got()
	require.NoError(t, err)
	assert.Equal(t, "of server", theirs)
	theirs, err = gotB()
	require.NoError(t, err)
	assert.Equal(t, "of client", theirs)

	// Killed after they have met: nobody says how it ended.
	kill(a)
	require.ErrorContains(t, again.Done(forever(t)), "ended without reporting whether it succeeded")
	require.NoError(t, again.Close(true))
}

// A requester that was killed when it had taken a responder leaves it to the next.
func TestRequesterKilled(t *testing.T) {
	c, cfg := newClient(t), directory(t)
	b := newCarrier(c, cfg)
	got := exchange(t, b, responder(), "of server")
	var base string
	require.Eventually(t, func() bool {
		all, err := c.Get(forever(t), cfg.Prefix+"/server/", clientv3.WithPrefix())
		if err == nil && len(all.Kvs) == 1 {
			base = string(all.Kvs[0].Key)
		}
		return base != ""
	}, time.Minute, time.Millisecond)
	lease, err := c.Grant(forever(t), 1)
	require.NoError(t, err)
	claim, err := (&frame.Frame{From: "client", To: "server", Run: "dead", Body: []byte("of the dead")}).Encode()
	require.NoError(t, err)
	_, err = c.Put(forever(t), base+"/claim", string(claim), clientv3.WithLease(lease.ID))
	require.NoError(t, err)

	a := newCarrier(c, cfg)
	theirs, err := exchange(t, a, requester(), "of client")()
	require.NoError(t, err)
	assert.Equal(t, "of server", theirs)
	theirs, err = got()
	require.NoError(t, err)
	assert.Equal(t, "of client", theirs)
	require.NoError(t, errors.Join(a.Close(true), b.Close(true)))
	assertEmpty(t, c, cfg)
}

// A program that the cluster took for dead registers again.
func TestLeaseLost(t *testing.T) {
	c, cfg := newClient(t), directory(t)
	cfg.TTL = 6 * time.Second // a third of it passes until it is noticed
	b := newCarrier(c, cfg)
	got := exchange(t, b, responder(), "of server")
	var lease clientv3.LeaseID
	require.Eventually(t, func() bool {
		all, err := c.Get(forever(t), cfg.Prefix+"/server/", clientv3.WithPrefix())
		if err == nil && len(all.Kvs) == 1 {
			lease = clientv3.LeaseID(all.Kvs[0].Lease)
		}
		return lease != 0
	}, time.Minute, time.Millisecond)
	_, err := c.Revoke(forever(t), lease)
	require.NoError(t, err)
	a := newCarrier(c, cfg)
	_, err = exchange(t, a, requester(), "of client")()
	require.NoError(t, err)
	_, err = got()
	require.NoError(t, err)
	require.NoError(t, errors.Join(a.Close(true), b.Close(true)))
	assertEmpty(t, c, cfg)
}

// What others have written is not taken for an entry, and a claim that is none is
// removed.
func TestHostileEntries(t *testing.T) {
	c, cfg := newClient(t), directory(t)
	put := func(key, value string) {
		_, err := c.Put(forever(t), cfg.Prefix+key, value)
		require.NoError(t, err)
	}
	other, err := (&frame.Frame{From: "server", To: "other", Responder: true, Run: "r", Body: []byte("x")}).Encode()
	require.NoError(t, err)
	huge := strings.Repeat("x", 1<<20)
	for key, value := range map[string]string{
		"/server/garbage": "garbage", "/server/huge": huge, "/server/other": string(other), "/server/": "x", "/server/a/b/c": "x", "/client/x": huge,
	} {
		put(key, value)
	}
	var mu sync.Mutex
	var notes []string
	ends := responder()
	ends.Note = func(text string) { mu.Lock(); notes = append(notes, text); mu.Unlock() }
	b := newCarrier(c, cfg)
	got := exchange(t, b, ends, "of server")
	var base string
	require.Eventually(t, func() bool {
		all, err := c.Get(forever(t), cfg.Prefix+"/server/", clientv3.WithPrefix())
		require.NoError(t, err)
		for _, kv := range all.Kvs {
			if f, err := frame.Decode(kv.Value); err == nil && f.To == "client" {
				base = strings.TrimPrefix(string(kv.Key), cfg.Prefix)
			}
		}
		return base != ""
	}, time.Minute, time.Millisecond)
	for _, claim := range []string{"garbage", string(other), huge} {
		put(base+"/confirm", "r")
		put(base+"/claim", claim)
	}
	a := newCarrier(c, cfg)
	theirs, err := exchange(t, a, requester(), "of client")()
	require.NoError(t, err)
	assert.Equal(t, "of server", theirs)
	theirs, err = got()
	require.NoError(t, err)
	assert.Equal(t, "of client", theirs)
	require.NoError(t, errors.Join(a.Close(true), b.Close(true)))
	mu.Lock()
	assert.Contains(t, strings.Join(notes, "\n"), "was rejected")
	mu.Unlock()
}

// A wrong pair is named, and a wait can be given up.
func TestWrongPair(t *testing.T) {
	c, cfg := newClient(t), directory(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	notes := make(chan string, 10)
	var both sync.WaitGroup
	for _, ends := range []oob.Ends{
		{Name: "client", Peer: "server", Role: oob.Requester, Note: func(text string) { notes <- text }},
		{Name: "server", Peer: "other", Role: oob.Responder, Note: func(string) {}},
	} {
		both.Go(func() {
			w := newCarrier(c, cfg)
			_, err := w.Exchange(ctx, ends, []byte("x"))
			assert.ErrorIs(t, err, context.Canceled)
			assert.NoError(t, w.Close(false))
		})
	}
	assert.Contains(t, <-notes, "it is a responder and waits for other, but this requester waits for server")
	cancel()
	both.Wait()
	assertEmpty(t, c, cfg)
	require.NoError(t, newCarrier(c, cfg).Close(false), "never used")
}

// Of three programs that each have a Peer for each other, two wait for the third: that
// they are there for each other too is no wrong pair.
func TestNoWrongPairAmongSeveral(t *testing.T) {
	c, cfg := newClient(t), directory(t)
	var notes []string
	note := func(text string) { notes = append(notes, text) }
	enter := func(name, peer string, role oob.Role) *carrier {
		w := newCarrier(c, cfg)
		w.ends = oob.Ends{Name: name, Peer: peer, Role: role, Note: note}
		_, err := w.register(forever(t))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, w.revokeLease()) })
		entry, err := (&frame.Frame{From: name, To: peer, Responder: role == oob.Responder, Run: w.run}).Encode()
		require.NoError(t, err)
		_, _, err = w.put(forever(t), w.key(name, w.run), string(entry))
		require.NoError(t, err)
		return w
	}
	all := []*carrier{
		enter("a", "b", oob.Requester), enter("a", "c", oob.Requester),
		enter("b", "a", oob.Responder), enter("b", "c", oob.Requester),
	}
	for _, w := range all {
		w.noteWrongPairs(forever(t))
	}
	assert.Empty(t, notes)
	all = append(all, enter("c", "b", oob.Responder), enter("c", "a", oob.Requester)) // the last should be a responder
	for _, w := range all {
		w.noteWrongPairs(forever(t))
	}
	require.NotEmpty(t, notes)
	for _, text := range notes {
		assert.Regexp(t, "^(c also uses .* it is a requester and waits for a, but this requester|a also uses .* it is a requester and waits for c, but this requester) ", text)
	}
}

// Where there is no cluster, it is waited for.
func TestNoCluster(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ends := requester()
	ends.Note = func(text string) {
		assert.Contains(t, text, "cannot be reached")
		cancel()
	}
	w := newCarrier(c, directory(t))
	_, err = w.Exchange(ctx, ends, []byte("x"))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, w.Close(false))
	require.NoError(t, c.Close())
}

// Two RDMA programs that know each other's names.
func TestPeers(t *testing.T) {
	cfg := directory(t)
	run := func(ends oob.Ends) error {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		dev, err := device.Open("soft-lo")
		if err != nil {
			return err
		}
		engine := pe.New(pe.Config{})
		r, err := rdma.New(dev, rdma.Config{Engine: engine})
		if err != nil {
			return err
		}
		peer, err := oob.New(New(client, cfg), oob.Config{Name: ends.Name, Peer: ends.Peer, Role: ends.Role})
		if err != nil {
			return err
		}
		r.OnStateChange(func(_, next pe.State) {
			switch next {
			case pe.Starting:
				peer.Connect(r, func(_ *rdma.Connection, _ *mmap.Map, err error) { r.Fail(err) })
			case pe.Running:
				if ends.Role == oob.Requester {
					r.Stop()
					return
				}
				peer.Done(func(err error) { r.Fail(err); r.Stop() })
			}
		})
		if err = r.Start(); err == nil {
			err = engine.Run(forever(t))
		}
		return errors.Join(err, peer.Close(err), engine.Close(), dev.Close(), client.Close())
	}
	done := make(chan error)
	go func() { done <- run(requester()) }()
	require.NoError(t, run(responder()))
	require.NoError(t, <-done)
}
