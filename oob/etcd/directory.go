package etcd

import (
	"cmp"
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-rdma/verbena/transfer"
)

// agents has an entry for each agent, at PREFIX/NAME.
type agents struct {
	client *clientv3.Client
	cfg    Config
}

// NewDirectory returns a transfer.Directory in the cluster of a client. The prefix of its keys is
// "/verbena/transfer" if that of the Config is empty. The entry of a killed program expires as Config.TTL
// says. If it expires because the cluster could not be reached, the program enters again,
// unless another agent has taken the name.
func NewDirectory(client *clientv3.Client, cfg Config) transfer.Directory {
	cfg.Prefix = cmp.Or(cfg.Prefix, "/verbena/transfer")
	return agents{client, cfg}
}

// Publish implements transfer.Directory. The withdrawal asks the cluster, and returns when it is done.
func (d agents) Publish(ctx context.Context, name string, e transfer.Entry) (withdraw func() error, err error) {
	value, err := e.MarshalText()
	if err != nil {
		return nil, err
	}
	w := newCarrier(d.client, d.cfg)
	enter := func(ctx context.Context, conditions ...clientv3.Cmp) (lost context.Context, done bool, err error) {
		if lost, err = w.register(ctx); err != nil {
			return nil, false, err
		}
		if done, _, err = w.put(ctx, w.prefix+"/"+name, string(value), conditions...); err != nil {
			_ = w.revokeLease() // which expires
		}
		return lost, done, err
	}
	lost, _, err := enter(ctx)
	if err != nil {
		return nil, err
	}
	keep, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for done := true; done; {
			select {
			case <-keep.Done():
				return
			case <-lost.Done():
			}
			_ = w.revokeLease() // ends what kept it
			for {
				if lost, done, err = enter(keep, missing(w.prefix+"/"+name)); err == nil {
					break
				}
				select {
				case <-keep.Done():
					return
				case <-time.After(retryInterval):
				}
			}
		}
	}()
	return func() error { stop(); <-ended; return w.revokeLease() }, nil
}

// Find implements transfer.Directory.
func (d agents) Find(ctx context.Context, name string) (e transfer.Entry, err error) {
	key := newCarrier(d.client, d.cfg).prefix + "/" + name
	r, err := d.client.Get(ctx, key)
	switch {
	case err != nil:
		return e, fmt.Errorf("read %s: %w", key, err)
	case len(r.Kvs) == 0:
		return e, fmt.Errorf("%w: etcd has no key %s", transfer.ErrNoAgent, key)
	}
	if err = e.UnmarshalText(r.Kvs[0].Value); err != nil {
		return transfer.Entry{}, fmt.Errorf("read %s: %w", key, err)
	}
	return e, nil
}
